"""The linear classifier: what it learns, its probabilities, its contributions, and its files."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from headstart.linear import classifier
from headstart.linear.classifier import LinearClassifier, fit_linear
from headstart.linear.ngrams import HashTable, count_ngrams, find_frequent, hash_rows
from headstart.linear.views import weigh
from headstart.linear.vocabulary import Vocabulary, token_spans, word_pattern
from headstart.metrics import softmax

GOOD = ["A great book!", "great fun", "truly great, truly", "Great  story", "what a great film", "so great"]
BAD = ["A dull book!", "dull and long", "truly dull, truly", "Dull  story", "what a dull film", "so dull"]
TEXTS, GOLD = GOOD * 3 + BAD * 3, [0] * 18 + [1] * 18


@pytest.fixture(scope="module")
def fit():
    return fit_linear(TEXTS, GOLD, 2)


def test_it_learns_words(fit):
    probabilities = softmax(fit.classifier.logits(["a great plot", "a dull plot"]))
    assert probabilities.argmax(axis=1).tolist() == [0, 1]
    assert (fit.oof_logits.argmax(axis=1) == GOLD).mean() > 0.7
    assert fit.setting["C"] in [setting["C"] for setting in fit.tried]


def test_characters_of_a_script_without_spaces_are_words():
    assert word_pattern().findall("我很喜欢 iphone7 x_1") == ["我", "很", "喜", "欢", "iphone7", "x_1"]
    assert word_pattern().findall("हिन्दी में") == ["हिन्दी", "में"]
    assert len(word_pattern().findall("ภาษาไทย")) == 7
    texts = ["这本书很好看", "质量很好", "太差了", "很差的书"] * 6
    logits = fit_linear(texts, [0, 0, 1, 1] * 6, 2).classifier.logits(["东西好", "东西差"])
    assert logits.argmax(axis=1).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("texts", "gold", "num_labels"),
    [
        (["a"], [1], 3),
        (["a b", "c d"], [0, 1], 2),
        (["", " \n"], [0, 1], 3),
        (["!!!", "..."], [0, 1], 2),
        (["\ud800 x", "İstanbul ΣΑΣ"], [0, 1], 2),
        ([*TEXTS, "odd"], [*GOLD, 2], 5),
        ([f"w{i}" for i in range(30)], list(range(30)), 30),
        (["the same"] * 40, [0, 1] * 20, 2),
    ],
)
def test_few_and_odd_texts_give_finite_logits_and_an_absent_label_a_very_low_one(texts, gold, num_labels):
    fit = fit_linear(texts, gold, num_labels)
    logits = fit.classifier.logits([*texts, "", "unknown"])
    for array in (logits, fit.oof_logits):
        assert np.isfinite(array).all()
        absent = [label for label in range(num_labels) if label not in gold]
        assert (softmax(array)[:, absent] < 1e-9).all()
    assert fit.oof_logits.shape == (len(texts), num_labels)


def test_logits_that_are_equal_but_for_rounding_give_finite_weights():
    texts = [f"the film number {row} was a good story of words" for row in range(7)]
    fit = fit_linear(texts, np.arange(7), 7)
    assert all(np.isfinite(view.weight).all() for view in fit.classifier.views)
    assert np.isfinite(fit.classifier.logits(texts)).all()


def test_blank_texts_predict_the_most_frequent_label():
    logits = fit_linear(["", " ", "\n"], [0, 1, 1], 2).classifier.logits(["", "word"])
    assert logits.argmax(axis=1).tolist() == [1, 1]


def test_it_needs_a_text_for_each_label_that_it_gets():
    with pytest.raises(ValueError, match="2 texts and 1 labels; expected the same number, and one or more"):
        fit_linear(["a", "b"], [0], 2)


def test_of_more_texts_than_can_be_fitted_in_the_time_a_sample_is_fitted(monkeypatch, fit):
    monkeypatch.setattr(classifier, "TRIAL_NONZEROS", 200)  # about three texts
    sampled = fit_linear(TEXTS, GOLD, 2, seconds=0.0)
    assert 1 < sampled.setting["rows"] < 10
    assert sampled.oof_logits.shape == (len(TEXTS), 2)
    in_time = fit_linear(TEXTS, GOLD, 2, seconds=3600.0)
    assert "rows" not in in_time.setting
    assert (in_time.oof_logits == fit.oof_logits).all()


def test_the_same_texts_give_the_same_bits(fit):
    again = fit_linear(TEXTS, GOLD, 2)
    assert all((again.classifier.tensors()[name] == array).all() for name, array in fit.classifier.tensors().items())
    assert (again.oof_logits == fit.oof_logits).all()


def test_the_order_of_the_texts_does_not_matter(fit):
    order = np.random.default_rng(0).permutation(len(TEXTS))
    other = fit_linear([TEXTS[row] for row in order], [GOLD[row] for row in order], 2)
    assert (other.oof_logits == fit.oof_logits[order]).all()
    assert (other.classifier.logits(TEXTS) == fit.classifier.logits(TEXTS)).all()


def test_equal_texts_share_a_fold():
    """Of labels by chance, a copy in another fold would give the label away."""
    rng = np.random.default_rng(0)
    texts, gold = [" ".join(rng.choice(list("abcdefghij"), 12)) for _ in range(60)], rng.integers(0, 2, 60)
    fit = fit_linear(texts * 2, [*gold, *gold], 2)
    assert ((fit.classifier.logits(texts).argmax(axis=1) == gold).mean()) > 0.95  # control
    assert (fit.oof_logits.argmax(axis=1) == [*gold, *gold]).mean() < 0.75


def test_unlabelled_texts_teach_words_that_no_labelled_text_has():
    rng = np.random.default_rng(0)
    topics = [[f"{topic}{i}" for i in range(30)] for topic in ("sea", "sky")]
    unlabelled = [" ".join(rng.choice(topics[row % 2], 8)) for row in range(400)]
    texts, gold = unlabelled[:24], [0, 1] * 12
    seen = {word for text in texts for word in text.split()}
    few = [[word for word in topic if word not in seen or word[-1] == "7"][:6] for topic in topics]
    alone, helped = (fit_linear(texts, gold, 2, unlabelled=further) for further in ((), unlabelled[24:]))
    assert len(helped.classifier.views[0].ngrams) > len(alone.classifier.views[0].ngrams)
    assert "components" in helped.setting
    assert "components" not in alone.setting
    assert helped.classifier.logits([" ".join(words) for words in few]).argmax(axis=1).tolist() == [0, 1]
    spans = helped.classifier.contributions(texts[0], 0)
    logits, bias = helped.classifier.logits([texts[0], ""])
    assert sum(score for *_, score in spans) == pytest.approx((logits - bias)[0] - (logits - bias)[1], abs=1e-4)


def test_a_check_interrupts_between_fits():
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_linear(TEXTS, GOLD, 2, check=check)
    assert len(calls) == 5


def words_and_pairs(text):
    words = re.findall(r"[^\W一-鿿]+|[一-鿿]", text.lower())
    return [*words, *(" ".join(pair) for pair in pairwise(words))]


def characters_inside_words(text):
    words = [f" {word} " for word in text.lower().split()]
    return [word[at : at + n] for word in words for n in range(2, 6) for at in range(len(word) - n + 1)]


@pytest.mark.parametrize(
    ("kind", "lengths", "analyzer"),
    [("words", (1, 2), words_and_pairs), ("characters", (2, 5), characters_inside_words)],
)
def test_the_features_are_those_of_scikit_learn(kind, lengths, analyzer):
    texts = [*TEXTS, "", "Ça n'est\tpas mal — 100 % 好的"]
    reference = TfidfVectorizer(analyzer=analyzer, sublinear_tf=True)
    expected = reference.fit_transform(texts)
    frequent = find_frequent(kind, texts, lengths, min_df=1, max_features=10**6)
    counts = count_ngrams(Vocabulary(kind, frequent.tokens), HashTable(hash_rows(frequent.ngrams)), lengths[1], texts)
    idf = (1 + np.log((1 + len(texts)) / (1 + frequent.frequencies))).astype(np.float32)
    features = weigh(counts, idf)
    joiner = " " if kind == "words" else ""
    names = [joiner.join(frequent.tokens[i] for i in row if i >= 0) for row in frequent.ngrams.tolist()]
    assert sorted(names) == sorted(reference.vocabulary_)
    columns = [reference.vocabulary_[name] for name in names]
    np.testing.assert_allclose(features.toarray(), expected.toarray()[:, columns], atol=1e-6)


def test_rare_ngrams_are_left_out_and_frequent_ones_come_first():
    frequent = find_frequent("words", ["a b", "a c", "a b"], (1, 2), min_df=2, max_features=2)
    assert [[frequent.tokens[i] for i in row if i >= 0] for row in frequent.ngrams.tolist()] == [["a"], ["b"]]
    assert frequent.frequencies.tolist() == [3, 2]


def test_more_texts_than_a_chunk_holds_are_counted_alike(fit, monkeypatch):
    whole = fit.classifier.logits(TEXTS)
    monkeypatch.setattr("headstart.linear.ngrams.CHUNK_CHARACTERS", 20)
    assert (fit.classifier.logits(TEXTS) == whole).all()
    assert fit.classifier.logits([]).shape == (0, 2)


@pytest.mark.parametrize(
    "text", ["A Great,  dull-great story...", "İ great 很好 great", "", "  ", "?!", "nothing known"]
)
@pytest.mark.parametrize("label", [0, 1])
def test_contributions_of_spans_sum_to_the_margin_without_the_bias(fit, text, label):
    spans = fit.classifier.contributions(text, label)
    logits, bias = fit.classifier.logits([text, ""])
    margin = (logits - bias)[label] - np.delete(logits - bias, label).mean()
    assert sum(score for *_, score in spans) == pytest.approx(margin, abs=1e-5)
    assert sorted(spans) == spans
    covered = [at for start, end, _ in spans for at in range(start, end)]
    assert covered == [at for at, character in enumerate(text) if not character.isspace()]


def test_a_word_that_decides_has_the_largest_contribution(fit):
    text = "It is a GREAT plan."
    start, end, _ = max(fit.classifier.contributions(text, 0), key=lambda span: span[2])
    assert text[start:end] == "GREAT"


def test_spans_of_characters_skip_whitespace():
    assert token_spans("characters", " a\n b") == [(1, 1), (1, 2), (4, 4), (4, 5), (5, 5)]
    assert token_spans("characters", " ") == []


def test_a_stored_classifier_gives_the_same_logits(fit):
    again = LinearClassifier.from_tensors(fit.classifier.facts(), fit.classifier.tensors())
    assert (again.logits(TEXTS) == fit.classifier.logits(TEXTS)).all()


def damaged(classifier, name, value):
    facts, tensors = classifier.facts(), classifier.tensors()
    if name in ("views", "kind", "tokens"):
        target = facts if name == "views" else facts["views"][1]
        target[name] = value(target[name])
    else:
        changed = value(tensors.pop(name).copy())
        tensors |= {} if changed is None else {name: changed}
    return facts, tensors


def set_at(array, index, value):
    array[index] = value
    return array


DAMAGE = [
    ("views", lambda views: None, "views is not a list of objects"),
    ("views", lambda views: [1], "views is not a list of objects"),
    ("kind", lambda kind: "bytes", "the kind of a view is 'bytes'; expected words or characters, each once"),
    ("kind", lambda kind: "words", "the kind of a view is 'words'; expected words or characters, each once"),
    ("kind", lambda kind: ["words"], "the kind of a view is ['words']; expected words or characters, each once"),
    ("tokens", lambda tokens: "abc", "the tokens of characters are not a list of strings"),
    ("tokens", lambda tokens: [*tokens[:-1], 7], "the tokens of characters are not a list of strings"),
    ("tokens", lambda tokens: [*tokens, tokens[0]], "characters has a token twice"),
    ("tokens", lambda tokens: [*tokens, "ab"], "a token of characters is not a single character"),
    ("bias", lambda bias: None, "bias is not an array of one number per label"),
    ("bias", lambda bias: bias[:0], "bias is not an array of one number per label"),
    ("bias", lambda bias: set_at(bias, 0, np.nan), "bias has a value that is not finite or beyond 65,504"),
    ("bias", lambda bias: bias.astype(np.int64), "bias is not an array of one number per label"),
    (
        "words.weight",
        lambda weight: set_at(weight, (0, 0), np.inf),
        "words.weight has a value that is not finite or beyond 65,504",
    ),
    ("words.idf", lambda idf: set_at(idf, 0, 0), "words.idf has a value of 0.0; expected positive ones"),
    (
        "words.ngrams",
        lambda ngrams: set_at(ngrams, (0, 0), -1),
        "words.ngrams have padding before the end of an n-gram",
    ),
    ("words.ngrams", lambda ngrams: set_at(ngrams, 0, ngrams[1]), "words.ngrams have the same n-gram twice"),
]


@pytest.mark.parametrize(("name", "value", "message"), DAMAGE)
def test_damage_is_named(fit, name, value, message):
    with pytest.raises(ValueError) as error:
        LinearClassifier.from_tensors(*damaged(fit.classifier, name, value))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("bias", lambda bias: bias[:1], "weight is float16"),
        ("words.idf", lambda idf: idf[1:], "words.idf is float32"),
        ("words.ngrams", lambda ngrams: ngrams.astype(np.int64), "words.ngrams are int64"),
        ("words.ngrams", lambda ngrams: set_at(ngrams, (0, 0), 10**6), "words.ngrams have ids from -1 to 1000000"),
        ("words.ngrams", lambda ngrams: set_at(ngrams, (0, 0), -2), "words.ngrams have ids from -2 to"),
        ("words.weight", lambda weight: None, "the tensors are "),
    ],
)
def test_shapes_that_do_not_fit_are_named(fit, name, value, part):
    with pytest.raises(ValueError) as error:
        LinearClassifier.from_tensors(*damaged(fit.classifier, name, value))
    assert part in str(error.value)


def random_damage(rng, facts, tensors):
    """Change one value, shape or type of what is stored."""
    kind = rng.integers(0, 6)
    view = facts["views"][rng.integers(0, 2)]
    name = list(tensors)[rng.integers(0, len(tensors))]
    if kind == 0:
        at = rng.integers(0, len(view["tokens"]))
        view["tokens"][at] = [None, "", "ab", 3, view["tokens"][0], "\ud800"][rng.integers(0, 6)]
    elif kind == 1:
        view[["kind", "tokens"][rng.integers(0, 2)]] = [None, [], {}, "words", [[]], 1.5][rng.integers(0, 6)]
    elif kind == 2:
        del tensors[name]
    elif kind == 3:
        tensors[name] = [tensors[name][:-1], tensors[name][None], tensors[name].astype(np.int64)][rng.integers(0, 3)]
    else:
        flat = tensors[name].copy().reshape(-1)
        bytes_of = flat.view(np.uint8)
        bytes_of[rng.integers(0, len(bytes_of), rng.integers(1, 5))] ^= rng.integers(1, 256, dtype=np.uint8)
        tensors[name] = flat.reshape(tensors[name].shape)


def test_random_damage_is_refused_or_harmless(fit):
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        facts, tensors = json.loads(json.dumps(fit.classifier.facts())), dict(fit.classifier.tensors())
        random_damage(rng, facts, tensors)
        try:
            classifier = LinearClassifier.from_tensors(facts, tensors)
        except ValueError:
            refused += 1
            continue
        assert np.isfinite(classifier.logits(TEXTS)).all()
        assert np.isfinite([score for *_, score in classifier.contributions(TEXTS[0], 0)]).all()
    assert 100 < refused < 300
