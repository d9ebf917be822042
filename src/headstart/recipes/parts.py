"""A corpus prepared file by file, in several processes: what is finished is kept, whatever happens to the rest."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.config import CorpusConfig
from headstart.data.corpus import Document, documents_of, nothing_in
from headstart.data.leaveout import LeaveOut, leave_out_sources, nothing_left
from headstart.data.parts import Part, join_parts, left_out_of_all, read_part, remove_parts, write_part
from headstart.data.provenance import Made, Source, fingerprint
from headstart.data.shards import Shards
from headstart.errors import Interrupted
from headstart.files import MANIFEST, read_manifest, whole_folder
from headstart.progress import Progress, Quiet, Task
from headstart.recipes.grid import run_parallel
from headstart.runtime import Halt, Stop, stopping
from headstart.text.tokenizer import Tokenizer, load_tokenizer

_LOOK_UP = 256
"""Documents between two looks at whether a stop was asked for."""

Job = tuple[Source, str]
"""A file, and the fingerprint of its part."""


def parts_folder(out: Path) -> Path:
    """Where the finished files of a corpus wait for the others."""
    return out.with_name(f"{out.name}.parts")


def kept_tokenizer(out: Path, mark: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer that is trained for a corpus, once: a run that goes on finds it among the parts."""
    folder = parts_folder(out) / "tokenizer"
    if (folder / MANIFEST).is_file() and read_manifest(folder, kind="tokenizer").get("fingerprint") == mark:
        return load_tokenizer(folder)
    return _kept(train(), folder, mark)


def _kept(tokenizer: Tokenizer, folder: Path, mark: str) -> Tokenizer:
    about = {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size, "fingerprint": mark}
    with whole_folder(folder, kind="tokenizer", about=about) as draft:
        tokenizer.save(draft)
    return tokenizer


def prepare_by_parts(
    sources: Sequence[Source],
    out: Path,
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    *,
    made: Made,
    mark: str,
    jobs: int,
    progress: Progress,
) -> Shards:
    """Encode every file that is not done yet, in so many processes, and join them in the order given."""
    work = parts_folder(out)
    if not (work / "tokenizer" / MANIFEST).is_file() or load_tokenizer(work / "tokenizer").digest != tokenizer.digest:
        _kept(tokenizer, work / "tokenizer", mark)
    marks = {source: fingerprint([source], tokenizer.digest, made.settings) for source in sources}
    there = {source: read_part(_place(work, each), each) for source, each in marks.items()}
    left = [(source, marks[source]) for source, part in there.items() if part is None]
    with progress.task("prepare", len(marks), "files") as task, stopping() as stop:
        task.advance(len(marks) - len(left))
        if len(left) < len(marks):
            progress.say(f"{len(marks) - len(left):,} of {len(marks):,} files were done already; going on")
        try:
            for _ in _made(work, corpus, left, min(jobs, len(left)), stop):
                task.advance()
        except Halt:
            done = sum(_place(work, each).is_dir() for each in marks.values())
            raise Interrupted(
                f"{stop.why}: {done:,} of {len(marks):,} files are done and kept in {work}; the same command goes on",
                stop.reason or "",
            ) from None
    found = {source: read_part(_place(work, each), each) for source, each in marks.items()}
    parts = [part for source in sources if (part := found[source])]
    assert len(parts) == len(sources), "a part is missing"
    shards = _joined(parts, out, tokenizer, made, mark, progress)
    remove_parts(work)
    return shards


def _joined(parts: list[Part], out: Path, tokenizer: Tokenizer, made: Made, mark: str, progress: Progress) -> Shards:
    names = [source["name"] for part in parts for source in part.about["sources"]]
    left_out = left_out_of_all(parts)
    if not any(part.about["documents"] for part in parts):
        record = left_out.get("left_out", {"exact": 0, "near": 0})
        if record["exact"] + record["near"]:
            raise nothing_left([str(file["name"]) for file in record["files"]])
        raise nothing_in(names)
    extra = {"fingerprint": mark, **made.about(), **left_out}
    return join_parts(parts, tokenizer, out, labels=None, extra=extra, progress=progress)


def _place(work: Path, mark: str) -> Path:
    return work / f"part-{mark[:32]}"


def _made(work: Path, corpus: CorpusConfig, left: Sequence[Job], processes: int, stop: Stop) -> Iterator[None]:
    """Make the parts that are left; yields once for each."""
    if processes > 1:
        arguments = (str(work), corpus.model_dump(), True)
        kept = f"finished files are kept in {work}"
        for done in run_parallel(_worker, arguments, left, processes, stop, "the same command", kept):
            if done:
                yield
        stop.check()
    elif left:
        make = _worker(str(work), corpus.model_dump(), False)
        for job in left:
            stop.check()
            make(job, stop)
            yield


def _worker(work: str, settings: Mapping[str, Any], alone: bool) -> Callable[[Job, Stop], bool]:
    """What a process does with the files it is given; `alone` keeps the tokenizer on the one core that is its share."""
    if alone:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    corpus = CorpusConfig.model_validate(settings)
    tokenizer = load_tokenizer(Path(work) / "tokenizer")
    unwanted = leave_out_sources(corpus)
    guard = LeaveOut(unwanted, corpus) if unwanted else None

    def make(job: Job, stop: Stop) -> bool:
        source, mark = job
        documents = _watched(documents_of(source.name, corpus), stop)
        if guard:
            documents = guard.keep(documents, some=False)
        with Quiet().task("encode", None, "documents") as task:
            _write(documents, tokenizer, Path(work), source, mark, guard, task)
        return True

    return make


def _write(
    documents: Iterator[Document],
    tokenizer: Tokenizer,
    work: Path,
    source: Source,
    mark: str,
    guard: LeaveOut | None,
    task: Task,
) -> None:
    extra = guard.record if guard else {}
    write_part(documents, tokenizer, _place(work, mark), source=source, fingerprint=mark, extra=extra, task=task)


def _watched(documents: Iterator[Document], stop: Stop) -> Iterator[Document]:
    for number, document in enumerate(documents):
        if number % _LOOK_UP == 0:
            stop.check()
        yield document
