"""Many texts to ids by way of their words: text repeats its words, so each is encoded once and looked up ever after.

A byte-level BPE never merges across the borders of its pre-tokens, and those look at nothing before themselves. So a text
may be cut before a blank, unless that blank lies inside a run of white space: there the rule looks ahead to the end of the
run. The pieces between cuts, encoded one by one by the tokenizer itself, give the ids of the whole text.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from headstart.text.bytepair import BytePairTokenizer
from headstart.text.quick import plain, quick_engine
from headstart.text.vocabulary import Tokenizer

_CUTS = re.compile(r"(?<!\s)(?= )|(?= \S)")
_LONGEST_WORD = 64
"""Characters of a word that is kept; what is longer is seldom seen twice."""
_KEPT = 400_000
"""Words that are kept, at about 200 bytes each. Where as many more were met since, the text has changed: begin anew."""
_SLICE = 1_000_000
"""Characters of a text that are cut into words at a time."""


class WordEncoder:
    """The ids of texts as the bytes of an array, each text's its own; equal to those of `tokenizer.encode_batch`."""

    def __init__(self, tokenizer: Tokenizer, code: str) -> None:
        """`code` is the type of an id, as numpy spells it."""
        self._tokenizer, self._code = tokenizer, code
        self._by_words = isinstance(tokenizer, BytePairTokenizer)
        self._quick = quick_engine(tokenizer.content, code) if isinstance(tokenizer, BytePairTokenizer) else None
        self._known: dict[str, bytes] = {}
        self._passed = 0

    def packed(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text."""
        if not self._by_words:
            return self._encoded(texts)
        if self._quick is None:
            return self._packed(texts)
        sure = plain(texts)
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
        full = len(self._known) > _KEPT
        for word in new:
            if full or len(word) > _LONGEST_WORD:
                del self._known[word]
        self._passed += len(new) if full else 0
        if self._passed >= _KEPT:
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
    return _CUTS.split(text)


def _slices(text: str) -> Iterator[str]:
    """A long text in pieces, cut where words are: a book cut into words all at once is many times its size."""
    start = 0
    while len(text) - start > 2 * _SLICE:
        cut = _CUTS.search(text, start + _SLICE)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text
