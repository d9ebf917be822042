"""Texts that a model must not learn from, such as the rows of a test file, kept out of its corpus with their near-doubles."""

from collections.abc import Iterable, Iterator
from typing import Any

from headstart.config import CorpusConfig
from headstart.data.corpus import Document, read_documents
from headstart.data.doubles import Known, unwanted
from headstart.data.provenance import Source, describe, listed
from headstart.data.shards import Shards, in_batches
from headstart.data.sources import expand
from headstart.errors import DataError, UsageError
from headstart.progress import counted


def leave_out_sources(corpus: CorpusConfig) -> list[Source]:
    """The files whose texts are to be left out."""
    names = [name.strip() for name in (corpus.leave_out or "").split(",") if name.strip()]
    return describe(expand(names)) if names else []


class LeaveOut:
    """Lets documents pass, except those that are, hold or are a piece of a text of the files given; and counts."""

    def __init__(self, sources: list[Source], corpus: CorpusConfig) -> None:
        self.sources = sources
        self.record: dict[str, Any] = {}
        """What was left out, once all documents have passed: for the manifest."""
        self._rows = Known(_texts([source.name for source in sources], corpus))

    def keep(self, documents: Iterable[Document], some: bool = True) -> Iterator[Document]:
        """The documents to learn from, in order; with `some`, there must be one."""
        self.record.clear()
        kept = dropped = exact = 0
        for batch in in_batches(documents):
            found = unwanted((document.text for document in batch), self._rows)
            exact += sum(kind == "exact" for kind in found.values())
            dropped += len(found)
            kept += len(batch) - len(found)
            yield from (document for number, document in enumerate(batch) if number not in found)
        if some and not kept:
            raise nothing_left([source.name for source in self.sources])
        self.record["left_out"] = {"files": listed(self.sources), "exact": exact, "near": dropped - exact, "kept": kept}


def nothing_left(names: Iterable[str]) -> DataError:
    """The error for a corpus that is left out altogether."""
    return DataError(
        f"every document stands in {', '.join(names)}, which corpus.leave_out names; nothing is left to learn from"
    )


def _texts(files: list[str], corpus: CorpusConfig) -> list[str]:
    """The texts of files whose columns need not have the names of the corpus's."""
    try:
        return [document.text for document in read_documents(files, CorpusConfig(documents=corpus.documents))]
    except DataError:
        if corpus.text_column is None:
            raise
        return [document.text for document in read_documents(files, corpus)]


def left_out_words(shards: Shards) -> str | None:
    """What was left out of shards, for a person; None where nothing was to be."""
    found = shards.about.get("left_out")
    if found is None:
        return None
    names = ", ".join(str(file["name"]) for file in found["files"])
    stand = "stands" if found["exact"] == 1 else "stand"
    do = "does" if found["near"] == 1 else "do"
    return (
        f"left out because of {names}: {counted(found['exact'], 'document')} that {stand} there and {found['near']:,} that "
        f"almost {do}; {found['kept']:,} kept"
    )


def refuse_prepared(path: str, shards: Shards, corpus: CorpusConfig) -> None:
    """Refuse to leave texts out of shards that were prepared with them: tokens can no longer be compared."""
    asked = [source.name for source in leave_out_sources(corpus)]
    done = [file["name"] for file in (shards.about.get("left_out") or {"files": []})["files"]]
    if asked and asked != done:
        raise UsageError(
            f"{path} is prepared already; give corpus.leave_out to headstart prepare, and prepare it again"
        )
