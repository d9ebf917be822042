"""Imported Llama and EuroBERT compute what they compute in transformers."""

import json

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

from fixtures.small_models import LABELS, ODD, TEXTS, classifier, language
from fixtures.tiny import CPU, write_reviews
from headstart import api
from headstart.cli.main import run
from headstart.config.schema import PADDING_SEGMENT
from headstart.errors import TransferError, UsageError
from headstart.files import read_json
from headstart.interop.hf_export import export_hf
from headstart.interop.model_source import load_model_source
from headstart.model.heads import lm_logits
from headstart.model.parameter_count import count_parameters
from headstart.predict.predictor import Predictor
from headstart.tokenization.hf import HFTokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.scoring import score_texts

SIZE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
KINDS = {
    "llama": {"num_key_value_heads": 4},
    "llama, grouped, Llama 3's angles": {"num_key_value_heads": 2, "rope_theta": 500000.0, "rms_norm_eps": 1e-6},
    "llama, tied": {"tie_word_embeddings": True},
    "eurobert": {"num_key_value_heads": 2, "rope_theta": 250000.0},
    "eurobert, tied": {"tie_word_embeddings": True},
}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra hf: pip install 'headstart[hf]'")


def saved(transformers, folder, kind, purpose, **more):
    """A small model with random weights, saved by transformers itself, with a WordPiece tokenizer."""
    words = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["[UNK]", "[PAD]", "[MASK]", "[EOS]", "[BOS]"]
    words.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(special_tokens=names, vocab_size=200, show_progress=False)
    )
    named = {f"{name.strip('[]').lower()}_token": name for name in names}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named)
    tokenizer.save_pretrained(folder)
    family = "Llama" if kind.startswith("llama") else "EuroBert"
    facts = SIZE | {"vocab_size": len(tokenizer), "pad_token_id": 1, "bos_token_id": 4, "eos_token_id": 3}
    facts |= KINDS[kind] | more
    if "rope_theta" in facts:
        facts["rope_parameters"] = {"rope_type": "default", "rope_theta": facts.pop("rope_theta")}
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}{purpose}")(getattr(transformers, f"{family}Config")(**facts)).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_the_modern_block_computes_what_llama_and_eurobert_compute(transformers, tmp_path, kind):
    """The hidden states are equal, also with padding in the batch."""
    model, tokenizer = saved(transformers, tmp_path, kind, "Model")
    bundle = load_model_source(f"hf:{tmp_path}")
    bundle.model.eval()
    batch = tokenizer([*TEXTS[:6], "film"], return_tensors="pt", padding=True)
    real = batch["attention_mask"].bool()
    with torch.inference_mode():
        theirs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state[real]
        ours = bundle.model.backbone(batch["input_ids"], torch.where(real, 0, PADDING_SEGMENT), bundle.attention)[real]
    assert float((ours - theirs).abs().max()) < 1e-5
    assert float(theirs.abs().max()) > 1  # control: there was something to miss


@pytest.mark.parametrize("kind", KINDS)
def test_a_language_model_scores_the_vocabulary_as_it_did(transformers, tmp_path, kind):
    model, tokenizer = saved(transformers, tmp_path, kind, "ForCausalLM" if kind.startswith("llama") else "ForMaskedLM")
    bundle = load_model_source(f"hf:{tmp_path}", head_type="language")
    bundle.model.eval()
    assert bundle.objective == ("causal" if kind.startswith("llama") else "masked")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ours = lm_logits(bundle.model, bundle.model.backbone(ids, None, bundle.attention))
        assert float((ours - model(input_ids=ids).logits).abs().max()) < 1e-4
    assert bundle.config.tied == ("tied" in kind)
    counted = count_parameters(bundle.config, bundle.model.backbone.vocab_size, None).total
    assert counted == sum(parameter.numel() for parameter in bundle.model.parameters())


