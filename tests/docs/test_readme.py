"""What the README says is so: its commands run in its order, its paths exist, its Python names are there."""

import ast
import csv
import re
import shlex
from pathlib import Path

import pytest

from fixtures.tiny import write_reviews

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

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
[finetune.loop]
epochs = 1
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("headstart ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stranger's folder: the files that the README names, small."""
    folder = write_reviews(tmp_path_factory.mktemp("stranger"), texts=200, train=260, test=40)
    (folder / "texts.txt").rename(folder / "reviews.txt")
    (folder / "headstart.toml").write_text(SMALL)
    return folder


def test_the_readme_shows_every_step_of_the_story():
    assert [line.split()[1] for line in commands()] == ["auto", "predict", "predict", "serve"]


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 120
    assert len(README.split()) <= 900
    assert [line for line in lines if len(line) > 120] == []


def test_the_readmes_commands_run_in_its_order(folder, monkeypatch, capsys):
    """In this process, which saves starting torch for each. The server is tested elsewhere."""
    from headstart.cli.main import run

    monkeypatch.chdir(folder)
    rows = list(csv.reader((folder / "train.csv").read_text(encoding="utf-8").splitlines()))[1:]
    with (folder / "questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=";").writerows(
            [["id", "question", "kind"], *([n, *row] for n, row in enumerate(rows))]
        )
    (folder / "new.csv").write_text("question\nhow many films ?\n", encoding="utf-8")
    for line in commands():
        if line.startswith("headstart serve"):
            continue
        code = run(shlex.split(line.replace("--minutes 5", "--minutes 0.01"))[1:])
        assert code == 0, f"{line}\n{capsys.readouterr().err}"
    assert (folder / "runs" / "auto-questions" / "report.html").is_file()
    assert (folder / "labelled.csv").is_file()


def test_the_output_in_the_readme_has_the_lines_of_auto():
    """The program's sentences, with other numbers."""
    shown = " ".join(re.findall(r"```\n\n```\n(.*?)```", README, re.DOTALL)[0].split())
    for words in (
        "training rows",
        "linear model: cross-validation accuracy",
        "cross-validation accuracy on",
        "chosen: ",
    ):
        assert words in shown
    assert re.search(
        r"The \w+( model)? classifies [\d.]+ % of \d+ test texts correctly: \+[\d.]+ points compared with", shown
    )


def test_the_readmes_python_is_valid_and_its_names_exist():
    import headstart

    block = "\n".join(blocks("python"))
    used = {
        node.attr
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "headstart"
    }
    assert used == {"auto", "load", "explain", "TextClassifier"}
    assert all(callable(getattr(headstart, name)) for name in used)


def test_the_readmes_python_runs(folder, monkeypatch, capsys):
    """The same lines with smaller settings: what they say must be accepted as it is written."""
    monkeypatch.chdir(folder)
    block = "\n".join(blocks("python")).replace("minutes=10", "minutes=0.01")
    small = 'backbone="scratch", epochs=1, preset="modern-nano", settings={"loop.min_steps": 0}'
    block = block.replace('backbone="starter:en", epochs=4', small)
    rows = "[(f'a film {n} that is {kind}', kind) for n in range(40) for kind in ('good', 'bad')]"
    exec(f"texts, labels = zip(*{rows})\n{block}", {})
    assert "Prediction(label=" in capsys.readouterr().out
    assert (folder / "runs" / "reviews" / "report.html").is_file()


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target):
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_every_path_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    local = [link for link in links if "://" not in link]
    assert len(local) >= 4
    for link in local:
        assert (REPOSITORY / link).exists(), link


def test_the_map_of_the_code_names_every_package():
    design = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (REPOSITORY / "src" / "headstart").glob("*/__init__.py")]
    assert len(packages) >= 13
    assert [name for name in packages if f"`{name}/`" not in design] == []


def test_what_is_pinned_satisfies_what_is_asked_for():
    """A dependency without a pin would be whatever is newest on the day."""
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    required = {re.split(r"[<>=\[]", line)[0].lower().replace("_", "-") for line in [*project["dependencies"], *extras]}
    pins = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    assert required <= pinned
