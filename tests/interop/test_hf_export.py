"""Plain transformers computes from an exported folder what Headstart computes; what it cannot express is refused."""

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.small_models import CONTEXT, LABELS, ODD, TEXTS, classifier, language, tokenizer
from fixtures.tiny import CPU
from headstart.cli.main import run
from headstart.config.schema import PADDING_SEGMENT
from headstart.errors import UsageError
from headstart.interop.hf_export import export_hf, opt_tensors
from headstart.interop.hf_tokenizers import to_hf_tokenizer
from headstart.model.heads import lm_logits
from headstart.predict.generate import Sampling, generate_text
from headstart.predict.predictor import Predictor
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.scoring import score_texts

KINDS = {
    ("classic", "causal"): "OPTForSequenceClassification",
    ("modern", "causal"): "LlamaForSequenceClassification",
    ("modern", "bidirectional"): "EuroBertForSequenceClassification",
}
LANGUAGE = {
    ("classic", "causal"): "OPTForCausalLM",
    ("modern", "causal"): "LlamaForCausalLM",
    ("modern", "masked"): "EuroBertForMaskedLM",
    ("modern", "hybrid"): "EuroBertForMaskedLM",
}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra hf: pip install 'headstart[hf]'")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_stock_class_scores_the_labels_as_we_do(transformers, tmp_path, kind):
    bundle = classifier(tmp_path / "ours", *kind)
    assert export_hf(bundle, tmp_path / "theirs") == KINDS[kind]
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    assert type(model).__name__ == KINDS[kind]
    texts = [*TEXTS, *ODD, " ".join(TEXTS)]  # of several lengths, so that there is padding, and one beyond the context
    batch = reader(texts, return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        theirs = model(**batch).logits.double()
        alone = model(**reader(texts[2], return_tensors="pt")).logits.double()
    predictor = Predictor(bundle, CPU)
    ours = torch.from_numpy(score_texts(bundle.model, predictor.dataset(texts), CPU, lambda: None))
    assert float((ours - theirs).abs().max()) < 1e-5
    assert float((ours[2] - alone[0]).abs().max()) < 1e-5
    assert float(ours.abs().max()) > 0.5  # control: there was something to miss


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pipeline_gives_our_labels_and_probabilities(transformers, tmp_path, kind):
    bundle = classifier(tmp_path / "ours", *kind)
    export_hf(bundle, tmp_path / "theirs")
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "theirs"), truncation=True, top_k=None)
    for outputs, ours in zip(ask([*TEXTS[:3], *ODD]), Predictor(bundle, CPU).predict([*TEXTS[:3], *ODD]), strict=True):
        assert outputs[0]["label"] == ours.label
        theirs = {answer["label"]: answer["score"] for answer in outputs}
        assert theirs == pytest.approx(ours.probabilities, abs=1e-5)


@pytest.mark.parametrize("kind", LANGUAGE, ids=str)
def test_a_stock_class_scores_the_vocabulary_as_we_do(transformers, tmp_path, kind):
    bundle = language(tmp_path / "ours", *kind)
    assert export_hf(bundle, tmp_path / "theirs") == LANGUAGE[kind]
    causal = kind[1] == "causal"
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    model = auto.from_pretrained(tmp_path / "theirs").eval()
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")(TEXTS, return_tensors="pt", padding=True)
    real = batch["attention_mask"].bool()
    segments = torch.where(real, 0, PADDING_SEGMENT)
    with torch.inference_mode():
        theirs = model(**batch).logits[real]
        hidden = bundle.model.backbone(batch["input_ids"], segments, bundle.attention)
        ours = lm_logits(bundle.model, hidden)[real]
    assert float((ours - theirs).abs().max()) < 1e-5 * float(ours.abs().max())
    readme = (tmp_path / "theirs" / "README.md").read_text()
    assert ("the logits at a position are for the next token" in readme) == (kind[1] == "hybrid")


def test_an_opt_is_exact_beyond_rounding(transformers, tmp_path):
    """In float64 the two networks agree to fourteen digits: it is the same function, not one that comes close."""
    bundle = language(tmp_path / "ours", "classic", "causal")
    export_hf(bundle, tmp_path / "theirs")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").double().eval()
    ours = bundle.model.double()
    model.load_state_dict(opt_tensors(ours))
    ids = torch.tensor([[0, *bundle.tokenizer.encode(TEXTS[0])]])
    with torch.inference_mode():
        hidden = ours.backbone(ids)
        assert float((lm_logits(ours, hidden) - model(ids).logits).abs().max()) < 1e-12


@pytest.mark.parametrize("block", ["classic", "modern"])
def test_an_exported_language_model_goes_on_as_ours_does(transformers, tmp_path, block):
    bundle = language(tmp_path / "ours", block, "causal")
    export_hf(bundle, tmp_path / "theirs")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    start = reader("the film", return_tensors="pt")
    ids = model.generate(**start, max_new_tokens=8, do_sample=False)[0][start["input_ids"].shape[1] :]
    ours = generate_text(bundle.model, bundle.tokenizer, "the film", Sampling(tokens=8), CPU)
    assert reader.decode(ids, skip_special_tokens=True) == ours


