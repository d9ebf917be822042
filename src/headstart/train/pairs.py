"""The question whether two pieces of text follow each other: its part in the loss, and how often it is answered right."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from headstart.data.batches import Batch
from headstart.data.pairs import PairBatch, PairRows
from headstart.model.heads import LanguageHead, Model
from headstart.model.pair_head import PairedHead
from headstart.runtime import Runtime
from headstart.train.evaluate import in_turns, tokens_at_once, uncompiled
from headstart.train.objectives import LossSum, predict_tokens, token_loss
from headstart.train.ranks import ALONE, Ranks


def predict_tokens_and_pairs(model: Model[LanguageHead], batch: Batch) -> LossSum:
    """The tokens a batch asks for and, where its rows are pairs, whether each belongs together.

    The count is that of the tokens alone: the batch knows what its pairs must weigh for that (`data.pairs.weighted`).
    """
    if not isinstance(batch, PairBatch):
        return predict_tokens(model, batch)
    assert isinstance(model.head, PairedHead)
    assert batch.pairs_B is not None
    hidden_BTD = model.backbone(batch.ids_BT, batch.segments_BT, batch.visibility, batch.bounds, batch.real)
    tokens = token_loss(model, hidden_BTD, batch)
    pairs = F.cross_entropy(model.head.follows(hidden_BTD).float(), batch.pairs_B, reduction="sum")
    return LossSum(tokens + batch.pair_weight * pairs, batch.scored)


@dataclass(frozen=True)
class PairScore:
    """How well a model tells pieces that follow each other from others; half of the pairs are of each kind."""

    accuracy: float
    loss: float
    """Nats a pair; a coin gives 0.693."""
    pairs: int


def score_pairs(
    model: Model[LanguageHead], rows: PairRows, runtime: Runtime, check: Callable[[], None], ranks: Ranks = ALONE
) -> PairScore:
    """Measure the pair head on `rows`, nothing hidden; `check` may raise between batches."""
    assert isinstance(model.head, PairedHead)
    model.eval()
    bite = max(1, tokens_at_once(runtime) // rows.context)
    bites = range(0, rows.rows, bite)
    found = np.zeros((len(bites), 2))
    with torch.inference_mode(), uncompiled(model):
        for index in in_turns(len(bites), ranks, check):
            first = bites[index]
            batch = replace(rows.batch(first, min(bite, rows.rows - first)), visibility="both").to(runtime.device)
            assert batch.pairs_B is not None
            with runtime.autocast():
                hidden_BTD = model.backbone(batch.ids_BT, batch.segments_BT, batch.visibility, batch.bounds, batch.real)
                scores = model.head.follows(hidden_BTD).float()
            found[index, 0] = int((scores.argmax(dim=1) == batch.pairs_B).sum())
            found[index, 1] = float(F.cross_entropy(scores, batch.pairs_B, reduction="sum"))
    right, nats = 0, 0.0
    for hits, more in ranks.merged(found).tolist():
        right, nats = right + int(hits), nats + more
    return PairScore(right / rows.rows, nats / rows.rows, rows.rows)
