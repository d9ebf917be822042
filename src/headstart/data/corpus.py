"""Unlabelled text: whatever files the user has -> documents, one at a time, however much there is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headstart.config import CorpusConfig
from headstart.data.columns import as_text, cell, text_column
from headstart.data.sources import expand, read_rows
from headstart.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its place in words."""

    text: str
    where: str


def read_documents(paths: Sequence[str], config: CorpusConfig) -> Iterator[Document]:
    """Stream the documents of all files in order; empty ones are passed over, but there must be one that is not."""
    found = False
    for path in expand(paths):
        for document in documents_of(path, config):
            found = True
            yield document
    if not found:
        raise nothing_in(paths)


def documents_of(path: str, config: CorpusConfig) -> Iterator[Document]:
    """Stream the documents of one file; empty ones are passed over."""
    column: str | None = None
    for row in read_rows(path, whole_files=config.documents == "file"):
        if column is None:
            column = text_column(path, list(row.values), config.text_column, "corpus.text_column")
        text = as_text(cell(row.values, column, row.where), row.where)
        if text.strip():
            yield Document(text, row.where)


def nothing_in(paths: Sequence[str]) -> DataError:
    """The error for files without a text."""
    return DataError(f"{', '.join(paths)}: no text in there; every document is empty")