def test_gaps_are_filled_where_the_mask_is_typed(transformers, tmp_path):
    bundle = language(tmp_path / "ours", "modern", "masked")
    export_hf(bundle, tmp_path / "theirs")
    ask = transformers.pipeline("fill-mask", model=str(tmp_path / "theirs"))
    ids = [0, *bundle.tokenizer.encode("the "), 3, *bundle.tokenizer.encode(" was")]
    with torch.inference_mode():
        hidden = bundle.model.backbone(torch.tensor([ids]), None, "bidirectional")
        ours = lm_logits(bundle.model, hidden)[0, ids.index(3)].argmax()
    assert ask("the <mask> was")[0]["token"] == int(ours)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_sentencepiece_vocabulary_reads_as_before(tmp_path, kind):
    words = _sentencepiece(tmp_path, kind)
    engine = to_hf_tokenizer(words)
    engine.encode_special_tokens = True
    texts = [*TEXTS, *ODD, "", "   ", "ŋŋ and ŋ", "!!!!! ...... ﬁn", "<sos>"]
    assert [encoding.ids for encoding in engine.encode_batch(texts)] == [[0, *ids] for ids in words.encode_batch(texts)]
    assert any(3 in words.encode(text) for text in texts)  # control: something was unknown


def test_an_exported_sentencepiece_model_is_read_by_auto_tokenizer(transformers, tmp_path):
    bundle = classifier(tmp_path / "ours", "classic", "causal", _sentencepiece(tmp_path, "bpe"))
    export_hf(bundle, tmp_path / "theirs")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    texts = [*TEXTS, *ODD]
    assert reader(texts)["input_ids"] == [[0, *ids] for ids in bundle.tokenizer.encode_batch(texts)]


@given(text=st.text(max_size=40))
def test_any_text_has_the_same_tokens_outside(text):
    words = _bytepair()
    assert words[1].encode(text).ids == [0, *words[0].encode(text)]


@given(text=st.text(st.characters(exclude_categories=["Mn", "Mc", "Me", "Cs"]), max_size=40))
def test_any_text_without_stacked_marks_has_the_same_pieces_outside(text):
    words = _pieces()
    assert words[1].encode(text).ids == [0, *words[0].encode(text)]


@cache
def _bytepair():
    words = tokenizer()
    return words, _plain(words)


@cache
def _pieces():
    with tempfile.TemporaryDirectory() as folder:
        words = _sentencepiece(Path(folder), "bpe")
    return words, _plain(words)


def _plain(words):
    engine = to_hf_tokenizer(words)
    engine.encode_special_tokens = True
    return engine


@pytest.mark.data
def test_the_published_vocabulary_reads_real_reviews_as_before(real_data):
    words = load_tokenizer(real_data / "cls-books" / "sentencepiece.french.model")
    lines = (real_data / "cls-books" / "valid.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    engine = to_hf_tokenizer(words)
    assert [encoding.ids for encoding in engine.encode_batch(texts)] == [[0, *ids] for ids in words.encode_batch(texts)]


def _sentencepiece(folder: Path, kind: str):
    """Pieces numbered by a dict.txt in another order than the model's."""
    home = folder / kind
    home.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3 + ["!!! ... ?"] * 9),
        model_prefix=str(home / "sentencepiece"),
        model_type=kind,
        vocab_size=50,
        minloglevel=2,
    )
    engine = sentencepiece.SentencePieceProcessor(model_file=str(home / "sentencepiece.model"))
    pieces = [engine.id_to_piece(id) for id in range(3, len(engine))]
    (home / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in reversed(pieces)), encoding="utf-8")
    return load_tokenizer(home)


def test_a_dictionary_that_is_not_the_models_is_refused(tmp_path):
    home = tmp_path / "bpe"
    _sentencepiece(tmp_path, "bpe")
    lines = (home / "dict.txt").read_text().splitlines()
    (home / "dict.txt").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(UsageError) as caught:
        to_hf_tokenizer(load_tokenizer(home))
    assert str(caught.value) == (
        "dict.txt and the SentencePiece model differ in 1 pieces, which tokenizer.json cannot express: it has one "
        "numbering for pieces and their ids"
    )


def test_a_classifier_with_windows_is_not_exported_to_transformers(tmp_path):
    bundle = classifier(tmp_path / "ours", "modern", "bidirectional", windows=True)
    with pytest.raises(UsageError) as caught:
        export_hf(bundle, tmp_path / "theirs")
    assert str(caught.value) == (
        f"{tmp_path / 'ours'} reads long texts in windows (labelled.long_texts), which no stock architecture can express; "
        "fine-tune with truncate to export"
    )
    assert not (tmp_path / "theirs").exists()


def test_a_classic_network_that_reads_both_ways_is_refused(tmp_path):
    bundle = classifier(tmp_path / "ours", "classic", "bidirectional")
    with pytest.raises(UsageError) as caught:
        export_hf(bundle, tmp_path / "theirs")
    assert str(caught.value) == (
        f"{tmp_path / 'ours'} is a classic network with bidirectional attention, which no stock architecture can "
        "express; modern presets can be exported, and classic ones with causal attention"
    )


def test_the_command_writes_what_needs_no_transformers(tmp_path, capsys):
    classifier(tmp_path / "ours", "modern", "bidirectional")
    arguments = ["export", str(tmp_path / "ours"), "--to", "hf", "--out", str(tmp_path / "theirs")]
    assert run(arguments) == 0
    assert "as a stock EuroBertForSequenceClassification" in capsys.readouterr().out
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["id2label"] == {str(index): label for index, label in enumerate(LABELS)}
    assert config["max_position_embeddings"] == CONTEXT
    assert run(arguments) == 2  # control: nothing is written over
    assert run(["export", str(tmp_path / "ours"), "--to", "tflite", "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == (
        f"headstart: {tmp_path / 'theirs'} already exists and is not empty; choose another --out\n"
        "headstart: --to must be one of hf, onnx, compact, got 'tflite'\n"
    )