def test_an_imported_tokenizer_keeps_its_ids_and_is_saved_in_a_bundle(transformers, tmp_path):
    _, theirs = saved(transformers, tmp_path, "llama", "ForCausalLM")
    bundle = load_model_source(f"hf:{tmp_path}")
    ours = bundle.tokenizer
    assert isinstance(ours, HFTokenizer)
    assert ours.encode_batch(TEXTS) == [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert vars(ours.special) == {"sos": 4, "pad": 1, "eos": 3, "mask": 2, "unknown": 0, "sep": None}
    again = load_tokenizer(bundle.path / "tokenizer")
    assert again.digest == ours.digest
    assert again.encode(TEXTS[0]) == ours.encode(TEXTS[0])
    assert 4 not in ours.encode("[BOS] in a text is plain")
    assert ours.decode(ours.encode("the film")) == "the film"
    assert ours.piece(4) == "[BOS]"


def test_an_imported_model_is_exported_with_its_own_special_tokens(transformers, tmp_path):
    model, theirs = saved(transformers, tmp_path / "in", "llama, grouped, Llama 3's angles", "ForCausalLM")
    export_hf(load_model_source(f"hf:{tmp_path / 'in'}"), tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    plain = theirs(TEXTS, add_special_tokens=False)["input_ids"]
    assert tokenizer(TEXTS)["input_ids"] == [[4, *ids] for ids in plain]  # ours begin with the start token
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert float((again(input_ids=ids).logits - model(input_ids=ids).logits).abs().max()) < 1e-4


@pytest.mark.parametrize(("block", "attention"), [("modern", "causal"), ("modern", "bidirectional")])
def test_an_exported_model_is_imported_unchanged(tmp_path, block, attention):
    """Needs no transformers: the folder is read as it was written."""
    before = classifier(tmp_path / "ours", block, attention)
    export_hf(before, tmp_path / "theirs")
    assert run(["import", f"hf:{tmp_path / 'theirs'}", "--out", str(tmp_path / "back"), "--quiet"]) == 0
    after = Predictor.load(tmp_path / "back")
    assert after.bundle.tokenizer.digest == before.tokenizer.digest
    assert after.labels == LABELS
    for one, other in zip(Predictor(before, CPU).predict(ODD), after.predict(ODD), strict=True):
        assert one.probabilities == other.probabilities


@pytest.mark.slow  # test_hf_generic_commands.py fine-tunes and compares imported models
def test_an_imported_backbone_is_fine_tuned_compared_and_pretrained_further(transformers, tmp_path):
    saved(transformers, tmp_path / "theirs", "eurobert", "ForMaskedLM")
    data = write_reviews(tmp_path / "data")
    source = f"hf:{tmp_path / 'theirs'}"
    small = {"runtime.threads": 1, "loop.epochs": 1}
    clf = api.finetune(data / "train.csv", out=tmp_path / "clf", backbone=source, settings=small)
    receipt = read_json(clf.path / "receipt.json")
    assert receipt["source"] == source
    assert len(receipt["moved"]) == 2 * 7 + 2
    assert Predictor.load(tmp_path / "clf").bundle.attention == "bidirectional"
    api.compare(
        data / "train.csv",
        out=tmp_path / "cmp",
        test=data / "test.csv",
        backbone=source,
        seeds=1,
        arms=("pretrained", "scratch"),
        settings=small,
    )
    assert {path.stem for path in (tmp_path / "cmp" / "cells").iterdir()} == {
        "pretrained-all-seed0",
        "scratch-all-seed0",
    }
    steps = {"loop.steps": 2, "runtime.threads": 1, "objective": "masked"}
    run_folder = api.pretrain(data / "texts.txt", out=tmp_path / "more", backbone=source, settings=steps)
    assert read_json(run_folder.path / "receipt.json")["source"] == source


def test_a_classifier_goes_through_the_stock_trainer_and_back(transformers, tmp_path):
    """Pretrained and fine-tuned here, trained further by transformers' Trainer, imported again: the predictions agree."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    export_hf(classifier(tmp_path / "ours", "modern", "bidirectional"), tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    rows = [tokenizer(text) | {"labels": index % 3} for index, text in enumerate(TEXTS)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        max_steps=4,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    collate = transformers.DataCollatorWithPadding(tokenizer)
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate, processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "trained"))
    back = load_model_source(f"hf:{tmp_path / 'trained'}")
    assert back.tokenizer.digest == load_tokenizer(tmp_path / "ours").digest
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.inference_mode():
        theirs = model.eval()(**batch).logits.double()
    predictor = Predictor(back, CPU)
    ours = torch.from_numpy(score_texts(back.model, predictor.dataset(TEXTS), CPU, lambda: None))
    assert float((ours - theirs).abs().max()) < 1e-5
    untrained = Predictor.load(tmp_path / "ours").predict(TEXTS[:1])[0].probabilities
    assert predictor.predict(TEXTS[:1])[0].probabilities != pytest.approx(untrained, abs=1e-3)  # control


def _edited(folder, **facts):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | facts))
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"model_type": "mamba"},
            "is a mamba, which Headstart does not support; supported: "
            "llama, eurobert, bert, distilbert, roberta, camembert, xlm-roberta, modernbert, gpt2, opt",
        ),
        ({"hidden_act": "gelu"}, 'has hidden_act "gelu", which the modern block does not support'),
        ({"attention_bias": True}, "has attention_bias true, which the modern block does not support"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "has rope_type llama3, which the modern block does not support"),
        ({"head_dim": 4}, "has head_dim 4, not hidden_size / num_attention_heads"),
        ({"num_hidden_layers": 3}, "has num_hidden_layers 3, but weights of 2 layers"),
        ({"num_hidden_layers": 1_000_000}, "has num_hidden_layers 1000000, but weights of 2 layers"),
        ({"num_hidden_layers": float("inf")}, "has num_hidden_layers Infinity, but weights of 2 layers"),
        ({"hidden_size": 10**9, "head_dim": None}, None),
        ({"hidden_size": 2**20, "head_dim": None}, None),
        ({"intermediate_size": 10**30}, None),
        ({"intermediate_size": 2**24}, None),
        ({"max_position_embeddings": float("inf")}, None),
        ({"rms_norm_eps": float("nan")}, None),
        ({"vocab_size": 10**30}, f"has vocab_size {10**30}, expected a whole number up to 2147483648"),
        ({"vocab_size": None}, "has vocab_size null, expected a whole number up to 2147483648"),
        ({"vocab_size": 9}, "has a vocabulary of 9, its tokenizer one of 300"),
        ({"hidden_size": None}, None),
    ],
    ids=str,
)
def test_a_setting_that_the_modern_block_does_not_support_is_refused_by_name(tmp_path, facts, message):
    bundle = language(tmp_path / "ours", "modern", "causal")
    export_hf(bundle, tmp_path / "theirs")
    load_model_source(f"hf:{tmp_path / 'theirs'}")  # control
    folder = tmp_path / "edited"
    (tmp_path / "theirs").rename(folder)
    source = _edited(folder, **facts)
    with pytest.raises(TransferError) as caught:
        load_model_source(source)
    assert str(caught.value).endswith("; nothing was imported")
    if message:
        assert str(caught.value) == f"{source} {message}; nothing was imported"


def test_classifiers_that_pool_otherwise_or_give_several_labels_are_refused(tmp_path):
    export_hf(classifier(tmp_path / "ours", "modern", "bidirectional"), tmp_path / "theirs")
    source = _edited(tmp_path / "theirs", classifier_pooling="late")
    with pytest.raises(TransferError) as caught:
        load_model_source(source)
    assert str(caught.value) == (
        f"{source} has classifier_pooling late, but Headstart uses the mean for bidirectional classifiers; nothing was imported"
    )


def test_a_pickled_file_is_refused_with_the_way_to_convert_it(tmp_path):
    export_hf(language(tmp_path / "ours", "modern", "causal"), tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").rename(tmp_path / "theirs" / "pytorch_model.bin")
    source = f"hf:{tmp_path / 'theirs'}"
    with pytest.raises(UsageError) as caught:
        load_model_source(source)
    assert str(caught.value) == (
        f"{source} has its weights in pytorch_model.bin, a pickled file, which may run code when it is opened; if "
        "you trust it, convert it once: AutoModel.from_pretrained(FOLDER, use_safetensors=False).save_pretrained(FOLDER), with "
        "the Auto class that its config.json names"
    )


@pytest.mark.parametrize("typed", ["hf:nowhere", "hf:../a/b"])
def test_a_folder_that_is_not_there_gets_one_line(typed):
    with pytest.raises(UsageError) as caught:
        load_model_source(typed)
    assert str(caught.value) == f"{typed}: no such folder, and not a name on the Hub, which is OWNER/NAME"


def test_the_hub_is_asked_for_a_name_and_its_no_is_one_line(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError) as caught:
        load_model_source("hf:nobody/nothing-of-the-kind")
    assert str(caught.value).startswith(
        "hf:nobody/nothing-of-the-kind: no such folder, and the Hub did not provide it: "
    )
    assert "\n" not in str(caught.value)


def test_a_classifier_is_no_start_for_a_comparison(tmp_path):
    export_hf(classifier(tmp_path / "ours", "modern", "bidirectional"), tmp_path / "theirs")
    with pytest.raises(UsageError) as caught:
        load_model_source(f"hf:{tmp_path / 'theirs'}", head_type="language")
    assert str(caught.value) == f"hf:{tmp_path / 'theirs'} is a classifier; this needs a language model"
