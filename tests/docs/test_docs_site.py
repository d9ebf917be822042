"""The site builds strictly, its pictures and its reference are what the code says, and its links lead somewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
NOT_OURS = {"--index-url", "--tiny", "--pretrain", "--part", "--reader", "--cases"}
NOT_OURS |= {"--nproc-per-node", "--max-restarts", "--nnodes"}
"""Options on pages that are pip's or torchrun's, or of a script of examples/ or tests/."""


def module(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "benchmarks" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def options():
    """Every option of every command."""
    return set(re.findall(r"--[a-z][\w.-]*", module("site_pages").commands()))


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), "README.md", "SECURITY.md", "CONTRIBUTING.md"])
def test_every_option_in_a_sentence_exists(page, options):
    text = re.sub(r"```.*?```", "", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", text):
        message = ""
        if code.startswith("python benchmarks/"):  # a script's own
            message = (REPOSITORY / code.split()[1]).read_text(encoding="utf-8")
        for option in re.findall(r"(?<![\w-])--[a-z][\w.-]*", code):
            assert option in options | NOT_OURS or f'"{option}"' in message, f"{option} in `{code}`"


def test_every_picture_is_what_the_code_draws():
    pictures = module("pictures").pictures()
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert kept.keys() == pictures.keys()
    for name, text in pictures.items():
        kept_text, kept_numbers = split_numbers(kept[name])
        drawn_text, drawn_numbers = split_numbers(text)
        message = f"run python benchmarks/pictures.py: {name}.svg is out of date"
        assert kept_text == drawn_text, message
        assert drawn_numbers == pytest.approx(kept_numbers, abs=0.01), message  # coordinates vary with the processor


def split_numbers(text):
    """Return the text without its coordinates, and the coordinates."""
    number = r"-?\d+\.\d+"
    return re.sub(number, "#", text), [float(match) for match in re.findall(number, text)]


def test_a_picture_with_a_moved_line_is_out_of_date():
    kept = (DOCS / "pictures" / "positions.svg").read_text(encoding="utf-8")
    moved = re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]) + 0.02:.6f}", kept)
    texts, numbers = zip(split_numbers(kept), split_numbers(moved), strict=True)
    assert texts[0] == texts[1]
    assert numbers[1] != pytest.approx(numbers[0], abs=0.01)


def test_the_counts_of_the_pictures_are_those_of_the_course():
    kept = (DOCS / "pictures" / "parameters.svg").read_text(encoding="utf-8")
    for count in ("21,018,401", "10,968,602", "10,000,200", "10,050,201", "968,000", "402"):
        assert count in kept


def test_the_shares_that_are_hidden_are_those_asked_for():
    fractions = module("pictures").measured_fractions()
    assert fractions["asked"] == pytest.approx(0.3, abs=0.01)
    assert (fractions["masked"], fractions["random"], fractions["kept"]) == pytest.approx((0.8, 0.1, 0.1), abs=0.01)


def test_a_link_out_of_docs_leads_to_the_page_of_that_file():
    rehung = module("site_pages").rehung
    assert rehung("[r](../RESULTS.md#serving)", "docs/serve.md", "serve.md") == "[r](results.md#serving)"
    assert rehung("[s](docs/serve.md)", "RESULTS.md", "results.md") == "[s](serve.md)"
    assert rehung("[e](../../examples/x.py)", "docs/how-to/a.md", "how-to/a.md") == "[e](../examples/x.py)"
    assert (
        rehung("[w](https://example.org/RESULTS.md)", "docs/serve.md", "serve.md")
        == "[w](https://example.org/RESULTS.md)"
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere_in_the_repository_too(page):
    """Pages are read where they lie as well, without the site; only the reference is made at its build."""
    made = {DOCS / "reference" / name for name in ("commands.md", "settings.md")}
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        target = Path(os.path.normpath((DOCS / page).parent / link))
        assert "://" in link or target.exists() or target in made, link


def test_pictures_are_small():
    pictures = [*(DOCS / "images").iterdir(), *(DOCS / "pictures").iterdir()]
    assert len(pictures) > 12
    for path in pictures:
        assert path.stat().st_size < 150_000, path.name


def test_the_reference_has_every_command_and_every_setting():
    from headstart.cli.commands import COMMANDS
    from headstart.config.merge import iter_fields
    from headstart.config.schema import FinetuneConfig, PretrainConfig

    pages = module("site_pages")
    commands, settings = pages.commands(), pages.settings()
    for name, *_ in COMMANDS:
        assert f"## headstart {name}\n" in commands
    assert "--loop.batch-size" in commands
    for kind in (PretrainConfig, FinetuneConfig):
        for name, _ in iter_fields(kind):
            assert f"* **`{name}`** (" in settings
    assert "* **`loop.batch_size`** (`INT`, ≥ 1, default `16`): Batch size in rows.\n" in settings


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    built = tmp_path_factory.mktemp("site")
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    surroundings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, *words], cwd=REPOSITORY, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


@pytest.mark.slow
def test_the_site_builds_strictly_and_every_page_is_in_it(site):
    for page in [*PAGES, "reference/commands.md", "reference/settings.md", "results.md", "changelog.md", "security.md"]:
        assert (site / page).with_suffix(".html").is_file(), page
    assert "Fine-tune a classifier; returns its run folder." in (site / "reference" / "python.html").read_text()


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    loading = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^\s>\"]+")
    for path in pages:
        assert loading.findall(path.read_text(encoding="utf-8")) == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", path.read_text(encoding="utf-8")), path
