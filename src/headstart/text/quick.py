"""A quicker engine for byte-level BPE, where it is installed (extra `fast`): the same ids, sooner (docs/scaling.md).

`tokenizers` remains the reference. The quicker engine, gigatoken, knows no bound on the length of a word and has other
tables of Unicode's newest letters, so a text goes to it only where neither can matter: no word beyond the bound, no
character on which the two could differ. Everything else is left to the reference. tests/text/test_quick.py compares the two.
"""

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.text.bytepair_file import LONGEST_WORD
from headstart.text.vocabulary import utf8_of

_NEW = re.compile("[\u0870-\u089f\u0c00-\u0cff\ua7c0-\ua7ff\U00010000-\U0001f2ff\U0001fb00-\U0010ffff]")
"""Where letters were added lately, and may be again; the pictures of emoji are none."""
_NEW_BYTES = np.zeros(256, dtype=bool)
_NEW_BYTES[[0xE0, 0xEA, *range(0xF0, 0x100)]] = True
"""The bytes with which all of those begin in UTF-8."""
_BLANKS = np.zeros(256, dtype=bool)
_BLANKS[[9, 10, 11, 12, 13, 32]] = True
_GAP = re.compile(r"\s{16}")
"""So much white space may be too long a word; in UTF-8 fewer blanks of any kind are not."""
_BLANK, _SPACE, _OTHER = 1, 2, 4
"""Of a byte, what it may be part of: the end of a word, white space of any kind, a character that is new."""
_BLOCK = LONGEST_WORD // 2
"""Bytes: where each block of so many has a blank, no word is too long."""


def _kinds() -> bytes:
    """What each byte may be part of: a blank that ends a word, white space of any kind, a character that is new."""
    spaces = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
    found = bytearray(256)
    for kind, members in ((_BLANK, _BLANKS), (_OTHER, _NEW_BYTES)):
        for member in np.flatnonzero(members).tolist():
            found[member] |= kind
    for member in spaces.encode():
        found[member] |= _SPACE
    return bytes(found)


_KINDS = _kinds()


class QuickEngine:
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


def quick_engine(content: bytes, code: str) -> QuickEngine | None:
    """The quicker engine, or None where it is not installed."""
    return QuickEngine(content, code) if find_spec("gigatoken") else None


def plain(texts: Sequence[str]) -> list[bool]:
    """Of each text, whether both engines are sure to read it alike; all are looked at together first: by far quicker."""
    found = [True] * len(texts)
    for index in _doubtful([utf8_of(text) for text in texts]):
        found[index] = _is_plain(texts[index]) and _is_close(texts[index])
    return found


def _doubtful(contents: list[bytes]) -> set[int]:
    """Which texts may not be plain, as far as can be told from eight bytes at a time; of all others it is certain."""
    kinds = b"\n".join(contents).translate(_KINDS)
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
    content = np.frombuffer(utf8_of(text), dtype=np.uint8)
    if _NEW_BYTES[content].any() and _NEW.search(text):
        return False
    return _longest(np.flatnonzero(_BLANKS[content]), len(content)) < LONGEST_WORD - 1


def _longest(blanks: NDArray[np.int64], size: int) -> int:
    """Bytes of the longest run without a blank."""
    if not len(blanks):
        return size
    between = int(np.diff(blanks).max(initial=1)) - 1
    return max(int(blanks[0]), size - 1 - int(blanks[-1]), between)


def _is_close(text: str) -> bool:
    """No wide gap between words."""
    return ("  " not in text and text.isprintable()) or not _GAP.search(text)
