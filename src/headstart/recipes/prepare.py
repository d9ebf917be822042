"""Text files to token shards: in one process, by file in several, and merged.

Text files -> a tokenizer, or token shards ready to train on. Done again only when something changed.

A corpus prepared file by file, in several processes: what is finished is kept, whatever happens to the rest.

Shards prepared apart, on several machines perhaps, put together: the same folder as if prepared in one go.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.config.schema import CorpusConfig, LabelledConfig, TokenizerConfig
from headstart.data.corpus import Document, no_text_error, read_documents, read_file_documents
from headstart.data.decontamination import Decontaminator, all_excluded_error, describe_exclusions, excluded_sources
from headstart.data.formats import label_path
from headstart.data.io import suffix_of
from headstart.data.labelled import LabelledTexts, LabelSet, check_split, read_labelled
from headstart.data.provenance import Recipe, SourceFile, describe_sources, fingerprint
from headstart.data.shards import (
    ShardPart,
    Shards,
    is_shards,
    merge_parts,
    merged_exclusions,
    read_part,
    remove_parts,
    write_part,
    write_shards,
)
from headstart.data.sources import expand_paths
from headstart.errors import DataError, Interrupted, StoreError, UsageError
from headstart.files import MANIFEST, atomic_folder, read_json, read_manifest
from headstart.interrupts import StopRequested, StopSignal, handle_signals
from headstart.progress import Progress, ProgressTask, SilentProgress, pluralize
from headstart.recipes.workers import run_parallel
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import TokenizerReport, load_tokenizer, tokenizer_report

_CARD_CHARACTERS = 2_000_000


def run_tokenizer(
    paths: Sequence[str], out: Path, config: TokenizerConfig, corpus: CorpusConfig, progress: Progress
) -> TokenizerReport:
    """Train a tokenizer on text, save it at `out`, and measure it on the beginning of the text."""
    check_shards_folder(out, "tokenizer")
    if (out / MANIFEST).is_file():
        raise UsageError(f"{out} already holds a tokenizer; choose another --out")
    files = _text_files(paths)
    tokenizer = train_tokenizer(_texts(files, corpus), config, progress)
    card = tokenizer_report(tokenizer, _beginning(_texts(files, corpus)))
    with atomic_folder(
        out, kind="tokenizer", about={"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size}
    ) as draft:
        tokenizer.save(draft)
    return card


def run_shared_tokenizer(
    stages: Sequence[Sequence[str]], out: Path, config: TokenizerConfig, corpus: CorpusConfig, progress: Progress
) -> Tokenizer:
    """Train one tokenizer on the texts of several stages and save it at `out`, unless it is there already.

    However much of the text is read, each stage has an equal part in it: a tokenizer learnt from the first stage alone
    would not know the words of the last.
    """
    files = [_text_files(paths) for paths in stages]
    sources = describe_sources(sorted({file for part in files for file in part}))
    settings = {"text_column": corpus.text_column, "documents": corpus.documents, "stages": files}
    mark = fingerprint(sources, f"trained {config.model_dump_json()}", settings)
    if (out / MANIFEST).is_file() and read_manifest(out, kind="tokenizer").get("fingerprint") == mark:
        return load_tokenizer(out)
    tokenizer = train_tokenizer(_in_turns([_texts(part, corpus) for part in files]), config, progress)
    about = {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size, "fingerprint": mark}
    with atomic_folder(out, kind="tokenizer", about=about) as draft:
        tokenizer.save(draft)
    return tokenizer


def run_prepare(
    paths: Sequence[str],
    out: Path,
    corpus: CorpusConfig,
    *,
    tokenizer: Tokenizer | Path | None,
    tokenizer_config: TokenizerConfig,
    progress: Progress,
    jobs: int | None = None,
) -> Shards:
    """Encode unlabelled text into shards at `out`, unless those are there already.

    Args:
        tokenizer: one in hand, a folder or file to load one from, or None to train one on this text.
        jobs: work file by file in so many processes, keeping what is finished; None goes through all of it at once. The
            shards are the same.
    """
    check_shards_folder(out, "shards")
    files = _text_files(paths)
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer)
    sources = describe_sources(files)
    settings: dict[str, Any] = {"text_column": corpus.text_column, "documents": corpus.documents}
    if unwanted := excluded_sources(corpus):
        settings["exclude"] = [[source.name, source.size, source.modified] for source in unwanted]
    made_with = tokenizer.digest if tokenizer else f"trained {tokenizer_config.model_dump_json()}"
    mark = fingerprint(sources, made_with, settings)
    made = Recipe(made_with, settings, tuple(source.modified for source in sources))
    if shards := _unchanged(out, mark, progress):
        return shards
    if jobs is not None and len(files) > 1:
        tokenizer = tokenizer or cached_tokenizer(
            out, mark, lambda: train_tokenizer(_texts(files, corpus), tokenizer_config, progress)
        )
        shards = prepare_by_parts(sources, out, corpus, tokenizer, made=made, mark=mark, jobs=jobs, progress=progress)
        return _announce(shards, progress)
    if tokenizer is None:
        tokenizer = train_tokenizer(_texts(files, corpus), tokenizer_config, progress)
    guard = Decontaminator(unwanted, corpus) if unwanted else None
    documents, extra = read_documents(files, corpus), guard.record if guard else None
    if guard:
        documents = guard.keep(documents)
    shards = write_shards(
        documents, tokenizer, out, sources=sources, fingerprint=mark, progress=progress, made=made, extra=extra
    )
    return _announce(shards, progress)


def _announce(shards: Shards, progress: Progress) -> Shards:
    if words := describe_exclusions(shards):
        progress.say(words)
    return shards


def run_prepare_labelled(
    path: str,
    out: Path,
    config: LabelledConfig,
    *,
    tokenizer: Tokenizer | Path,
    progress: Progress,
    labels: LabelSet | None = None,
    train_name: str = "the training file",
) -> Shards:
    """Encode labelled text into shards at `out`, unless those are there already.

    Args:
        labels: the classes of the training file, for validation and test files; None when this is the training file.
        train_name: the training file as the user wrote it, for the message about a label that it does not have.
    """
    check_shards_folder(out, "shards")
    files = _text_files([path])
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer)
    sources = describe_sources([*files, *(label_path(file) for file in files if suffix_of(file) == ".spm")])
    settings = {
        "text_column": config.text_column,
        "label_column": config.label_column,
        "labels": None if labels is None else labels.names,
    } | ({"skip_empty": True} if config.skip_empty else {})  # shards of before stay as they are
    mark = fingerprint(sources, tokenizer.digest, settings)
    if shards := _unchanged(out, mark, progress):
        return shards
    texts = read_labelled(path, config)
    if texts.left_out:
        progress.say(texts.left_out)
    if texts.kind != "classes" or texts.pairs is not None:
        has = "pairs of texts" if texts.pairs else {"labels": "several labels a text", "rating": "ratings"}[texts.kind]
        raise DataError(f"{path} has {has}; prepared folders hold one class a text: give the file itself to finetune")
    if labels is None:
        labels = LabelSet.from_training(texts)
    else:
        check_split(labels, texts, train_name)
    return write_shards(
        _documents(texts),
        tokenizer,
        out,
        sources=sources,
        fingerprint=mark,
        progress=progress,
        labels=[labels.index(label) for label in texts.labels],
        label_names=labels.names,
    )


def _documents(texts: LabelledTexts) -> Iterator[Document]:
    return (Document(text, where) for text, where in zip(texts.texts, texts.where, strict=True))


def check_shards_folder(out: Path, kind: str) -> None:
    """Refuse to put a folder of ours in the place of something else: what is there would be gone."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    manifest: Any = None
    if (out / MANIFEST).is_file():
        try:
            manifest = read_json(out / MANIFEST)
        except StoreError:
            manifest = None
    if not isinstance(manifest, Mapping) or manifest.get("kind") != kind:
        raise UsageError(f"{out} is not empty and not a Headstart {kind} folder; choose another place for the output")


