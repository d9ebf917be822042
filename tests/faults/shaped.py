"""Wounds that keep the form of a file and change what it says: what a flipped bit seldom does to JSON, tables or weights."""

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 255, 65536, 2**31, 2**63, 2**70),
    *(-0.0, 0.5, 0.999999, 1e308, 1e-320, float("nan"), float("inf")),
    *("", " ", "a", "\0", "\ud800", "../x", "/dev/zero", "0", "1", "true", "é" * 300, "x" * 5000, "sha256:" + "0" * 64),
    *([], {}, [None], [[]], {"": 0}, [1, "a"], {"a": {"b": [{}]}}),
)
"""Values that nobody expects in the place of others."""
Wound = Callable[[bytes, random.Random, bytes], bytes]
_DEEP = 60


def within(content: bytes, chance: random.Random, other: bytes, plain: Wound) -> bytes | None:
    """A wound inside the form that a file has; None where it has none that is known here."""
    if content[:2] == b"\x1f\x8b":
        return _gzip(content, chance, other, plain)
    if len(content) > 9 and content[8:9] == b"{" and _length(content) <= len(content) - 8:
        return _weights(content, chance)
    head = content.lstrip()[:1]
    if head in (b"{", b"[") and (result := _json(content, chance)) is not None:
        return result
    if b"\r\n\r\n{" in content:
        top, _, body = content.partition(b"\r\n\r\n")
        return _request(top, body, chance)
    if b"\n" in content and b"\0" not in content:
        return _lines(content, chance)
    return None


def _length(content: bytes) -> int:
    size: int = struct.unpack("<Q", content[:8])[0]
    return size


def _gzip(content: bytes, chance: random.Random, other: bytes, plain: Wound) -> bytes | None:
    """What was packed is changed, and packed again."""
    try:
        inside = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return None
    changed = within(inside, chance, inside, plain) if chance.random() < 0.5 else None
    return gzip.compress(changed if changed is not None else plain(inside, chance, inside), mtime=0)


def _weights(content: bytes, chance: random.Random) -> bytes | None:
    """The head of a safetensors file says something else, and is as long as it says."""
    size = _length(content)
    head = _json(content[8 : 8 + size].rstrip(), chance)
    return None if head is None else struct.pack("<Q", len(head)) + head + content[8 + size :]


def _request(top: bytes, body: bytes, chance: random.Random) -> bytes:
    """A request whose length is right again, with another body, or another, doubled or missing header."""
    lines = top.split(b"\r\n")
    if chance.random() < 0.5:
        body = _json(body, chance) or body
    else:
        index = chance.randrange(len(lines))
        odd = (
            b"",
            b"GET",
            b"POST",
            b"/",
            b"/next",
            b"*",
            b"text/plain",
            b"multipart/form-data",
            b"-1",
            b"0",
            b"a" * 3000,
        )
        odd += (b"\xff\xfe", b"chunked", b"9" * 40, b"Bearer", b"example.org", b"[::1", b"application/json")
        name, colon, value = lines[index].partition(b": " if index else b" ")
        change = chance.randrange(4)
        if index == 0 and change < 3:
            paths = (
                b"/predict",
                b"/explain",
                b"/generate",
                b"/next",
                b"/about",
                b"/",
                b"/report",
                b"/../%00",
                b"/predict?a=b",
            )
            lines[0] = b" ".join((chance.choice((b"POST", b"POST", b"GET", b"PUT")), chance.choice(paths), b"HTTP/1.1"))
        elif change == 0:
            del lines[index]
        elif change == 1:
            lines.insert(index, lines[index])
        elif change == 2:
            lines[index] = name + colon + chance.choice(odd)
        else:
            lines[index] = chance.choice((*odd, b"Transfer-Encoding", b"Expect", b"Content-Encoding")) + colon + value
    if chance.random() < 0.8:
        lines = [
            b"Content-Length: %d" % len(body) if line.lower().startswith(b"content-length") else line for line in lines
        ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _lines(content: bytes, chance: random.Random) -> bytes:
    """Whole lines, or one cell of a line, are dropped, doubled, moved or replaced."""
    lines = content.split(b"\n")
    index, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    change = chance.randrange(7)
    if change == 0:
        del lines[index]
    elif change == 6:  # the same everywhere, as a program that saves a table otherwise does
        marks = (b",", b"\t", b" ", b"=", b".", b";")
        one = (chance.choice(marks), chance.choice(marks))
        before, after = chance.choice((one, (b"\n", b"\nq"), (b"\n", b"\r"), (b" ", b"q ")))
        return content.replace(before, after)
    elif change == 1:
        lines.insert(other, lines[index])
    elif change == 2:
        lines[index], lines[other] = lines[other], lines[index]
    elif change == 3:
        result = _json(lines[index], chance)
        lines[index] = result if result is not None else b""
    else:
        mark = chance.choice((b",", b"\t", b" ", b"=", b"."))
        cells = lines[index].split(mark)
        cells[chance.randrange(len(cells))] = _written(chance.choice(ODD))
        lines[index] = mark.join(cells)
    return b"\n".join(lines)


def _json(content: bytes, chance: random.Random) -> bytes | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, (dict, list)):
        return None
    for _ in range(chance.choice((1, 1, 2))):
        value = _changed(value, chance)
    # one line or as files of ours are written, so that a seal made again fits
    text = json.dumps(value) if chance.random() < 0.5 else json.dumps(value, indent=1, sort_keys=True) + "\n"
    return text.encode()


def _changed(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """The same value with one place in it changed; the way down is drawn."""
    if depth < _DEEP and isinstance(value, (dict, list)) and value and chance.random() < 0.8:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        value = dict(value) if isinstance(value, dict) else list(value)
        change = chance.randrange(8)
        if change == 0:
            del value[key]
        elif change == 1:
            value = _twice(value, key, chance)
        else:
            value[key] = _changed(value[key], chance, depth + 1)
        return value
    return _near(value, chance) if chance.random() < 0.5 else chance.choice(ODD)


def _twice(value: Any, key: Any, chance: random.Random) -> Any:
    """A piece stands twice, or under another's name."""
    if isinstance(value, list):
        return value[:key] + [value[key]] * chance.choice((2, 3, 40)) + value[key + 1 :]
    other = chance.choice([*value, "seal", "format", "text", "texts", f"{key} ", ""])
    value[other], value[key] = value[key], value.get(other)
    return value


def _near(value: Any, chance: random.Random) -> Any:
    """Almost the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 2, -value - 1, value, 10**6))
    if isinstance(value, float):
        return chance.choice((-value, value + 1e-4, value * 2, int(value) if abs(value) < 1e9 else 0))
    if isinstance(value, str):
        return chance.choice((value[:-1], value + "a", value.upper(), value * 3, value[::-1], [value]))
    return chance.choice(([value], {"a": value}, None))


def _written(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")
