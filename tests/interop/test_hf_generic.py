"""Imported BERT, RoBERTa, CamemBERT, XLM-R, ModernBERT, GPT-2 and OPT compute what they compute in transformers."""

import json
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.hf_models import KINDS, LONGEST, language_class, saved
from fixtures.small_models import ODD, TEXTS
from fixtures.tiny import CPU
from headstart.config.schema import PADDING_SEGMENT
from headstart.data.datasets import LabelledDataset
from headstart.errors import TransferError, UsageError
from headstart.interop.hf_export import export_hf
from headstart.interop.hf_import import read_generic, read_hf_config, read_hf_weights
from headstart.interop.model_source import load_model_source
from headstart.model.heads import LanguageHead, Model, lm_logits
from headstart.model.parameter_count import count_parameters
from headstart.model.transformer import Backbone
from headstart.predict.predictor import Predictor
from headstart.store.tensors import load_into
from headstart.train.scoring import score_texts

FAMILIES = ("bert", "distilbert", "roberta", "camembert", "xlm-roberta", "modernbert", "gpt2", "opt")
VARIED = [
    *TEXTS[:8],
    *ODD,
    "the film, the FILM; the Film!",
    "naïve café",
    " spaces  before",
    "[SEP] </s> <|endoftext|>",
]
MANY = " ".join(TEXTS)
CLASSES = {"num_labels": 3, "id2label": {0: "bad", 1: "fine", 2: "good"}}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra hf: pip install 'headstart[hf]'")


def rows(vocab_size, padding, seed):
    """Rows of random tokens of every length up to the longest, padded on the right."""
    chance = random.Random(seed)
    lengths = [LONGEST, 1, 2, LONGEST - 1, *(chance.randint(3, LONGEST - 2) for _ in range(3))]
    real = torch.arange(LONGEST) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, vocab_size, real.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(real, ids, padding), real


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_generic_model_gives_the_hidden_states_and_logits_of_transformers(
    transformers, tmp_path, kind, seed
):
    model, tokenizer = saved(transformers, tmp_path, kind, language_class(kind), seed)
    bundle = load_model_source(f"hf:{tmp_path}", head_type="language")
    bundle.model.eval()
    ids, real = rows(len(tokenizer), bundle.tokenizer.special.pad, seed)
    with torch.inference_mode():
        there = model.base_model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        logits = model(input_ids=ids, attention_mask=real.long()).logits
        hidden = bundle.model.backbone(ids, torch.where(real, 0, PADDING_SEGMENT), bundle.attention)
        scores = lm_logits(bundle.model, hidden)
    assert float((hidden - there)[real].abs().max()) < 1e-5
    assert float((scores - logits)[real].abs().max()) < 1e-5
    assert float(there[real].abs().max()) > 1  # control: there was something to miss
    counted = count_parameters(bundle.config, bundle.model.backbone.vocab_size, None).total
    assert counted == sum(parameter.numel() for parameter in bundle.model.parameters())


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_imported_tensor_changes_the_logits(transformers, tmp_path, kind):
    """A tensor that was silently dropped would not change them."""
    saved(transformers, tmp_path, kind, language_class(kind))
    hf = read_hf_config("hf:it", tmp_path)
    weights = read_hf_weights(hf)
    ids, real = rows(60, 1, 3)

    def scores(tensors):
        imported = read_generic(hf, tensors)
        size = int(hf.facts["vocab_size"])
        model = Model(Backbone(imported.config, size), LanguageHead(imported.config, size)).eval()
        load_into(model, imported.tensors, "it")
        with torch.inference_mode():
            hidden = model.backbone(ids, torch.where(real, 0, PADDING_SEGMENT), imported.attention)
            return lm_logits(model, hidden)[real]

    before = scores(weights)
    for name, tensor in weights.items():
        # the bias of the keys adds the same to all attention scores of a query, which softmax ignores
        after = scores(weights | {name: tensor + 0.3 * torch.randn_like(tensor)})
        without_effect = name.endswith(("self.key.bias", "k_proj.bias", "k_lin.bias"))
        assert (float((after - before).abs().max()) < 1e-4) == without_effect, name


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_saved_without_a_head_is_imported_without_one(transformers, tmp_path, kind):
    model, tokenizer = saved(transformers, tmp_path, kind, "Model")
    bundle = load_model_source(f"hf:{tmp_path}", head_type="language")
    bundle.model.eval()
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ours = bundle.model.backbone(ids, None, bundle.attention)
        assert float((ours - model(input_ids=ids).last_hidden_state).abs().max()) < 1e-5
    assert bundle.config.generic.transform is False


