"""`headstart predict --input FILE --out FILE`: bounded memory, and the same bytes after any interruption."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fixtures.waiting import PATIENCE
from headstart.cli import predict as room
from headstart.cli.main import run
from headstart.cli.prediction_output import InputText


@pytest.fixture
def rows(tmp_path):
    """A csv with blank rows, commas, and rows that have a label already."""
    path = tmp_path / "in.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        for number in range(50):
            text = "" if number % 7 == 3 else "the film, " * (number % 5 + 1) + ("superb" if number % 2 else "dull")
            writer.writerow([number, text, "positive" if number % 11 == 0 else ""])
    return path


OPTIONS = ["", "--only-unlabelled --label-column label", "--text-column text"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("options", OPTIONS)
def test_an_interrupted_run_resumes_to_the_same_bytes_and_remarks(typed, rows, stop_after, suffix, options):
    whole, out = rows.with_name(f"whole.{suffix}"), rows.with_name(f"out.{suffix}")
    stop_after(None)
    _, _, remarks = typed(f"predict clf --input {rows} --out {whole} {options}")
    for calls in (0, 2, 1):  # before the first window, then further on each time
        stop_after(calls)
        code, _, _ = typed(f"predict clf --input {rows} --out {out} {options} --resume")
        assert code == 130
        assert not out.exists()
    partial = rows.with_name(f"out.{suffix}.partial").read_bytes()
    assert len(partial) < whole.stat().st_size
    assert whole.read_bytes().startswith(partial)
    stop_after(None)
    code, _, resumed_remarks = typed(f"predict clf --input {rows} --out {out} {options} --resume")
    assert code == 0
    assert out.read_bytes() == whole.read_bytes()
    assert resumed_remarks == remarks.replace("whole", "out")
    assert sorted(path.name for path in rows.parent.iterdir()) == sorted(["in.csv", whole.name, out.name])


def test_an_interruption_says_how_to_go_on(typed, rows, stop_after):
    stop_after(2)
    code, _, err = typed(f"predict clf --input {rows} --out {rows.parent / 'out.csv'}")
    assert code == 130
    message = f"saved 16 rows to {rows.parent / 'out.csv.partial'}; run the same command with --resume to continue\n"
    assert message in err


def test_a_torn_end_of_the_partial_file_is_overwritten(typed, rows, stop_after):
    stop_after(None)
    typed(f"predict clf --input {rows} --out {rows.parent / 'whole.csv'}")
    stop_after(2)
    typed(f"predict clf --input {rows} --out {rows.parent / 'out.csv'}")
    with (rows.parent / "out.csv.partial").open("ab") as file:
        file.write(b"17,the film, hal")
    stop_after(None)
    assert typed(f"predict clf --input {rows} --out {rows.parent / 'out.csv'} --resume")[0] == 0
    assert (rows.parent / "out.csv").read_bytes() == (rows.parent / "whole.csv").read_bytes()


def change_input(rows):
    rows.write_text(rows.read_text(encoding="utf-8") + "50,one more,\n", encoding="utf-8")


def cut_partial(rows):
    os.truncate(rows.parent / "out.csv.partial", 10)


def change_partial(rows):
    content = bytearray((rows.parent / "out.csv.partial").read_bytes())
    content[100] ^= 1
    (rows.parent / "out.csv.partial").write_bytes(content)


REMEDY = "delete {partial} to start again"
UNFINISHED = "{partial} has 16 rows of an unfinished run; add --resume to continue, or delete it to start again"
OTHER_INPUT = f"{{rows}} differs from the input of {{partial}} (sha256); {REMEDY}"
OTHER_OPTION = f"{{partial}} has rows with other values of --only-unlabelled; {REMEDY}"
CHANGED = "{partial} is damaged: its rows are not those that were written; delete it to start again"
CUT = "{partial} is damaged: 10 bytes where {size} were written; delete it to start again"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, "", UNFINISHED),
        (change_input, "--resume", OTHER_INPUT),
        (None, "--resume --only-unlabelled", OTHER_OPTION),
        (cut_partial, "--resume", CUT),
        (change_partial, "--resume", CHANGED),
    ],
    ids=["no option", "another input", "another option", "cut", "changed"],
)
def test_what_cannot_be_resumed_is_refused_in_one_line(typed, rows, stop_after, change, options, message):
    stop_after(2)
    out, partial = rows.parent / "out.csv", rows.parent / "out.csv.partial"
    typed(f"predict clf --input {rows} --out {out}")
    size = json.loads((rows.parent / "out.csv.partial.json").read_text())["bytes"]
    if change:
        change(rows)
    code, _, err = typed(f"predict clf --input {rows} --out {out} {options}")
    assert (code, err) == (2 if "damaged" not in message else 1, f"headstart: {message.format(**locals())}\n")
    assert not out.exists()


def test_another_model_is_refused(typed, rows, stop_after):
    other = rows.parent / "other"
    typed(f"finetune train.csv --from base --out {other} --quiet --loop.epochs 1 --runtime.threads 1")
    stop_after(2)
    out = rows.parent / "out.csv"
    typed(f"predict clf --input {rows} --out {out}")
    code, _, err = typed(f"predict {other} --input {rows} --out {out} --resume")
    partial = f"{out}.partial"
    message = f"{other} differs from the model of {partial} (sha256); delete {partial} to start again"
    assert (code, err) == (2, f"headstart: {message}\n")


@pytest.mark.parametrize("options", ["'a text' --resume", "--input test.csv --resume"])
def test_resuming_needs_a_file_and_an_output(typed, options):
    code, _, err = typed(f"predict clf {options}")
    message = "--resume needs both --input FILE and --out FILE"
    assert (code, err) == (2, f"headstart: {message}\n")


def test_a_killed_process_resumes_to_the_same_bytes(trained, tmp_path, environment, monkeypatch):
    texts = tmp_path / "many.jsonl"
    with texts.open("w", encoding="utf-8") as file:
        for number in range(10_000):
            file.write(json.dumps({"text": f"the film is {'superb' if number % 3 else 'dull'} {number}"}) + "\n")
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "headstart", "predict", "clf", "--input", str(texts), "--quiet"]
    process = subprocess.Popen([*command, "--out", str(out)], cwd=trained, env=environment)
    try:
        side, deadline = tmp_path / "out.jsonl.partial.json", time.monotonic() + PATIENCE
        while not side.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        process.kill()
        code = process.wait()
    assert code == -signal.SIGKILL, "the process ended before it could be killed"
    done = json.loads(side.read_text())["rows"]
    assert 0 < done < 10_000
    partial = (tmp_path / "out.jsonl.partial").read_bytes()[: json.loads(side.read_text())["bytes"]]
    assert len([json.loads(line) for line in partial.splitlines()]) == done  # what is there is valid
    monkeypatch.chdir(trained)
    for arguments in (["--out", str(out), "--resume"], ["--out", str(whole)]):
        assert run([*command[3:], *arguments]) == 0
    assert out.read_bytes() == whole.read_bytes()


def test_memory_holds_one_window_of_a_file_at_a_time(monkeypatch):
    monkeypatch.setattr(room, "WINDOW_ROWS", 10)
    monkeypatch.setattr(room, "WINDOW_CHARACTERS", 50)
    read = 0

    def inputs():
        nonlocal read
        for number in range(1000):
            read += 1
            yield InputText({}, "x" * (40 if number >= 500 else 1))

    seen = 0
    for window in room._windows(inputs()):
        seen += len(window)
        assert read == seen, "nothing is read ahead of the window"
        assert len(window) <= (10 if seen <= 500 else 2)
    assert seen == 1000
