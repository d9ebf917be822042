"""A teacher's opinion in the loss: the formula, its gradients, and that it stays a teacher."""

import pytest
import torch
import torch.nn.functional as F

from fixtures.tiny import VOCABULARY, language_model
from headstart.data.batch import Batch
from headstart.train.objectives import Teacher, distillation_loss, language_model_loss

UNSCORED = -100


def batch(seed: int = 0) -> Batch:
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (3, 7), generator=chance)
    targets = torch.randint(4, VOCABULARY, (3, 7), generator=chance)
    targets[torch.rand((3, 7), generator=chance) < 0.4] = UNSCORED
    return Batch(ids, torch.zeros_like(ids), targets, int((targets != UNSCORED).sum()))


def gradients(model, loss):
    model.zero_grad()
    loss.total.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def plainly(model, teacher, weight, batch):
    """The same loss with every score in memory."""

    def scores(one):
        hidden = one.backbone(batch.ids_BT, batch.segments_BT, batch.attention).flatten(0, 1)
        return F.linear(hidden, *one.head.weights(one.backbone))[batch.targets.flatten() != UNSCORED]

    wanted = batch.targets.flatten()
    told = scores(model).log_softmax(dim=1)
    with torch.no_grad():
        taught = scores(teacher).softmax(dim=1)
    hard = F.nll_loss(told, wanted[wanted != UNSCORED], reduction="sum")
    return (1 - weight) * hard - weight * (taught * told).sum()


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_loss_and_its_gradients_are_those_of_the_formula(weight):
    model, teacher = language_model(seed=1), language_model(seed=2)
    found = distillation_loss(model, Teacher(teacher, weight), batch())
    slopes = gradients(model, found)
    model.zero_grad()
    expected = plainly(model, teacher, weight, batch())
    expected.backward()
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert found.count == batch().num_targets
    for name, parameter in model.named_parameters():
        assert torch.allclose(slopes[name], parameter.grad, atol=1e-5), name


def test_a_teacher_of_no_weight_leaves_the_plain_loss():
    model = language_model(seed=1)
    plain, taught = (
        language_model_loss(model, batch()),
        distillation_loss(model, Teacher(language_model(seed=2), 0.0), batch()),
    )
    assert taught.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    other = distillation_loss(model, Teacher(language_model(seed=2), 0.5), batch())
    assert other.total.item() != pytest.approx(plain.total.item(), rel=1e-3)  # control


def test_the_best_pupil_of_a_sure_teacher_is_the_teacher():
    teacher = language_model(seed=2)
    slopes = gradients(teacher, distillation_loss(teacher, Teacher(language_model(seed=2), 1.0), batch()))
    assert max(float(slope.abs().max()) for slope in slopes.values()) < 1e-4
    stranger = language_model(seed=1)
    slopes = gradients(stranger, distillation_loss(stranger, Teacher(language_model(seed=2), 1.0), batch()))
    assert max(float(slope.abs().max()) for slope in slopes.values()) > 1e-2  # control


def test_a_teacher_gets_no_gradient_and_drops_nothing():
    model, teacher = language_model(seed=1), language_model(seed=2)
    teacher.train()
    distillation_loss(model, Teacher(teacher, 0.5), batch()).total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.training
