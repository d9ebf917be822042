"""The loss as a GPU computes it, a chunk of rows at a time, has the numbers of plain cross-entropy; here on the CPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.linear_loss import far_target_inputs, linear_loss_inputs, reference_loss, relative_errors
from headstart.config.schema import IGNORE_INDEX
from headstart.kernels import cross_entropy
from headstart.kernels.cross_entropy import chunk_rows, chunked_loss_cuda


def from_exp_logits_in_torch(hidden, weight, vocabulary, bias, targets, out):
    """The kernels of `triton.cross_entropy.from_exp_logits` as torch operations."""
    logits = hidden.to(out.dtype).float() @ weight.float().T
    if bias is not None:
        logits += bias
    logits[:, vocabulary:] = -torch.inf
    target_logit = logits.gather(1, targets[:, None])
    shift = target_logit + 40
    sum_exp = (logits - shift).exp().sum(dim=1, keepdim=True)
    overflows = sum_exp >= 1e30
    shift = torch.where(overflows, logits.amax(dim=1, keepdim=True), shift)
    exp_logits = (logits - shift).exp()
    sum_exp = exp_logits.sum(dim=1, keepdim=True)
    target_grad = (target_logit - shift).exp() - sum_exp
    rounded = target_grad.to(out.dtype)
    out.copy_(exp_logits).scatter_(1, targets[:, None], rounded)
    factor = torch.where(rounded == 0, 1, target_grad / rounded.float()) / sum_exp
    scaled = hidden.float() * factor
    if bias is not None:
        scaled[:, -1:] = factor - factor.to(out.dtype).float()
    return (shift - target_logit + sum_exp.log())[:, 0], factor[:, 0], scaled.to(out.dtype)


CHUNK_LOSSES = {"logits": None, "exp_logits": from_exp_logits_in_torch}


@given(
    st.integers(0, 40),
    st.integers(1, 17),
    st.integers(1, 140),
    st.integers(1, 16),
    st.booleans(),
    st.sampled_from(sorted(CHUNK_LOSSES)),
)
def test_a_chunked_loss_equals_plain_cross_entropy_and_its_gradients(rows, width, vocabulary, chunk, has_bias, name):
    inputs = linear_loss_inputs(rows, width, vocabulary, has_bias=has_bias)
    results = chunked_loss_cuda(*inputs, torch.float32, rows=chunk, chunk_loss=CHUNK_LOSSES[name])
    for ours, theirs in zip(results, reference_loss(*inputs), strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CHUNK_LOSSES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_ignored_rows_have_no_loss_and_no_gradients(name, has_bias):
    hidden, weight, bias, targets = linear_loss_inputs(40, 7, 90, has_bias=has_bias)
    targets[[0, 5, 17, 39]] = IGNORE_INDEX
    inputs = hidden, weight, bias, targets
    results = chunked_loss_cuda(
        *inputs, torch.float32, rows=16, chunk_loss=CHUNK_LOSSES[name], ignore_index=IGNORE_INDEX
    )
    for ours, theirs in zip(results, reference_loss(*inputs), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    assert not results[1][[0, 5, 17, 39]].any()
    assert results[1][1].any()  # control


@pytest.mark.parametrize("name", CHUNK_LOSSES)
def test_a_chunked_loss_in_bf16_has_the_precision_of_bf16(name):
    inputs = linear_loss_inputs(200, 24, 333, has_bias=True)
    results = chunked_loss_cuda(*inputs, torch.bfloat16, rows=64, chunk_loss=CHUNK_LOSSES[name])
    assert all(result.dtype == torch.float32 for result in results)
    for error in relative_errors(results, reference_loss(*inputs)):
        assert 0 < error < 0.02


@pytest.mark.parametrize(("scale", "vocabulary"), [(0.02, 2000), (0.25, 2000), (0.25, 65), (0.5, 333)])
def test_exponentials_are_no_less_exact_than_logits(scale, vocabulary):
    """In bf16, where logits are rounded before their exponentials are taken, and exponentials after it."""
    inputs = linear_loss_inputs(300, 100, vocabulary, has_bias=True, scale=scale)
    expected = reference_loss(*inputs)
    logit_errors, exp_errors = (
        relative_errors(chunked_loss_cuda(*inputs, torch.bfloat16, chunk_loss=chunk_loss), expected)
        for chunk_loss in CHUNK_LOSSES.values()
    )
    for ours, usual in zip(exp_errors, logit_errors, strict=True):
        assert ours < 1.1 * usual + 1e-4


@pytest.mark.parametrize("name", CHUNK_LOSSES)
@pytest.mark.parametrize(("dtype", "max_error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.005)])
def test_a_target_far_below_the_best_logit_costs_no_precision(name, dtype, max_error):
    inputs = far_target_inputs(40, 19, 130, has_bias=True)
    results = chunked_loss_cuda(*inputs, dtype, chunk_loss=CHUNK_LOSSES[name])
    for error in relative_errors(results, reference_loss(*inputs)):
        assert error < max_error


@pytest.mark.parametrize("name", CHUNK_LOSSES)
def test_padding_of_the_vocabulary_has_no_probability(name):
    """All logits are far below 0, which is the logit of an entry made of zeros."""
    hidden, weight, bias = torch.randn(5, 3), -100 * torch.ones(65, 3), -50 * torch.ones(65)
    inputs = hidden.abs(), weight, bias, torch.randint(65, (5,))
    results = chunked_loss_cuda(*inputs, torch.float32, chunk_loss=CHUNK_LOSSES[name])
    for ours, theirs in zip(results, reference_loss(*inputs), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-3)


def test_the_gradient_of_a_weight_without_padding_is_not_copied():
    *_, weight, _ = chunked_loss_cuda(*linear_loss_inputs(9, 16, 64, has_bias=False), torch.float32)
    assert weight.is_contiguous()


@pytest.mark.parametrize("columns", [8192, 16384, 50048, 128256])
@pytest.mark.parametrize("count", [1, 127, 19660, 32768, 65536])
def test_chunks_are_alike_and_stay_within_the_memory_budget(count, columns):
    rows = chunk_rows(count, columns, 2)
    assert rows % 128 == 0
    assert rows * columns * 2 <= cross_entropy._CHUNK_BYTES
    number = -(-count // rows)
    assert number * rows - count < 128 * number  # the last chunk is not much smaller


@pytest.mark.parametrize("rows", [0, 1, 30, 600])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_cpu_computes_the_loss_in_bf16_within_rounding(rows, has_bias):
    inputs = linear_loss_inputs(rows, 40, 70, has_bias=has_bias, scale=0.5)
    hidden, weight, bias = (None if tensor is None else tensor.requires_grad_() for tensor in inputs[:3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = cross_entropy.linear_cross_entropy(hidden, weight, bias, inputs[3])
    total.backward()
    results = [total.detach(), hidden.grad, weight.grad, None if bias is None else bias.grad]
    assert all(result.dtype == torch.float32 for result in results if result is not None)
    expected = reference_loss(*(None if tensor is None else tensor.detach() for tensor in inputs))
    if rows:
        errors = relative_errors(results, expected)
        assert errors[0] < 2e-3
        assert max(errors[1:]) < 2e-2
    else:
        assert not any(result.any() for result in results if result is not None)


def test_a_bias_is_not_rounded_in_bf16():
    """A bias of 8 would be rounded by up to 0.016, and the logarithm of every probability with it."""
    bias = 8 + torch.rand(64, generator=torch.Generator().manual_seed(0))
    low = cross_entropy._with_bias_columns(torch.zeros(64, 8), bias, sharded=False)
    torch.testing.assert_close(low[:, 8].float() + low[:, 9].float(), bias, rtol=0, atol=1e-4)