def _text_files(paths: Sequence[str]) -> list[str]:
    for path in paths:
        if is_shards(path):
            raise DataError(f"{path} is prepared already: its text is tokens now; give the text files it was made from")
    return expand_paths(paths)


def _unchanged(out: Path, mark: str, progress: Progress) -> Shards | None:
    if not is_shards(out):
        return None
    try:
        shards = Shards.open(out)
    except StoreError as error:
        progress.say(f"{error}; preparing it anew")
        return None
    if shards.fingerprint != mark:
        progress.say(f"{out} was made from other text or settings; preparing it anew")
        return None
    progress.say(
        f"{out} is up to date: {pluralize(shards.documents, 'document')}, {pluralize(shards.tokens, 'token')}; reused"
    )
    return shards


def _texts(files: Sequence[str], corpus: CorpusConfig) -> Iterator[str]:
    documents = read_documents(files, corpus)
    if unwanted := excluded_sources(corpus):
        documents = Decontaminator(unwanted, corpus).keep(documents)
    return (document.text for document in documents)


def _in_turns(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """The texts of all streams, always from the one that gave the fewest characters so far.

    >>> list(_in_turns([iter(["aa", "bb"]), iter(["c", "d", "e"])]))
    ['aa', 'c', 'd', 'bb', 'e']
    """
    given = dict.fromkeys(range(len(streams)), 0)
    while given:
        index = min(given, key=lambda stream: given[stream])
        text = next(streams[index], None)
        if text is None:
            del given[index]
            continue
        given[index] += len(text)
        yield text


def _beginning(texts: Iterator[str]) -> list[str]:
    """The first texts, up to a size that is measured in seconds."""
    taken: list[str] = []
    characters = 0
    for text in texts:
        taken.append(text)
        characters += len(text)
        if characters >= _CARD_CHARACTERS:
            break
    return taken


_DOCUMENTS_PER_CHECK = 256
"""Documents between two looks at whether a stop was asked for."""

PartJob = tuple[SourceFile, str]
"""A file, and the fingerprint of its part."""


def parts_folder(out: Path) -> Path:
    """Where the finished files of a corpus wait for the others."""
    return out.with_name(f"{out.name}.parts")


def cached_tokenizer(out: Path, mark: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer that is trained for a corpus, once: a run that goes on finds it among the parts."""
    folder = parts_folder(out) / "tokenizer"
    if (folder / MANIFEST).is_file() and read_manifest(folder, kind="tokenizer").get("fingerprint") == mark:
        return load_tokenizer(folder)
    return _cache_tokenizer(train(), folder, mark)


def _cache_tokenizer(tokenizer: Tokenizer, folder: Path, mark: str) -> Tokenizer:
    about = {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size, "fingerprint": mark}
    with atomic_folder(folder, kind="tokenizer", about=about) as draft:
        tokenizer.save(draft)
    return tokenizer


def prepare_by_parts(
    sources: Sequence[SourceFile],
    out: Path,
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    *,
    made: Recipe,
    mark: str,
    jobs: int,
    progress: Progress,
) -> Shards:
    """Encode every file that is not done yet, in so many processes, and join them in the order given."""
    work = parts_folder(out)
    if not (work / "tokenizer" / MANIFEST).is_file() or load_tokenizer(work / "tokenizer").digest != tokenizer.digest:
        _cache_tokenizer(tokenizer, work / "tokenizer", mark)
    marks = {source: fingerprint([source], tokenizer.digest, made.settings) for source in sources}
    there = {source: read_part(_part_folder(work, each), each) for source, each in marks.items()}
    left = [(source, marks[source]) for source, part in there.items() if part is None]
    with progress.task("prepare", len(marks), "files") as task, handle_signals() as stop:
        task.advance(len(marks) - len(left))
        if len(left) < len(marks):
            progress.say(f"{len(marks) - len(left):,} of {len(marks):,} files were done already; going on")
        try:
            for _ in _encode_parts(work, corpus, left, min(jobs, len(left)), stop):
                task.advance()
        except StopRequested:
            done = sum(_part_folder(work, each).is_dir() for each in marks.values())
            raise Interrupted(
                f"{stop.why}: {done:,} of {len(marks):,} files are done and kept in {work}; the same command goes on",
                stop.reason or "",
            ) from None
    found = {source: read_part(_part_folder(work, each), each) for source, each in marks.items()}
    parts = [part for source in sources if (part := found[source])]
    assert len(parts) == len(sources), "a part is missing"
    shards = _merge_into_shards(parts, out, tokenizer, made, mark, progress)
    remove_parts(work)
    return shards


def _merge_into_shards(
    parts: list[ShardPart], out: Path, tokenizer: Tokenizer, made: Recipe, mark: str, progress: Progress
) -> Shards:
    names = [source["name"] for part in parts for source in part.about["sources"]]
    left_out = merged_exclusions(parts)
    if not any(part.about["documents"] for part in parts):
        record = left_out.get("left_out", {"exact": 0, "near": 0})
        if record["exact"] + record["near"]:
            raise all_excluded_error([str(file["name"]) for file in record["files"]])
        raise no_text_error(names)
    extra = {"fingerprint": mark, **made.about(), **left_out}
    return merge_parts(parts, tokenizer, out, labels=None, extra=extra, progress=progress)


def _part_folder(work: Path, mark: str) -> Path:
    return work / f"part-{mark[:32]}"


def _encode_parts(
    work: Path, corpus: CorpusConfig, left: Sequence[PartJob], processes: int, stop: StopSignal
) -> Iterator[None]:
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


def _worker(work: str, settings: Mapping[str, Any], alone: bool) -> Callable[[PartJob, StopSignal], bool]:
    """What a process does with the files it is given; `alone` keeps the tokenizer on the one core that is its share."""
    if alone:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    corpus = CorpusConfig.model_validate(settings)
    tokenizer = load_tokenizer(Path(work) / "tokenizer")
    unwanted = excluded_sources(corpus)
    guard = Decontaminator(unwanted, corpus) if unwanted else None

    def make(job: PartJob, stop: StopSignal) -> bool:
        source, mark = job
        documents = _stoppable(read_file_documents(source.name, corpus), stop)
        if guard:
            documents = guard.keep(documents, some=False)
        with SilentProgress().task("encode", None, "documents") as task:
            _write(documents, tokenizer, Path(work), source, mark, guard, task)
        return True

    return make


def _write(
    documents: Iterator[Document],
    tokenizer: Tokenizer,
    work: Path,
    source: SourceFile,
    mark: str,
    guard: Decontaminator | None,
    task: ProgressTask,
) -> None:
    extra = guard.record if guard else {}
    write_part(documents, tokenizer, _part_folder(work, mark), source=source, fingerprint=mark, extra=extra, task=task)


def _stoppable(documents: Iterator[Document], stop: StopSignal) -> Iterator[Document]:
    for number, document in enumerate(documents):
        if number % _DOCUMENTS_PER_CHECK == 0:
            stop.check()
        yield document


def merge(folders: Sequence[str | Path], *, out: str | Path, progress: Progress | None = None) -> Shards:
    """Put together shards that were prepared apart with one tokenizer."""
    return run_merge([Path(folder) for folder in folders], Path(out), progress or SilentProgress())


def run_merge(folders: Sequence[Path], out: Path, progress: Progress) -> Shards:
    """Write the documents of all folders, in the order given, as one folder of shards at `out`."""
    check_shards_folder(out, "shards")
    if any(out.resolve() == folder.resolve() for folder in folders):
        raise UsageError(f"{out} is one of the folders to merge; choose another --out")
    opened = [_opened(folder) for folder in folders]
    first = opened[0]
    for shards in opened[1:]:
        if shards.tokenizer_digest != first.tokenizer_digest:
            raise UsageError(
                f"{first.folder} and {shards.folder} have different tokenizers; prepare them with the same --tokenizer"
            )
        if shards.labels != first.labels:
            raise UsageError(
                f"{first.folder} has {_labels(first)}, {shards.folder} has {_labels(shards)}; they cannot be merged"
            )
    parts = [ShardPart(shards.folder, shards.about) for shards in opened]
    extra = _is_complete(parts) | merged_exclusions(parts)
    if "left_out" not in extra and any("left_out" in part.about for part in parts):
        progress.say(
            "not all of these folders left out the same files, so that nothing is said to be left out of the whole"
        )
    tokenizer = load_tokenizer(first.tokenizer_folder)
    return merge_parts(parts, tokenizer, out, labels=first.labels, extra=extra, progress=progress)


def _opened(folder: Path) -> Shards:
    if not is_shards(folder):
        read_manifest(folder, kind="shards", deep=False)  # says what it is instead
    return Shards.open(folder)


def _labels(shards: Shards) -> str:
    return "no labels" if shards.labels is None else f"the labels {', '.join(shards.labels)}"


def _is_complete(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """Fingerprint, and what it is of: where all parts were read in the same way, that of the whole prepared in one go."""
    made = [part.about.get("made") for part in parts]
    first = made[0]
    if first is None or any(
        each is None or (each["tokenizer"], each["settings"]) != (first["tokenizer"], first["settings"])
        for each in made
    ):
        inner = [part.about["fingerprint"] for part in parts]
        return {"fingerprint": fingerprint([], parts[0].about["tokenizer"], {"merged": inner})}
    marks = [mark for each in made if each for mark in each["modified"]]
    facts = [source for part in parts for source in part.about["sources"]]
    sources = [SourceFile(fact["name"], fact["size"], mark) for fact, mark in zip(facts, marks, strict=True)]
    whole = Recipe(first["tokenizer"], first["settings"], tuple(marks))
    return {"fingerprint": fingerprint(sources, whole.tokenizer, whole.settings), **whole.about()}
