"""The distillation loss: its formula and gradients, and a teacher that is not trained."""

import pytest
import torch
import torch.nn.functional as F

from fixtures.tiny import VOCABULARY, language_model
from headstart.data.batch import Batch
from headstart.train.objectives import Teacher, distillation_loss, language_model_loss

IGNORE_INDEX = -100


def batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (3, 7), generator=generator)
    targets = torch.randint(4, VOCABULARY, (3, 7), generator=generator)
    targets[torch.rand((3, 7), generator=generator) < 0.4] = IGNORE_INDEX
    return Batch(ids, torch.zeros_like(ids), targets, int((targets != IGNORE_INDEX).sum()))


def gradients(model, loss):
    model.zero_grad()
    loss.total.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def reference_loss(model, teacher, weight, batch):
    """The same loss with all logits in memory."""

    def logits(network):
        hidden = network.backbone(batch.ids_BT, batch.segments_BT, batch.attention).flatten(0, 1)
        return F.linear(hidden, *network.head.weights(network.backbone))[batch.targets.flatten() != IGNORE_INDEX]

    targets = batch.targets.flatten()
    log_probabilities = logits(model).log_softmax(dim=1)
    with torch.no_grad():
        teacher_probabilities = logits(teacher).softmax(dim=1)
    hard = F.nll_loss(log_probabilities, targets[targets != IGNORE_INDEX], reduction="sum")
    return (1 - weight) * hard - weight * (teacher_probabilities * log_probabilities).sum()


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_distillation_loss_and_its_gradients_follow_the_formula(weight):
    model, teacher = language_model(seed=1), language_model(seed=2)
    loss = distillation_loss(model, Teacher(teacher, weight), batch())
    grads = gradients(model, loss)
    model.zero_grad()
    expected = reference_loss(model, teacher, weight, batch())
    expected.backward()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.count == batch().num_targets
    for name, parameter in model.named_parameters():
        assert torch.allclose(grads[name], parameter.grad, atol=1e-5), name


def test_a_teacher_of_weight_zero_leaves_the_language_model_loss():
    model = language_model(seed=1)
    plain, taught = (
        language_model_loss(model, batch()),
        distillation_loss(model, Teacher(language_model(seed=2), 0.0), batch()),
    )
    assert taught.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    weighted = distillation_loss(model, Teacher(language_model(seed=2), 0.5), batch())
    assert weighted.total.item() != pytest.approx(plain.total.item(), rel=1e-3)  # control


def test_the_loss_of_a_teacher_of_weight_one_is_minimal_at_the_teacher():
    teacher = language_model(seed=2)
    grads = gradients(teacher, distillation_loss(teacher, Teacher(language_model(seed=2), 1.0), batch()))
    assert max(float(grad.abs().max()) for grad in grads.values()) < 1e-4
    student = language_model(seed=1)
    grads = gradients(student, distillation_loss(student, Teacher(language_model(seed=2), 1.0), batch()))
    assert max(float(grad.abs().max()) for grad in grads.values()) > 1e-2  # control


def test_a_teacher_gets_no_gradient_and_is_in_eval_mode():
    model, teacher = language_model(seed=1), language_model(seed=2)
    teacher.train()
    distillation_loss(model, Teacher(teacher, 0.5), batch()).total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.training
