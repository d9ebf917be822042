"""A small sample of the torture: `make torture` and `make torture-full` do the rest."""

import json
from functools import partial
from pathlib import Path

import pytest

from faults.late import COMPILER
from faults.reached import Reached, numbers
from faults.unreached import LOCATIONS, check_locations

FAULTS = ("lost", "torn", "different", "faults", "accepted", "hung")


QUICK = ("writes", "hostile_patterns")
SLOW = {
    "damage": "store/test_files.py",
    "text": "data/test_text_encodings.py",
    "kills": "recipes/test_resume.py",
    "operations": "recipes/test_resume.py",
    "bytes": "data/test_reader_fuzz.py",
    "workers": "recipes/test_worker_processes.py",
    "floats": "cli/test_finite_options.py",
    "memory": "recipes/test_memory.py",
    "tables": "cli/test_auto_command.py",
    "slow_heads": "serve/test_slow_heads.py",
    "ends": "recipes/test_interrupts.py",
}
"""Parts that take longer, and the quick tests of the same behaviour."""


def sample(once, parts):
    words = [word for part in parts for word in ("--part", part)]
    return json.loads(once("torture.py", "--size", "sample", *words, "--out", "{folder}/answer.json"))


@pytest.fixture(scope="module")
def table(once):
    return sample(once, QUICK)


@pytest.fixture(scope="module")
def slow_table(once):
    return sample(once, SLOW)


def gave(rows):
    return {row["name"]: row[name] for row in rows for name in FAULTS if row.get(name)}


