"""Fast encoding of large corpora: a word cache, and gigatoken where its ids cannot differ.

A quicker engine for byte-level BPE, where it is installed (extra `fast`): the same ids, sooner (docs/scaling.md).

`tokenizers` remains the reference. The quicker engine, gigatoken, knows no bound on the length of a word and has other
tables of Unicode's newest letters, so a text goes to it only where neither can matter: no word beyond the bound, no
character on which the two could differ. Everything else is left to the reference. tests/text/test_quick.py compares the two.

Many texts to ids by way of their words: text repeats its words, so each is encoded once and looked up ever after.

A byte-level BPE never merges across the borders of its pre-tokens, and those look at nothing before themselves. So a text
may be cut before a blank, unless that blank lies inside a run of white space: there the rule looks ahead to the end of the
run. The pieces between cuts, encoded one by one by the tokenizer itself, give the ids of the whole text.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.tokenization.base import Tokenizer, as_utf8
from headstart.tokenization.bpe import MAX_WORD_LENGTH, BPETokenizer

_NEW = re.compile("[\u0870-\u089f\u0c00-\u0cff\ua7c0-\ua7ff\U00010000-\U0001f2ff\U0001fb00-\U0010ffff]")
"""Where letters were added lately, and may be again; the pictures of emoji are none."""
_NEW_BYTES = np.zeros(256, dtype=bool)
_NEW_BYTES[[0xE0, 0xEA, *range(0xF0, 0x100)]] = True
"""The bytes with which all of those begin in UTF-8."""
_BLANKS = np.zeros(256, dtype=bool)
_BLANKS[[9, 10, 11, 12, 13, 32]] = True
_MAX_BLANKS = re.compile(r"\s{16}")
"""So much white space may be too long a word; in UTF-8 fewer blanks of any kind are not."""
_BLANK, _SPACE, _OTHER = 1, 2, 4
"""Of a byte, what it may be part of: the end of a word, white space of any kind, a character that is new."""
_BLOCK = MAX_WORD_LENGTH // 2
"""Bytes: where each block of so many has a blank, no word is too long."""


def _character_classes() -> bytes:
    """What each byte may be part of: a blank that ends a word, white space of any kind, a character that is new."""
    spaces = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
    found = bytearray(256)
    for kind, members in ((_BLANK, _BLANKS), (_OTHER, _NEW_BYTES)):
        for member in np.flatnonzero(members).tolist():
            found[member] |= kind
    for member in spaces.encode():
        found[member] |= _SPACE
    return bytes(found)


_CHARACTER_CLASSES = _character_classes()


class GigatokenEncoder:
    """Texts to ids by gigatoken, for the texts that it reads as the reference does."""

    def __init__(self, content: bytes, code: str) -> None:
        """`content` is the tokenizer.json of a tokenizer of ours."""
        import gigatoken

        settings = json.loads(content)
        settings["added_tokens"] = []  # "<eos>" in a text is five characters like any other
        settings["pre_tokenizer"] = settings["pre_tokenizer"]["pretokenizers"][0]  # without the bound
        self._engine = gigatoken.Tokenizer.from_json(json.dumps(settings))
        self._dtype = np.dtype(code)

    def packed(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of texts that are all plain (see `plain`), as bytes."""
        rows: Any = self._engine.encode_batch(list(texts), parallel=False)
        if isinstance(rows, list):  # arrays one by one, where awkward arrays cannot be had
            return [np.asarray(row).astype(self._dtype).tobytes() for row in rows]
        laid = rows.layout.to_ListOffsetArray64(True)
        ends = np.asarray(laid.offsets.data)
        flat = np.asarray(laid.content.data)[: int(ends[-1])].astype(self._dtype).tobytes()
        return [flat[start:end] for start, end in pairwise((ends * self._dtype.itemsize).tolist())]


def gigatoken_encoder(content: bytes, code: str) -> GigatokenEncoder | None:
    """The quicker engine, or None where it is not installed."""
    return GigatokenEncoder(content, code) if find_spec("gigatoken") else None


def is_plain_batch(texts: Sequence[str]) -> list[bool]:
    """Of each text, whether both engines are sure to read it alike; all are looked at together first: by far quicker."""
    found = [True] * len(texts)
    for index in _needs_check([as_utf8(text) for text in texts]):
        found[index] = _is_plain(texts[index]) and _is_borderline(texts[index])
    return found


