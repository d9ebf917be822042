"""Imported models are fine-tuned, compared, pretrained further, exported and used to predict."""

import json

import pytest
import torch

from fixtures.hf_models import LONGEST, language_class, saved
from fixtures.tiny import CPU, write_reviews
from headstart import api
from headstart.cli.main import run
from headstart.errors import ConfigError, UsageError
from headstart.files import read_json
from headstart.interop.model_source import load_model_source
from headstart.predict.explain import explain_prediction
from headstart.predict.generate import Sampling, generate_ids, next_token_candidates
from headstart.predict.predictor import Predictor
from headstart.store.bundle import load_bundle
from headstart.train.optimizers import layer_level

SMALL = {"runtime.threads": 1, "loop.epochs": 1, "loop.min_steps": 0}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra hf: pip install 'headstart[hf]'")


@pytest.fixture(scope="module")
def sources(transformers, tmp_path_factory):
    """Save a model of each architecture once."""
    home, made = tmp_path_factory.mktemp("generic"), {}

    def source(kind):
        if kind not in made:
            saved(transformers, home / kind, kind, language_class(kind))
            made[kind] = f"hf:{home / kind}"
        return made[kind]

    return source


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("kind", ["bert", "modernbert", "gpt2"])
def test_an_imported_model_is_fine_tuned_predicts_explains_and_is_exported(transformers, sources, data, tmp_path, kind):
    source = sources(kind)
    clf = api.finetune(data / "train.csv", out=tmp_path / "clf", backbone=source, settings=SMALL)
    receipt = read_json(clf.path / "receipt.json")
    assert {line["name"].split(".")[0] for line in receipt["moved"]} == {"backbone"}
    predictor = Predictor.load(tmp_path / "clf")
    texts = ["a wonderful film", "dull and very very long " * 30]
    answers = predictor.predict(texts)
    for text, answer in zip(texts, answers, strict=True):  # alone and in a batch the same
        assert predictor.predict([text])[0].probabilities == pytest.approx(answer.probabilities, abs=1e-6)
    assert [answer.truncated for answer in answers] == [False, True]
    words = predictor.bundle.tokenizer.decode(predictor.bundle.tokenizer.encode("a wonderful film"))
    assert " ".join(word.text for word in explain_prediction(predictor, "a wonderful film").words) == words.strip()
    assert run(["export", str(tmp_path / "clf"), "--to", "hf", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        probabilities = model(**batch).logits.softmax(dim=-1)
    for row, answer in zip(probabilities.tolist(), answers, strict=True):
        assert row == pytest.approx(list(answer.probabilities.values()), abs=1e-5)
    back = Predictor(load_model_source(f"hf:{tmp_path / 'out'}", head_type="classify"), CPU)
    assert back.predict(texts)[0].probabilities == pytest.approx(answers[0].probabilities, abs=1e-6)


@pytest.mark.slow
def test_an_imported_model_with_local_attention_is_exported_to_onnx(transformers, data, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    saved(transformers, tmp_path / "in", "modernbert", "ForMaskedLM", num_hidden_layers=2)
    source = f"hf:{tmp_path / 'in'}"
    assert load_model_source(source).config.generic.local_layers == (1,)
    api.finetune(data / "train.csv", out=tmp_path / "clf", backbone=source, settings=SMALL)
    assert run(["export", str(tmp_path / "clf"), "--to", "onnx", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert read_json(tmp_path / "out" / "headstart.json")["files"][0]["largest_difference"] < 1e-5


def test_two_imported_models_are_arms_of_one_comparison(sources, data, tmp_path):
    api.compare(
        data / "train.csv",
        out=tmp_path / "cmp",
        test=data / "test.csv",
        backbone=[sources("bert"), sources("opt")],
        seeds=1,
        arms=("pretrained", "frozen", "scratch"),
        settings=SMALL | {"transfer.context": 40},
    )
    cells = {path.stem for path in (tmp_path / "cmp" / "cells").iterdir()}
    arms = {f"{arm}@{name}" for arm in ("pretrained", "frozen") for name in ("bert", "opt")} | {"scratch"}
    assert cells == {f"{arm}-all-seed0" for arm in arms}


@pytest.mark.parametrize(("kind", "objective"), [("camembert", "masked"), ("opt", "causal")])
@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_an_imported_model_is_pretrained_further_with_its_own_head(sources, data, tmp_path, kind, objective, layout):
    source = sources(kind)
    steps = {"loop.steps": 3, "runtime.threads": 1, "objective": objective, "corpus.layout": layout}
    done = api.pretrain(data / "texts.txt", out=tmp_path / "more", backbone=source, settings=steps)
    receipt = read_json(done.path / "receipt.json")
    assert receipt["source"] == source
    assert not receipt["new"]  # the language head came too
    bundle = load_bundle(tmp_path / "more")
    assert bundle.objective == objective
    assert bundle.model.backbone.vocab_size == load_model_source(source).model.backbone.vocab_size
    before = load_model_source(source).model.state_dict()
    moved = [name for name, tensor in bundle.model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert "backbone.positions.weight" in moved
    assert len(moved) > 20


def test_an_objective_that_the_imported_head_was_not_made_for_is_refused(sources, data, tmp_path):
    source = sources("bert")
    with pytest.raises(ConfigError) as caught:
        api.pretrain(data / "texts.txt", out=tmp_path / "one", backbone=source, settings={"objective": "causal"})
    assert str(caught.value) == (
        f"objective must be masked, got causal: {source} is a bert, whose language head predicts a masked "
        f"token at its own position"
    )
    pairs = {"objective": "masked", "next_sentence.weight": 1.0}
    with pytest.raises(ConfigError) as caught:
        api.pretrain(data / "texts.txt", out=tmp_path / "one", backbone=source, settings=pairs)
    assert str(caught.value) == f"next_sentence.weight does not support {source}, a bert; remove it"
    source = sources("gpt2")
    with pytest.raises(ConfigError) as caught:
        api.pretrain(data / "texts.txt", out=tmp_path / "one", backbone=source, settings={"objective": "hybrid"})
    assert str(caught.value) == (
        f"objective must be causal, got hybrid: {source} is a gpt2, whose language head predicts the next token"
    )
    assert not (tmp_path / "one").exists()


def test_learned_positions_bound_the_context(sources, data, tmp_path):
    source = sources("bert")
    wanted = SMALL | {"transfer.context": LONGEST + 1}
    with pytest.raises(ConfigError) as caught:
        api.finetune(data / "train.csv", out=tmp_path / "clf", backbone=source, settings=wanted)
    assert str(caught.value) == (
        f"transfer.context must be at most 48, the number of positions of {source}, got {LONGEST + 1}"
    )
    assert not (tmp_path / "clf").exists()
    shorter = SMALL | {"transfer.context": 8, "transfer.dropout": 0.25}
    api.finetune(data / "train.csv", out=tmp_path / "clf", backbone=source, settings=shorter)
    config = load_bundle(tmp_path / "clf").config
    assert (config.context, config.dropout) == (8, 0.25)


def test_a_context_typed_beside_from_gets_a_line(sources, data, tmp_path, capsys):
    arguments = ["finetune", str(data / "train.csv"), "--from", sources("bert"), "--out", str(tmp_path / "clf")]
    assert run([*arguments, "--model.context", "512"]) == 2
    assert "--model.context cannot be used with --from" in capsys.readouterr().err
    assert run([*arguments, "--transfer.context", "512"]) == 2
    assert "--transfer.context must be at most 48, the number of positions of" in capsys.readouterr().err


def test_a_causal_imported_model_continues_a_prompt_until_its_positions_end(sources):
    bundle = load_model_source(sources("gpt2"))
    special, sampling = bundle.tokenizer.special, Sampling(tokens=100, temperature=1.0, seed=3)
    ids = [special.sos, *bundle.tokenizer.encode("the film was")]
    with_cache, without = (
        list(generate_ids(bundle.model, ids, special, sampling, CPU, cache=cache)) for cache in (True, False)
    )
    assert with_cache == without
    assert len(ids) + len(with_cache) == LONGEST + 1  # the last place is read, and one more token said
    with pytest.raises(UsageError) as caught:
        next_token_candidates(bundle.model, bundle.tokenizer, "film " * 60, 3, CPU)
    assert str(caught.value) == "the prompt has 62 tokens with the start token, but the model has 48 positions"


def test_a_token_that_is_both_start_and_end_may_end_a_generated_text(sources):
    bundle = load_model_source(sources("gpt2"))
    special = bundle.tokenizer.special
    assert special.sos == special.eos == special.pad
    pieces = next_token_candidates(bundle.model, bundle.tokenizer, "the film", bundle.tokenizer.vocab_size, CPU)
    assert any(piece == "" and share > 0 for piece, share in pieces)


def test_the_card_of_an_imported_model_says_where_it_came_from(transformers, tmp_path):
    saved(transformers, tmp_path / "theirs", "bert", "ForSequenceClassification", num_labels=2)
    assert run(["import", f"hf:{tmp_path / 'theirs'}", "--out", str(tmp_path / "ours"), "--quiet"]) == 0
    card = (tmp_path / "ours" / "bundle" / "README.md").read_text()
    assert "from `hf:theirs`, a BertForSequenceClassification." in card
    assert "It was not trained with Headstart and has not been evaluated." in card
    assert "Fine-tuned with Headstart" not in card
    assert str(tmp_path) not in card


def test_params_lists_the_parameters_of_an_imported_model(sources, capsys):
    assert run(["params", "--from", sources("bert"), "--json"]) == 0
    language, classifier = json.loads(capsys.readouterr().out)
    bundle = load_model_source(sources("bert"))
    assert language["total"] == sum(parameter.numel() for parameter in bundle.model.parameters())
    assert {row["part"] for row in classifier["rows"]} >= {"positions", "norms", "classifier dense", "classifier head"}


def test_the_generic_block_cannot_be_chosen_without_an_imported_model(capsys):
    assert run(["params", "--model.block", "generic"]) == 2
    assert "--model.block generic is for imported models only; load one with --from hf:FOLDER" in (
        capsys.readouterr().err
    )


def test_positions_and_their_norm_learn_as_slowly_as_the_embedding():
    names = ("backbone.embedding.weight", "backbone.positions.weight", "backbone.embedding_norm.weight")
    assert {layer_level(name, 4) for name in names} == {5}
