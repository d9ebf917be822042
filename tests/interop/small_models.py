"""Small models of every kind, with weights large enough that a misplaced one shows."""

import random

import torch

from headstart.config import ModelConfig, TokenizerConfig
from headstart.kinds import Classes
from headstart.model.backbone import build_backbone
from headstart.model.heads import Model, build_classifier_head, build_language_head
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.text.tokenizer import train_tokenizer
from tiny import review

_CHANCE = random.Random(1)
TEXTS = [review(_CHANCE, bool(index % 2)) for index in range(40)]
ODD = ["<eos> in a <sos> text is plain", "é ü 你好 🙂", "a", "two\n\nlines\tand  spaces "]
LABELS = ("bad", "fine", "good")
CONTEXT = 64


def shape(block: str, **settings) -> ModelConfig:
    return ModelConfig(block=block, width=16, depth=2, heads=2, feedforward=24, context=CONTEXT, **settings)


def tokenizer():
    return train_tokenizer(TEXTS + ODD, TokenizerConfig(vocab_size=300))


def jittered(model: Model) -> Model:
    """Fresh norms and biases are ones and zeros: nobody would notice if they went missing."""
    chance = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=chance)
    return model


def classifier(folder, block: str, visibility: str, words=None, **facts):
    words = words or tokenizer()
    config = shape(block)
    head = build_classifier_head(config, len(LABELS), 0, visibility)
    model = jittered(Model(build_backbone(config, words.vocab_size, 0), head))
    save_bundle(folder, Bundle(model, words, Classes(LABELS), visibility=visibility, **facts))
    return load_bundle(folder)


def language(folder, block: str, objective: str, words=None):
    words = words or tokenizer()
    config = shape(block)
    model = jittered(
        Model(build_backbone(config, words.vocab_size, 0), build_language_head(config, words.vocab_size, 0))
    )
    visibility = "causal" if objective == "causal" else "both"
    save_bundle(folder, Bundle(model, words, objective=objective, visibility=visibility))
    return load_bundle(folder)
