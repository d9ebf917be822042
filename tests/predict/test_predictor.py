"""A prediction depends only on its text, and a continuation only on its prompt and seed."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.small_models import TEXTS, classifier
from fixtures.tiny import CPU, SPECIAL, VOCABULARY, finetune_config, language_model, pretrain_config, write_reviews
from headstart.config.schema import RuntimeConfig
from headstart.errors import ConfigError, DataError, UsageError
from headstart.kernels.packed_linear import has_bf16_products, has_packed_products
from headstart.predict.generate import Sampling, generate_ids, run_generate, sample_token
from headstart.predict.predictor import Predictor

ONE = RuntimeConfig(threads=1, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_reviews(tmp_path_factory.mktemp("trained"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=4))
    train, valid = str(folder / "train.csv"), str(folder / "valid.csv")
    config = finetune_config(loop__epochs=2)
    finetune_run(train, folder / "cut", config, backbone=str(folder / "base"), valid=valid)
    windows = finetune_config(loop__epochs=2, labelled__long_texts="windows")
    finetune_run(train, folder / "windows", windows, backbone=str(folder / "base"), valid=valid)
    return folder


words = st.text(alphabet="aeilnorstu éà.!", min_size=1, max_size=120).filter(str.strip)


@pytest.mark.parametrize("kind", ["cut", "windows"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=words, others=st.lists(words, max_size=12))
def test_a_prediction_is_the_same_alone_and_in_any_batch(trained, kind, text, others):
    predictor = Predictor.load(trained / kind, ONE)
    alone = predictor.predict([text])[0]
    among = predictor.predict([*others, text])[-1]
    first = predictor.predict([text, *others])[0]
    for name, share in alone.probabilities.items():
        assert among.probabilities[name] == pytest.approx(share, abs=1e-6)
        assert first.probabilities[name] == pytest.approx(share, abs=1e-6)
    assert alone.truncated == among.truncated == first.truncated


BF16 = RuntimeConfig(threads=1, device="cpu", precision="bf16")


@pytest.mark.skipif(not (has_packed_products() and has_bf16_products()), reason="needs a processor with bf16 products")
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_in_bf16_too_a_prediction_is_the_same_alone_and_in_any_batch(tmp_path, attention):
    classifier(tmp_path / "clf", "modern", attention)
    exact, rounded = (Predictor.load(tmp_path / "clf", runtime) for runtime in (ONE, BF16))
    texts = [*TEXTS, *(" ".join(TEXTS[:length]) for length in range(1, 9)), TEXTS[0]]
    encoded = rounded.encode(texts)
    together = rounded.logits(encoded)
    alone = np.concatenate([rounded.logits([text]) for text in encoded])
    reversed_rows = rounded.logits(encoded[::-1])[::-1]
    assert np.abs(alone - together).max() < 1e-6
    assert np.abs(reversed_rows - together).max() < 1e-6
    difference = np.abs(together - exact.logits(encoded)).max()
    assert 1e-6 < difference < 0.5  # it is bf16, and close to fp32


def test_answers_come_in_the_order_of_the_texts(trained):
    predictor = Predictor.load(trained / "cut", ONE)
    texts = ["wonderful " * length for length in (9, 1, 5, 2)]
    together = predictor.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        alone = predictor.predict([text])[0]
        assert answer.probability == pytest.approx(alone.probability, abs=1e-6)
    assert len({round(answer.probability, 5) for answer in together}) > 1  # control: the answers do differ


def test_truncation_is_flagged_and_windows_read_to_the_end(trained):
    long = "the film was " * 30
    cut, windows = Predictor.load(trained / "cut", ONE), Predictor.load(trained / "windows", ONE)
    assert [answer.truncated for answer in cut.predict(["the film", long])] == [False, True]
    assert [answer.truncated for answer in windows.predict(["the film", long])] == [False, False]
    same = cut.predict([long, long + " superb"])
    assert same[0].probabilities == pytest.approx(same[1].probabilities, abs=1e-6)
    other = windows.predict([long, long + " superb"])
    assert abs(other[0].probability - other[1].probability) > 1e-6


def test_probabilities_name_every_label_and_add_up(trained):
    answer = Predictor.load(trained / "cut", ONE).predict(["a lovely story"])[0]
    assert list(answer.probabilities) == ["negative", "positive"]
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert answer.probability == answer.probabilities[answer.label] == max(answer.probabilities.values())
    assert Predictor.load(trained / "cut", ONE).predict([]) == []


def test_a_text_of_nothing_known_is_answered(trained):
    assert Predictor.load(trained / "cut", ONE).predict(["\u200b", "🙂"])[1].label in {"negative", "positive"}


def test_a_blank_text_has_none_in_its_place_and_the_others_their_predictions(trained):
    predictor = Predictor.load(trained / "cut", ONE)
    alone = predictor.predict(["a lovely story", "a dull plot"])
    assert None not in alone
    assert predictor.predict(["", "a lovely story", " \n", "a dull plot"]) == [None, alone[0], None, alone[1]]
    assert predictor.predict([" "]) == [None]
    assert predictor.predict([]) == []


def test_a_bare_text_is_not_read_letter_by_letter(trained):
    with pytest.raises(UsageError) as caught:
        Predictor.load(trained / "cut", ONE).predict("a lovely story")
    assert str(caught.value) == 'predict takes a list of texts, got one text; write predict(["..."])'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "texts[1] is None, expected a string"),
        (b"bytes", "texts[1] is b'bytes', expected a string"),
    ],
)
def test_an_input_that_is_not_a_text_is_named_by_its_index(trained, text, message):
    with pytest.raises(DataError) as caught:
        Predictor.load(trained / "cut", ONE).predict(["a lovely story", text])
    assert str(caught.value) == message


def test_texts_may_come_from_any_collection(trained):
    predictor = Predictor.load(trained / "cut", ONE)
    texts = ["a lovely story", "a dull one"]
    assert predictor.predict(np.array(texts)) == predictor.predict(iter(texts)) == predictor.predict(texts)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(tokens=30),
        Sampling(tokens=30, temperature=1.3, seed=5),
        Sampling(tokens=30, temperature=1.0, top_k=4, top_p=0.8),
    ],
    ids=["greedy", "warm", "cut"],
)
def test_the_key_value_cache_does_not_change_generation(sampling):
    model = language_model(seed=2)
    model.head.linear.bias.data[SPECIAL.eos] = -5  # long enough to matter: beyond the context too
    cached = list(generate_ids(model, [0, 5, 9], SPECIAL, sampling, CPU, cache=True))
    plain = list(generate_ids(model, [0, 5, 9], SPECIAL, sampling, CPU, cache=False))
    assert cached == plain
    assert len(cached) == 30


def test_generation_stops_at_the_end_of_the_text():
    model = language_model()
    model.head.linear.bias.data[SPECIAL.eos] = 100
    assert list(generate_ids(model, [0, 5], SPECIAL, Sampling(tokens=10), CPU)) == []


def logits(probabilities):
    return torch.log(torch.tensor([1e-9, 1e-9, 1e-9, 1e-9, *probabilities]))


def draws(sampling, probabilities, count=400):
    chance = torch.Generator().manual_seed(0)
    return [sample_token(logits(probabilities), SPECIAL, sampling, chance) - 4 for _ in range(count)]


def test_greedy_takes_the_likeliest():
    assert set(draws(Sampling(), [0.2, 0.5, 0.3])) == {1}


def test_temperature_one_samples_by_the_probabilities():
    drawn = np.bincount(draws(Sampling(temperature=1.0), [0.2, 0.5, 0.3], 4000)) / 4000
    assert drawn == pytest.approx([0.2, 0.5, 0.3], abs=0.03)


def test_a_low_temperature_makes_sampling_nearly_greedy():
    drawn = np.bincount(draws(Sampling(temperature=0.25), [0.2, 0.5, 0.3], 2000), minlength=3) / 2000
    assert drawn[1] > 0.8


def test_top_k_keeps_the_k_likeliest():
    assert set(draws(Sampling(temperature=1.0, top_k=2), [0.2, 0.5, 0.3])) == {1, 2}


def test_top_p_keeps_the_most_probable_tokens_up_to_p():
    assert set(draws(Sampling(temperature=1.0, top_p=0.75), [0.2, 0.5, 0.3])) == {1, 2}
    assert set(draws(Sampling(temperature=1.0, top_p=0.5), [0.2, 0.5, 0.3])) == {1}
    assert set(draws(Sampling(temperature=1.0, top_p=1.0), [0.2, 0.5, 0.3])) == {0, 1, 2}


def test_start_padding_and_mask_are_never_generated():
    model = language_model()
    for banned in (SPECIAL.sos, SPECIAL.pad, SPECIAL.mask):
        model.head.linear.bias.data[banned] = 1000
    model.head.linear.bias.data[SPECIAL.eos] = -1000
    generated = list(generate_ids(model, [0], SPECIAL, Sampling(tokens=20, temperature=2.0), CPU))
    assert len(generated) == 20
    assert set(generated) <= set(range(4, VOCABULARY))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"top_k": 0}, "top-k must be at least 1, got 0"),
        ({"top_p": 1.5}, "top-p must be above 0 and at most 1, got 1.5"),
    ],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ConfigError) as caught:
        Sampling(**settings)
    assert str(caught.value) == message


def test_samples_follow_from_the_seed(trained):
    warm = Sampling(tokens=12, temperature=1.5, seed=3)
    first = run_generate(trained / "base", "the film", sampling=warm, samples=3, runtime=ONE)
    assert first == run_generate(trained / "base", "the film", sampling=warm, samples=3, runtime=ONE)
    assert len(set(first)) == 3
    other = Sampling(tokens=12, temperature=1.5, seed=4)
    assert first != run_generate(trained / "base", "the film", sampling=other, samples=3, runtime=ONE)
