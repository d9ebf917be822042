"""Embedding lookup: one with a cached gradient, and one with a fused backward pass."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headstart.kernels.embedding import CachedGradEmbedding, embedding_lookup

BATCHES = [torch.tensor(ids) for ids in ([[3, 5, 3], [3, 0, 5]], [[1, 1, 1], [1, 1, 1]], [[4, 3, 8], [8, 8, 2]])]


def train(*, cached, tied=False, batches=1, steps=6):
    """Weights after some steps, and the address of the gradient at each."""
    torch.manual_seed(0)
    table, head = CachedGradEmbedding(9, 4), nn.Linear(4, 3)
    optimizer = torch.optim.AdamW([*table.parameters(), *head.parameters()], lr=0.1, weight_decay=0.1)
    if cached:
        table.keep()
    addresses = []
    for step in range(steps):
        for batch in range(batches):
            hidden = table(BATCHES[(step + batch) % 3]).tanh()
            y = F.linear(hidden, table.weight) if tied else head(hidden)
            (y * torch.linspace(-3, 1, y.numel()).view_as(y)).sum().backward()
        grad = table.weight.grad
        addresses.append(grad.data_ptr())
        grad.mul_(0.37)
        optimizer.step()
        optimizer.zero_grad()
        if cached:
            table.clear(grad)
        assert table.weight.grad is None
        del grad
    return table.weight.detach(), addresses


@pytest.mark.parametrize(("tied", "batches"), [(False, 1), (True, 1), (False, 2)])
def test_a_cached_gradient_trains_the_same_bits(tied, batches):
    (ours, _), (plain, _) = (train(cached=cached, tied=tied, batches=batches) for cached in (True, False))
    assert ours.equal(plain)


def test_a_cached_gradient_stays_in_the_same_memory():
    assert len(set(train(cached=True)[1])) == 1


@pytest.mark.parametrize(("tied", "batches"), [(True, 1), (False, 2)])
def test_a_shared_gradient_is_left_to_torch(tied, batches):
    torch.manual_seed(0)
    table = CachedGradEmbedding(9, 4)
    table.keep()
    for _ in range(2):
        for ids in BATCHES[:batches]:
            hidden = table(ids)
            (F.linear(hidden, table.weight) if tied else hidden).square().sum().backward()
        grad, table.weight.grad = table.weight.grad, None
        table.clear(grad)
        assert grad.abs().sum() > 0  # it is not cleared for reuse
        del grad
    assert table._is_shared


def test_an_existing_gradient_is_added_to():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    table.weight.grad = torch.ones(9, 4)
    table(BATCHES[0]).sum().backward()
    assert table.weight.grad[:, 0].tolist() == [2, 1, 1, 4, 1, 3, 1, 1, 1]


def test_a_copy_does_not_cache_its_gradient_before_keep_is_called():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    duplicate = copy.deepcopy(table)
    assert not duplicate._keeps
    duplicate.keep()
    (F.linear(duplicate(BATCHES[0]), duplicate.weight)).sum().backward()
    assert (duplicate._is_shared, table._is_shared) == (True, False)


def test_a_table_that_nobody_uses_any_more_is_freed_with_its_gradient():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    table(BATCHES[0]).sum().backward()
    freed = [weakref.ref(one) for one in (table, table.weight, table.weight.grad)]
    assert all(one() is not None for one in freed)  # control
    del table
    gc.collect()
    assert [one() for one in freed] == [None, None, None]


def test_in_evaluation_and_when_frozen_it_is_a_plain_embedding():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    table.eval()
    table(BATCHES[0]).sum().backward()
    assert table._written is None
    table.train()
    table(BATCHES[0]).sum().backward()  # control
    assert table._is_shared
    table.weight.requires_grad_(False)
    assert not table(BATCHES[0]).requires_grad


@pytest.mark.parametrize(
    "positions", [None, torch.tensor([2, 0, 1]), torch.tensor([[0, 1, 2], [2, 2, 4]]), torch.tensor([[3, 1, 2]])]
)
def test_a_fused_lookup_and_its_gradients_are_those_of_torch(positions):
    results = []
    ids = torch.tensor([[5, 0, 5], [7, 5, 1]])
    for fused in (True, False):
        torch.manual_seed(0)
        table, position_table = torch.randn(9, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
        if fused:
            y = embedding_lookup(ids, table, positions, None if positions is None else position_table)
        else:
            y = F.embedding(ids, table) + (0 if positions is None else F.embedding(positions, position_table))
        (y * torch.randn_like(y)).sum().backward()
        results.append([y, table.grad, *([] if positions is None else [position_table.grad])])
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
