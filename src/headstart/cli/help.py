"""The help pages: one screen for `--help`, and for `--help-all` every setting with the value this command line would use.

No page imports torch. The texts of options are their declarations, those of settings the docstrings of their fields.
"""

import importlib
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from headstart.cli.commands import COMMANDS, EXAMPLES, EXIT_STATUS, GROUPS, SUMMARY, Command
from headstart.cli.options import SECTION_ORDER, Flags, Options, option_flag
from headstart.config.merge import merge_config
from headstart.config.presets import PRESET_NAMES, PRESET_SIZES
from headstart.config.schema import Section

HELP, HELP_ALL = ("--help", "-h"), "--help-all"
SCRATCH, HF_SCHEME = "scratch", "hf:"
_MAX_WIDTH, _MAX_COLUMN = 100, 26
_UNSET: tuple[Any, ...] = (None, "", [])
_NO_BREAK = "\N{NO-BREAK SPACE}"


def help_page(arguments: Sequence[str]) -> str | None:
    """Return the page that a command line asks for, or None if it asks for none; options after `--` are texts."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and HELP_ALL not in words and not any(flag in words for flag in HELP):
        return None
    name = next((word for word in words if not word.startswith("-")), None)
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        return None if name else _overview()
    return _full_page(command, words[words.index(command.name) + 1 :]) if HELP_ALL in words else _page(command)


def _overview() -> str:
    lines = ["Usage: headstart COMMAND [OPTIONS]", "", *_wrap(SUMMARY), ""]
    for title, commands in GROUPS.items():
        lines += [f"{title}:", *_entries([(command.name, command.summary) for command in commands], column=11)]
    lines += ["", *_examples(EXAMPLES), "", *_wrap(EXIT_STATUS)]
    lines += _wrap("headstart COMMAND --help: main options and examples. headstart COMMAND --help-all: all settings.")
    return "\n".join(lines)


def _page(command: Command) -> str:
    """Return one screen: what the command does, its usage, its main options and examples."""
    arguments = _declared(command)
    by_name = {name: argument for argument in arguments for name in argument.names}
    options = _options(command)
    positional = [(argument.name, argument.parameter.help) for argument in arguments if argument.index is not None]
    entries = []
    for name in command.options.split():
        argument = by_name[name]
        setting = _setting(argument, options)
        default = _declared_default(argument) if setting is None or options is None else _page_default(setting, options)
        label = _label(argument, [name])
        if len(label) > _MAX_COLUMN - 2:  # the text names the choices
            label = f"{name} NAME"
        entries.append((label, _text(_first_sentence(argument.parameter.help), default)))
    column = _column([label for label, _ in (*positional, *entries)])
    lines = [*_opening(command)]
    if positional:
        lines += ["Arguments:", *_entries(positional, column), ""]
    lines += ["Options:", *_entries(entries, column), "", *_examples(command.examples), ""]
    lines += _wrap(f"headstart {command.name} --help-all shows all options, with their defaults.")
    return "\n".join(lines)


def _full_page(command: Command, words: Sequence[str]) -> str:
    """Return all options; settings have the values that the command line `words` would use."""
    arguments, options = _declared(command), _options(command)
    resolved = _resolve(command, options, words) if options else None
    positional = [(argument.name, argument.parameter.help) for argument in arguments if argument.index is not None]
    plain: list[tuple[str, str]] = []
    sections: dict[str, list[tuple[str, str]]] = {}
    for argument in arguments:
        if argument.index is not None:
            continue
        setting = _setting(argument, options)
        negatives = argument.negatives
        label = _label(argument, [name for name in argument.names if name not in negatives])
        if setting is None or resolved is None:
            plain.append((label, _text(argument.parameter.help, _declared_default(argument))))
        else:
            section = setting.rpartition(".")[0]
            entry = (label, _text(argument.parameter.help, resolved.describe(setting)))
            (sections.setdefault(section, []) if section else plain).append(entry)
    lines = [*_opening(command)]
    if resolved and resolved.notes:
        lines += [*_wrap(" ".join(resolved.notes)), ""]
    if positional:
        lines += ["Arguments:", *_entries(positional), ""]
    lines += ["Options:", *_entries(plain), ""]
    for section in sorted(sections, key=SECTION_ORDER.index):
        assert options is not None
        lines += [*_wrap(f"[{section}] {_describe_section(options, section)}"), *_entries(sections[section]), ""]
    return "\n".join([*lines, *_examples(command.examples), "", *_wrap(EXIT_STATUS)])


@dataclass
class _Resolved:
    """The settings of a command line: the values of all fields, and where they come from."""

    values: dict[str, Any]
    sources: dict[str, str]
    fixed: dict[str, Any] = field(default_factory=dict)
    """The model of --from, whose settings cannot be changed."""
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The values by preset, if the command line does not determine the preset."""
    backbone: str | None = None
    notes: list[str] = field(default_factory=list)

    def describe(self, setting: str) -> str:
        """Return the value of a setting with its source, in brackets; empty if the text of the setting describes it."""
        if self.backbone and setting.startswith(("model.", "tokenizer.")):
            value = self.fixed.get(setting)
            return f"[{self.backbone}: {_format(value)}]" if value is not None else f"[set by {self.backbone}]"
        value, source = self.values[setting], self.sources.get(setting, "default")
        by_value: dict[str, list[str]] = {}
        for preset, settings in self.presets.items():
            by_value.setdefault(_format(settings[setting]), []).append(preset)
        modern = list(PRESET_SIZES)
        if source == "default" and len(by_value) > 1:
            groups = (
                (text, "modern presets" if names == modern else ", ".join(names)) for text, names in by_value.items()
            )
            return f"[default: {'; '.join(f'{text} ({names})' for text, names in groups)}]"
        return "" if value in _UNSET and source == "default" else f"[{source}: {_format(value)}]"