@pytest.mark.parametrize("kind", FAMILIES)
def test_rows_have_the_ids_of_the_transformers_tokenizer(transformers, tmp_path, kind):
    _, theirs = saved(transformers, tmp_path, kind, language_class(kind))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_model_source(f"hf:{tmp_path}").tokenizer
    for text in VARIED:
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == plain, text
    for text in [*VARIED[:-1], MANY]:
        ids = [np.array(ours.encode(text))]
        row = LabelledDataset(ids, [0], ours.special, context=LONGEST).batch([0])
        there = theirs(text, truncation=True, max_length=LONGEST - (kind == "gpt2"))["input_ids"]
        # GPT-2's adds nothing; its documents were parted by the token that begins ours
        assert row.ids_BT[0].tolist() == ([ours.special.sos, *there] if kind == "gpt2" else there)
    wanted = {"mask_token": "mask", "pad_token": "pad", "cls_token": "sos", "sep_token": "sep"}
    for name, own in wanted.items():
        if (id := getattr(theirs, f"{name}_id", None)) is not None:
            assert getattr(ours.special, own) == id
    assert (ours.special.sep is None) == (kind in ("gpt2", "opt"))
    assert (ours.special.mask is None) == (kind in ("gpt2", "opt"))


@pytest.mark.parametrize("kind", [*(kind for kind in FAMILIES if kind != "gpt2"), "modernbert, biases, mean"])
def test_a_generic_classifier_predicts_as_in_transformers_and_is_exported_unchanged(transformers, tmp_path, kind):
    model, tokenizer = saved(transformers, tmp_path / "in", kind, "ForSequenceClassification", **CLASSES)
    bundle = load_model_source(f"hf:{tmp_path / 'in'}", head_type="classify")
    texts = [*VARIED[:-1], MANY]
    with torch.inference_mode():
        batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=LONGEST)
        theirs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double()
    ours = score_texts(bundle.model, Predictor(bundle, CPU).dataset(texts), CPU, lambda: None)
    assert float(np.abs(ours - theirs.numpy()).max()) < 1e-5
    assert bundle.labels == ("bad", "fine", "good")
    counted = count_parameters(bundle.config, bundle.model.backbone.vocab_size, 3, attention=bundle.attention).total
    assert counted == sum(parameter.numel() for parameter in bundle.model.parameters())
    assert export_hf(bundle, tmp_path / "out") == type(model).__name__
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    out = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = out(texts, return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        back = again(**batch).logits.double()
    assert float((back - theirs).abs().max()) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_generic_language_model_is_exported_unchanged(transformers, tmp_path, kind):
    model, _ = saved(transformers, tmp_path / "in", kind, language_class(kind))
    bundle = load_model_source(f"hf:{tmp_path / 'in'}")
    assert export_hf(bundle, tmp_path / "out") == type(model).__name__
    again, report = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids, real = rows(60, bundle.tokenizer.special.pad, 5)
    with torch.inference_mode():
        one, other = (each.eval()(input_ids=ids, attention_mask=real.long()).logits for each in (model, again))
    assert float((one - other)[real].abs().max()) < 1e-5
    back = load_model_source(f"hf:{tmp_path / 'out'}")
    assert back.config.model_copy(update={"dropout": bundle.config.dropout}) == bundle.config
    for name, tensor in back.model.state_dict().items():
        assert torch.equal(tensor, bundle.model.state_dict()[name])


def test_a_bert_as_the_hub_has_it_is_read_too(transformers, tmp_path):
    """The file has a next-sentence head, old names of norms, and a buffer of position ids."""
    model, tokenizer = saved(transformers, tmp_path, "bert", "ForPreTraining")
    path = tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    assert any(name.endswith("gamma") for name in old)
    assert "cls.seq_relationship.weight" in old
    save_file(old | {"bert.embeddings.position_ids": torch.arange(48)[None]}, path)
    bundle = load_model_source(f"hf:{tmp_path}", head_type="language")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ours = lm_logits(bundle.model.eval(), bundle.model.backbone(ids, None, "bidirectional"))
        assert float((ours - model(input_ids=ids).prediction_logits).abs().max()) < 1e-5


def test_a_gpt2_as_the_hub_has_it_is_read_too(transformers, tmp_path):
    """The file has no prefix, and a buffer with the causal mask."""
    model, tokenizer = saved(transformers, tmp_path, "gpt2", "LMHeadModel")
    path = tmp_path / "model.safetensors"
    old = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    save_file(old | {"h.0.attn.bias": torch.ones(48, 48).tril()[None, None]}, path)
    bundle = load_model_source(f"hf:{tmp_path}", head_type="language")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ours = lm_logits(bundle.model.eval(), bundle.model.backbone(ids))
        assert float((ours - model(input_ids=ids).logits).abs().max()) < 1e-5


def test_a_modernbert_as_the_hub_has_it_is_read_too(transformers, tmp_path):
    """Its config.json has older names for the local layers and the rotary bases."""
    saved(transformers, tmp_path, "modernbert", "ForMaskedLM")
    now = load_model_source(f"hf:{tmp_path}").config
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("layer_types", "rope_parameters"):
        del config[name]
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config | old))
    assert load_model_source(f"hf:{tmp_path}").config == now
    (tmp_path / "config.json").write_text(json.dumps(config | old | {"global_rope_theta": 500.0}))
    assert load_model_source(f"hf:{tmp_path}").config.rotary_base == 500.0  # control


