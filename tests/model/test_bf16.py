"""A network that trains in bf16 on a CPU has the outputs and gradients of fp32 within rounding, whatever its rows."""

import pytest
import torch

from fixtures.tiny import VOCABULARY, network_configs
from headstart.kernels.dispatch import PAD_TO_MULTIPLE_OF
from headstart.model.transformer import build_backbone

CONFIGS = network_configs(width=32, depth=3, heads=2, feedforward=48, context=20)
SEGMENTS = torch.tensor([[0] * 7 + [1] * 5 + [2] * 8, [0] * 12 + [-1] * 8, [0] * 20])
LAYOUTS = {
    "full rows": {},
    "several documents in a row": {"segments_BT": SEGMENTS},
    "one text in a row": {"lengths": (3, 20, 11)},
}


def outputs_and_grads(config, attention, layout, *, bf16):
    backbone = build_backbone(config, VOCABULARY, 0).train()
    ids = torch.randint(4, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        hidden = backbone(ids, attention=attention, **layout)
    assert hidden.dtype == torch.float32
    (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in backbone.parameters())
    return {"hidden": hidden, **{name: parameter.grad for name, parameter in backbone.named_parameters()}}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_backbone_in_bf16_has_the_outputs_and_gradients_of_fp32(name, attention, layout):
    exact, low = (outputs_and_grads(CONFIGS[name], attention, LAYOUTS[layout], bf16=bf16) for bf16 in (False, True))
    assert not torch.equal(exact["hidden"], low["hidden"])  # control: it is another computation
    for key, value in exact.items():
        error = (low[key] - value).norm() / value.norm().clamp(min=1e-3)
        assert error < (0.02 if key == "hidden" else 0.15), (key, error.item())


@pytest.mark.parametrize("bf16", [False, True])
def test_frozen_layers_keep_nothing_for_the_backward_pass(bf16):
    backbone = build_backbone(CONFIGS["modern"], VOCABULARY, 0).train()
    backbone.requires_grad_(False)
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16),
    ):
        hidden = backbone(torch.randint(4, VOCABULARY, (2, 20)))
        assert hidden.grad_fn is None
        assert saved == []
        backbone.layers[2].requires_grad_(True)
        assert backbone(torch.randint(4, VOCABULARY, (2, 20))).grad_fn is not None
        assert saved  # control: a layer that trains does keep something


def test_products_in_bf16_have_few_shapes_whatever_the_lengths_of_the_texts():
    backbone, sizes = build_backbone(CONFIGS["modern"], VOCABULARY, 0).train(), set()
    backbone.layers[0].register_forward_pre_hook(lambda _layer, arguments: sizes.add(arguments[0].shape[1]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for length in range(1, 21):
            hidden = backbone(torch.zeros(3, 20, dtype=torch.long), lengths=(3, length, 20))
            assert hidden.shape == (3, 20, 32)
    assert sizes == {PAD_TO_MULTIPLE_OF, 2 * PAD_TO_MULTIPLE_OF}


def test_texts_that_are_scored_have_few_shapes_whatever_their_lengths():
    backbone, sizes = build_backbone(CONFIGS["modern"], VOCABULARY, 0).eval(), set()
    ids = torch.randint(4, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(0))
    alone = backbone(ids[:1], attention="bidirectional")
    backbone.layers[0].register_forward_pre_hook(lambda _layer, arguments: sizes.add(arguments[0].shape[1]))
    with torch.inference_mode():
        for length in range(1, 21):
            hidden = backbone(ids, attention="bidirectional", lengths=(20, length, 3))
            torch.testing.assert_close(hidden[:1], alone)
    assert sizes == {PAD_TO_MULTIPLE_OF, 2 * PAD_TO_MULTIPLE_OF}
