"""Parameter counts are exact, and list what a convention excludes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config.schema import ModelConfig
from headstart.model.heads import ClassifierHead, LanguageHead, Model
from headstart.model.parameter_count import count_parameters
from headstart.model.transformer import Backbone

shapes = st.builds(
    lambda block, heads, k, depth, feedforward: ModelConfig(
        block=block, width=2 * heads * k, heads=heads, depth=depth, feedforward=feedforward
    ),
    st.sampled_from(["classic", "modern"]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 40),
)


@given(shapes, st.integers(1, 60), st.integers(2, 9), st.sampled_from(["causal", "bidirectional"]))
def test_the_formula_equals_the_parameters_of_the_network(shape, vocab_size, classes, attention):
    backbone = Backbone(shape, vocab_size)
    heads = [(None, LanguageHead(shape, vocab_size)), (classes, ClassifierHead(shape, classes, attention))]
    for count, head in heads:
        built = sum(parameter.numel() for parameter in Model(backbone, head).parameters())
        assert count_parameters(shape, vocab_size, count, attention=attention).total == built


@given(shapes, st.integers(1, 60), st.integers(2, 9))
def test_what_weights_only_excludes_is_listed_and_adds_up(shape, vocab_size, classes):
    short = count_parameters(shape, vocab_size, classes, "weights-only")
    full = count_parameters(shape, vocab_size, classes)
    assert short.total + sum(row.count for row in short.excluded) == full.total


@pytest.mark.parametrize(("classes", "total"), [(None, 21_018_401), (2, 10_968_602)])
def test_the_published_network_has_its_published_size(classes, total):
    assert count_parameters(ModelConfig(), 50_001, classes).total == total


@pytest.mark.parametrize(("classes", "total"), [(None, 3_440_000), (2, 2_440_400)])
def test_the_weights_only_count_is_the_published_one_and_lists_what_it_excludes(classes, total):
    short = count_parameters(ModelConfig(depth=6), 5_000, classes, "weights-only")
    assert short.total == total
    assert [row.part for row in short.excluded] == [
        "attention in (query, key, value), biases",
        "attention out, biases",
        "feed-forward, biases",
        "norms",
        "language head, biases" if classes is None else "classifier head, biases",
    ]


def test_the_rows_are_the_published_ones():
    counts = {row.part: row.count for row in count_parameters(ModelConfig(), 50_001, None).rows}
    assert counts == {
        "embedding": 10_000_200,
        "attention in (query, key, value)": 4 * 120_600,
        "attention out": 4 * 40_200,
        "feed-forward": 4 * (81_200 - 800),
        "norms": 4 * 800,
        "language head": 10_050_201,
    }
