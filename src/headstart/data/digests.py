"""By what a text is known to be a double of another: a hash that does not look at white space."""

import hashlib


def text_digest(text: str) -> int:
    """64 bits of the sha256 of a text with white space folded to single blanks and stripped.

    >>> text_digest(" Un  roman\\n") == text_digest("Un roman")
    True
    """
    return int.from_bytes(hashlib.sha256(" ".join(text.split()).encode("utf-8")).digest()[:8], "big")
