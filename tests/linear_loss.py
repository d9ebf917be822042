"""The loss of a linear layer: a question, its answer in double precision, and how far another is from it."""

import torch
import torch.nn.functional as F


def question(rows, width, vocabulary, *, biased, seed=0, scale=1.0, device="cpu"):
    torch.manual_seed(seed)
    hidden, weight = scale * torch.randn(rows, width), scale * torch.randn(vocabulary, width)
    bias = scale * torch.randn(vocabulary) if biased else None
    asked = hidden, weight, bias, torch.randint(vocabulary, (rows,))
    return tuple(None if part is None else part.to(device) for part in asked)


def far_target(rows, width, vocabulary, *, biased, distance=300, device="cpu"):
    """The target of one row lies far below the best score, that of another as far above some other."""
    hidden, weight, bias, targets = question(rows, width, vocabulary, biased=biased, scale=0.25, device=device)
    weight[:2] = 0
    weight[0, 0], weight[1, 0] = -16, 16
    hidden[:2] = 0
    hidden[:2, 0] = distance / 32
    targets[0], targets[1] = 0, 1
    return hidden, weight, bias, targets


def oracle(hidden, weight, bias, targets):
    """Loss and gradients in double precision."""
    parts = [None if part is None else part.double().requires_grad_() for part in (hidden, weight, bias)]
    total = F.cross_entropy(F.linear(*parts), targets, reduction="sum")
    total.backward()
    return total.detach(), *(None if part is None else part.grad for part in parts)


def errors(found, expected):
    """The distance of each from what it should be, as a share of its length."""
    assert [part is None for part in found] == [part is None for part in expected]
    pairs = [(ours, theirs) for ours, theirs in zip(found, expected, strict=True) if theirs is not None]
    assert all(ours.shape == theirs.shape for ours, theirs in pairs)
    return [float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in pairs]
