"""The generated pages of the documentation site: the reference, and the pages of files outside of docs/.

This is a hook of mkdocs (see mkdocs.yml), so that the pages are generated at every build. Commands are read from the parser of
the command line, settings from the same fields as `--help`.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "results.md": "RESULTS.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples/course.md": "examples/course/README.md",
}
"""The pages of the site that are files of the repository."""
EXIT_CODES = """\
| exit code | meaning |
|---|---|
| 0 | finished |
| 1 | failed |
| 2 | wrong usage: an option, a setting, a path or a file |
| 75 | stopped at `--runtime.time-limit`, saved |
| 130, 143 | interrupted (Ctrl-C), terminated (SIGTERM); a training is saved first |
| 141 | the reader of the output has closed the pipe |"""
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(ROOT / "src"))
    made = {page: rehung((ROOT / source).read_text(encoding="utf-8"), source, page) for page, source in PAGES.items()}
    made |= {"reference/commands.md": commands(), "reference/settings.md": settings()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / "examples").glob("*.*")):
        files.append(File.generated(config, f"examples/{path.name}", content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - mkdocs names them
    """Replace links of docs/ to files outside of it by links to their pages."""
    uri = page.file.src_uri
    return markdown if uri in PAGES else rehung(markdown, f"docs/{uri}", uri)


def rehung(markdown: str, source: str, page: str) -> str:
    """Adapt the links of a file of the repository to its page on the site.

    >>> rehung("see [this](docs/serve.md#the-api) and [that](CHANGELOG.md)", "README.md", "how-to/x.md")
    'see [this](../serve.md#the-api) and [that](../changelog.md)'
    """
    pages = {file: name for name, file in PAGES.items()}

    def moved(match: re.Match[str]) -> str:
        before, target, anchor, after = match[1], match[2], match[3] or "", match[4]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        name = pages.get(file) or (file.removeprefix("docs/") if file.startswith(("docs/", "examples/")) else None)
        if name is None:
            return match[0]
        return f"{before}{posixpath.relpath(name, posixpath.dirname(page) or '.')}{anchor}{after}"

    return _LINK.sub(moved, markdown)


def commands() -> str:
    """Return every command with its arguments and options, as in its --help."""
    from headstart.cli.commands import COMMANDS, SUMMARY
    from headstart.cli.main import build_command_app

    text: str = build_command_app().generate_docs(output_format="markdown", recursive=True)
    parts = re.split(r"^## headstart (\S+)$", text, flags=re.MULTILINE)[1:]
    match = dict(zip(parts[::2], parts[1::2], strict=True))
    pages = ["# Commands", SUMMARY + " Every command takes `--help` and `--help-all`.", EXIT_CODES]
    for name, usage, summary, (example, *_), _ in COMMANDS:
        options = match[name].split(f"Example: {example}", 1)[1].strip()
        pages += [
            f"## headstart {name}",
            summary,
            f"```text\nheadstart {name} {usage}\n```",
            f"For example: `{example}`",
            re.sub(r"^\*\*(\w+)\*\*:$", r"**\1**", options, flags=re.MULTILINE),
        ]
    return "\n\n".join(pages) + "\n"


def settings() -> str:
    """Return every setting by section: name, values, default and description; then the settings of the presets."""
    from headstart.config.schema import FinetuneConfig, PretrainConfig
    from headstart.serve.config import ServeCommandConfig

    kinds: list[tuple[str, Any]] = [
        ("Pretraining", PretrainConfig),
        ("Fine-tuning and comparing", FinetuneConfig),
        ("Serving", ServeCommandConfig),
    ]
    pages = [
        "# Settings",
        "A setting has one name everywhere: `--model.depth 6` on the command line, `depth = 6` under `[model]` in `headstart.toml`, "
        '`{"model.depth": 6}` in Python. In TOML, `[pretrain.model]` and `[finetune.model]` apply to that command only. If a setting is '
        "given several times, the last of these wins: defaults, `--preset`, the TOML file, the command line.",
    ]
    seen: set[tuple[str, str]] = set()
    for title, kind in kinds:
        pages.append(f"## {title}")
        own = [name for name, field in kind.model_fields.items() if not _section(field.annotation)]
        if own:
            pages.append(_list(kind(), own, ""))
        for name, field in kind.model_fields.items():
            section = field.annotation
            if not _section(section):
                continue
            default = getattr(kind(), name)
            message = (name, default.model_dump_json())
            if message in seen:
                continue  # the same settings with the same defaults stand further up
            seen.add(message)
            pages += [
                f"### {name}",
                _plain(section.__doc__ or ""),
                _list(default, list(section.model_fields), f"{name}."),
            ]
    return "\n\n".join([*pages, _presets()]) + "\n"


def _section(annotation: Any) -> bool:
    from headstart.config.schema import Section

    return isinstance(annotation, type) and issubclass(annotation, Section)


def _list(values: Any, names: list[str], prefix: str) -> str:
    """Return one line per setting, as a list, which is readable on a phone."""
    from headstart.cli.options import _metavar

    lines = []
    for name in names:
        field, default = type(values).model_fields[name], getattr(values, name)
        kinds = "true|false" if field.annotation is bool else _metavar(field.annotation)
        takes = " or ".join(f"`{kind}`" for kind in kinds.split("|")) if kinds else "tables"
        facts = [takes, *filter(None, map(_bound, field.metadata))]
        if default not in (None, "", []):
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            facts.append(f"default `{shown.lower() if isinstance(default, bool) else shown}`")
        lines.append(f"* **`{prefix}{name}`** ({', '.join(facts)}): {_plain(field.description or '')}")
    return "\n".join(lines)


def _bound(item: Any) -> str:
    """Return a bound of a setting; the bound of all counts is no information."""
    from headstart.config.schema import MAX_COUNT

    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    values = {name: getattr(item, name, None) for name in signs}
    match = [f"{signs[name]} {value:,g}" for name, value in values.items() if value not in (None, MAX_COUNT)]
    return " ".join(match)


def _presets() -> str:
    from headstart.config.merge import iter_fields
    from headstart.config.presets import PRESET_NAMES, preset_values
    from headstart.config.schema import FinetuneConfig, PretrainConfig

    pages = ["## Presets", "The values that `--preset NAME` sets. An empty cell is the default."]
    for command, kind in (("pretrain", PretrainConfig), ("finetune", FinetuneConfig)):
        arguments = {name: preset_values(name, command) for name in PRESET_NAMES}
        lines = [f"| {command} | {' | '.join(PRESET_NAMES)} |", "|---" * (1 + len(PRESET_NAMES)) + "|"]
        for field, _ in iter_fields(kind):
            cells = [_at(arguments[name], field) for name in PRESET_NAMES]
            if any(cells):
                lines.append(f"| `{field}` | {' | '.join(cells)} |")
        pages.append("\n".join(lines))
    return "\n\n".join(pages)


def _at(values: Any, dotted: str) -> str:
    for name in dotted.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return "" if values is None else f"{values:g}" if isinstance(values, float) else str(values)


def _plain(text: str) -> str:
    """Return a docstring in one line; text in angle brackets outside of code is escaped."""
    pieces = " ".join(text.split()).split("`")
    return "`".join(piece if index % 2 else piece.replace("<", "&lt;") for index, piece in enumerate(pieces))
