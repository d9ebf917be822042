"""A killed run resumes to the same bits as one that never stopped."""

import shutil
import signal
from functools import cache, partial
from pathlib import Path

import pytest

from fixtures import runner
from fixtures.forked import ForkedProcess
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.runner import EPOCHS, STEPS, run_case
from fixtures.tiny import change_runtime, finetune_config, pretrain_config, write_reviews
from fixtures.waiting import PATIENCE, wait_until
from headstart.errors import Interrupted, UsageError
from headstart.files import read_checksummed, read_json, write_checksummed


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def uninterrupted(reviews, tmp_path_factory):
    """`uninterrupted(case)` is the folder of the same run, never stopped; made once."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def run_once(case):
        run_case(case, reviews, folder / case, resume=False)
        return folder / case

    return run_once


def weights(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "bundle").glob("*.safetensors"))}


def numbers(run: Path) -> list[dict]:
    """The metrics without times, which no two runs share."""
    import json

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def kill_each(attempts, out) -> None:
    """Start runs and kill them, one after another; from the beginning where one ended before the test could kill it."""
    while True:
        codes = [attempt() for attempt in attempts]
        if 0 not in codes:
            break
        shutil.rmtree(out)  # the machine is busy: the process was done first
    assert codes == [-signal.SIGKILL] * len(attempts)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(case, reviews, out, resume=False) -> ForkedProcess:
    """Run one recipe in a process of its own, whose output is beside `out`."""
    arguments = ["runner.py", case, str(reviews), str(out), *(["resume"] if resume else [])]
    return ForkedProcess(runner.main, arguments, out.with_suffix(".log"))


def start_and_kill(case, reviews, out, resume, lines) -> int:
    """Kill the process once its metrics have grown by some lines; returns its exit code."""
    before = num_lines(out / "metrics.jsonl")
    process = start(case, reviews, out, resume)

    def has_grown():  # resuming rewinds the metrics first: count from the file's own end again
        return not before <= num_lines(out / "metrics.jsonl") < before + lines

    wait_until(lambda: process.poll() is not None or has_grown())
    process.kill()
    return process.wait()


QUICK = ("pretrain", "finetune")
SLOW = ("hybrid", "hybrid-bf16", "stages", "finetune-bf16")


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_run_that_is_killed_repeatedly_ends_with_the_same_bits(case, reviews, uninterrupted, tmp_path):
    out = tmp_path / "run"
    growth = {"pretrain": [5, 19], "hybrid": [5, 19], "stages": [12, 30], "finetune": [1, 2]}[case.partition("-")[0]]
    kill_each(
        [
            partial(start_and_kill, case, reviews, out, resume=bool(kill), lines=lines)
            for kill, lines in enumerate(growth)
        ],
        out,
    )
    run_case(case, reviews, out, resume=True)
    assert weights(out) == weights(uninterrupted(case))
    assert len(weights(out)) == 2
    assert numbers(out) == numbers(uninterrupted(case))
    assert (out / "result.json").read_bytes() == (uninterrupted(case) / "result.json").read_bytes()


@pytest.mark.slow
def test_a_run_in_bf16_has_other_bits(uninterrupted):
    """Control: the resumed runs in bf16 did compute in bf16."""
    assert weights(uninterrupted("hybrid")) != weights(uninterrupted("hybrid-bf16"))
    assert read_json(uninterrupted("hybrid-bf16") / "environment.json")["bf16"] is True


def terminate_once_it_trains(reviews, out) -> str:
    """Send SIGTERM after some lines of metrics; return what the run wrote."""
    process = start("pretrain", reviews, out)
    wait_until(lambda: process.poll() is not None or num_lines(out / "metrics.jsonl") >= 10)
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    return out.with_suffix(".log").read_text()


def test_a_terminated_run_saves_where_it_was_and_says_how_to_go_on(reviews, uninterrupted, tmp_path):
    out = tmp_path / "run"
    output = terminate_once_it_trains(reviews, out)
    while output == "":  # the machine is busy: the process was done first
        shutil.rmtree(out)
        output = terminate_once_it_trains(reviews, out)
    steps = [line["step"] for line in numbers(out) if line["kind"] == "step"]
    assert output.splitlines()[-1] == (
        f"headstart: SIGTERM at step {steps[-1]} of {STEPS}; saved. Continue with: headstart pretrain --resume --out {out}"
    )
    assert [path.name for path in (out / "checkpoints").iterdir()][-1:] != []
    assert (out / "checkpoints" / f"step-{steps[-1]:08d}").is_dir()  # at the very step, not at the last multiple
    run_case("pretrain", reviews, out, resume=True)
    assert weights(out) == weights(uninterrupted("pretrain"))


def test_a_comparison_goes_on_where_it_stopped_and_repeats_nothing(reviews, uninterrupted, tmp_path):
    out = tmp_path / "run"

    def kill_after_three_runs():
        process = start("compare", reviews, out)
        wait_until(lambda: process.poll() is not None or len(list((out / "cells").glob("*.json"))) >= 3)
        process.kill()
        code = process.wait()
        return 0 if len(list((out / "cells").glob("*.json"))) == 7 else code

    kill_each([kill_after_three_runs], out)
    finished = {path: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}
    assert 3 <= len(finished) < 7
    run_case("compare", reviews, out, resume=True)
    assert all(path.stat().st_mtime_ns == moment for path, moment in finished.items())
    names = sorted(path.name for path in (out / "cells").iterdir())
    assert names == sorted(path.name for path in (uninterrupted("compare") / "cells").iterdir())
    for name in names:
        ours, theirs = (record_without_times(folder / "cells" / name) for folder in (out, uninterrupted("compare")))
        assert ours == theirs


def record_without_times(path: Path) -> dict:
    import json

    record = json.loads(path.read_text())
    del record["seconds"], record["seal"]
    for epoch in record["epochs"]:
        del epoch["seconds"]
    return record


def test_a_time_limit_stops_cleanly(reviews, tmp_path):
    config = pretrain_config(runtime__time_limit=1e-4, loop__steps=60)
    with pytest.raises(Interrupted) as caught:
        pretrain_run([str(reviews / "texts.txt")], tmp_path / "run", config)
    assert str(caught.value) == (
        f"time limit reached at step 1 of 60; saved. Continue with: headstart pretrain --resume --out {tmp_path / 'run'}"
    )


def test_a_finished_run_is_not_run_again(reviews, uninterrupted):
    out = uninterrupted("pretrain")
    before = (out / "result.json").stat().st_mtime_ns
    pretrain_run([], out, None, resume=True)
    assert (out / "result.json").stat().st_mtime_ns == before


def test_resuming_a_missing_run_is_refused(tmp_path):
    with pytest.raises(UsageError) as caught:
        pretrain_run([], tmp_path / "nowhere", None, resume=True)
    assert str(caught.value) == f"{tmp_path / 'nowhere'} contains no run; start one without --resume"


def test_resuming_a_run_of_another_recipe_is_refused(uninterrupted):
    with pytest.raises(UsageError) as caught:
        finetune_run(None, uninterrupted("pretrain"), None, resume=True)
    assert str(caught.value) == f"{uninterrupted('pretrain')} contains a pretrain run, not a finetune run"


def test_the_same_settings_and_seed_give_the_same_result(reviews, uninterrupted, tmp_path):
    for case in ("pretrain", "finetune"):
        run_case(case, reviews, tmp_path / case, resume=False)
        assert (tmp_path / case / "result.json").read_bytes() == (uninterrupted(case) / "result.json").read_bytes()
    other = finetune_config(loop__epochs=EPOCHS, runtime__seed=1)
    files = {"valid": str(reviews / "valid.csv"), "test": str(reviews / "test.csv")}
    finetune_run(str(reviews / "train.csv"), tmp_path / "other", other, backbone="scratch", **files)
    assert weights(tmp_path / "other") != weights(uninterrupted("finetune"))  # control: the seed does matter


def test_minutes_are_planned_once_and_kept_on_resuming(reviews, tmp_path):
    level = {"optim__warmup": 0.0, "optim__schedule": "constant"}  # the first step must not depend on the plan
    config = pretrain_config(loop__steps=None, loop__minutes=0.02, runtime__time_limit=1e-4, **level)
    with pytest.raises(Interrupted):
        pretrain_run([str(reviews / "texts.txt")], tmp_path / "run", config)
    planned = read_checksummed(tmp_path / "run" / "plan.json")
    assert planned["steps"] >= 1
    write_checksummed(tmp_path / "run" / "plan.json", planned | {"steps": 7, "replans": []})
    change_runtime(tmp_path / "run", time_limit=None)
    pretrain_run([], tmp_path / "run", None, resume=True)
    assert read_json(tmp_path / "run" / "result.json")["steps"] == 7  # not timed again
    # timing must leave no trace in the weights
    plain = pretrain_config(loop__steps=7, **level)
    pretrain_run([str(reviews / "texts.txt")], tmp_path / "plain", plain)
    assert weights(tmp_path / "run") == weights(tmp_path / "plain")
