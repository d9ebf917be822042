"""Generate text from a language model: greedy or sampled, until the end token or a number of tokens."""

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

_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-30, 1e30
_INCOMPLETE = "\ufffd"
"""The character that an incomplete UTF-8 sequence decodes to."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings for the next token."""

    tokens: int = 50
    temperature: float = 0.0
    """0 is greedy: it always takes the most probable token."""
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens must be at least 1, got {self.tokens}")
        if not math.isfinite(self.temperature):
            raise ConfigError(f"temperature must be a finite number, got {self.temperature}")
        if self.temperature < 0:
            raise ConfigError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top-k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed must be between 0 and {2**31 - 1:,}, got {self.seed}")


def run_generate(
    folder: Path,
    prompt: str,
    *,
    sampling: Sampling,
    samples: int = 1,
    cache: bool = True,
    runtime: RuntimeConfig | None = None,
) -> list[str]:
    """Continue a prompt with the language model of a folder; every sample has its own random sequence."""
    bundle, loaded_runtime = load_language_model(folder, runtime)
    return [
        generate_text(bundle.model, bundle.tokenizer, prompt, sampling, loaded_runtime, cache=cache, sample=sample)
        for sample in range(samples)
    ]


def load_language_model(folder: Path, runtime: RuntimeConfig | None = None) -> tuple[Bundle, Runtime]:
    """Load a causal or hybrid language model, and set up the runtime that it is moved to."""
    bundle = load_bundle(folder, head_type="language")
    if bundle.objective == "masked":
        raise UsageError(
            f"{folder} was trained with objective masked and cannot continue a prompt; causal and hybrid models can"
        )
    loaded_runtime = setup_runtime(runtime or RuntimeConfig())
    bundle.model.to(loaded_runtime.device)
    return bundle, loaded_runtime


def generate_text(
    model: Model[LanguageHead],
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    sample: int = 0,
) -> str:
    """Return the continuation of a prompt, without the prompt."""
    return "".join(generate_pieces(model, tokenizer, prompt, sampling, runtime, cache=cache, sample=sample))


def generate_pieces(
    model: Model[LanguageHead],
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    sample: int = 0,
) -> Iterator[str]:
    """Yield the continuation of a prompt, one piece per token; a piece is empty while a character is incomplete."""
    prompt_ids = [tokenizer.special.sos, *tokenizer.encode(prompt)]
    ids: list[int] = []
    emitted = text = ""
    for id in generate_ids(model, prompt_ids, tokenizer.special, sampling, runtime, cache=cache, sample=sample):
        ids.append(id)
        text = _decode_continuation(tokenizer, prompt_ids, ids)
        complete = text.rstrip(_INCOMPLETE) if text.startswith(emitted) else emitted
        yield complete[len(emitted) :]
        emitted = complete
    if text != emitted:
        yield text[len(emitted) :]


def _decode_continuation(tokenizer: Tokenizer, prompt_ids: list[int], ids: list[int]) -> str:
    """Decode `ids` together with the prompt, because decoding by themselves would lose a leading space."""
    prompt, full = tokenizer.decode(prompt_ids), tokenizer.decode([*prompt_ids, *ids])
    return full[len(prompt) :] if full.startswith(prompt) else tokenizer.decode(ids)


@torch.inference_mode()
def generate_ids(
    model: Model[LanguageHead],
    ids: list[int],
    special: SpecialIds,
    sampling: Sampling,
    runtime: Runtime,
    *,
    cache: bool = True,
    sample: int = 0,
) -> Iterator[int]:
    """Yield the tokens that follow `ids`, up to the end token; the cache does not change them.

    A model with learned positions stops at the last one.
    """
    model.eval()
    max_positions = _max_positions(model, ids)
    generator = torch.Generator().manual_seed(sampling.seed * 1_000_003 + sample)
    generated: list[int] = []
    past: list[KeyValues] | None = None
    input_ids = list(ids)
    while len(generated) < sampling.tokens and len(ids) + len(generated) <= max_positions:
        with runtime.autocast():
            hidden, present = model.backbone.extend(torch.tensor([input_ids], device=runtime.device), past)
            logits_V = lm_logits(model, hidden[0, -1]).float().cpu()
        token = sample_token(logits_V, special, sampling, generator)
        if token == special.eos:
            return
        generated.append(token)
        past, input_ids = (present, [token]) if cache else (None, [*ids, *generated])
        yield token


@torch.inference_mode()
def next_token_candidates(
    model: Model[LanguageHead], tokenizer: Tokenizer, prompt: str, count: int, runtime: Runtime
) -> list[tuple[str, float]]:
    """Return the most probable next pieces of text and their probabilities; "" is the end of the text."""
    model.eval()
    ids = [tokenizer.special.sos, *tokenizer.encode(prompt)]
    _max_positions(model, ids)
    with runtime.autocast():
        hidden, _ = model.backbone.extend(torch.tensor([ids], device=runtime.device), None)
        logits_V = lm_logits(model, hidden[0, -1]).float().cpu()
    _ban_special_tokens(logits_V, tokenizer.special)
    top = logits_V.softmax(dim=-1).topk(min(count, len(logits_V)))
    return [
        ("" if id == tokenizer.special.eos else _decode_continuation(tokenizer, ids, [id]), probability)
        for id, probability in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]


def _max_positions(model: Model[LanguageHead], ids: list[int]) -> float:
    """The number of positions of a model, infinite if they are not learned; a longer prompt raises UsageError."""
    generic = model.backbone.config.generic
    positions = generic.positions if generic and generic.positions else math.inf
    if len(ids) > positions:
        raise UsageError(
            f"the prompt has {len(ids)} tokens with the start token, but the model has {positions} positions"
        )
    return positions


def sample_token(logits_V: Tensor, special: SpecialIds, sampling: Sampling, generator: torch.Generator) -> int:
    """Sample one token, which is never the start, padding or mask token."""
    _ban_special_tokens(logits_V, special)
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    # shifted by the maximum, so that a temperature near 0 gives the most probable token and not NaN
    logits_V = (logits_V - logits_V.max()) / min(max(sampling.temperature, _MIN_TEMPERATURE), _MAX_TEMPERATURE)
    if sampling.top_k is not None and sampling.top_k < len(logits_V):
        logits_V[logits_V < logits_V.topk(sampling.top_k).values[-1]] = -torch.inf
    probabilities = logits_V.softmax(dim=-1)
    if sampling.top_p is not None:
        ranked, order = probabilities.sort(descending=True, stable=True)
        # nucleus sampling: keep the token that reaches top_p, and at least one
        excluded = ranked.cumsum(0) - ranked >= sampling.top_p
        excluded[0] = False
        probabilities[order[excluded]] = 0
    return int(torch.multinomial(probabilities, 1, generator=generator))


def _ban_special_tokens(logits_V: Tensor, special: SpecialIds) -> None:
    for banned in (special.sos, special.pad, special.mask):
        if banned is not None and banned != special.eos:  # some models use one token for start and end
            logits_V[banned] = -torch.inf