def test_a_classifier_whose_tokenizer_adds_no_start_token_is_refused(transformers, tmp_path):
    saved(transformers, tmp_path, "gpt2", "ForSequenceClassification", **CLASSES)
    with pytest.raises(UsageError) as caught:
        load_model_source(f"hf:{tmp_path}")
    assert str(caught.value) == (
        f"hf:{tmp_path} does not use a start token, which Headstart adds for classifiers, so its predictions would "
        "change; import its language model and fine-tune it"
    )


NAMED = "gelu, gelu_python, gelu_new, gelu_pytorch_tanh, relu, silu, swish"
KNOWN = "llama, eurobert, bert, distilbert, roberta, camembert, xlm-roberta, modernbert, gpt2, opt"
YARN = {"full_attention": {"rope_type": "yarn"}}
REFUSED = [
    (
        "bert",
        {"position_embedding_type": "relative_key"},
        'has position_embedding_type "relative_key", which our bert does not support',
    ),
    ("bert", {"hidden_act": "gelu_fast"}, f"has hidden_act gelu_fast, expected one of {NAMED}"),
    ("bert", {"is_decoder": True}, "has is_decoder true, which our bert does not support"),
    ("roberta", {"add_cross_attention": True}, "has add_cross_attention true, which our roberta does not support"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, None),
    ("gpt2", {"scale_attn_weights": False}, "has scale_attn_weights false, which our gpt2 does not support"),
    ("opt", {"word_embed_proj_dim": 8}, "has word_embed_proj_dim 8, not hidden_size: embeddings of another width"),
    ("opt", {"layer_norm_elementwise_affine": False}, None),
    ("modernbert", {"mlp_bias": True}, None),
    ("modernbert", {"rope_parameters": YARN}, "has rope_type yarn, which our modernbert does not support"),
    ("bert", {"num_hidden_layers": None}, None),
    ("bert", {"num_attention_heads": 3}, None),
    ("bert", {"num_hidden_layers": 3}, None),
    ("gpt2", {"n_positions": 40}, None),
    ("bert", {"model_type": "mamba"}, f"is a mamba, which Headstart does not support; supported: {KNOWN}"),
]


@pytest.mark.parametrize(("kind", "facts", "message"), REFUSED, ids=str)
def test_a_setting_that_changes_a_number_is_refused_by_name(transformers, tmp_path, kind, facts, message):
    saved(transformers, tmp_path, kind, language_class(kind))
    source = f"hf:{tmp_path}"
    load_model_source(source)  # control
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | facts))
    with pytest.raises(TransferError) as caught:
        load_model_source(source)
    assert str(caught.value).endswith("; nothing was imported")
    if message:
        assert str(caught.value) == f"{source} {message}; nothing was imported"
