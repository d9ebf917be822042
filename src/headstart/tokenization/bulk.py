"""Fast encoding of large corpora: a cache of words, and gigatoken for the texts on which it cannot differ.

WordEncoder splits texts into words, encodes each word once and looks it up afterwards. A byte-level BPE never merges
across pre-tokens, and a pre-token does not depend on the text before it. A text may therefore be split before a blank,
unless the blank is inside a run of white space, where the pre-tokenizer looks ahead to the end of the run. The pieces,
encoded one by one, give the ids of the text.

GigatokenEncoder runs gigatoken, a faster byte-level BPE, if it is installed (extra `fast`, see docs/scaling.md).
`tokenizers` remains the reference. Gigatoken does not bound the length of a word and has other Unicode tables for recently
added letters. It therefore encodes only plain texts, which have neither a long word nor a character of a block that is
still growing; the reference encodes all others. tests/tokenization/test_gigatoken.py compares the two.
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

_SPLIT = re.compile(r"(?<!\s)(?= )|(?= \S)")
_MAX_CACHED_LENGTH = 64
"""Characters of the longest word in the cache; longer ones seldom repeat."""
_MAX_CACHED = 400_000
"""Words in the cache, at about 200 bytes each. After as many misses of a full cache the text has changed: clear it."""
_SLICE_CHARACTERS = 1_000_000
"""Characters of a text that are split into words at a time."""


class WordEncoder:
    """Encodes texts to the bytes of an id array; the ids equal those of `tokenizer.encode_batch`."""

    def __init__(self, tokenizer: Tokenizer, dtype: str) -> None:
        """`dtype` is the numpy type of an id."""
        self._tokenizer, self._dtype = tokenizer, dtype
        self._splits_words = isinstance(tokenizer, BPETokenizer)
        self._gigatoken = gigatoken_encoder(tokenizer.content, dtype) if isinstance(tokenizer, BPETokenizer) else None
        self._cache: dict[str, bytes] = {}
        self._num_misses = 0

    def encode_to_bytes(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of each text as bytes."""
        if not self._splits_words:
            return self._encode_uncached(texts)
        if self._gigatoken is None:
            return self._encode_by_words(texts)
        is_plain = is_plain_batch(texts)
        plain_texts = [text for text, plain in zip(texts, is_plain, strict=True) if plain]
        other_texts = [text for text, plain in zip(texts, is_plain, strict=True) if not plain]
        fast = iter(self._gigatoken.encode_to_bytes(plain_texts))
        reference = iter(self._encode_by_words(other_texts))
        return [next(fast if plain else reference) for plain in is_plain]

    def _encode_by_words(self, texts: Sequence[str]) -> list[bytes]:
        slices = [list(_slices(text)) for text in texts]
        encoded = iter(self._encode_words([_words(part) for parts in slices for part in parts]))
        return [b"".join(next(encoded) for _ in parts) for parts in slices]

    def _encode_words(self, rows: list[list[str]]) -> list[bytes]:
        """Encode rows of words; rows that the cache covers take one pass."""
        ids_of = self._cache.__getitem__
        encoded = dict.fromkeys(range(len(rows)), b"")
        missed: list[int] = []
        for index, words in enumerate(rows):
            try:
                encoded[index] = b"".join(map(ids_of, words))
            except KeyError:
                missed.append(index)
        with self._cached({word for index in missed for word in rows[index]}):
            encoded.update((index, b"".join(map(ids_of, rows[index]))) for index in missed)
        return list(encoded.values())

    @contextmanager
    def _cached(self, words: set[str]) -> Iterator[None]:
        """Put words into the cache for the duration of the block, and keep the new ones afterwards if there is room."""
        new = sorted(words - self._cache.keys())
        self._cache.update(zip(new, self._encode_uncached(new), strict=True))
        yield
        is_full = len(self._cache) > _MAX_CACHED
        for word in new:
            if is_full or len(word) > _MAX_CACHED_LENGTH:
                del self._cache[word]
        self._num_misses += len(new) if is_full else 0
        if self._num_misses >= _MAX_CACHED:
            self._cache, self._num_misses = {}, 0

    def _encode_uncached(self, texts: Sequence[str]) -> list[bytes]:
        return [np.array(ids, self._dtype).tobytes() for ids in self._tokenizer.encode_batch(texts)]


def _words(text: str) -> list[str]:
    """Split a text before its blanks, wherever that changes no id.

    >>> _words("a dull  book\\n  or so")
    ['a', ' dull', ' ', ' book\\n ', ' or', ' so']
    """
    if "  " not in text and text.isprintable():  # the only white space is single blanks, so every blank is a split
        return text.replace(" ", "\0 ").split("\0")
    return _SPLIT.split(text)


def _slices(text: str) -> Iterator[str]:
    """Yield a long text in slices that end between words: all words of a book need many times its memory."""
    start = 0
    while len(text) - start > 2 * _SLICE_CHARACTERS:
        split = _SPLIT.search(text, start + _SLICE_CHARACTERS)
        if split is None:
            break
        yield text[start : split.start()]
        start = split.start()
    yield text[start:] if start else text


