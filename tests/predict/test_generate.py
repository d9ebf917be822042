"""A continuation starts after the prompt and contains neither the start token nor the prompt."""

import torch

from fixtures.tiny import CPU, SHAPE
from headstart.config.schema import TokenizerConfig
from headstart.model.heads import Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.predict.generate import Sampling, generate_ids, generate_text
from headstart.tokenization.bpe import train_tokenizer


def test_a_continuation_is_what_follows_the_start_and_the_prompt():
    tokenizer = train_tokenizer(["the film was lovely and the plot was dull"] * 9, TokenizerConfig(vocab_size=280))
    size = tokenizer.vocab_size
    model = Model(build_backbone(SHAPE, size, 1), build_language_head(SHAPE, size, 1))
    model.backbone.embedding.weight.data *= 20  # far enough from nothing that one token more or less changes the answer
    sampling = Sampling(tokens=8)
    prompt = [tokenizer.special.sos, *tokenizer.encode("the film")]
    ids = list(generate_ids(model, prompt, tokenizer.special, sampling, CPU))
    assert ids != list(generate_ids(model, prompt[1:], tokenizer.special, sampling, CPU))  # control: the start matters
    text = generate_text(model, tokenizer, "the film", sampling, CPU)
    assert "the film" + text == tokenizer.decode([*prompt, *ids])


def test_nothing_is_dropped_while_generating():
    shape = SHAPE.model_copy(update={"dropout": 0.5})
    model = Model(build_backbone(shape, 17, 0), build_language_head(shape, 17, 0)).train()
    from fixtures.tiny import SPECIAL

    torch.manual_seed(0)
    first = list(generate_ids(model, [0, 5], SPECIAL, Sampling(tokens=20), CPU))
    torch.manual_seed(1)
    assert list(generate_ids(model.train(), [0, 5], SPECIAL, Sampling(tokens=20), CPU)) == first