@pytest.mark.parametrize("part", QUICK)
def test_nothing_gives(table, part):
    assert gave(table[part]["rows"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", SLOW)
def test_nothing_gives_in_the_parts_that_take_longer(slow_table, part):
    assert gave(slow_table[part]["rows"]) == {}
    assert (Path(__file__).parents[1] / SLOW[part]).is_file()


def column(table, part, name):
    return [row[name] for row in table[part]["rows"]]


def test_there_was_something_that_could_have_given(table):
    of = partial(column, table)
    assert min(of("writes", "failed")) >= 2
    assert of("writes", "failed") == of("writes", "kept")
    assert of("hostile_patterns", "refused") == [True, True, False, False]


@pytest.mark.slow
def test_there_was_something_that_could_have_given_in_the_parts_that_take_longer(slow_table):
    of = partial(column, slow_table)
    assert len(of("damage", "damaged")) == 10
    assert of("damage", "damaged") == of("damage", "refused")
    assert sum(of("kills", "kills")) == 4
    assert sum(of("operations", "kills")) > 3
    assert set(of("bytes", "cases")) == {20}
    assert sum(of("bytes", "refused")) > 250
    assert sum(of("bytes", "read")) > 25  # control: some changes do no harm
    assert dict(zip(of("workers", "name"), of("workers", "kills"), strict=True)) == {
        "busy": 2,
        "idle": 2,
        "starting": 1,
        "stopping": 2,
    }
    assert sum(of("floats", "cases")) >= 12
    assert min(sum(of("floats", "refused")), sum(of("floats", "worked"))) > 2
    assert of("memory", "code") == [2, 2, 2]
    assert of("tables", "codes") == [*4 * [{"inspect": 0, "auto": 0}], {"inspect": 0, "auto": 2}]
    assert of("slow_heads", "answered") == [10, 10, 10, 0]
    assert of("slow_heads", "connections") == [500, 500, 500, 0]


@pytest.mark.slow
def test_every_reader_was_reached(slow_table):
    """Lines of the functions that the mutated files entered; with 20 of them, about half."""
    rows = slow_table["bytes"]["rows"]
    assert all(0 < row["lines_reached"] <= row["lines"] for row in rows)
    assert sum(row["lines_reached"] for row in rows) > 0.5 * sum(row["lines"] for row in rows)
    csv = next(row for row in rows if row["name"] == "csv")
    assert set(csv["reached"]) >= {"data/formats.py", "data/io.py"}
    assert "serve/app.py" not in csv["reached"]  # control: it is not a list of everything


def test_a_reason_for_lines_that_are_not_there_is_refused():
    check_locations(LOCATIONS)
    gone = ["store/gone.py", "store/gone.py:read", "store/bundle.py:find_bundle", "store/bundle.py:"]
    with pytest.raises(ValueError) as caught:
        check_locations([*LOCATIONS, *gone])
    words = f"no such file or function in the package: {', '.join(gone)}; see LOCATIONS in unreached.py"
    assert str(caught.value) == words


def test_reached_and_missed_lines_are_distinguished(tmp_path):
    """The kit itself: what was reached, what was not, and both in another process's words."""
    from headstart.errors import StoreError
    from headstart.files import read_json

    path = tmp_path / "a.json"
    path.write_text("{}")
    good, bad = Reached(), Reached()
    with good:
        read_json(path)
    path.write_text("{")
    with bad, pytest.raises(StoreError):
        read_json(path)
    assert good.row()["lines"] == bad.row()["lines"] > good.row()["lines_reached"]
    assert numbers(bad.row()["reached"]["files.py"]) - numbers(good.row()["reached"]["files.py"])
    good.merge(json.loads(json.dumps(bad.dump())))
    both = numbers(bad.row()["reached"]["files.py"]) | numbers(good.row()["reached"]["files.py"])
    assert numbers(good.row()["reached"]["files.py"]) == both


def test_a_kill_that_loses_something_is_noticed(tmp_path):
    """The kit itself: a run folder that is not what it was, and one that was torn."""
    from faults.killing import torn
    from faults.runs import outcome
    from headstart.files import atomic_folder

    with atomic_folder(tmp_path / "bundle", kind="bundle") as draft:
        (draft / "a.safetensors").write_bytes(b"weights")
    before = outcome(tmp_path)
    assert torn(tmp_path) == []
    (tmp_path / "bundle" / "a.safetensors").write_bytes(b"weight")
    assert torn(tmp_path) == [f"{tmp_path / 'bundle' / 'a.safetensors'} is damaged: 6 bytes where 7 were written"]
    assert outcome(tmp_path) != before


def scene(slow_table, name):
    return next(row for row in slow_table["ends"]["rows"] if row["name"] == name)


EARLY = [
    ("pretrain tokenizer: reading text SIGINT", "interrupted", 130),
    ("pretrain encode SIGTERM", "terminated", 143),
    ("finetune reading SIGINT", "interrupted", 130),
    ("finetune begin looking for duplicates SIGTERM", "terminated", 143),
    ("compare reading SIGINT", "interrupted", 130),
    ("compare tokenizer: reading text SIGTERM", "terminated", 143),
    ("tokenizer tokenizer: reading text SIGINT", "interrupted", 130),
    ("prepare tokenizer: reading text SIGTERM", "terminated", 143),
    ("prepare encode SIGINT", "interrupted", 130),
    ("auto reading SIGTERM", "terminated", 143),
    ("auto begin looking for duplicates SIGINT", "interrupted", 130),
]


@pytest.mark.parametrize(("name", "word", "code"), EARLY)
@pytest.mark.slow
def test_a_signal_before_anything_is_worth_keeping_leaves_nothing(slow_table, name, word, code):
    result = scene(slow_table, name)
    assert (result["said"], result["code"], result["left"]) == (f"headstart: {word}", code, None)


GO_ON = "saved. Continue with: headstart {} --resume --out OUT"
LATE = [
    ("pretrain pretraining SIGTERM", "SIGTERM at step 4 of 12; " + GO_ON.format("pretrain"), 143),
    ("pretrain measuring SIGINT", "Ctrl-C at step 12 of 12; " + GO_ON.format("pretrain"), 130),
    ("finetune fine-tuning SIGINT", "Ctrl-C at step 7 of 18; " + GO_ON.format("finetune"), 130),
    ("compare fine-tuning SIGINT", "Ctrl-C at scratch, all labels, seed 0; " + GO_ON.format("compare"), 130),
    ("time limit", "time limit reached at step 1 of 12; " + GO_ON.format("pretrain"), 75),
]


@pytest.mark.parametrize(("name", "output", "code"), LATE)
@pytest.mark.slow
def test_a_signal_or_a_limit_saves_the_state_and_says_how_to_go_on(slow_table, name, output, code):
    result = scene(slow_table, name)
    assert (result["said"], result["code"]) == (f"headstart: {output}", code)


COMPILING = [
    ("pretrain compile SIGINT", "Ctrl-C at step 0 of 12; " + GO_ON.format("pretrain"), 130),
    ("finetune compile SIGTERM", "SIGTERM at step 0 of 18; " + GO_ON.format("finetune"), 143),
]


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler here, so torch compiles nothing")
@pytest.mark.parametrize(("name", "output", "code"), COMPILING)
@pytest.mark.slow
def test_a_signal_cuts_a_compiler_short(slow_table, name, output, code):
    result = scene(slow_table, name)
    assert (result["said"], result["code"], result["faults"]) == (f"headstart: {output}", code, [])
    assert "run.json" in result["left"]


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler here, so torch compiles nothing")
@pytest.mark.slow
def test_a_second_signal_cuts_short_what_the_first_one_began(slow_table):
    assert scene(slow_table, "compile twice")["code"] == 130


EXPORTS = [("export weights SIGINT", "interrupted", 130), ("export graph SIGTERM", "terminated", 143)]


@pytest.mark.parametrize(("name", "word", "code"), EXPORTS)
@pytest.mark.slow
def test_a_signal_in_an_export_leaves_nothing(slow_table, name, word, code):
    if "graph" in name:
        pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    result = scene(slow_table, name)
    assert (result["said"], result["code"], result["left"]) == (f"headstart: {word}", code, None)


@pytest.mark.parametrize(
    "name",
    [
        "pretrain save bundle SIGTERM",
        "finetune save bundle SIGTERM",
        "compare report SIGTERM",
        "auto cross-validation SIGTERM",
    ],
)
@pytest.mark.slow
def test_a_signal_while_the_model_is_written_waits_for_it(slow_table, name):
    result = scene(slow_table, name)
    assert result["code"] == 0
    assert "result.json" in result["left"]


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_the_state_before_it_stays(slow_table):
    result = scene(slow_table, "twice")
    assert (result["said"], result["code"], result["faults"]) == ("headstart: interrupted", 130, [])


ENDS = [
    ("vanished", "OUT is missing: it was moved or deleted during the run", 1),
    ("in use", "OUT is in use by another process; wait for it, or choose another --out", 2),
    ("taken", "OUT already contains a run; continue it with --resume, or choose another --out", 2),
]
DISKS = [
    ("full", "cannot write OUT/checkpoints/step-00000006: No space left on device; nothing was changed", 1),
    ("read-only", "cannot write in OUT: Read-only file system", 1),
    ("new on read-only", "cannot create the folder OUT: Read-only file system", 2),
]


@pytest.mark.parametrize(("name", "output", "code"), ENDS + DISKS)
@pytest.mark.slow
def test_what_stops_a_run_is_told_in_one_line(slow_table, name, output, code):
    if (name, output, code) in DISKS and not any(row["name"] == name for row in slow_table["ends"]["rows"]):
        pytest.skip("a small file system may not be mounted here")
    result = scene(slow_table, name)
    assert (result["said"], result["code"], result["faults"]) == (f"headstart: {output}", code, [])