class GigatokenEncoder:
    """Encodes plain texts (see `is_plain_batch`) with gigatoken."""

    def __init__(self, content: bytes, dtype: str) -> None:
        """`content` is the tokenizer.json of a `BPETokenizer`."""
        import gigatoken

        settings = json.loads(content)
        settings["added_tokens"] = []  # "<eos>" in a text is five ordinary characters
        settings["pre_tokenizer"] = settings["pre_tokenizer"]["pretokenizers"][0]  # without the bound on word length
        self._engine = gigatoken.Tokenizer.from_json(json.dumps(settings))
        self._dtype = np.dtype(dtype)

    def encode_to_bytes(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of each plain text as bytes."""
        rows: Any = self._engine.encode_batch(list(texts), parallel=False)
        if isinstance(rows, list):  # numpy arrays, if awkward arrays are not installed
            return [np.asarray(row).astype(self._dtype).tobytes() for row in rows]
        layout = rows.layout.to_ListOffsetArray64(True)
        offsets = np.asarray(layout.offsets.data)
        flat = np.asarray(layout.content.data)[: int(offsets[-1])].astype(self._dtype).tobytes()
        return [flat[start:end] for start, end in pairwise((offsets * self._dtype.itemsize).tolist())]


def gigatoken_encoder(content: bytes, dtype: str) -> GigatokenEncoder | None:
    """Return an encoder, or None if gigatoken is not installed."""
    return GigatokenEncoder(content, dtype) if find_spec("gigatoken") else None


_GROWING_BLOCKS = re.compile("[\u0870-\u089f\u0c00-\u0cff\ua7c0-\ua7ff\U00010000-\U0001f2ff\U0001fb00-\U0010ffff]")
"""Characters of the Unicode blocks to which letters were added lately; emoji are no letters and not among them."""
_GROWING_LEAD_BYTES = np.zeros(256, dtype=bool)
_GROWING_LEAD_BYTES[[0xE0, 0xEA, *range(0xF0, 0x100)]] = True
"""The first UTF-8 bytes of these characters."""
_ASCII_SPACES = np.zeros(256, dtype=bool)
_ASCII_SPACES[[9, 10, 11, 12, 13, 32]] = True
_LONG_SPACE = re.compile(r"\s{16}")
"""White space that may exceed the bound on word length; in UTF-8, fewer than 16 blanks of any kind do not."""
_WORD_END, _SPACE, _GROWING = 1, 2, 4
"""Flags of a byte: it ends a word, may belong to white space of any kind, may begin a character of a growing block."""
_BLOCK_BYTES = MAX_WORD_LENGTH // 2
"""If every block of this many bytes has a word end, no word is too long."""


def _byte_flags() -> bytes:
    """Return the table of the flags of each byte, for `bytes.translate`."""
    spaces = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
    flags = bytearray(256)
    for flag, members in ((_WORD_END, _ASCII_SPACES), (_GROWING, _GROWING_LEAD_BYTES)):
        for byte in np.flatnonzero(members).tolist():
            flags[byte] |= flag
    for byte in spaces.encode():
        flags[byte] |= _SPACE
    return bytes(flags)


_BYTE_FLAGS = _byte_flags()


def is_plain_batch(texts: Sequence[str]) -> list[bool]:
    """Return for each text whether both engines certainly give the same ids.

    A vectorised filter over all texts comes first, which clears most of them; it is much faster than single checks.
    """
    is_plain = [True] * len(texts)
    for index in _needs_check([as_utf8(text) for text in texts]):
        is_plain[index] = _has_plain_words(texts[index]) and not _has_long_space(texts[index])
    return is_plain


def _needs_check(contents: list[bytes]) -> set[int]:
    """Return the texts that may not be plain, examined eight bytes at a time; all others are plain."""
    flags = b"\n".join(contents).translate(_BYTE_FLAGS)
    words = np.frombuffer(flags + bytes([_WORD_END]) * (-len(flags) % _BLOCK_BYTES), dtype=np.uint64)
    # long white space contains eight aligned bytes each of which may belong to white space
    is_suspect = ((words & _repeat_byte(_GROWING)) != 0) | ((words & _repeat_byte(_SPACE)) == _repeat_byte(_SPACE))
    # a word that is too long covers a block
    word_ends = np.bitwise_or.reduce((words & _repeat_byte(_WORD_END)).reshape(-1, _BLOCK_BYTES // 8), axis=1)
    text_ends = np.cumsum([len(content) + 1 for content in contents])
    texts: set[int] = set()
    for chunks, size in ((np.flatnonzero(is_suspect), 8), (np.flatnonzero(word_ends == 0), _BLOCK_BYTES)):
        first, last = (np.searchsorted(text_ends, size * chunks + offset, side="right") for offset in (0, size - 1))
        for start, stop in zip(first.tolist(), last.tolist(), strict=True):
            texts.update(range(start, min(stop, len(contents) - 1) + 1))
    return texts


def _repeat_byte(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * 8))


def _has_plain_words(text: str) -> bool:
    """Return whether a text has no character of a growing block, and no long word."""
    content = np.frombuffer(as_utf8(text), dtype=np.uint8)
    if _GROWING_LEAD_BYTES[content].any() and _GROWING_BLOCKS.search(text):
        return False
    return _longest_word(np.flatnonzero(_ASCII_SPACES[content]), len(content)) < MAX_WORD_LENGTH - 1


def _longest_word(spaces: NDArray[np.int64], size: int) -> int:
    """Return the bytes of the longest run without white space, given its positions."""
    if not len(spaces):
        return size
    between = int(np.diff(spaces).max(initial=1)) - 1
    return max(int(spaces[0]), size - 1 - int(spaces[-1]), between)


def _has_long_space(text: str) -> bool:
    has_single_blanks_only = "  " not in text and text.isprintable()
    return not has_single_blanks_only and _LONG_SPACE.search(text) is not None
