"""ddp and fsdp in a group of one process, which runs the same code as a larger one: gloo on a CPU, NCCL on a GPU."""

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
    dist.init_process_group(backend, init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


LARGER = {"width": 64, "heads": 4, "context": 32}
MODERN = merge_config(type(SHAPE), {**SHAPE.model_dump(), "block": "modern", **LARGER})
GENERIC = GenericConfig(family="gpt2", norm_first=True, activation="gelu_tanh", positions=32, final_norm=True)
GPT2 = SHAPE.model_copy(update={"block": "generic", "generic": GENERIC, "dropout": 0.0, **LARGER})


def train(strategy, device, precision, recompute, shape):
    runtime = setup_runtime(RuntimeConfig(device=device, precision=precision, threads=1))
    model = language_model(shape=shape).to(runtime.device)
    model.backbone.recompute = recompute
    strategy.shard(model, runtime)
    config = OptimConfig(optimizer="muon", lr=3e-3, weight_decay=0.1)
    state = TrainState(model, build_optimizer(model, config), 0, strategy=strategy)
    documents = corpus([40, 7, 31, 12, 60, 25])
    rows = PackedDataset(documents, torch.arange(6).numpy(), SPECIAL, context=32, layout="packed", seed=0)
    reports = fit(
        state, lambda step: [rows.batch(4 * step, 4)], lambda b: language_model_loss(model, b), config, 20, runtime
    )
    losses = [report.loss for report in reports]
    with strategy.full_model(model) as plain:
        held_out_loss = score_language(plain, rows, 100, runtime, lambda: None).loss
        names = list(plain.state_dict())
    return losses, held_out_loss, names, strategy.gather(optimizer_tensors(state.optimizer, model))


def check_equals_single(strategy_class, device, precision, recompute, shape=MODERN):
    losses, held_out_loss, names, optimizer_state = train(
        strategy_class(SINGLE_PROCESS), device, precision, recompute, shape
    )
    single_losses, single_held_out_loss, single_names, single_state = train(SINGLE, device, precision, recompute, shape)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert single_losses[-1] < single_losses[0]
    assert losses == pytest.approx(single_losses, rel=tolerance)
    assert held_out_loss == pytest.approx(single_held_out_loss, rel=tolerance)
    assert names == single_names
    assert {name: tensor.shape for name, tensor in optimizer_state.items()} == {
        name: tensor.shape for name, tensor in single_state.items()
    }


@pytest.mark.parametrize("strategy_class", [DataParallel, FullyShardedParallel])
def test_a_group_of_one_has_the_losses_of_no_group(strategy_class, group):
    check_equals_single(strategy_class, "cpu", "fp32", recompute=True)


@pytest.mark.parametrize("shape", [MODERN, GPT2])
@pytest.mark.parametrize("strategy_class", [DataParallel, FullyShardedParallel])
def test_a_group_of_one_works_with_a_separate_residual(strategy_class, shape, group, monkeypatch):
    """As with fused kernels: the bias of a layer may be resharded before the next layer would add it."""
    monkeypatch.setattr(dispatch, "_can_fuse_training", lambda *_, **__: torch.is_grad_enabled())
    check_equals_single(strategy_class, "cpu", "fp32", recompute=False, shape=shape)


def test_fsdp_may_gather_layers_in_bf16(group):
    check_equals_single(FullyShardedParallel, "cpu", "bf16", recompute=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("strategy_class", [DataParallel, FullyShardedParallel])
def test_a_group_of_one_on_a_gpu_has_the_losses_of_no_group(strategy_class, recompute, precision, group):
    check_equals_single(strategy_class, "cuda", precision, recompute)
