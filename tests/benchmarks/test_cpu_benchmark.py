"""The sides of the CPU benchmark do the same work, and its record says how it was made."""

import importlib
import json
import math
from argparse import Namespace
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TRAINERS = ("transformers", "accelerate")


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def shape(module):
    return module("peers").Shape(batch=2, length=8, width=8, depth=2, vocabulary=50)


def test_a_trainer_takes_the_steps_of_the_bare_loop(module, shape):
    """One step at a time, on the same rows, to the same losses; weights decay a little in the bare loop."""
    for package in TRAINERS:
        pytest.importorskip(package)
    peers = module("peers")
    bare, trainer = peers.hf_step(shape), peers.trainer_step(shape)
    losses = [(bare(), trainer()) for _ in range(4)]
    assert [mine for mine, _ in losses] == pytest.approx([theirs for _, theirs in losses], rel=1e-5)
    assert len({round(mine, 5) for mine, _ in losses}) == 4  # control: other rows, other losses


def test_an_error_inside_a_peer_trainer_is_reported(module, shape, monkeypatch):
    for package in TRAINERS:
        pytest.importorskip(package)
    peers = module("peers")
    monkeypatch.setattr(peers.Rows, "__getitem__", lambda self, index: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        peers.trainer_step(shape)()


def test_headstart_and_the_course_guess_at_first(module, shape):
    for name in ("headstart", "course"):
        loss = module("peers").PEERS[name](shape)()
        assert loss == pytest.approx(math.log(shape.vocabulary), rel=0.3)


def test_ratios_are_of_medians_and_rounds_of_their_own(module):
    measurements = {
        "headstart": {"wall": [1.0, 2.0, 9.0], "cpu": [1.0, 2.0, 3.0]},
        "course": {"wall": [3.0, 4.0, 5.0], "cpu": [3.0, 5.0, 3.0]},
    }
    assert module("cpu").ratios(measurements) == {
        "course": {"wall": 2.0, "cpu": 1.5, "cpu_min": 1.0, "cpu_max": 3.0},
    }


def test_a_section_of_the_record_names_its_command_and_machine(module):
    arguments = Namespace(threads=2, rounds=6, only="steps", commit="abc1234")
    about = module("cpu").made_by(arguments, "python benchmarks/cpu.py")
    assert about["command"] == "python benchmarks/cpu.py --threads 2 --rounds 6 --only steps"
    assert (about["commit"], about["threads"]) == ("abc1234", 2)
    assert {"date", "python", "torch", "transformers", "onnxruntime", "cores", "load"} < set(about)


def test_every_section_of_the_committed_record_names_its_command():
    record = json.loads((REPOSITORY / "docs" / "results" / "cpu.json").read_text(encoding="utf-8"))
    for name, part in record.items():
        machine = part["machine"]
        assert machine["commit"], name
        assert machine["date"], name
        assert "rounds" not in part or f"--rounds {part['rounds']}" in machine["command"], name
