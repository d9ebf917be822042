"""Texts as token ids: words and characters. No torch.

A text is lower-cased. The tokens of the view `words` are runs of letters, digits, combining marks and underscores; a
character of a script without spaces (Han, Kana, Thai, ...) is a word by itself. The tokens of the view `characters` are
the characters of the text with its whitespace collapsed and a space at both ends.

T tokens, with a separator after each text.
"""

import functools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["words", "characters"]
Ids = NDArray[np.int32]

SEPARATOR = -1
"""The id between two texts, of a token that is not in the vocabulary, and of padding in an array of n-grams."""
_WITHOUT_SPACES = (
    "\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Myanmar, Khmer, the Tai scripts, Kana and Han, as ranges of a regular expression."""
_NOT_SPACE = re.compile(r"\S+")


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Return the regular expression of a word in a lower-cased text."""
    marks = _character_class(code for code in range(0x20000) if unicodedata.category(chr(code)).startswith("M"))
    letters = rf"[^\W{_WITHOUT_SPACES}]"
    return re.compile(rf"{letters}+(?:[{marks}]+{letters}*)*|[{_WITHOUT_SPACES}][{marks}]*")


def _character_class(code_points: Iterable[int]) -> str:
    """Return ranges of a regular expression for ascending code points."""
    codes = list(code_points)
    gaps = [(before, code) for before, code in pairwise(codes) if code != before + 1]
    starts, ends = [codes[0], *(code for _, code in gaps)], [*(before for before, _ in gaps), codes[-1]]
    return "".join(rf"\U{start:08x}-\U{end:08x}" for start, end in zip(starts, ends, strict=True))


def lower(text: str) -> str:
    """Return a text in lower case, with as many characters as before.

    >>> lower("İ AM")
    'i am'
    """
    return text.replace("\u0130", "i").lower()


def collapse(text: str) -> str:
    r"""Return a text in lower case with single spaces between, before and after its words; empty if it is blank.

    >>> collapse("No\n  good"), collapse(" ")
    (' no good ', '')
    """
    words = lower(text).split()
    return f" {' '.join(words)} " if words else ""


def token_spans(kind: Kind, text: str) -> list[tuple[int, int]]:
    """Return where each token of a text begins and ends; a space of the view `characters` has an empty span."""
    if kind == "words":
        return [match.span() for match in word_pattern().finditer(lower(text))]
    spans: list[tuple[int, int]] = []
    for match in _NOT_SPACE.finditer(text):
        spans += [(match.start(), match.start()), *((at, at + 1) for at in range(*match.span()))]
    return [*spans, (len(text), len(text))] if spans else []


@dataclass(frozen=True)
class Tokens:
    """The ids of the tokens of texts, and the number of the text that each token belongs to."""

    ids_T: Ids
    texts_T: Ids


class Vocabulary:
    """The ids of tokens; while it `grows`, a token that is new gets the next id, otherwise the separator's."""

    def __init__(self, kind: Kind, tokens: Sequence[str] = (), *, grows: bool = False) -> None:
        self.kind = kind
        self.grows = grows
        self._ids: defaultdict[str, int] = defaultdict(None, {token: number for number, token in enumerate(tokens)})
        self._ids.default_factory = self._ids.__len__  # a new token, looked up in brackets, gets the next id
        self._by_code_point = _code_point_table(tokens) if kind == "characters" else np.zeros(0, np.int32)

    @property
    def tokens(self) -> list[str]:
        """The tokens in the order of their ids."""
        return list(self._ids)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of texts, with a separator after each text."""
        return self._words(texts) if self.kind == "words" else self._characters(texts)

    def _words(self, texts: Sequence[str]) -> Tokens:
        find, ids = word_pattern().findall, self._ids
        flat: list[int] = []
        lengths = np.zeros(len(texts), dtype=np.int64)
        for number, text in enumerate(texts):
            words = find(lower(text))
            lengths[number] = len(words) + 1
            if self.grows:
                flat += map(ids.__getitem__, words)
            else:
                flat += [ids.get(word, SEPARATOR) for word in words]
            flat.append(SEPARATOR)
        return Tokens(np.array(flat, dtype=np.int32), np.repeat(np.arange(len(texts), dtype=np.int32), lengths))

    def _characters(self, texts: Sequence[str]) -> Tokens:
        collapsed = [collapse(text) for text in texts]
        lengths = np.array([len(text) + 1 for text in collapsed], dtype=np.int64)
        encoded = "".join(f"{text}\n" for text in collapsed).encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(encoded, dtype=np.uint32)  # a collapsed text has no newline of its own
        if self.grows:
            for code in np.flatnonzero(np.bincount(codes)).tolist():
                if code != ord("\n"):
                    self._ids[chr(code)]
            self._by_code_point = _code_point_table(self.tokens)
        ids = self._by_code_point[np.minimum(codes, len(self._by_code_point) - 1)]
        return Tokens(ids, np.repeat(np.arange(len(texts), dtype=np.int32), lengths))


def _code_point_table(tokens: Sequence[str]) -> Ids:
    """Return the id of every code point up to the highest of the tokens; the last entry is for all beyond."""
    codes = np.array([ord(token) for token in tokens], dtype=np.int64)
    table = np.full(int(codes.max(initial=0)) + 2, SEPARATOR, dtype=np.int32)
    table[codes] = np.arange(len(codes))
    return table