def _needs_check(contents: list[bytes]) -> set[int]:
    """Which texts may not be plain, as far as can be told from eight bytes at a time; of all others it is certain."""
    kinds = b"\n".join(contents).translate(_CHARACTER_CLASSES)
    eights = np.frombuffer(kinds + bytes([_BLANK]) * (-len(kinds) % _BLOCK), dtype=np.uint64)
    # a gap has eight bytes in a row each of which may be part of white space
    odd = ((eights & _all(_OTHER)) != 0) | ((eights & _all(_SPACE)) == _all(_SPACE))
    # and a word that is too long covers a whole block
    blanks = np.bitwise_or.reduce((eights & _all(_BLANK)).reshape(-1, _BLOCK // 8), axis=1)
    ends = np.cumsum([len(content) + 1 for content in contents])
    found: set[int] = set()
    for places, size in ((np.flatnonzero(odd), 8), (np.flatnonzero(blanks == 0), _BLOCK)):
        first, last = (np.searchsorted(ends, size * places + more, side="right") for more in (0, size - 1))
        for one, other in zip(first.tolist(), last.tolist(), strict=True):
            found.update(range(one, min(other, len(contents) - 1) + 1))
    return found


def _all(kind: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([kind]) * 8))


def _is_plain(text: str) -> bool:
    """No character that is new, and no long word."""
    content = np.frombuffer(as_utf8(text), dtype=np.uint8)
    if _NEW_BYTES[content].any() and _NEW.search(text):
        return False
    return _longest(np.flatnonzero(_BLANKS[content]), len(content)) < MAX_WORD_LENGTH - 1


def _longest(blanks: NDArray[np.int64], size: int) -> int:
    """Bytes of the longest run without a blank."""
    if not len(blanks):
        return size
    between = int(np.diff(blanks).max(initial=1)) - 1
    return max(int(blanks[0]), size - 1 - int(blanks[-1]), between)


def _is_borderline(text: str) -> bool:
    """No wide gap between words."""
    return ("  " not in text and text.isprintable()) or not _MAX_BLANKS.search(text)


_SPLIT = re.compile(r"(?<!\s)(?= )|(?= \S)")
_MAX_WORD = 64
"""Characters of a word that is kept; what is longer is seldom seen twice."""
_MAX_CACHED = 400_000
"""Words that are kept, at about 200 bytes each. Where as many more were met since, the text has changed: begin anew."""
_SLICE = 1_000_000
"""Characters of a text that are cut into words at a time."""


class WordEncoder:
    """The ids of texts as the bytes of an array, each text's its own; equal to those of `tokenizer.encode_batch`."""

    def __init__(self, tokenizer: Tokenizer, code: str) -> None:
        """`code` is the type of an id, as numpy spells it."""
        self._tokenizer, self._code = tokenizer, code
        self._by_words = isinstance(tokenizer, BPETokenizer)
        self._quick = gigatoken_encoder(tokenizer.content, code) if isinstance(tokenizer, BPETokenizer) else None
        self._known: dict[str, bytes] = {}
        self._passed = 0

    def packed(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text."""
        if not self._by_words:
            return self._encoded(texts)
        if self._quick is None:
            return self._packed(texts)
        sure = is_plain_batch(texts)
        quick = iter(self._quick.packed([text for text, fine in zip(texts, sure, strict=True) if fine]))
        slow = iter(self._packed([text for text, fine in zip(texts, sure, strict=True) if not fine]))
        return [next(quick if fine else slow) for fine in sure]

    def _packed(self, texts: Sequence[str]) -> list[bytes]:
        slices = [list(_slices(text)) for text in texts]
        found = iter(self._looked_up([_words(piece) for row in slices for piece in row]))
        return [b"".join(next(found) for _ in row) for row in slices]

    def _looked_up(self, rows: list[list[str]]) -> list[bytes]:
        ids_of = self._known.__getitem__
        found = dict.fromkeys(range(len(rows)), b"")
        again: list[int] = []
        for place, row in enumerate(rows):
            try:
                found[place] = b"".join(map(ids_of, row))
            except KeyError:
                again.append(place)
        with self._also({word for place in again for word in rows[place]}):
            found.update((place, b"".join(map(ids_of, rows[place]))) for place in again)
        return list(found.values())

    @contextmanager
    def _also(self, words: set[str]) -> Iterator[None]:
        """Know these words too; afterwards keep those that were new, while there is room."""
        new = sorted(words - self._known.keys())
        self._known.update(zip(new, self._encoded(new), strict=True))
        yield
        full = len(self._known) > _MAX_CACHED
        for word in new:
            if full or len(word) > _MAX_WORD:
                del self._known[word]
        self._passed += len(new) if full else 0
        if self._passed >= _MAX_CACHED:
            self._known, self._passed = {}, 0

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        return [np.array(ids, self._code).tobytes() for ids in self._tokenizer.encode_batch(texts)]


def _words(text: str) -> list[str]:
    """A text cut before its blanks, wherever that changes no id.

    >>> _words("a dull  book\\n  or so")
    ['a', ' dull', ' ', ' book\\n ', ' or', ' so']
    """
    if "  " not in text and text.isprintable():  # no white space but single blanks: every one is a place to cut
        return text.replace(" ", "\0 ").split("\0")
    return _SPLIT.split(text)


def _slices(text: str) -> Iterator[str]:
    """A long text in pieces, cut where words are: a book cut into words all at once is many times its size."""
    start = 0
    while len(text) - start > 2 * _SLICE:
        cut = _SPLIT.search(text, start + _SLICE)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text
