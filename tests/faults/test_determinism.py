"""The same settings, seed and threads give the same result, byte for byte, whatever the command."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from faults.asking import BODIES, Desk, request
from faults.runs import KINDS, go, outcome, write_data
from fixtures.recipes import pretrain_run
from fixtures.tiny import pretrain_config, write_reviews
from headstart import runtime
from headstart.cli.commands import COMMANDS
from headstart.cli.main import run
from headstart.config.schema import CorpusConfig, TokenizerConfig
from headstart.files import read_json
from headstart.progress import SilentProgress
from headstart.recipes import demo
from headstart.recipes.demo import DemoRequest, run_demo
from headstart.recipes.prepare import PrepareRequest, run_prepare, run_tokenizer
from headstart.report.page import write_report


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


QUICK = ("masked", "pairs", "stages", "muon")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_run_done_twice_gives_the_same_bytes(kind, data, tmp_path):
    for name in ("one", "two"):
        go(kind, data, tmp_path / name, resume=False, steps=6)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")
    assert len(outcome(tmp_path / "one")) >= 4
    if kind == "compare":
        for name in ("one", "two"):
            write_report(tmp_path / "one", tmp_path / f"report-{name}")
        one, two = (tmp_path / f"report-{name}" for name in ("one", "two"))
        for path in ("report.html", "results.json", "results.csv"):
            assert (one / path).read_bytes() == (two / path).read_bytes()


def test_a_tokenizer_and_shards_made_twice_are_the_same(data, tmp_path):
    for name in ("one", "two"):
        texts, config = [str(data / "texts.txt")], TokenizerConfig(vocab_size=300)
        run_tokenizer(texts, tmp_path / name / "tok", config, CorpusConfig(), SilentProgress())
        run_prepare(PrepareRequest(texts, tmp_path / name / "tokens", CorpusConfig(), config), SilentProgress())
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 8
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_the_deterministic_mode_changes_no_bit_on_a_cpu(data, tmp_path):
    """There it has nothing to choose between; tests/gpu/test_gpu_training.py has the device that does."""
    for name in (False, True):
        config = pretrain_config(loop__steps=6, runtime__deterministic=name)
        pretrain_run([str(data / "texts.txt")], tmp_path / str(name), config)
    assert outcome(tmp_path / "False") == outcome(tmp_path / "True")
    message = [read_json(tmp_path / name / "environment.json")["deterministic"] for name in ("False", "True")]
    assert message == [False, True]


TUNES = find_spec("optuna") is not None
SMALL = ("--runtime.threads", "1", "--quiet")
SHAPE = ("--model.width", "16", "--model.depth", "1", "--model.feedforward", "24", "--model.context", "24")


def commands(data, out):
    """Every command once, each with what those before it wrote; --json where there is such an answer."""
    train, valid, test, texts = (str(data / name) for name in ("train.csv", "valid.csv", "test.csv", "texts.txt"))
    base, clf, cmp = (str(out / name) for name in ("base", "clf", "cmp"))
    files = ["--valid", valid, "--test", test]
    few = ["--loop.epochs", "1", *SMALL]
    return [
        ["inspect", train, "--test", test, "--texts", texts, "--json", "--quiet"],
        ["tokenizer", texts, "--vocab-size", "300", "--out", str(out / "tok"), "--quiet"],
        ["prepare", texts, "--tokenizer", str(out / "tok"), "--out", str(out / "tokens"), "--quiet"],
        ["merge", str(out / "tokens"), str(out / "tokens"), "--out", str(out / "twice"), "--quiet"],
        ["pretrain", str(out / "tokens"), "--preset", "modern", "--loop.steps", "3", "--corpus.held-out", "0.1", *SHAPE,
         "--out", base, *SMALL],
        ["finetune", train, *files, "--from", base, "--out", clf, *few],
        ["compare", train, *files, "--from", base, "--seeds", "1", "--arms", "linear,pretrained", "--out", cmp, *few],
        ["report", cmp, "--json", "--quiet"],
        ["auto", train, "--test", test, "--from", "none", "--out", str(out / "auto"), *SMALL],
        *([["tune", train, "--valid", valid, "--from", base, "--trials", "2", "--out", str(out / "tuned"), *few]]
          if TUNES else []),
        ["evaluate", clf, test, "--errors", "--json", "--runtime.threads", "1"],
        ["predict", clf, "a lovely film", "the plot was dull", "--explain", "--json", "--runtime.threads", "1"],
        ["generate", base, "the film", "--tokens", "8", "--temperature", "0.9", "--samples", "2", "--seed", "3"],
        ["params", "--preset", "classic", "--vocab-size", "500"],
        ["export", base, "--to", "hf", "--out", str(out / "theirs"), "--quiet"],
        ["import", f"hf:{out / 'theirs'}", "--out", str(out / "back"), "--quiet"],
    ]  # fmt: skip


SEPARATE = {
    "demo": "made of pretrain, compare and report, with a test of its own below",
    "serve": "the same",
    "bench": "it says nothing but times",
} | ({} if TUNES else {"tune": "needs the extra tune"})
CLOCK = {"run.json", "environment.json", "report.html", "results.csv"}
"""Files that hold when or how long, or the folder: what a run depended on, and a page with seconds on it."""


def without_seconds(value):
    """JSON without times."""
    if isinstance(value, dict):
        return {name: without_seconds(one) for name, one in value.items() if "seconds" not in name and name != "seal"}
    return [without_seconds(one) for one in value] if isinstance(value, list) else value


def written(out):
    """All that a folder holds, but for clocks."""
    result = {}
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.name not in CLOCK and not path.name.startswith("."):
            content = path.read_bytes()
            if path.name in ("metrics.jsonl", "results.json") or path.parent.name in ("cells", "trials", "tuned"):
                lines = content.splitlines() if path.name == "metrics.jsonl" else [content]
                lines = [] if path.suffix == ".toml" else lines
                result[str(path.relative_to(out))] = [without_seconds(json.loads(line)) for line in lines]
            else:
                result[str(path.relative_to(out))] = content
    return result


def run_twice(selected, data, tmp_path, capsys, monkeypatch):
    """Run commands twice, check that both times give the same, and return the answers and the files."""
    monkeypatch.setenv("NO_COLOR", "1")
    output = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for words in commands(data, Path()):
            if words[0] not in selected:
                continue
            assert run(words) == 0, (words, capsys.readouterr().err)
            answer = capsys.readouterr().out
            output.setdefault(words[0], []).append(
                answer if words[0] != "report" else without_seconds(json.loads(answer))
            )
    assert [name for name, (one, two) in output.items() if one != two] == []
    one, two = (written(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []
    return output, one


QUICK_COMMANDS = ("inspect", "prepare", "tokenizer", "pretrain", "finetune", "evaluate", "predict", "generate")


def test_quick_commands_say_and_write_the_same_twice(data, tmp_path, capsys, monkeypatch):
    output, files = run_twice(QUICK_COMMANDS, data, tmp_path, capsys, monkeypatch)
    assert {*output} == {*QUICK_COMMANDS}
    assert {"clf/result.json", "base/bundle/backbone.safetensors"} <= set(files)


@pytest.mark.slow
def test_every_command_says_and_writes_the_same_twice(data, tmp_path, capsys, monkeypatch):
    names = {words[0] for words in COMMANDS}
    output, one = run_twice(names, data, tmp_path, capsys, monkeypatch)
    assert names == {*output, *SEPARATE}
    assert {
        "clf/result.json",
        "base/bundle/backbone.safetensors",
        "theirs/model.safetensors",
        "cmp/results.json",
    } <= set(one)
    page = Path("cmp/report.html").read_bytes()
    assert run(["report", "cmp", "--quiet"]) == 0
    assert Path("cmp/report.html").read_bytes() == page


@pytest.mark.slow
def test_a_demo_told_twice_is_the_same_story(data, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "free_cores", lambda: 1)
    settings = demo.PRETRAIN_SETTINGS
    monkeypatch.setitem(settings, "loop", settings["loop"] | {"steps": 3})
    monkeypatch.setitem(settings, "tokenizer", {"vocab_size": 300})
    finetune_settings = demo.FINETUNE_SETTINGS_AFTER_PRETRAINING
    monkeypatch.setitem(finetune_settings, "loop", finetune_settings["loop"] | {"epochs": 1})
    monkeypatch.setattr(demo, "SEEDS", 1)
    mine = write_reviews(tmp_path / "mine")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        run_demo(DemoRequest(Path("demo"), str(mine), pretrain=True))
    one, two = (written(tmp_path / name) for name in ("one", "two"))
    different = [name for name in one if one[name] != two[name]]
    # a demo writes its data anew, and what the fingerprint of a corpus is made from has the time of that in it
    assert {name.rpartition("/")[2] for name in different} <= {
        "inputs.json",
        "manifest.json",
        "result.json",
        "bundle.json",
    }
    results = [read_json(tmp_path / name / "demo/pretrained/result.json") for name in ("one", "two")]
    assert results[0] | {"corpus": ""} == results[1] | {"corpus": ""}
    assert {"demo/comparison/results.json", "demo/pretrained/result.json"} <= set(one)


@pytest.mark.skipif(not find_spec("h11"), reason="the extra `serve` is not installed")
def test_a_server_answers_the_same_twice(data):
    result = []
    for _ in range(2):
        desk = Desk(data / "base")
        bodies = [*BODIES["generate"], *BODIES["next"]]
        paths = ["generate"] * len(BODIES["generate"]) + ["next"] * len(BODIES["next"])
        result.append(
            [desk.ask(request(path, json.dumps(one).encode())) for path, one in zip(paths, bodies, strict=True)]
        )
        desk.service.stop()
        desk.loop.close()
    assert result[0] == result[1]
    assert [status for status, _ in result[0]] == [200, 200, 200]


@pytest.mark.slow
def test_a_graph_exported_twice_is_the_same_file(data, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    go("finetune", data, tmp_path / "clf", resume=False)
    for name in ("one", "two"):
        assert run(["export", str(tmp_path / "clf"), "--to", "onnx", "--out", str(tmp_path / name), "--quiet"]) == 0
    assert written(tmp_path / "one") == written(tmp_path / "two")
    assert "model.int8.onnx" in written(tmp_path / "one")
