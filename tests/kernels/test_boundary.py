"""Only `kernels` imports triton or chooses an implementation by device; the network asks it for a plan."""

import ast
import re
from pathlib import Path

import pytest
import torch

import headstart
from headstart.config.schema import ModelConfig
from headstart.kernels import dispatch
from headstart.kernels.dispatch import PLAIN, KernelPlan

PACKAGE = Path(headstart.__file__).parent
ASKS_FOR_DEVICE = re.compile(
    r"\bis_cuda\b|\bdevice\.type\b|\bget_device_(capability|properties)\b|\bcuda\.is_available\b"
)
DEVICE_FREE = sorted((PACKAGE / "model").rglob("*.py")) + sorted((PACKAGE / "data").rglob("*.py"))


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_triton_is_imported_in_kernels_only():
    importers = {path for path in PACKAGE.rglob("*.py") if any("triton" in name for name in imported_modules(path))}
    assert importers
    assert all(path.is_relative_to(PACKAGE / "kernels") for path in importers)


def test_modules_of_kernels_import_triton_lazily():
    """torch for CPUs comes without triton."""
    for path in (PACKAGE / "kernels").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not any("triton" in name for name in names), path


@pytest.mark.parametrize("path", DEVICE_FREE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_model_and_data_ask_for_no_device(path):
    assert not ASKS_FOR_DEVICE.search(path.read_text(encoding="utf-8"))


def test_code_that_asks_for_a_device_is_recognized():
    for code in ("if x.is_cuda:", "x.device.type == 'cpu'", "torch.cuda.get_device_capability(device)"):
        assert ASKS_FOR_DEVICE.search(code)
    assert not ASKS_FOR_DEVICE.search("torch.arange(3, device=x.device)")


CONFIG = ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=12)
IDS = torch.zeros(2, 12, dtype=torch.long)


def test_a_cpu_runs_plain_torch():
    assert dispatch.plan(CONFIG, IDS, training=True) == PLAIN
    assert dispatch.plan(CONFIG, IDS, training=True, has_cu_seqlens=True) == PLAIN


def test_bidirectional_attention_and_segments_need_a_mask_on_a_cpu():
    masked = KernelPlan(segment_mask=True)
    assert dispatch.plan(CONFIG, IDS, causal=False) == masked
    assert dispatch.plan(CONFIG, IDS, has_segments=True) == masked
    assert dispatch.plan(CONFIG, IDS, causal=False, by_text=True) == KernelPlan(attention="by_text")


@pytest.mark.parametrize(("block", "uniform"), [("modern", True), ("classic", False)])
def test_compiled_pre_norm_layers_are_made_alike(block, uniform):
    config = CONFIG.model_copy(update={"block": block})
    assert dispatch.plan(config, IDS, compiled=True) == KernelPlan(uniform_layers=uniform)


def test_full_rows_in_training_use_cudnn_unless_steps_are_recorded(monkeypatch):
    monkeypatch.setattr(dispatch, "supports_cudnn_attention", lambda *_: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    assert dispatch.plan(CONFIG, IDS, training=True).attention == "cudnn"
    assert dispatch.plan(CONFIG, IDS).attention == "sdpa"
    assert dispatch.plan(CONFIG, IDS[:, 1:], training=True).attention == "sdpa"
    assert dispatch.plan(CONFIG, IDS, training=True, recorded=True).attention == "sdpa"
    assert dispatch.plan(CONFIG, IDS, training=True, has_segments=True).attention == "sdpa"
