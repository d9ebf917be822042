"""The words of a text and what each spoke for: nothing invented, nothing lost; and a network that is left as it was."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.tiny import BAD, GOOD, SHAPE, SPECIAL, VOCABULARY, finetune_config, write_reviews
from headstart import api
from headstart.config.schema import RuntimeConfig
from headstart.data.datasets import LabelledDataset
from headstart.errors import DataError, UsageError
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.predict import explain as room
from headstart.predict.explain import attribute, explain_prediction, margins_of, merge_pieces, vectors_of
from headstart.predict.predictor import Predictor
from headstart.recipes.finetune.run import run_finetune
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.objectives import class_logits

KINDS = [("classic", "causal"), ("classic", "bidirectional"), ("modern", "causal"), ("modern", "bidirectional")]
ONE = RuntimeConfig(threads=1, device="cpu")


def network(block, reading, classes=3):
    shape = SHAPE.model_copy(update={"block": block, "depth": 1})
    model = Model(build_backbone(shape, VOCABULARY, 1), build_classifier_head(shape, classes, 1, reading))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.linear.weight)  # scores that are worth explaining
    return model


def batch_of(ids, windows=False):
    context = 5 if windows else 12
    return LabelledDataset([np.array(ids)], [0], SPECIAL, context=context, windows=windows).batch([0])


@pytest.mark.parametrize(("block", "reading"), KINDS)
@pytest.mark.parametrize("windows", [False, True])
def test_what_the_tokens_get_adds_up_to_what_the_text_did(block, reading, windows):
    model, batch = network(block, reading), batch_of([5, 9, 4, 16, 8, 7, 7], windows)
    for target in range(3):
        found = attribute(model, batch, target, SPECIAL.pad)
        with torch.no_grad():
            scores = class_logits(model, batch)[0]
        others = [score for label, score in enumerate(scores.tolist()) if label != target]
        assert found.margin == pytest.approx(scores[target].item() - np.mean(others), abs=1e-5)
        assert found.weights_BT.sum() == pytest.approx(found.margin - found.baseline, abs=0.02)
        assert np.abs(found.weights_BT).max() > 1e-3  # control: it is not that nothing moved
        assert not found.weights_BT[:, 0].any()  # the start token is there from the start
        for row, length in enumerate(batch.lengths_B.tolist()):
            assert np.abs(found.weights_BT[row, length:]).max(initial=0) < 1e-6  # nor is padding heard


@settings(max_examples=15)
@given(st.lists(st.integers(4, VOCABULARY - 1), min_size=1, max_size=10), st.sampled_from(KINDS))
def test_any_text_adds_up(ids, kind):
    found = attribute(network(*kind, classes=2), batch_of(ids), 1, SPECIAL.pad)
    allowed = 0.01 * max(abs(found.margin - found.baseline), 0.1)
    assert abs(found.weights_BT.sum() - (found.margin - found.baseline)) <= allowed + 1e-6
    assert found.error == pytest.approx(found.weights_BT.sum() - (found.margin - found.baseline), abs=1e-6)


def test_a_margin_that_jumps_is_followed_closely():
    """As a norm lets it do near nothing: eight places alone would miss it."""
    model, batch = network("modern", "causal", classes=2), batch_of([5, 9, 4])
    with torch.no_grad():
        model.backbone.embedding.weight *= 100  # all of the turn from padding to text is in a sliver of the way
        model.backbone.embedding.weight[SPECIAL.pad] = 1e-3
    found = attribute(model, batch, 1, SPECIAL.pad)
    move = found.margin - found.baseline
    assert abs(move) > 1  # control
    assert abs(found.error) <= 0.01 * abs(move)
    empty, real = vectors_of(model, batch, SPECIAL.pad)
    places, shares = np.polynomial.legendre.leggauss(8)
    vectors = torch.stack([empty + (place + 1) / 2 * (real - empty) for place in places]).requires_grad_()
    (gradient,) = torch.autograd.grad(margins_of(model, batch, 1, vectors).sum(), vectors)
    plain = (torch.tensor(shares / 2)[:, None, None, None] * gradient * (real - empty)).sum().item()
    assert abs(plain - move) > 0.05 * abs(move)  # control: it had to be cut finer


@pytest.mark.parametrize(("block", "reading"), KINDS)
def test_the_weights_are_those_of_another_hand(block, reading, monkeypatch):
    attr = pytest.importorskip("captum.attr")
    monkeypatch.setattr(room, "TOLERANCE", 1e-4)
    model, batch = network(block, reading).eval(), batch_of([5, 9, 4, 16, 8, 7, 7])
    empty, real = vectors_of(model, batch, SPECIAL.pad)
    theirs = attr.IntegratedGradients(lambda vectors: margins_of(model, batch, 2, vectors[:, None])).attribute(
        real, empty, n_steps=500
    )
    ours = attribute(model, batch, 2, SPECIAL.pad).weights_BT
    assert ours == pytest.approx(theirs.sum(dim=-1).detach().numpy(), abs=5e-3)


def test_looking_changes_nothing():
    model, batch = network("classic", "causal"), batch_of([5, 9, 4])
    before = class_logits(model.eval(), batch)
    attribute(model, batch, 0, SPECIAL.pad)
    assert torch.equal(class_logits(model, batch), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("explain"), train=200, valid=80)
    config = finetune_config(loop__epochs=5, transfer__attention="bidirectional")
    run_finetune(str(folder / "train.csv"), folder / "clf", config, source="scratch", valid=str(folder / "valid.csv"))
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
    assert str(empty.value) == "the text is empty; there is nothing to explain"


words = st.lists(st.text("abcé.!-'", min_size=1, max_size=12), min_size=1, max_size=8)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words, st.sampled_from([" ", "  ", "\n", " \t", "\r\n"]))
def test_tokens_come_together_as_the_words_of_the_text(trained, given, between):
    tokenizer = load_tokenizer(trained / "clf")
    text = between.join(given)
    ids = tokenizer.encode(text)
    found = merge_pieces(ids, [1.0] * len(ids), tokenizer)
    assert [word.text for word in found] == text.split()
    assert sum(word.weight for word in found) == len(ids)
