"""Copies and shards in a group of one process, which takes every step that a larger one takes: gloo here, NCCL on a GPU."""

import pytest
import torch
import torch.distributed as dist

from fixtures.tiny import SHAPE, SPECIAL, corpus, language_model
from headstart.config.merge import merge_config
from headstart.config.schema import GenericConfig, OptimConfig, RuntimeConfig
from headstart.data.datasets import PackedDataset
from headstart.kernels import dispatch
from headstart.runtime import setup_runtime
from headstart.train.distributed import SINGLE_PROCESS
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer, optimizer_tensors
from headstart.train.parallel import SINGLE, DataParallel, FullyShardedParallel
from headstart.train.scoring import score_language


@pytest.fixture
def group(tmp_path):
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


LARGER = {"width": 64, "heads": 4, "context": 32}
MODERN = merge_config(type(SHAPE), {**SHAPE.model_dump(), "block": "modern", **LARGER})
STOCK = GenericConfig(family="gpt2", norm_first=True, activation="gelu_tanh", positions=32, final_norm=True)
GPT2 = SHAPE.model_copy(update={"block": "generic", "generic": STOCK, "dropout": 0.0, **LARGER})


def trained(way, device, precision, recompute, shape):
    runtime = setup_runtime(RuntimeConfig(device=device, precision=precision, threads=1))
    model = language_model(shape=shape).to(runtime.device)
    model.backbone.recompute = recompute
    way.spread(model, runtime)
    config = OptimConfig(optimizer="muon", lr=3e-3, weight_decay=0.1)
    state = TrainState(model, build_optimizer(model, config), 0, way=way)
    documents = corpus([40, 7, 31, 12, 60, 25])
    rows = PackedDataset(documents, torch.arange(6).numpy(), SPECIAL, context=32, layout="packed", seed=0)
    reports = fit(
        state, lambda step: [rows.batch(4 * step, 4)], lambda b: language_model_loss(model, b), config, 20, runtime
    )
    losses = [report.loss for report in reports]
    with way.full_model(model) as plain:
        held = score_language(plain, rows, 100, runtime, lambda: None).loss
        names = list(plain.state_dict())
    return losses, held, names, way.gather(optimizer_tensors(state.optimizer, model))


def compare(kind, device, precision, recompute, shape=MODERN):
    alone, held, names, moments = trained(SINGLE, device, precision, recompute, shape)
    ours, ours_held, ours_names, ours_moments = trained(kind(SINGLE_PROCESS), device, precision, recompute, shape)
    bound = 1e-5 if precision == "fp32" else 2e-2
    assert alone[-1] < alone[0]
    assert ours == pytest.approx(alone, rel=bound)
    assert ours_held == pytest.approx(held, rel=bound)
    assert ours_names == names
    assert {name: tensor.shape for name, tensor in ours_moments.items()} == {
        name: tensor.shape for name, tensor in moments.items()
    }


@pytest.mark.parametrize("kind", [DataParallel, FullyShardedParallel])
def test_the_losses_are_those_without_a_group(kind, group):
    compare(kind, "cpu", "fp32", recompute=True)


@pytest.mark.parametrize("shape", [MODERN, GPT2])
@pytest.mark.parametrize("kind", [DataParallel, FullyShardedParallel])
def test_the_losses_of_fused_kernels_are_those_without_a_group(kind, shape, group, monkeypatch):
    """A deferred bias may be gone when the next layer would add it: sharded layers must not defer any."""
    monkeypatch.setattr(dispatch, "_can_fuse_training", lambda *_, **__: torch.is_grad_enabled())
    compare(kind, "cpu", "fp32", recompute=False, shape=shape)


def test_layers_may_travel_in_bf16(group):
    compare(FullyShardedParallel, "cpu", "bf16", recompute=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", [DataParallel, FullyShardedParallel])
def test_the_losses_on_a_gpu_are_those_without_a_group(kind, recompute, precision, group):
    compare(kind, "cuda", precision, recompute)
