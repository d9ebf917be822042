"""Attributions are complete, agree with captum, and leave the model unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.recipes import finetune_run
from fixtures.tiny import BAD, GOOD, SHAPE, SPECIAL, VOCABULARY, finetune_config, write_reviews
from headstart import api
from headstart.config.schema import RuntimeConfig
from headstart.data.datasets import LabelledDataset
from headstart.errors import DataError, UsageError
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.predict import integrated_gradients
from headstart.predict.explain import explain_prediction
from headstart.predict.integrated_gradients import attribute, baseline_and_input, margins, merge_pieces
from headstart.predict.predictor import Predictor
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.objectives import class_logits

KINDS = [("classic", "causal"), ("classic", "bidirectional"), ("modern", "causal"), ("modern", "bidirectional")]
ONE = RuntimeConfig(threads=1, device="cpu")


def network(block, attention, classes=3):
    shape = SHAPE.model_copy(update={"block": block, "depth": 1})
    model = Model(build_backbone(shape, VOCABULARY, 1), build_classifier_head(shape, classes, 1, attention))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.linear.weight)  # logits that differ
    return model


def batch_of(ids, windows=False):
    context = 5 if windows else 12
    return LabelledDataset([np.array(ids)], [0], SPECIAL, context=context, windows=windows).batch([0])


@pytest.mark.parametrize(("block", "attention"), KINDS)
@pytest.mark.parametrize("windows", [False, True])
def test_token_weights_sum_to_the_change_of_the_margin(block, attention, windows):
    model, batch = network(block, attention), batch_of([5, 9, 4, 16, 8, 7, 7], windows)
    for target in range(3):
        attribution = attribute(model, batch, target, SPECIAL.pad)
        with torch.no_grad():
            logits = class_logits(model, batch)[0]
        others = [logit for label, logit in enumerate(logits.tolist()) if label != target]
        assert attribution.margin == pytest.approx(logits[target].item() - np.mean(others), abs=1e-5)
        assert attribution.weights_BT.sum() == pytest.approx(attribution.margin - attribution.baseline, abs=0.02)
        assert np.abs(attribution.weights_BT).max() > 1e-3  # control: the weights are not all zero
        assert not attribution.weights_BT[:, 0].any()  # the baseline has the start token, too
        for row, length in enumerate(batch.lengths_B.tolist()):
            assert np.abs(attribution.weights_BT[row, length:]).max(initial=0) < 1e-6  # padding has no weight


@settings(max_examples=15)
@given(st.lists(st.integers(4, VOCABULARY - 1), min_size=1, max_size=10), st.sampled_from(KINDS))
def test_token_weights_of_any_text_sum_to_the_change_of_the_margin(ids, kind):
    attribution = attribute(network(*kind, classes=2), batch_of(ids), 1, SPECIAL.pad)
    tolerance = 0.01 * max(abs(attribution.margin - attribution.baseline), 0.1)
    assert abs(attribution.weights_BT.sum() - (attribution.margin - attribution.baseline)) <= tolerance + 1e-6
    assert attribution.error == pytest.approx(
        attribution.weights_BT.sum() - (attribution.margin - attribution.baseline), abs=1e-6
    )


def test_a_margin_that_jumps_is_followed_closely():
    """A norm makes the margin jump near the baseline, which quadrature on one segment would miss."""
    model, batch = network("modern", "causal", classes=2), batch_of([5, 9, 4])
    with torch.no_grad():
        model.backbone.embedding.weight *= 100  # the embeddings change direction within a small part of the path
        model.backbone.embedding.weight[SPECIAL.pad] = 1e-3
    attribution = attribute(model, batch, 1, SPECIAL.pad)
    change = attribution.margin - attribution.baseline
    assert abs(change) > 1  # control
    assert abs(attribution.error) <= 0.01 * abs(change)
    baseline, embedded = baseline_and_input(model, batch, SPECIAL.pad)
    nodes, quadrature_weights = np.polynomial.legendre.leggauss(8)
    vectors = torch.stack([baseline + (node + 1) / 2 * (embedded - baseline) for node in nodes]).requires_grad_()
    (grad,) = torch.autograd.grad(margins(model, batch, 1, vectors).sum(), vectors)
    plain = (torch.tensor(quadrature_weights / 2)[:, None, None, None] * grad * (embedded - baseline)).sum().item()
    assert abs(plain - change) > 0.05 * abs(change)  # control: one segment is not accurate enough


@pytest.mark.parametrize(("block", "attention"), KINDS)
def test_token_weights_equal_those_of_captum(block, attention, monkeypatch):
    attr = pytest.importorskip("captum.attr")
    monkeypatch.setattr(integrated_gradients, "TOLERANCE", 1e-4)
    model, batch = network(block, attention).eval(), batch_of([5, 9, 4, 16, 8, 7, 7])
    baseline, embedded = baseline_and_input(model, batch, SPECIAL.pad)
    theirs = attr.IntegratedGradients(lambda vectors: margins(model, batch, 2, vectors[:, None])).attribute(
        embedded, baseline, n_steps=500
    )
    ours = attribute(model, batch, 2, SPECIAL.pad).weights_BT
    assert ours == pytest.approx(theirs.sum(dim=-1).detach().numpy(), abs=5e-3)


def test_an_attribution_changes_neither_logits_nor_gradients():
    model, batch = network("classic", "causal"), batch_of([5, 9, 4])
    before = class_logits(model.eval(), batch)
    attribute(model, batch, 0, SPECIAL.pad)
    assert torch.equal(class_logits(model, batch), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("explain"), train=200, valid=80)
    config = finetune_config(loop__epochs=5, transfer__attention="bidirectional")
    finetune_run(str(folder / "train.csv"), folder / "clf", config, backbone="scratch", valid=str(folder / "valid.csv"))
    return folder


def test_the_words_that_decide_are_found(trained):
    predictor = Predictor.load(trained / "clf", ONE)
    hits = []
    for word in (*GOOD, *BAD):
        text = f"the film was {word} and it"
        words = explain_prediction(predictor, text).words
        assert [one.text for one in words] == text.split()
        hits.append(max(words, key=lambda one: abs(one.weight)).text == word)
    assert sum(hits) >= 8


def test_a_label_may_be_asked_about_and_the_other_side_is_the_opposite(trained):
    ours, theirs = (
        api.explain(trained / "clf", "a dull but superb film", label=one) for one in ("negative", "positive")
    )
    assert [one.weight for one in ours.words] == pytest.approx([-one.weight for one in theirs.words], abs=1e-4)
    assert api.explain(trained / "clf", "a dull but superb film") in (ours, theirs)
    with pytest.raises(UsageError) as caught:
        api.explain(trained / "clf", "a film", label="neutral")
    assert str(caught.value) == "there is no label 'neutral'; the labels are negative, positive"
    with pytest.raises(DataError) as empty:
        api.explain(trained / "clf", " ")
    assert str(empty.value) == "the text is empty"


words = st.lists(st.text("abcé.!-'", min_size=1, max_size=12), min_size=1, max_size=8)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words, st.sampled_from([" ", "  ", "\n", " \t", "\r\n"]))
def test_tokens_come_together_as_the_words_of_the_text(trained, split_words, separator):
    tokenizer = load_tokenizer(trained / "clf")
    text = separator.join(split_words)
    ids = tokenizer.encode(text)
    merged = merge_pieces(ids, [1.0] * len(ids), tokenizer)
    assert [word.text for word in merged] == text.split()
    assert sum(word.weight for word in merged) == len(ids)
