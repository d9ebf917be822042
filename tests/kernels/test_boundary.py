"""Only `kernels` imports triton or chooses an implementation by device; the network and training ask it."""

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
MAY_ASK = {"train/cuda_graphs.py", "train/distributed.py", "recipes/bench.py"}
"""The files of these packages that may ask which device it is."""
NO_CHOICE = {"train/parallel.py": "init_device_mesh(runtime.device.type,"}
"""Code that hands the type of a device on and chooses nothing by it."""
DEVICE_FREE = [
    path
    for package in ("model", "data", "train", "recipes")
    for path in sorted((PACKAGE / package).rglob("*.py"))
    if path.relative_to(PACKAGE).as_posix() not in MAY_ASK
]


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
def test_other_packages_ask_for_no_device(path):
    allowed = NO_CHOICE.get(path.relative_to(PACKAGE).as_posix(), "")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if ASKS_FOR_DEVICE.search(line.replace(allowed, ""))] == []


def test_every_exception_is_needed():
    for name in MAY_ASK:
        assert ASKS_FOR_DEVICE.search((PACKAGE / name).read_text(encoding="utf-8")), name
    for name, code in NO_CHOICE.items():
        assert (PACKAGE / name).read_text(encoding="utf-8").count(code) == 1, name


def test_code_that_asks_for_a_device_is_recognized():
    for code in ("if x.is_cuda:", "x.device.type == 'cpu'", "torch.cuda.get_device_capability(device)"):
        assert ASKS_FOR_DEVICE.search(code)
    assert not ASKS_FOR_DEVICE.search("torch.arange(3, device=x.device)")


CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda", "mps"))


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (dispatch.is_asynchronous, {CUDA}),
        (dispatch.supports_compiled_training, {CUDA}),
        (dispatch.needs_full_batches, {CUDA}),
        (dispatch.caches_embedding_grads, {CPU}),
        (dispatch.supports_fused_adam, {CPU, CUDA}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_training_does_on_each_device(predicate, expected):
    assert {device for device in (CPU, CUDA, MPS) if predicate(device)} == expected


def test_a_tensor_is_on_a_type_of_device_whatever_its_index():
    assert dispatch.is_on_device(IDS, CPU)
    assert dispatch.is_on_device(IDS, torch.device("cpu", 0))
    assert not dispatch.is_on_device(IDS, CUDA)


def test_a_cpu_orthogonalizes_in_the_precision_of_the_matrix_unless_it_trains_in_bf16():
    for dtype in (torch.float32, torch.float64):
        assert dispatch.newton_schulz_dtype(torch.zeros(2, 2, dtype=dtype), bf16=False) == dtype
    assert dispatch.newton_schulz_dtype(torch.zeros(2, 2), bf16=True) == torch.bfloat16


@pytest.mark.parametrize(
    ("device", "bf16", "deterministic", "tokens"),
    [
        (CPU, True, False, 1024),
        (CUDA, True, False, 32768),
        (CUDA, False, False, 8192),
        (CUDA, True, True, 8192),
        (MPS, True, False, 8192),
    ],
)
def test_batches_for_scoring_are_large_where_attention_needs_no_mask(device, bf16, deterministic, tokens):
    assert dispatch.max_scoring_tokens(device, bf16=bf16, deterministic=deterministic) == tokens


CONFIG = ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=12)
IDS = torch.zeros(2, 12, dtype=torch.long)


def test_a_cpu_runs_plain_torch():
    assert dispatch.plan(CONFIG, IDS, training=True) == PLAIN
    assert dispatch.plan(CONFIG, IDS, training=True, has_cu_seqlens=True) == PLAIN


@pytest.mark.parametrize("layout", [{}, {"has_segments": True}, {"by_text": True}, {"causal": False}])
def test_a_cpu_under_autocast_casts_weights_once_and_groups_documents(layout):
    grouped = KernelPlan(attention="grouped", cast_weights=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dispatch.plan(CONFIG, IDS, training=True, **layout) == grouped
        assert dispatch.plan(CONFIG, IDS, training=True, compiled=True, **layout).cast_weights is False


def test_attention_weights_that_are_dropped_are_not_grouped():
    config = CONFIG.model_copy(update={"block": "classic", "dropout": 0.1})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dispatch.plan(config, IDS, training=True) == KernelPlan(cast_weights=True, short_dropout=True)


@pytest.mark.parametrize("bf16", [True, False])
def test_a_cpu_draws_short_numbers_for_dropout_in_training(bf16):
    config = CONFIG.model_copy(update={"dropout": 0.1})
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        assert dispatch.plan(config, IDS, training=True).short_dropout
        assert not dispatch.plan(config, IDS, training=True, compiled=True).short_dropout
        assert not dispatch.plan(config, IDS.to("meta"), training=True).short_dropout  # another device
        assert not dispatch.plan(config, IDS).short_dropout


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
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert dispatch.plan(CONFIG, IDS, training=True).attention == "cudnn"
    assert dispatch.plan(CONFIG, IDS).attention == "sdpa"
    assert dispatch.plan(CONFIG, IDS[:, 1:], training=True).attention == "sdpa"
    assert dispatch.plan(CONFIG, IDS, training=True, recorded=True).attention == "sdpa"
    assert dispatch.plan(CONFIG, IDS, training=True, has_segments=True).attention == "sdpa"
