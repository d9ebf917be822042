"""A language model that goes on from a prompt: greedily or by chance, until the end of the text or enough tokens."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headstart.config.schema import RuntimeConfig
from headstart.errors import ConfigError, UsageError
from headstart.model.attention import KeyValues
from headstart.model.heads import LanguageHead, Model, lm_logits
from headstart.runtime import Runtime, setup_runtime
from headstart.store.bundle import Bundle, load_bundle
from headstart.tokenization.base import SpecialIds, Tokenizer

_MIN_TEMPERATURE = 1e-30
_HALF = "\ufffd"
"""What a letter decodes to of which not all bytes are there yet."""


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
    bundle, where = load_language(folder, runtime)
    return [
        generate_text(bundle.model, bundle.tokenizer, prompt, sampling, where, cache=cache, draw=draw)
        for draw in range(samples)
    ]


def load_language(folder: Path, runtime: RuntimeConfig | None = None) -> tuple[Bundle, Runtime]:
    """A language model that can go on from a prompt, and where it runs."""
    bundle = load_bundle(folder, head_type="language")
    if bundle.objective == "masked":
        raise UsageError(
            f"{folder} learnt to fill gaps (objective masked) and cannot go on from a prompt; causal and hybrid can"
        )
    where = setup_runtime(runtime or RuntimeConfig())
    bundle.model.to(where.device)
    return bundle, where


def generate_text(
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
    return "".join(generate_pieces(model, tokenizer, prompt, sampling, runtime, cache=cache, draw=draw))


def generate_pieces(
    model: Model[LanguageHead],
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    draw: int = 0,
) -> Iterator[str]:
    """The prompt's continuation, a piece a token: empty while a letter is not whole yet."""
    start_ids = [tokenizer.special.sos, *tokenizer.encode(prompt)]
    before = tokenizer.decode(start_ids)
    ids: list[int] = []
    said = text = ""
    for id in generate_ids(model, start_ids, tokenizer.special, sampling, runtime, cache=cache, draw=draw):
        ids.append(id)
        # decoded together with the prompt, so that a word that goes on from it keeps its blanks
        whole = tokenizer.decode([*start_ids, *ids])
        text = whole[len(before) :] if whole.startswith(before) else tokenizer.decode(ids)
        ready = text.rstrip(_HALF) if text.startswith(said) else said
        yield ready[len(said) :]
        said = ready
    if text != said:
        yield text[len(said) :]


@torch.inference_mode()
def generate_ids(
    model: Model[LanguageHead],
    ids: list[int],
    special: SpecialIds,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    draw: int = 0,
) -> Iterator[int]:
    """The tokens that follow `ids`, one by one, up to the end of the text; with and without the cache the same.

    A model that has learnt its positions ends where they do.
    """
    model.eval()
    places = _last_positions(model, ids)
    chance = torch.Generator().manual_seed(sampling.seed * 1_000_003 + draw)
    out: list[int] = []
    past: list[KeyValues] | None = None
    fresh = list(ids)
    while len(out) < sampling.tokens and len(ids) + len(out) <= places:
        with runtime.autocast():
            hidden, present = model.backbone.extend(torch.tensor([fresh], device=runtime.device), past)
            scores_V = lm_logits(model, hidden[0, -1]).float().cpu()
        token = sample_token(scores_V, special, sampling, chance)
        if token == special.eos:
            return
        out.append(token)
        past, fresh = (present, [token]) if cache else (None, [*ids, *out])
        yield token


@torch.inference_mode()
def next_token_candidates(
    model: Model[LanguageHead], tokenizer: Tokenizer, prompt: str, count: int, runtime: Runtime
) -> list[tuple[str, float]]:
    """What may come next: the likeliest pieces as they would be read, and their probabilities; "" is the text's end."""
    model.eval()
    ids = [tokenizer.special.sos, *tokenizer.encode(prompt)]
    _last_positions(model, ids)
    with runtime.autocast():
        hidden, _ = model.backbone.extend(torch.tensor([ids], device=runtime.device), None)
        scores_V = lm_logits(model, hidden[0, -1]).float().cpu()
    _ban(scores_V, tokenizer.special)
    found = scores_V.softmax(dim=-1).topk(min(count, len(scores_V)))
    before = tokenizer.decode(ids)
    pieces = []
    for id, share in zip(found.indices.tolist(), found.values.tolist(), strict=True):
        whole = tokenizer.decode([*ids, id])
        text = whole[len(before) :] if whole.startswith(before) else tokenizer.decode([id])
        pieces.append(("" if id == tokenizer.special.eos else text, share))
    return pieces


def _last_positions(model: Model[LanguageHead], ids: list[int]) -> float:
    """How many tokens a model can read in a row; of a prompt that is longer, one line."""
    generic = model.backbone.config.generic
    places = generic.positions if generic and generic.positions else math.inf
    if len(ids) > places:
        raise UsageError(f"the prompt is {len(ids)} tokens with its start, and the model has learnt {places} positions")
    return places


def sample_token(scores_V: Tensor, special: SpecialIds, sampling: Sampling, chance: torch.Generator) -> int:
    """One token. Start, padding and mask are not words: they are never chosen."""
    _ban(scores_V, special)
    if sampling.temperature == 0:
        return int(scores_V.argmax())
    # from the highest down, and never by less than fp32 can divide by: a temperature near 0 is the likeliest token
    scores_V = (scores_V - scores_V.max()) / max(sampling.temperature, _MIN_TEMPERATURE)
    if sampling.top_k is not None and sampling.top_k < len(scores_V):
        scores_V[scores_V < scores_V.topk(sampling.top_k).values[-1]] = -torch.inf
    shares = scores_V.softmax(dim=-1)
    if sampling.top_p is not None:
        ranked, order = shares.sort(descending=True, stable=True)
        # the likeliest tokens up to and including the one that reaches top_p: one at least, however small that is
        beyond = ranked.cumsum(0) - ranked >= sampling.top_p
        beyond[0] = False
        shares[order[beyond]] = 0
    return int(torch.multinomial(shares, 1, generator=chance))


def _ban(scores_V: Tensor, special: SpecialIds) -> None:
    for banned in (special.sos, special.pad, special.mask):
        if banned is not None and banned != special.eos:  # some models begin and end texts with one token
            scores_V[banned] = -torch.inf
