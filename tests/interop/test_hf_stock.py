"""BERT, RoBERTa, CamemBERT, XLM-R, ModernBERT, GPT-2 and OPT: what transformers saved computes here what it computed there."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import ODD, TEXTS
from stock_models import KINDS, LONGEST, language_class, saved

from headstart.config import PADDING
from headstart.interop.sources import load_from
from headstart.model.heads import vocabulary_scores
from headstart.model.ledger import ledger


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


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_scores_are_theirs(transformers, tmp_path, kind, seed):
    model, tokenizer = saved(transformers, tmp_path, kind, language_class(kind), seed)
    bundle = load_from(f"hf:{tmp_path}", task="language")
    bundle.model.eval()
    ids, real = rows(len(tokenizer), bundle.tokenizer.special.pad, seed)
    with torch.inference_mode():
        found = model(input_ids=ids, attention_mask=real.long(), output_hidden_states=True)
        hidden = bundle.model.backbone(ids, torch.where(real, 0, PADDING), bundle.visibility)
        scores = vocabulary_scores(bundle.model, hidden)
        there = model.base_model(input_ids=ids, attention_mask=real.long()).last_hidden_state
    assert float((hidden - there)[real].abs().max()) < 1e-5
    assert float((scores - found.logits)[real].abs().max()) < 1e-5 * max(1.0, float(found.logits.abs().max()))
    assert float(there[real].abs().max()) > 1  # control: there was something to miss
    counted = ledger(bundle.config, bundle.model.backbone.vocab_size, None).total
    assert counted == sum(parameter.numel() for parameter in bundle.model.parameters())
