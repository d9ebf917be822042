"""The few test texts that a report may quote, shortened: all of a person's text that a comparison folder ever holds. No torch.

quotes.json: `{"format": 1, "texts": {"17": "the first words of test row 17 …"}}`, rows counted from 0
"""

from collections.abc import Mapping
from pathlib import Path

from headstart.errors import StoreError
from headstart.files import FORMAT, read_json, write_json

QUOTES = "quotes.json"
LONGEST = 160
"""Characters of a quotation."""


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text in one line, cut between words where it is too long; what steers a terminal or a page is left out.

    >>> shortened("one  two\\nthree\\x1b[0m four", longest=14)
    'one two …'
    """
    line = "".join(mark if mark.isprintable() else " " for mark in text)
    line = " ".join(line.split())
    if len(line) <= longest:
        return line
    cut = line[: longest - 1]
    between = cut.rpartition(" ")[0]
    # a language without spaces is cut where it stands
    return f"{between} …" if len(between) > longest // 3 else f"{cut}…"


def write_quotes(folder: Path, texts: Mapping[int, str]) -> None:
    """Keep the beginnings of these test rows, and of no others."""
    kept = {str(row): shortened(text) for row, text in sorted(texts.items())}
    write_json(folder / QUOTES, {"format": FORMAT, "texts": kept})


def read_quotes(folder: Path) -> dict[int, str]:
    """The texts that may be quoted, by test row; none where none were kept."""
    path = folder / QUOTES
    if not path.is_file():
        return {}
    content = read_json(path)
    texts = content.get("texts") if isinstance(content, dict) else None
    rows = texts.items() if isinstance(texts, dict) else ()
    if not isinstance(texts, dict) or not all(_is_row(row) and isinstance(text, str) for row, text in rows):
        raise StoreError(f"{path} is damaged: it does not list texts by row")
    return {int(row): text for row, text in texts.items()}


def _is_row(name: str) -> bool:
    return name.isdecimal() and len(name) < 20  # Python reads no number of thousands of digits
