"""The benchmark of a GPU runs from end to end on a CPU too, in shapes so small that its figures mean nothing."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.waiting import PATIENCE

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py"), "--tiny", "--variants", "--profile"]
    settings = ["--rounds", "1", "--steps", "1", "--warm", "1", "--commit", "abc1234", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    finished = subprocess.run(
        [*command, *settings], capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment
    )
    return finished.stdout, json.loads(out.read_text())


@pytest.mark.slow
def test_every_part_leaves_its_figures(done):
    printed, record = done
    assert set(record) == {"classic", "gpt2", "modern", "packed", "attention", "loss", "curves"}
    assert "broke off" not in printed
    for name in ("classic", "gpt2", "modern", "packed"):
        assert record[name]["sides"]["headstart"]["tokens_per_second"] > 0
        assert record[name]["machine"]["commit"] == "abc1234"
        for side in record[name]["sides"].values():
            assert "error" not in side or "transformers" in side["error"]  # the one package that may be missing
    assert all("error" not in row for part in ("attention", "loss", "curves") for row in record[part]["rows"])


@pytest.mark.slow
def test_packed_documents_cost_less_attention_than_full_rows(done):
    """Strictly counted: what lies in other documents is not looked at. The usual formula cannot tell."""
    _, record = done
    results = {name: record[name]["sides"]["headstart"] for name in ("modern", "packed")}
    assert (
        results["packed"]["strict_mfu"] / results["packed"]["mfu"]
        < results["modern"]["strict_mfu"] / results["modern"]["mfu"]
    )


@pytest.mark.slow
def test_the_page_of_results_is_made_from_them(done, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    gpu, markdown = (importlib.import_module(f"result_pages.{name}") for name in ("gpu", "markdown"))
    monkeypatch.setattr(markdown, "RESULTS", tmp_path)
    assert gpu.pretraining_step() == gpu.by_size() == gpu.finetuning() == gpu.seeds() == []  # control: no figures
    assert "Not measured yet" in gpu.kernel_table()
    (tmp_path / "gpu.json").write_text(json.dumps(done[1]))
    page = "\n".join([*gpu.pretraining_step(), *gpu.by_size()])
    assert page.startswith("## Pretraining step\n")
    assert "| the course's language model | Headstart | " in page
    order = "python benchmarks/gpu.py classic gpt2 modern --rounds 1 --steps 1 --warm 1 --variants --profile"
    assert f"{order} --out docs/results/gpu.json  # commit abc1234, " in page
    assert "python benchmarks/gpu.py curves --curve vocabulary --curve batch --out " in page
    assert "| memory, GiB | seconds to start |" in page
    assert "| vocabulary | 101 | " in page
    assert "Longest kernels" in gpu.kernel_table()
