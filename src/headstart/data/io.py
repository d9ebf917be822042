"""Open local, compressed and remote files, and decode their lines: as strict UTF-8, or as the encoding that is set.

An encoding is never chosen silently. The message about a file that is not UTF-8 shows an excerpt in each encoding that fits.
"""

import codecs
import difflib
import errno
import gzip
import io
import os
import string
import sys
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from headstart.errors import DataError
from headstart.files import is_pickle, pickle_error

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum size in bytes of a line, csv row or single-document file; longer ones usually indicate a damaged file."""
MAX_INFLATION = 200
"""The largest compression ratio of a gzip file that unpacks to more than `MAX_LINE_BYTES`; that of text is about ten."""
SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".spm")
BOM = b"\xef\xbb\xbf"
_SIMILARITY, _NAME_SIMILARITY = 0.75, 0.6
"""The difflib ratios, without and with suffixes, from which one file name is suggested for another."""
_SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
"""The first bytes of a ZIP file, which .xlsx and .ods files are, and of an .xls file."""
_SAMPLE_BYTES, _BLOCK_BYTES = 8192, 64 * 1024
_MIN_PLAUSIBILITY, _NEAR_BEST = 0.6, 0.9
_MIN_SEQUENCES = 4
_MULTIBYTE = ("gb", "big5", "euc", "shift", "cp932", "cp949", "cp950", "johab")
"""The encodings in which a text of few characters may be UTF-8 by accident."""
KNOWN_SUFFIXES = f"{', '.join(SUFFIXES)}, each also with .gz"


def single_line(text: str, limit: int = 40) -> str:
    """Format text of a file for a message: no line breaks, no control characters, and at most `limit` characters.

    >>> single_line("a\\nlabel\\x1b[31m")
    'a label [31m'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * limit])
    line = " ".join(printable.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def is_url(path: str) -> bool:
    """Return whether a path is a URL, which fsspec opens.

    >>> is_url("hf://datasets/me/reviews.csv"), is_url("reviews.csv")
    (True, False)
    """
    return "://" in path


def is_gzip(path: str) -> bool:
    """Return whether the name ends with .gz."""
    return _without_query(path).endswith(".gz")


def suffix_of(path: str) -> str | None:
    """Return the suffix that selects the reader, .gz aside; None if it is unknown.

    >>> suffix_of("a/Reviews.CSV.gz"), suffix_of("https://host/train.jsonl?download=1"), suffix_of("notes.md")
    ('.csv', '.jsonl', None)
    """
    name = _without_query(path).removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def _without_query(path: str) -> str:
    """Return the path in lower case, without the query and fragment of a URL."""
    if is_url(path):
        path = path.split("::")[0]  # fsspec chains file systems with ::, innermost file first
        path = path.split("#")[0].split("?")[0]
    return path.lower()


@dataclass(frozen=True)
class TextEncoding:
    """The encoding of files that are not UTF-8; files that are UTF-8 are read as such."""

    name: str | None = None
    setting: str | None = None
    """The setting or option that sets the encoding, for messages; None if there is none."""


UTF_8 = TextEncoding()


@contextmanager
def open_input(path: str, encoding: TextEncoding = UTF_8) -> Iterator[io.BufferedReader]:
    """Open a file for reading uncompressed bytes; every error while it is open becomes a one-line DataError.

    Args:
        encoding: a text in this encoding is read as the bytes of its UTF-8.
    """
    try:
        with ExitStack() as stack:
            file = raw = stack.enter_context(_open_raw(path))
            if is_gzip(path):
                file = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
                file = cast(IO[bytes], _GzipReader(path, file, raw))
            # a BufferedReader, because readline of some fsspec files ignores its limit
            reader: io.BufferedReader = io.BufferedReader(cast(io.RawIOBase, file))
            if is_pickle(reader.peek(512)[:512]):
                raise DataError(pickle_error(path, "If you trust it, save its texts as .jsonl or .csv"))
            yield transcoded(path, reader, encoding)
    except EOFError:
        raise DataError(f"{path} is truncated: the gzip stream does not end; download or compress it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}); download or compress it again") from None
    except FileNotFoundError:
        raise missing_file_error(path) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def transcoded(path: str, file: io.BufferedReader, encoding: TextEncoding) -> io.BufferedReader:
    """Return a reader of the UTF-8 of a text in another encoding; without one, the file itself."""
    if encoding.name is None:
        return file
    return io.BufferedReader(_Transcoder(path, file, encoding))


class _Transcoder(io.RawIOBase):
    """Decodes a stream strictly in its encoding, and gives the UTF-8 of its text, without a byte order mark.

    A stream is read as UTF-8 after all if its first block with characters that are not ASCII is. Texts in other encodings
    are so by accident only if they have a few such characters, hence the minimum.
    """

    def __init__(self, path: str, file: io.BufferedReader, encoding: TextEncoding) -> None:
        assert encoding.name is not None
        self._path, self._file, self._encoding = path, file, encoding
        self._name = codecs.lookup(encoding.name).name
        self._decoder = codecs.getincrementaldecoder(self._name)()
        self._is_decided, self._at_start, self._ended, self._lines, self._pending = False, True, False, 0, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending and not self._ended:
            self._pending = self._next_block()
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count

    def _next_block(self) -> bytes:
        block = self._file.read1(_BLOCK_BYTES)
        self._ended = not block
        if not self._is_decided and not block.isascii():
            self._is_decided = True
            if _num_utf8_sequences(block) >= (_MIN_SEQUENCES if self._name.startswith(_MULTIBYTE) else 1):
                self._name, self._decoder = "utf-8", codecs.getincrementaldecoder("utf-8")()
        try:
            text = self._decoder.decode(block, final=self._ended)
        except UnicodeError as error:
            raise self._error(error, block) from None
        if self._at_start and text:
            text, self._at_start = text.removeprefix("\ufeff"), False
        self._lines += text.count("\n")
        return text.encode("utf-8", "surrogatepass")

    def _error(self, error: UnicodeError, block: bytes) -> DataError:
        if self._ended:
            return DataError(f"{self._path} ends inside a character of {self._name}; is the file complete?")
        raw, start = (error.object, error.start) if isinstance(error, UnicodeDecodeError) else (block, 0)
        line = self._lines + raw[:start].count(b"\n") + 1
        sample = raw[raw.rfind(b"\n", 0, start) + 1 :]
        advice = _encoding_advice(sample, self._path, self._encoding)
        return DataError(f"{self._path}, line {line}: not {self._name} (0x{raw[start]:02x}); {advice}")


def _num_utf8_sequences(block: bytes) -> int:
    """Count the characters of a block of UTF-8 that are not ASCII; 0 if the block is not UTF-8."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(block)
    except UnicodeDecodeError:
        return 0
    return sum(not letter.isascii() for letter in text)


class _GzipReader(io.RawIOBase):
    """A gzip stream that refuses a decompression bomb."""

    def __init__(self, path: str, file: IO[bytes], compressed: IO[bytes]) -> None:
        self._path, self._file, self._compressed = path, cast(io.BufferedIOBase, file), compressed
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._size += count
        if self._size > MAX_LINE_BYTES and self._size > MAX_INFLATION * self._compressed.tell():
            raise DataError(
                f"{self._path} unpacks to more than {MAX_INFLATION} times its size, which text does not; "
                "decompress it yourself to read it"
            )
        return count


def has_bom(file: io.BufferedReader) -> bool:
    """Return whether a file begins with the byte order mark of UTF-8; nothing is consumed."""
    return file.peek(3)[:3] == BOM


def missing_file_error(path: str) -> DataError:
    """Return the error for a missing file, with a close name in its folder if there is one."""
    if is_url(path):
        return DataError(f"no such file: {path}")
    if os.path.islink(path):
        target, is_loop = os.readlink(path), _is_symlink_loop(path)
        reason = "and leads back to itself" if is_loop else "which does not exist"
        return DataError(f"{path} is a symbolic link to {target}, {reason}; create the link again")
    folder = Path(path).parent
    if not folder.is_dir():
        return DataError(f"no such file: {path} (there is no folder {folder})")
    similar = _close_file_name(Path(path).name, sorted(entry.name for entry in folder.iterdir()))
    hint = f"; did you mean {os.path.join(os.path.dirname(path), similar)}?" if similar else ""
    return DataError(f"no such file: {path}{hint}")


def _is_symlink_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _close_file_name(name: str, names: Sequence[str]) -> str | None:
    """Return the most similar name; the part before the first dot must be similar too, for most suffixes are alike."""

    def ratio(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()

    stem = name.partition(".")[0]
    close = [other for other in names if ratio(stem, other.partition(".")[0]) >= _SIMILARITY and stem]
    best = max(close, key=lambda other: ratio(name, other), default=None)
    return best if best is not None and ratio(name, best) >= _NAME_SIMILARITY else None


def _open_raw(path: str) -> IO[bytes]:
    if not is_url(path):
        return Path(path).open("rb")
    import fsspec

    with remote_errors(path):
        return cast(IO[bytes], fsspec.open(path, "rb").open())


@contextmanager
def remote_errors(path: str) -> Iterator[None]:
    """Turn errors of fsspec (unknown protocol, missing package, refused request) into a one-line DataError."""
    try:
        yield
    except FileNotFoundError:
        raise missing_file_error(path) from None
    except ImportError as error:
        if path.startswith(("http://", "https://")):
            requirement = 'reading URLs needs two more packages; install them with: pip install "headstart[url]"'
        else:
            requirement = str(error).strip().splitlines()[0]  # fsspec names the missing package
        raise DataError(f"cannot open {path}: {requirement}") from None
    except _client_errors() as error:
        reason = str(error).strip() or type(error).__name__
        raise DataError(f"cannot open {path}: {reason.splitlines()[0]}") from None


def _client_errors() -> tuple[type[Exception], ...]:
    # fsspec passes on errors of aiohttp, which is no dependency of ours and must not be imported here
    aiohttp: Any = sys.modules.get("aiohttp")
    return (ValueError, OSError, aiohttp.ClientError) if aiohttp else (ValueError, OSError)


def read_lines(path: str, file: io.BufferedReader, encoding: TextEncoding = UTF_8) -> Iterator[str]:
    """Stream the lines of a UTF-8 file with their ends, without a byte order mark; only \\n ends a line.

    Args:
        encoding: for the message about a file that is not UTF-8; `open_input` has decoded one whose encoding is set.
    """
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(f"{where}: longer than {MAX_LINE_BYTES} bytes; split it into lines")
        if number == 1:
            while raw.startswith(BOM):  # a file that was saved or joined by several programs may have two
                raw = raw.removeprefix(BOM)
        text = _decode(raw)
        if text is None:
            # what follows helps to guess the encoding; standard input may have nothing more yet
            more = file.read(_SAMPLE_BYTES) if suffix_of(path) else b""
            raise _not_utf8_error(raw, where, path, encoding, more)
        yield text


def decode_utf8(raw: bytes, where: str, path: str, encoding: TextEncoding = UTF_8) -> str:
    """Decode strict UTF-8 without NUL; a guessed encoding would put mojibake into the training data."""
    text = _decode(raw)
    if text is None:
        raise _not_utf8_error(raw, where, path, encoding)
    return text


def _decode(raw: bytes) -> str | None:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _not_utf8_error(raw: bytes, where: str, path: str, encoding: TextEncoding, more: bytes = b"") -> DataError:
    """Return the error for bytes that are not UTF-8 or hold a NUL, with the encodings that they may have.

    Args:
        more: the bytes that follow.
    """
    if raw.startswith(_SPREADSHEETS):
        return DataError(f"{where}: a spreadsheet or ZIP file, expected text; save the spreadsheet as CSV UTF-8")
    start = 0
    try:
        raw.decode("utf-8")
        reason = "contains a NUL byte"
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 (byte {error.start + 1} is 0x{raw[error.start]:02x})"
        start = raw.rfind(b"\n", 0, error.start) + 1
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # the first one begins like UTF-16
        save = "save the spreadsheet as CSV UTF-8" if suffix_of(path) in (".csv", ".tsv") else "save it as UTF-8"
        option = f"add {encoding.setting} utf-32, or " if encoding.setting else ""
        return DataError(f"{where}: UTF-32, expected UTF-8; {option}{save}")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        reason, start = "UTF-16, expected UTF-8", 0
    return DataError(f"{where}: {reason}; {_encoding_advice((raw + more)[start:], path, encoding)}")


def _encoding_advice(sample: bytes, path: str, encoding: TextEncoding) -> str:
    """Return the end of a message: what the sample looks like in the encodings that fit it, and how to name one."""
    guesses = guess_encodings(sample[:_SAMPLE_BYTES])
    shown = " or ".join(f"{_CANDIDATES[guess.codec].title} ('{guess.excerpt}')" for guess in guesses)
    save = "save the spreadsheet as CSV UTF-8" if suffix_of(path) in (".csv", ".tsv") else "save it as UTF-8"
    if not guesses and b"\0" in sample:
        return "is this a text file?"
    if not guesses:
        named = f", or set its encoding with {encoding.setting}" if encoding.setting else ""
        return f"it does not match any common encoding: {save}{named}"
    if encoding.setting is None:
        return f"it looks like {shown}: {save}"
    codecs_shown = " or ".join(guess.codec for guess in guesses)
    return f"it looks like {shown}: add {encoding.setting} {codecs_shown}, or {save}"


@dataclass(frozen=True)
class EncodingGuess:
    """An encoding that a sample may have, and some of its words in that encoding."""

    codec: str
    excerpt: str
    score: float


@dataclass(frozen=True)
class _Candidate:
    """An encoding to try, and the characters that are frequent in texts of its languages."""

    title: str
    frequent: str
    script: str = "latin"


_WESTERN = "éèêëàâäçùûüôöîïßñáíóúãõåæøœìòºª"
_CENTRAL = "ąćęłńóśźżáčďéěíňřšťúůýžőűöüäôľĺăâîşţđ"
_CYRILLIC = "оеаинтсрвлкі"
_CHINESE = (
    "的一是不了在人有我他个中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去"
    "法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实书很"
)
_TRADITIONAL = (
    "的一是不了在人有我他個中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家種事成方多經麼去"
    "法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實書很這們"
)
_KOREAN = "이다는을를의가에고은하지도로한기사리어나아자서해인대시라들그게만일있정수니보지전부으여원장주과책습"
_CANDIDATES = {
    "utf-16": _Candidate("UTF-16", "", "any"),
    "utf-16-le": _Candidate("UTF-16", string.ascii_letters, "any"),
    "utf-16-be": _Candidate("UTF-16", string.ascii_letters, "any"),
    "cp932": _Candidate("Shift-JIS", "", "japanese"),
    "euc_jp": _Candidate("EUC-JP", "", "japanese"),
    "gb18030": _Candidate("GB18030", _CHINESE, "han"),
    "big5": _Candidate("Big5", _TRADITIONAL, "han"),
    "cp949": _Candidate("EUC-KR", _KOREAN, "hangul"),
    "cp1252": _Candidate("Windows-1252", _WESTERN),
    "cp1250": _Candidate("Windows-1250", _CENTRAL),
    "cp1254": _Candidate("Windows-1254", "çğıöşüİâîûéèêäñ"),
    "cp1251": _Candidate("Windows-1251", _CYRILLIC, "cyrillic"),
    "koi8_r": _Candidate("KOI8-R", _CYRILLIC, "cyrillic"),
    "cp866": _Candidate("DOS Cyrillic", _CYRILLIC, "cyrillic"),
    "cp1253": _Candidate("Windows-1253", "αοιετσνηυρςό", "greek"),
    "cp1255": _Candidate("Windows-1255", "יוהלאתרבמש", "hebrew"),
    "cp1256": _Candidate("Windows-1256", "اليمونترب", "arabic"),
    "mac_roman": _Candidate("Mac Roman", _WESTERN),
    "cp850": _Candidate("DOS Western", _WESTERN),
}
"""The encodings that are tried, the likeliest first."""
_PUNCTUATION = set("’‘“”„‚–—…«»‹›€£°§©®™·•¿¡½¼¾²³№\u00a0\u3000、。「」『』，！？：；（）《》・ー～")
_WORD_MARKS = set("’‘·\u00a0")
_FREQUENT_SHARE = {"latin": 0.5, "japanese": 0.2, "han": 0.15, "hangul": 0.15}
"""Minimum fraction of frequent letters among the letters that are not ASCII, by script; one half for other alphabets."""


def guess_encodings(sample: bytes) -> list[EncodingGuess]:
    """Return the encodings in which a sample that is not UTF-8 reads like text, the likeliest first; three at most.

    >>> [guess.codec for guess in guess_encodings("この本はとても面白かったです。".encode("shift_jis"))]
    ['cp932']
    >>> [(guess.codec, guess.excerpt) for guess in guess_encodings("un très bon livre".encode("latin-1"))]
    [('cp1252', 'un très bon livre'), ('cp1250', 'un trčs bon livre')]
    """
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        names = ["utf-16"]
    elif b"\0" in sample:
        names = ["utf-16-le", "utf-16-be"]
    else:
        names = [name for name in _CANDIDATES if not name.startswith("utf")]
    scored: dict[str, tuple[float, str]] = {}
    for name in names:
        try:
            text = codecs.getincrementaldecoder(name)().decode(sample)
        except UnicodeDecodeError:
            continue
        score = _plausibility(text, _CANDIDATES[name])
        if score >= _MIN_PLAUSIBILITY:
            scored.setdefault(text, (score, name))
    best = sorted(scored, key=lambda text: -scored[text][0])
    best = [text for text in best if scored[text][0] >= _NEAR_BEST * scored[best[0]][0]][:3]
    # where they differ, so that the user can see which is right
    first = next((index for index, letters in enumerate(zip(*best, strict=False)) if len(set(letters)) > 1), None)
    return [EncodingGuess(scored[text][1], _excerpt(text, first), scored[text][0]) for text in best]


def _excerpt(text: str, index: int | None) -> str:
    """Return some of the text around an index, or around its first character that is not ASCII."""
    if index is None:
        index = next((index for index, letter in enumerate(text) if not letter.isascii()), 0)
    start = max(text.rfind("\n", 0, index) + 1, index - 8)
    return single_line(text[start : start + 20], 20)


def _plausibility(text: str, candidate: _Candidate) -> float:
    """Return how much a decoded text reads like text, from 0 to 1, judged by its characters that are not ASCII."""
    unusual = set(text) - set("\t\r\n\ufeff\x1a")
    if any(unicodedata.category(letter) in ("Cc", "Co", "Cn") for letter in unusual):
        return 0.0
    if candidate.script == "any":  # UTF-16, which without a byte order mark is seen by its plain letters
        return sum(map(str.isascii, text)) / max(1, len(text)) if candidate.frequent else 1.0
    padded = f" {text} "
    indices = [index for index, letter in enumerate(padded) if not letter.isascii()]
    likely = sum(_is_likely(padded, index, candidate.script) for index in indices)
    if not set(text).difference(" \u00a0") - set(string.printable):
        return 0.0
    letters = [padded[index] for index in indices if padded[index] not in _PUNCTUATION]
    is_latin = candidate.script == "latin"
    if candidate.script == "japanese":
        frequent = sum("\u3041" <= letter <= "\u30fe" for letter in letters)
    else:
        frequent = sum((letter.lower() if is_latin else letter) in candidate.frequent for letter in letters)
    expected = _FREQUENT_SHARE.get(candidate.script, 0.5) * len(letters)
    return likely / max(1, len(indices)) * min(1.0, (frequent + 0.5) / (expected + 0.5))


def _is_likely(text: str, index: int, script: str) -> bool:
    """Return whether a character that is not ASCII is likely at its place in a text of a script."""
    letter, before, after = text[index], text[index - 1], text[index + 1]
    if letter in _PUNCTUATION:
        return letter in _WORD_MARKS or not (before.isalpha() and after.isalpha()) or script in ("han", "japanese")
    if not letter.isalpha() or "\uff61" <= letter <= "\uff9f":  # half-width katakana is what other encodings look like
        return "\uff01" <= letter <= "\uff5e" and script in ("han", "japanese", "hangul")
    name = unicodedata.name(letter, "")
    if script in ("han", "japanese", "hangul"):
        return name.startswith(_SCRIPT_NAMES[script])
    in_script = name.startswith(_SCRIPT_NAMES[script]) and not (letter.isupper() and before.islower())
    if script == "latin":  # accented letters stand between plain ones
        return in_script and not all(other.isalpha() and not other.isascii() for other in (before, after))
    return in_script and not any(other.isascii() and other.isalpha() for other in (before, after))


_SCRIPT_NAMES = {
    "latin": ("LATIN",),
    "cyrillic": ("CYRILLIC",),
    "greek": ("GREEK",),
    "hebrew": ("HEBREW",),
    "arabic": ("ARABIC",),
    "japanese": ("HIRAGANA", "KATAKANA", "CJK UNIFIED"),
    "han": ("CJK UNIFIED",),
    "hangul": ("HANGUL SYLLABLE",),
}
"""The beginnings of the Unicode names of a script's letters."""
