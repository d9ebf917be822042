"""Valid files, changed: the wounds that disks, downloads, editors and people who mean harm give them."""

import random
import re
import struct

from faults.shaped import within

WELCOME = (
    *(b'"', b"'", b"\n", b"\r\n", b",", b"\t", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000"),
    *(b"[" * 2000, b"{" * 500, b"9" * 5000, b"{", b"}", b"]", b"null", b"NaN", b"-Infinity", b"1e999", b"PAR1"),
    *(b"\x1f\x8b", b"../../etc/passwd", b"/dev/zero", b"\x80" * 12, b";", b"|"),
    *("▁".encode(), "é".encode()[:1], "\u2028".encode()),
)
NUMBERS = (
    *(b"0", b"-1", b"1", b"2", b"255", b"256", b"65535", b"65536", b"2147483647", b"2147483648", b"4294967296"),
    *(b"9223372036854775807", b"18446744073709551616", b"1e308", b"1e-400", b"0.5", b"-0", b"00", b"NaN", b"true"),
    *(b"null", b'"1"', b"[1]", b"9" * 400, b"9" * 5000),
)
HEADS = (
    *(
        b"\x80\x04\x95",
        b"PK\x03\x04 archive/data.pkl",
        b"\x1f\x8b\x08",
        b"PAR1",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x89PNG",
    ),
    *(b"[" * 5000, b'{"a":' * 5000, b"\x80" * 12),
)
"""How other files begin, pickles among them, and what never ends."""
INTEGERS = (0, 1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
DIGITS = re.compile(rb"\d+")


def mutate(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """One to four wounds; `other` is a valid file to take pieces from. Half of them keep the file's form."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
        shaped = within(content, chance, other, _wound) if chance.random() < 0.5 else None
        content = _wound(content, chance, other) if shaped is None else shaped
    return content


def _wound(content: bytes, chance: random.Random, other: bytes) -> bytes:
    return chance.choice(WOUNDS)(content, chance, other)


def _flip(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    if not content:
        return content
    offset = chance.randrange(len(content))
    return content[:offset] + bytes([content[offset] ^ 1 << chance.randrange(8)]) + content[offset + 1 :]


def _cut(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _drop(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    start, length = _stretch(content, chance)
    return content[:start] + content[start + length :]


def _double(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    start, length = _stretch(content, chance)
    piece = content[start : start + length]
    return content[:start] + piece * chance.choice((2, 3, 20)) + content[start + length :]


def _splice(content: bytes, chance: random.Random, other: bytes) -> bytes:
    start, length = _stretch(other, chance)
    offset = chance.randrange(len(content) + 1)
    return content[:offset] + other[start : start + length] + content[offset + chance.choice((0, length)) :]


def _swap(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    a, b, c = sorted(chance.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def _insert(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    offset = chance.randrange(len(content) + 1)
    return content[:offset] + chance.choice(WELCOME) + content[offset + chance.choice((0, 1, 4)) :]


def _number(content: bytes, chance: random.Random, other: bytes) -> bytes:
    """Another number in the place of one that is written in digits."""
    result = list(DIGITS.finditer(content[: 1 << 16]))
    if not result:
        return _integer(content, chance, other)
    number = chance.choice(result)
    return content[: number.start()] + chance.choice(NUMBERS) + content[number.end() :]


def _integer(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    """Another integer in the place of some bytes."""
    code = chance.choice(("<B", "<H", "<I", "<Q", ">I"))
    size = struct.calcsize(code)
    if len(content) < size:
        return content
    offset = chance.randrange(len(content) - size + 1)
    return content[:offset] + struct.pack(code, chance.choice(INTEGERS) % 256**size) + content[offset + size :]


def _repeat(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    """The first bytes again and again: an array of one number."""
    size = chance.choice((1, 2, 4, 8))
    return (content[:size] * len(content))[: len(content)] if len(content) < 1 << 20 else content


def _begin(content: bytes, chance: random.Random, _other: bytes) -> bytes:
    """The first bytes of another kind of file, before those of this one or in their place."""
    head = chance.choice(HEADS)
    return head + content[chance.choice((0, len(head))) :]


def _stretch(content: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(content) + 1)
    return start, chance.choice((1, 2, 8, chance.randrange(len(content) + 1)))


WOUNDS = (_flip, _flip, _cut, _drop, _double, _splice, _swap, _insert, _number, _number, _integer, _begin, _repeat)
