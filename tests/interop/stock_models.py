"""Small models of stock architectures with random weights, saved by transformers itself, each with a tokenizer of its kind."""

import json

import tokenizers
import torch
from small_models import ODD, TEXTS
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = SIZE | {"intermediate_size": 24, "max_position_embeddings": 48}
LONGEST = 48
"""The places that every one of them has."""
KINDS = {
    "bert": ("Bert", ENCODER),
    "bert, relu, other epsilon": ("Bert", ENCODER | {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "bert, untied": ("Bert", ENCODER | {"tie_word_embeddings": False}),
    "distilbert": (
        "DistilBert",
        {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 48},
    ),
    "roberta": ("Roberta", ENCODER | {"max_position_embeddings": 50, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "roberta, gelu_new": ("Roberta", ENCODER | {"max_position_embeddings": 50, "hidden_act": "gelu_new"}),
    "camembert": ("Camembert", ENCODER | {"max_position_embeddings": 50, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", ENCODER | {"max_position_embeddings": 50, "type_vocab_size": 1}),
    "modernbert": ("ModernBert", ENCODER | {"num_hidden_layers": 4, "local_attention": 8}),
    "modernbert, biases, mean": (
        "ModernBert",
        ENCODER
        | {"num_hidden_layers": 3, "local_attention": 6, "attention_bias": True, "mlp_bias": True, "norm_bias": True}
        | {"classifier_bias": True, "classifier_pooling": "mean", "decoder_bias": False, "layer_types": None}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gpt2": ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 48}),
    "gpt2, narrow, relu, untied": (
        "GPT2",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 48, "n_inner": 24, "activation_function": "relu"}
        | {"tie_word_embeddings": False},
    ),
    "opt": ("OPT", SIZE | {"ffn_dim": 24, "max_position_embeddings": 48}),
    "opt, post-norm": ("OPT", SIZE | {"ffn_dim": 24, "max_position_embeddings": 48, "do_layer_norm_before": False}),
    "opt, no biases, gelu": (
        "OPT",
        SIZE | {"ffn_dim": 24, "max_position_embeddings": 48, "enable_bias": False, "activation_function": "gelu"},
    ),
}
LANGUAGE = {"GPT2": "LMHeadModel", "OPT": "ForCausalLM"}


def language_class(kind):
    family = KINDS[kind][0]
    return LANGUAGE.get(family, "ForMaskedLM")


def _words():
    words = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(special_tokens=names, vocab_size=200, show_progress=False)
    words.train_from_iterator(TEXTS, trainer)
    return words.get_vocab()


def _bytes(names):
    pieces = tokenizers.Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(special_tokens=names, vocab_size=300, initial_alphabet=alphabet, show_progress=False),
    )
    pieces.decoder = decoders.ByteLevel()
    return pieces


def _pieces(names):
    pieces = tokenizers.Tokenizer(models.Unigram())
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(special_tokens=names, vocab_size=150, unk_token="<unk>", show_progress=False)
    pieces.train_from_iterator(TEXTS + ODD, trainer)
    return [tuple(entry) for entry in json.loads(pieces.to_str())["model"]["vocab"]]


def _parts(engine):
    model = json.loads(engine.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


def tokenizer_of(transformers, family):
    """A tokenizer as that family has them, by the class that transformers has for it."""
    named = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if family in ("Bert", "DistilBert"):
        return transformers.BertTokenizer(vocab=_words())
    if family == "Roberta":
        return transformers.RobertaTokenizer(**_parts(_bytes(named)))
    if family == "Camembert":
        return transformers.CamembertTokenizer(
            vocab=_pieces(["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>"])
        )
    if family == "XLMRoberta":
        return transformers.XLMRobertaTokenizer(vocab=_pieces(["<s>", "<pad>", "</s>", "<unk>"]))
    if family == "GPT2":
        return transformers.GPT2Tokenizer(**_parts(_bytes(["<|endoftext|>"])))
    if family == "OPT":
        engine = _bytes(["<s>", "<pad>", "</s>", "<unk>"])
        engine.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=engine, bos_token="</s>", eos_token="</s>", pad_token="<pad>"
        )
    engine = _bytes(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    engine.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine,
        **{f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "CLS", "SEP", "PAD", "MASK")},
    )


def saved(transformers, folder, kind, purpose, seed=0, **more):
    """Save one; `purpose` is what its class is called after the family. Weights are far from their usual small numbers."""
    family, facts = KINDS[kind]
    tokenizer = tokenizer_of(transformers, family)
    tokenizer.save_pretrained(folder)
    padding = {} if tokenizer.pad_token_id is None else {"pad_token_id": tokenizer.pad_token_id}
    size = len(tokenizer) + (3 if family == "OPT" else 0)  # OPT's table has entries that its tokenizer does not know
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{family}Config")(**(facts | padding | ends | {"vocab_size": size} | more))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}{purpose}")(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model, tokenizer
