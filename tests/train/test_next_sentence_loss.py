"""The next-sentence head learns what can be learnt, stays at chance on noise, and its loss accumulates exactly."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fixtures.tiny import CPU, SHAPE, SPECIAL, VOCABULARY, corpus, in_memory, language_model
from headstart.config.schema import IGNORE_INDEX, GenericConfig, MaskingConfig, ModelConfig, OptimConfig
from headstart.data.datasets import PackedDataset
from headstart.data.masking import mask_tokens
from headstart.data.next_sentence import NextSentenceDataset, weight_pairs
from headstart.model.heads import LanguageHead, Model, NextSentenceHead, lm_logits
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import next_sentence_loss
from headstart.train.optimizers import build_optimizer, layer_level
from headstart.train.scoring import score_next_sentence

WEIGHT = 0.7


def next_sentence_model(shape=SHAPE):
    model = language_model(shape=shape)
    model.head = NextSentenceHead(model.head, shape.width, 0)
    return model


def topics(documents: int, *, separable: bool, seed: int) -> SimpleNamespace:
    """Documents of ten tokens: two tokens of the document's topic, or any tokens."""
    rng = np.random.default_rng(seed)
    texts = [
        rng.integers(4 + 2 * (index % 6), 6 + 2 * (index % 6), 10) if separable else rng.integers(4, 16, 10)
        for index in range(documents)
    ]
    return in_memory(list(texts))


def masked(rows, first, count):
    return mask_tokens(rows.batch(first, count), first, MaskingConfig(), SPECIAL, VOCABULARY, 0, next_token=False)


@pytest.mark.parametrize("block", ["classic", "modern"])
@pytest.mark.parametrize("separable", [True, False])
def test_next_sentence_prediction_is_learnt_from_topics_and_not_from_noise(block, separable):
    shape = ModelConfig(block=block, width=32, depth=2, heads=2, feedforward=48, context=12)
    model = next_sentence_model(shape)
    config = OptimConfig(optimizer="adamw", lr=5e-3, beta2=0.98, warmup=0.1, schedule="linear", clip=1.0)
    rows = NextSentenceDataset(topics(400, separable=separable, seed=0), np.arange(400), SPECIAL, context=12, seed=0)
    state = TrainState(model, build_optimizer(model, config), 0)
    steps = fit(
        state,
        lambda step: weight_pairs([masked(rows, 32 * step, 32)], 4.0),
        lambda batch: next_sentence_loss(model, batch),
        config,
        120,
        CPU,
    )
    assert len(list(steps)) == 120
    held_out = NextSentenceDataset(
        topics(300, separable=separable, seed=9), np.arange(300), SPECIAL, context=12, seed=None
    )
    score = score_next_sentence(model, held_out, CPU, lambda: None)
    assert score.pairs == 300
    if separable:
        assert score.accuracy > 0.8  # a twelfth of the pairs is of one topic by chance
    else:
        assert score.accuracy == pytest.approx(0.5, abs=0.12)  # four standard errors
        assert score.loss == pytest.approx(np.log(2), abs=0.05)


def test_the_next_sentence_loss_is_the_token_mean_plus_the_weighted_pair_mean():
    model = next_sentence_model()
    rows = NextSentenceDataset(corpus([9, 14, 20, 6, 30]), np.arange(5), SPECIAL, context=12, seed=1)
    (batch,) = weight_pairs([masked(rows, 0, 6)], WEIGHT)
    loss = next_sentence_loss(model, batch)
    states = model.backbone(batch.ids_BT, batch.segments_BT, "bidirectional")
    logits = lm_logits(model, states)
    tokens = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX)
    pairs = F.cross_entropy(model.head.pair(states[:, 0]), batch.pairs_B)
    assert (loss.total / loss.count).item() == pytest.approx((tokens + WEIGHT * pairs).item(), rel=1e-5)
    (unweighted,) = weight_pairs([masked(rows, 0, 6)], 0.0)
    tokens_alone = next_sentence_loss(model, unweighted)
    assert (tokens_alone.total / tokens_alone.count).item() == pytest.approx(tokens.item(), rel=1e-5)  # control


@pytest.mark.parametrize("mixed", [False, True])
def test_accumulated_next_sentence_gradients_equal_those_of_one_batch(mixed):
    """Also where some batches of the step have no pairs, and where batches have different numbers of targets."""
    documents = corpus([9, 14, 20, 6, 30, 5])
    rows = NextSentenceDataset(documents, np.arange(6), SPECIAL, context=12, seed=1)
    plain = [PackedDataset(documents, np.arange(6), SPECIAL, context=12, layout="packed", seed=1).batch(0, 2)] * mixed

    def gradients(batches):
        model = next_sentence_model()
        count = 0.0
        for batch in weight_pairs(batches, WEIGHT):
            loss = next_sentence_loss(model, batch)
            loss.total.backward()
            count += loss.count
        return {name: parameter.grad / count for name, parameter in model.named_parameters()}

    large = gradients([masked(rows, 0, 6), *plain])
    small = gradients([masked(rows, 0, 1), *plain, masked(rows, 1, 4), masked(rows, 5, 1)])
    assert large.keys() == small.keys()
    for name, gradient in large.items():
        torch.testing.assert_close(small[name], gradient, rtol=1e-4, atol=1e-6)
    assert large["head.pair.weight"].abs().max() > 0


def test_a_next_sentence_head_adds_two_tensors_to_the_same_language_head():
    plain, with_pairs = language_model(), next_sentence_model()
    assert torch.equal(plain.head.linear.weight, with_pairs.head.linear.weight)
    assert {name for name, _ in with_pairs.head.named_parameters()} == {
        *(name for name, _ in plain.head.named_parameters()),
        "pair.weight",
        "pair.bias",
    }
    assert layer_level("head.pair.weight", 4) == 0


BERT = GenericConfig(family="bert", norm_first=False, positions=12, embedding_norm=True, transform=True, head_bias=True)


@pytest.mark.parametrize(
    "shape",
    [SHAPE, SHAPE.model_copy(update={"block": "generic", "generic": BERT, "tied": True})],
    ids=["classic", "bert"],
)
def test_the_plain_head_of_a_next_sentence_head_is_a_complete_language_head(shape):
    expected, with_pairs = language_model(shape=shape), next_sentence_model(shape)
    plain = Model(with_pairs.backbone, with_pairs.head.plain())
    states = torch.randn(3, shape.width, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lm_logits(plain, states), lm_logits(expected, states))
    assert type(plain.head) is LanguageHead
    assert plain.head.state_dict().keys() == expected.head.state_dict().keys()