def _resolve(command: Command, options: Options[Any], words: Sequence[str]) -> _Resolved:
    backbones, preset, config, flags = _parse(options, words)
    backbone = next((name for value in backbones for name in value.split(",")), None)
    pretrained = backbone if options.recipe and backbone not in (None, SCRATCH, "none") else None
    searches = getattr(_module(command), "searches_preset", None)
    is_open = options.recipe == "finetune" and backbone is None and preset is None
    if searches is not None and pretrained is None and searches(preset, config, flags):
        is_open, preset = True, None
    unread = options.recipe == "pretrain" and pretrained is not None and pretrained.startswith(HF_SCHEME)
    start = None if unread else pretrained
    layers = options.layers(flags, backbone=start, preset=preset, path=config)
    merged = dict(_flatten(merge_config(options.config_class, *(values for _, values in layers))))
    sources = {name: source for source, values in layers for name in _names(values)}
    resolved = _Resolved(merged, sources, backbone=pretrained)
    if is_open:
        for name in PRESET_NAMES:
            values = merge_config(options.config_class, options.preset_values(name))
            resolved.presets[name] = dict(_flatten(values))
    if pretrained is not None and not pretrained.startswith(HF_SCHEME):
        from headstart.store.linear_bundle import bundle_model

        resolved.fixed = {f"model.{name}": value for name, value in bundle_model(Path(pretrained)).items()}
    resolved.notes = list(_notes(options, resolved, preset, unread=unread))
    return resolved


def _notes(options: Options[Any], resolved: _Resolved, preset: str | None, *, unread: bool) -> Iterator[str]:
    if options.recipe is None:
        return
    chosen = preset
    if options.recipe == "finetune" and chosen is None and not resolved.presets:
        from headstart.recipes.finetune.backbone_preset import default_preset

        chosen = default_preset(resolved.backbone)
    if unread:
        yield f"The objective and the optimizer settings depend on {resolved.backbone}, which is read when training starts."
    elif resolved.presets and options.recipe == "pretrain":
        yield "Defaults are shown by preset: the largest preset that fits --minutes on this machine is chosen."
    elif resolved.presets:
        yield "Defaults are shown by preset; add --from or --preset to show those of one run."
    elif chosen:
        yield f"Defaults are those of the preset {chosen}."
    elif resolved.backbone:
        yield f"Defaults are those of a run that continues from {resolved.backbone}."
    else:
        yield "Defaults are those of the preset classic; add --preset or --from to show others."
    yield "The prefix no- turns a switch off, as in --runtime.no-deterministic."


def _parse(options: Options[Any], words: Sequence[str]) -> tuple[tuple[str, ...], str | None, Path | None, Any]:
    """Return --from, --preset, --config and the settings of an incomplete command line."""

    def probe(
        *_texts: str,
        backbone: Annotated[tuple[str, ...], Parameter(name="--from", negative=())] = (),
        preset: str | None = None,
        config: Path | None = None,
        flags: Flags | None = None,
    ) -> tuple[tuple[str, ...], str | None, Path | None, Flags | None]:
        return backbone, preset, config, flags

    app = App(help_flags=(), version_flags=(), result_action="return_value")
    app.default(options.on(probe))
    known = [word for word in words if word != HELP_ALL]
    function, bound, *_ = app.parse_known_args(known)
    backbone, preset, config, flags = function(*bound.args, **bound.kwargs)
    return backbone, preset, config, flags


