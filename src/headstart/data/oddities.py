"""Signs that a text was damaged on its way: read in the wrong encoding, or with markup left in."""

import re

# what the bytes 0x80 to 0xBF become when UTF-8 is read as Latin-1 or as Windows-1252
_REST = "[\u0080-\u00bf" + "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0)) + "]"
_MOJIBAKE = (
    f"[ÂÃ]{_REST}",  # é as Ã©, « as Â«
    f"â€{_REST}",  # ’ as â€™
    f"(?:[Ä-ß]{_REST}){{2,}}",  # Greek, Cyrillic; once may be a capital before a closing quote
    f"(?:[à-ï]{_REST}{_REST}){{2,}}",  # Chinese, Japanese
    f"ð{_REST}{{3}}",  # emoji
)

ODDITIES = {
    "mojibake": re.compile("|".join(_MOJIBAKE)),
    "replacement characters": re.compile("\ufffd"),
    "control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "byte order marks": re.compile("\ufeff"),
    "HTML": re.compile(r"</?(?:br|p|div|span|a|b|i|em|strong|li|ul)\b[^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{1,6});", re.I),
}
"""What may be wrong with a text, and how it shows."""


def oddities(text: str) -> dict[str, str]:
    """What is odd about a text, each with the first place it shows.

    >>> oddities("Un tr\\u00c3\\u00a8s bon livre")
    {'mojibake': 'Ã¨'}
    >>> oddities("« À lire », dit-il à l'ami\\u2026 CAF\\u00c9\\u2026")
    {}
    """
    found = {name: pattern.search(text) for name, pattern in ODDITIES.items()}
    return {name: match.group() for name, match in found.items() if match}
