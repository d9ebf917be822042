"""The regular expressions of a tokenizer.json, which are untrusted and may take exponential time on some texts."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headstart.errors import StoreError

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_LETTERS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
KNOWN_PATTERNS = frozenset(
    {
        " {2,}",  # ALBERT, T5, XLM-RoBERTa
        r"\s+",  # CLIP
        rf"{_CONTRACTIONS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",  # CLIP
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",  # GPT-2
        *(
            rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
            for digits in (r"\p{N}{1,3}", r"\p{N}")  # Llama 3 and EuroBERT; Qwen 2
        ),
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_LETTERS[0]}]*[{_LETTERS[1]}]+(?i:{_CONTRACTIONS})?|"
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_LETTERS[0]}]+[{_LETTERS[1]}]*(?i:{_CONTRACTIONS})?|\p{{N}}{{1,3}}| "
        rf"?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",  # GPT-4o
    }
)
"""Expressions of well-known models, which take linear time."""
MAX_UNKNOWN_PATTERNS = 16
_PATIENCE = 600
"""Maximum wall time in seconds of one probe, if its processor time cannot be limited or the machine is busy."""


def find_patterns(settings: Any) -> Iterator[str]:
    """Yield the regular expressions in the steps of a tokenizer.json.

    >>> list(find_patterns({"pre_tokenizer": {"pretokenizers": [{"pattern": {"Regex": "a+"}}]}, "model": {"Regex": "b"}}))
    ['a+']
    """
    if isinstance(settings, Mapping):
        for key in ("normalizer", "pre_tokenizer", "decoder"):
            yield from _find_within(settings.get(key))


def _find_within(step: Any) -> Iterator[str]:
    if isinstance(step, Mapping):
        if isinstance(pattern := step.get("Regex"), str):
            yield pattern
        for inner in step.values():
            yield from _find_within(inner)
    elif isinstance(step, list):
        for inner in step:
            yield from _find_within(inner)


def unknown_patterns(settings: Any) -> list[str]:
    """Return the regular expressions that are not those of well-known models."""
    return [pattern for pattern in dict.fromkeys(find_patterns(settings)) if pattern not in KNOWN_PATTERNS]


def check_patterns(settings: Any, name: str) -> None:
    """Refuse a tokenizer.json whose regular expressions fail or take too long on some texts; `name` is for messages.

    An expression that is not known is tried in a process of its own, which can be ended.
    """
    patterns = unknown_patterns(settings)
    if len(patterns) > MAX_UNKNOWN_PATTERNS:
        raise StoreError(
            f"{name} is not a safe tokenizer: it has {len(patterns)} regular expressions of its own, and the "
            f"limit is {MAX_UNKNOWN_PATTERNS}"
        )
    for pattern in patterns:
        if not _is_fast(pattern):
            shown = pattern if len(pattern) <= 60 else f"{pattern[:57]}..."
            raise StoreError(
                f"{name} is not a safe tokenizer: its regular expression {shown} fails or takes too long on some texts"
            )


def _is_fast(pattern: str) -> bool:
    # -P, because the folder of the file has modules with names of installed packages
    command = [sys.executable, "-P", str(Path(__file__).with_name("probe.py"))]
    environment = os.environ | {"RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            command, input=pattern.encode("utf-8", "replace"), env=environment, capture_output=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
