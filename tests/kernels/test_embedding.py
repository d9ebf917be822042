"""A table whose gradient is cleared where it was written."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headstart.kernels.embedding import CachedGradEmbedding

BATCHES = [torch.tensor(ids) for ids in ([[3, 5, 3], [3, 0, 5]], [[1, 1, 1], [1, 1, 1]], [[4, 3, 8], [8, 8, 2]])]


def learn(*, kept, tied=False, batches=1, steps=6):
    """Weights after some steps, and where the gradient of each lay."""
    torch.manual_seed(0)
    table, head = CachedGradEmbedding(9, 4), nn.Linear(4, 3)
    optimizer = torch.optim.AdamW([*table.parameters(), *head.parameters()], lr=0.1, weight_decay=0.1)
    if kept:
        table.keep()
    places = []
    for step in range(steps):
        for batch in range(batches):
            hidden = table(BATCHES[(step + batch) % 3]).tanh()
            y = F.linear(hidden, table.weight) if tied else head(hidden)
            (y * torch.linspace(-3, 1, y.numel()).view_as(y)).sum().backward()
        grad = table.weight.grad
        places.append(grad.data_ptr())
        grad.mul_(0.37)
        optimizer.step()
        optimizer.zero_grad()
        if kept:
            table.clear(grad)
        assert table.weight.grad is None
        del grad
    return table.weight.detach(), places


@pytest.mark.parametrize(("tied", "batches"), [(False, 1), (True, 1), (False, 2)])
def test_a_table_learns_the_same_bits(tied, batches):
    (ours, _), (plain, _) = (learn(kept=kept, tied=tied, batches=batches) for kept in (True, False))
    assert ours.equal(plain)


def test_its_gradient_stays_where_it_is():
    assert len(set(learn(kept=True)[1])) == 1


@pytest.mark.parametrize(("tied", "batches"), [(True, 1), (False, 2)])
def test_what_others_write_to_is_left_to_torch(tied, batches):
    torch.manual_seed(0)
    table = CachedGradEmbedding(9, 4)
    table.keep()
    for _ in range(2):
        for ids in BATCHES[:batches]:
            hidden = table(ids)
            (F.linear(hidden, table.weight) if tied else hidden).square().sum().backward()
        grad, table.weight.grad = table.weight.grad, None
        table.clear(grad)
        assert grad.abs().sum() > 0  # nobody will write over it: it is whoever's it was
        del grad
    assert table._shared


def test_what_was_there_before_is_added_to():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    table.weight.grad = torch.ones(9, 4)
    table(BATCHES[0]).sum().backward()
    assert table.weight.grad[:, 0].tolist() == [2, 1, 1, 4, 1, 3, 1, 1, 1]


def test_a_copy_is_told_anew():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    other = copy.deepcopy(table)
    assert not other._keeps
    other.keep()
    (F.linear(other(BATCHES[0]), other.weight)).sum().backward()
    assert (other._shared, table._shared) == (True, False)


def test_where_nothing_is_learnt_it_is_an_embedding():
    table = CachedGradEmbedding(9, 4)
    table.keep()
    table.eval()
    table(BATCHES[0]).sum().backward()
    assert table._written is None
    table.train()
    table(BATCHES[0]).sum().backward()  # control
    assert table._shared
    table.weight.requires_grad_(False)
    assert not table(BATCHES[0]).requires_grad
