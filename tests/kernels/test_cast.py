"""Linear layers in bf16 on a CPU give the numbers of fp32 within rounding, and dropout the same zeros in both."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headstart.config.schema import ModelConfig, OptimConfig
from headstart.kernels import cast
from headstart.kernels.cast import apply_linear, cast_once, dropout, dropout_mask
from headstart.kernels.dispatch import PLAIN, KernelPlan
from headstart.model.heads import Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.train.optimizers import build_optimizer

CAST = KernelPlan(cast_weights=True)
SHORT = KernelPlan(short_dropout=True)


def test_a_weight_is_cast_again_only_after_it_has_changed():
    weight = nn.Parameter(torch.randn(8, 8))
    first = cast_once(weight)
    assert cast_once(weight) is first
    torch.testing.assert_close(first, weight.detach().bfloat16(), rtol=0, atol=0)
    with torch.no_grad():
        weight.mul_(2)
    torch.testing.assert_close(cast_once(weight), weight.detach().bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_an_optimizer_step_renews_the_copies_of_all_weights(optimizer):
    config = ModelConfig(block="modern", width=16, depth=1, heads=2, feedforward=24, context=12)
    model = Model(build_backbone(config, 20, 0), build_language_head(config, 20, 0))
    update = build_optimizer(model, OptimConfig(optimizer=optimizer, lr=0.5))
    stale = {name: cast_once(parameter).clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    update.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(cast_once(parameter), parameter.detach().bfloat16()), name
        assert not torch.equal(cast_once(parameter), stale[name]), name


def test_weights_that_were_loaded_or_replaced_renew_the_copy():
    layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
    cast_once(layer.weight)
    layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(cast_once(layer.weight), other.weight.detach().bfloat16(), rtol=0, atol=0)
    layer.weight.data = torch.zeros(8, 8)
    assert not cast_once(layer.weight).any()


def test_a_copied_module_has_a_copy_of_its_own():
    layer = nn.Linear(8, 8)
    low = cast_once(layer.weight)
    assert cast_once(copy.deepcopy(layer).weight) is not low


def test_the_copy_is_freed_with_its_weight():
    weight = nn.Parameter(torch.randn(8, 8))
    cast_once(weight)
    before = len(cast._COPIES)
    del weight
    gc.collect()
    assert len(cast._COPIES) < before


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cast_linear_layer_gives_the_outputs_and_gradients_of_fp32(bias, x_dtype):
    results = []
    for plan in (CAST, PLAIN):
        torch.manual_seed(0)
        layer = nn.Linear(48, 32, bias=bias)
        x = torch.randn(2, 5, 48, dtype=x_dtype).to(x_dtype if plan is CAST else torch.float32).requires_grad_()
        y = apply_linear(x, layer, plan)
        assert y.dtype == (torch.bfloat16 if plan is CAST else torch.float32)
        y.backward(torch.randn(y.shape).to(y.dtype))
        assert x.grad.dtype == x.dtype
        assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
        results.append([y, x.grad, *(parameter.grad for parameter in layer.parameters())])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), exact, rtol=2e-2, atol=3e-2)


def test_a_frozen_layer_keeps_nothing_for_a_backward_pass():
    layer = nn.Linear(16, 16).requires_grad_(False)
    assert apply_linear(torch.randn(2, 16), layer, CAST).grad_fn is None


def test_dropout_has_the_mean_and_the_share_of_zeros_that_were_asked_for():
    torch.manual_seed(0)
    for p in (0.1, 0.5):
        mask = dropout_mask(torch.Size((1000, 1001)), p).float()
        assert mask.mean().item() == pytest.approx(1, abs=3e-3)
        assert (mask == 0).float().mean().item() == pytest.approx(p, abs=4e-3)
        assert len(mask.unique()) == 2


@pytest.mark.parametrize("p", [0.001, 0.005, 0.01, 0.02, 0.1, 0.3, 0.999])
def test_dropout_of_any_probability_drops_that_share_and_keeps_the_mean(p):
    torch.manual_seed(0)
    y = dropout(torch.ones(2000, 1001), p, SHORT, training=True)
    dropped = (y == 0).float().mean().item()
    assert dropped == pytest.approx(p, rel=0.06)
    kept = y[y != 0].unique()
    assert kept.numel() == 1
    assert kept.item() * (1 - dropped) == pytest.approx(1, rel=2e-2)


def test_dropout_follows_the_seed_and_is_left_out_in_inference():
    x = torch.ones(7, 9)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(dropout(x, 0.5, SHORT, training=True))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(dropout(x, 0.5, SHORT, training=False), x)


def test_gradients_pass_where_numbers_were_kept():
    torch.manual_seed(0)
    x = torch.ones(40, 8, requires_grad=True)
    y = dropout(x, 0.5, SHORT, training=True)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_without_the_plan_dropout_is_torchs_own():
    x, draws = torch.ones(7, 9), []
    for drop in (lambda: dropout(x, 0.5, PLAIN, training=True), lambda: F.dropout(x, 0.5)):
        torch.manual_seed(0)
        draws.append(drop())
    assert torch.equal(*draws)


@pytest.mark.parametrize("block", ["modern", "classic"])
@pytest.mark.parametrize("layout", ["rows", "segments", "lengths"])
def test_one_seed_drops_the_same_activations_in_fp32_and_bf16(block, layout):
    config = ModelConfig(block=block, width=32, depth=2, heads=2, feedforward=48, context=12, dropout=0.4)
    backbone = build_backbone(config, 20, 0)
    ids, segments = torch.randint(4, 20, (3, 12)), torch.tensor([[0] * 5 + [1] * 7] * 3)
    arguments = {"rows": {}, "segments": {"segments_BT": segments}, "lengths": {"lengths": (12, 4, 7)}}[layout]

    def hidden_states(seed, *, bf16):
        torch.manual_seed(seed)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            return backbone(ids, **arguments)

    exact, rounded, other = (
        hidden_states(seed, bf16=bf16).detach() for seed, bf16 in ((1, False), (1, True), (2, True))
    )
    error, spread = (rounded - exact).abs().max(), exact.std()
    assert 0 < error < 0.1 * spread
    assert (other - exact).abs().max() > spread  # control: another seed drops other activations