def _flatten(values: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(values).model_fields:
        value = getattr(values, name)
        if isinstance(value, Section):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of nested settings, and of mappings that are values themselves."""
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")


def _module(command: Command) -> Any:
    return importlib.import_module(f"headstart.cli.{command.python_name}")


def _options(command: Command) -> Options[Any] | None:
    options: Options[Any] | None = getattr(_module(command), "OPTIONS", None)
    return options


def _declared(command: Command) -> list[Any]:
    """Return the arguments and options of a command, in the order of their declaration."""
    app = App(help_flags=(), version_flags=())
    app.default(getattr(_module(command), command.python_name))
    return [argument for argument in app.assemble_argument_collection() if argument.show and argument.names != ("*",)]


def _setting(argument: Any, options: Options[Any] | None) -> str | None:
    """Return the setting that an option sets, or None."""
    settings = options.names.items() if options else ()
    names = set(argument.names)  # every access builds it again
    return next((name for name, flag in settings if flag in names or option_flag(name) in names), None)


def _page_default(setting: str, options: Options[Any]) -> str:
    """Return the default for the page of --help, which does not read a model or a file."""
    value = dict(_flatten(options.config_class()))[setting]
    if options.recipe is not None:
        presets = [merge_config(options.config_class, options.preset_values(name)) for name in PRESET_NAMES]
        if any(dict(_flatten(values))[setting] != value for values in presets):
            return "[default: set by preset]"
    return "" if value in _UNSET or value is False else f"[default: {_format(value)}]"


def _declared_default(argument: Any) -> str:
    shown = argument.parameter.show_default
    if isinstance(shown, str):
        return f"[default: {shown}]"
    value = argument.field_info.default
    if argument.required or shown is False or value in (*_UNSET, False, (), argument.field_info.empty):
        return ""
    return f"[default: {_format(value)}]"


def _format(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={number:g}" for name, number in value.items())
    return str(value)


def _describe_section(options: Options[Any], section: str) -> str:
    return " ".join((options.config_class.model_fields[section].annotation.__doc__ or "").split("\n\n")[0].split())


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text.

    >>> _first_sentence("Text column. By default, a common name.")
    'Text column.'
    """
    head, separator, _ = text.partition(". ")
    return f"{head}." if separator else text


def _text(text: str, default: str) -> str:
    if len(default) < _MAX_COLUMN:
        default = default.replace(" ", _NO_BREAK)
    return f"{text} {default}".strip()


def _label(argument: Any, names: Iterable[str]) -> str:
    """Return the names of an option and its value; a one-letter form such as -q is last."""
    letters = [name for name in argument.names if len(name) == 2]
    label = ", ".join(dict.fromkeys([*names, *letters]))
    return f"{label} {argument.parameter.metavar}" if argument.parameter.metavar else label


def _opening(command: Command) -> list[str]:
    usage = _wrap(f"Usage: headstart {command.name} {command.usage}", indent=" " * 9)
    return [*usage, "", *_wrap(command.summary), ""]


def _examples(examples: Iterable[str]) -> list[str]:
    lines = ["Examples:"]
    for example in examples:
        pairs = re.sub(r"(--[\w.-]+) (?!-)", rf"\1{_NO_BREAK}", example)  # an option and its value stay on one line
        words = textwrap.wrap(pairs, _width() - 2, initial_indent="  ", subsequent_indent="    ", **_WHOLE_WORDS)
        words = [line.replace(_NO_BREAK, " ") for line in words]
        lines += [*(f"{line} \\" for line in words[:-1]), words[-1]]
    return lines


def _entries(entries: Iterable[tuple[str, str]], column: int | None = None) -> list[str]:
    """Format entries in two columns; the text of a long label begins on the next line."""
    entries = list(entries)
    column = _column([label for label, _ in entries]) if column is None else column
    lines = []
    for label, text in entries:
        wrapped = _break_lines(text, max(20, _width() - column - 2))
        if len(label) <= column - 2:
            first, *rest = wrapped or [""]
            lines.append(f"  {label:<{column}}{first}".rstrip())
        else:
            rest = wrapped
            lines += textwrap.wrap(label, _width() - 2, initial_indent="  ", subsequent_indent="    ", **_WHOLE_WORDS)
        lines += [f"  {'':<{column}}{line}" for line in rest]
    return lines


def _break_lines(text: str, width: int) -> list[str]:
    return [line.replace(_NO_BREAK, " ") for line in textwrap.wrap(text, width, **_WHOLE_WORDS)]


_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _column(labels: Iterable[str]) -> int:
    return min(max((len(label) for label in labels), default=0) + 2, _MAX_COLUMN)


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _width(), subsequent_indent=indent, **_WHOLE_WORDS)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _MAX_WIDTH)
