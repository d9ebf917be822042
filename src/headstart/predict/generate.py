"""A language model that goes on from a prompt: greedily or by chance, until the end of the text or enough tokens."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headstart.config import RuntimeConfig
from headstart.errors import ConfigError, UsageError
from headstart.model.attention import KeyValues
from headstart.model.heads import LanguageHead, Model, vocabulary_scores
from headstart.runtime import Runtime, start
from headstart.store.bundle import load_bundle
from headstart.text.tokenizer import SpecialIds, Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    tokens: int = 50
    temperature: float = 0.0
    """0 always takes the likeliest token."""
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens must be at least 1, got {self.tokens}")
        if self.temperature < 0:
            raise ConfigError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top-k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p must be above 0 and at most 1, got {self.top_p}")


def run_generate(
    folder: Path,
    prompt: str,
    *,
    sampling: Sampling,
    samples: int = 1,
    cache: bool = True,
    runtime: RuntimeConfig | None = None,
) -> list[str]:
    """Continue a prompt with the language model of a folder; each sample has a seed of its own."""
    bundle = load_bundle(folder, task="language")
    if bundle.objective == "masked":
        raise UsageError(
            f"{folder} learnt to fill gaps (objective masked) and cannot go on from a prompt; causal and hybrid can"
        )
    where = start(runtime or RuntimeConfig())
    bundle.model.to(where.device)
    return [
        continue_text(bundle.model, bundle.tokenizer, prompt, sampling, where, cache=cache, draw=draw)
        for draw in range(samples)
    ]


def continue_text(
    model: Model[LanguageHead],
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    draw: int = 0,
) -> str:
    """The prompt's continuation, without the prompt."""
    start_ids = [tokenizer.special.sos, *tokenizer.encode(prompt)]
    ids = continue_ids(model, start_ids, tokenizer.special, sampling, runtime, cache=cache, draw=draw)
    # decoded together with the prompt, so that a word that goes on from it keeps its blanks
    whole, before = tokenizer.decode([*start_ids, *ids]), tokenizer.decode(start_ids)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(ids)


def continue_ids(
    model: Model[LanguageHead],
    ids: list[int],
    special: SpecialIds,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    draw: int = 0,
) -> list[int]:
    """The tokens that follow `ids`, up to the end of the text. With and without the cache they are the same."""
    model.eval()
    chance = torch.Generator().manual_seed(sampling.seed * 1_000_003 + draw)
    out: list[int] = []
    past: list[KeyValues] | None = None
    fresh = list(ids)
    with torch.inference_mode(), runtime.autocast():
        while len(out) < sampling.tokens:
            hidden, present = model.backbone.extend(torch.tensor([fresh], device=runtime.device), past)
            token = choose(vocabulary_scores(model, hidden[0, -1]).float().cpu(), special, sampling, chance)
            if token == special.eos:
                break
            out.append(token)
            past, fresh = (present, [token]) if cache else (None, [*ids, *out])
    return out


def choose(scores_V: Tensor, special: SpecialIds, sampling: Sampling, chance: torch.Generator) -> int:
    """One token. Start, padding and mask are not words: they are never chosen."""
    for banned in (special.sos, special.pad, special.mask):
        if banned is not None:
            scores_V[banned] = -torch.inf
    if sampling.temperature == 0:
        return int(scores_V.argmax())
    scores_V = scores_V / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < len(scores_V):
        scores_V[scores_V < scores_V.topk(sampling.top_k).values[-1]] = -torch.inf
    shares = scores_V.softmax(dim=-1)
    if sampling.top_p is not None:
        ranked, order = shares.sort(descending=True, stable=True)
        # the likeliest tokens up to and including the one that reaches top_p
        shares[order[ranked.cumsum(0) - ranked >= sampling.top_p]] = 0
    return int(torch.multinomial(shares, 1, generator=chance))
