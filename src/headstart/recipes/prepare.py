"""Turn text files into token shards: in one process or file by file in several, and merge folders of shards.

Work is repeated only when the text or the settings changed. With several processes, the finished parts of an
interrupted run are reused. Shards that were prepared separately and merged equal those prepared in one run.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config.schema import CorpusConfig, LabelledConfig, TokenizerConfig
from headstart.data.corpus import Document, no_text_error, read_documents, read_file_documents
from headstart.data.decontamination import Decontaminator, all_excluded_error, describe_exclusions, excluded_sources
from headstart.data.formats import label_path
from headstart.data.io import suffix_of
from headstart.data.labelled import LabelledTexts, LabelSet, check_split, read_labelled
from headstart.data.provenance import FingerprintInputs, SourceFile, fingerprint, stat_sources
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
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.workers import run_parallel
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import TokenizerReport, load_tokenizer, tokenizer_report

_REPORT_CHARACTERS = 2_000_000
_DOCUMENTS_PER_STOP_CHECK = 256

PartJob = tuple[SourceFile, str]
"""A file and the fingerprint of its part."""


@dataclass(frozen=True)
class PrepareRequest:
    """The input and output of a corpus preparation."""

    texts: Sequence[str]
    """Text files, folders, patterns or URLs."""
    out: Path
    corpus: CorpusConfig
    tokenizer_config: TokenizerConfig
    """The settings of a tokenizer that is trained on this text; unused with `tokenizer`."""
    tokenizer: Tokenizer | Path | None = None
    """A tokenizer, or where to load one from; None trains one on this text."""
    jobs: int | None = None
    """The number of processes that encode file by file and keep finished files; None encodes all files in one pass. The
    shards are the same."""


def run_tokenizer(
    paths: Sequence[str], out: Path, config: TokenizerConfig, corpus: CorpusConfig, progress: Progress
) -> TokenizerReport:
    """Train a tokenizer on text, save it at `out`, and measure it on the beginning of the text."""
    check_output_folder(out, "tokenizer")
    if (out / MANIFEST).is_file():
        raise UsageError(f"{out} already contains a tokenizer; choose another --out")
    files = _text_files(paths)
    tokenizer = train_tokenizer(_texts(files, corpus), config, progress)
    report = tokenizer_report(tokenizer, _first_texts(_texts(files, corpus)))
    _save_tokenizer(tokenizer, out)
    return report


def run_shared_tokenizer(
    stages: Sequence[Sequence[str]], out: Path, config: TokenizerConfig, corpus: CorpusConfig, progress: Progress
) -> Tokenizer:
    """Train one tokenizer on the texts of several stages and save it at `out`, unless it exists already.

    Each stage contributes equally to the text that is read: a tokenizer trained on the first stage alone would not know
    the words of the last.
    """
    files = [_text_files(paths) for paths in stages]
    sources = stat_sources(sorted({file for stage_files in files for file in stage_files}))
    settings = _reading_settings(corpus) | {"stages": files}
    mark = fingerprint(sources, f"trained {config.model_dump_json()}", settings)
    if (out / MANIFEST).is_file() and read_manifest(out, kind="tokenizer").get("fingerprint") == mark:
        return load_tokenizer(out)
    tokenizer = train_tokenizer(_interleave([_texts(stage_files, corpus) for stage_files in files]), config, progress)
    return _save_tokenizer(tokenizer, out, mark)


def run_prepare(request: PrepareRequest, progress: Progress) -> Shards:
    """Encode unlabelled text into shards, unless up-to-date shards exist already."""
    check_output_folder(request.out, "shards")
    out, corpus = request.out, request.corpus
    files = _text_files(request.texts)
    tokenizer = load_tokenizer(request.tokenizer) if isinstance(request.tokenizer, Path) else request.tokenizer
    sources = stat_sources(files)
    settings = _reading_settings(corpus)
    if excluded := excluded_sources(corpus):
        settings["exclude"] = [[source.name, source.size, source.modified] for source in excluded]
    made_with = tokenizer.digest if tokenizer else f"trained {request.tokenizer_config.model_dump_json()}"
    mark = fingerprint(sources, made_with, settings)
    made = FingerprintInputs(made_with, settings, tuple(source.modified for source in sources))
    if shards := _unchanged(out, mark, progress):
        return shards

    def train() -> Tokenizer:
        return train_tokenizer(_texts(files, corpus), request.tokenizer_config, progress)

    if request.jobs is not None and len(files) > 1:
        tokenizer = tokenizer or cached_tokenizer(out, mark, train)
        shards = prepare_by_parts(
            sources, out, corpus, tokenizer, made=made, mark=mark, jobs=request.jobs, progress=progress
        )
        return _announce(shards, progress)
    tokenizer = tokenizer or train()
    decontaminator = Decontaminator(excluded, corpus) if excluded else None
    documents, extra = read_documents(files, corpus), decontaminator.record if decontaminator else None
    if decontaminator:
        documents = decontaminator.filter(documents)
    shards = write_shards(
        documents, tokenizer, out, sources=sources, fingerprint=mark, progress=progress, made=made, extra=extra
    )
    return _announce(shards, progress)


def _reading_settings(corpus: CorpusConfig) -> dict[str, Any]:
    """Return the settings that determine how the files of a corpus are read."""
    encoding = {} if corpus.encoding is None else {"encoding": corpus.encoding}
    return {"text_column": corpus.text_column, "documents": corpus.documents} | encoding


def _announce(shards: Shards, progress: Progress) -> Shards:
    if description := describe_exclusions(shards):
        progress.say(description)
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
    """Encode labelled text into shards at `out`, unless up-to-date shards exist already.

    Args:
        labels: the classes of the training file, for validation and test files; None when this is the training file.
        train_name: the training file as the user wrote it, for the message about a label that it does not have.
    """
    check_output_folder(out, "shards")
    files = _text_files([path])
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer)
    sources = stat_sources([*files, *(label_path(file) for file in files if suffix_of(file) == ".spm")])
    settings: dict[str, Any] = {
        "text_column": config.text_column,
        "label_column": config.label_column,
        "labels": None if labels is None else labels.names,
    }
    # only where they are set, else the fingerprints of older shards would change
    settings |= {name: value for name in ("skip_empty", "encoding") if (value := getattr(config, name))}
    mark = fingerprint(sources, tokenizer.digest, settings)
    if shards := _unchanged(out, mark, progress):
        return shards
    texts = read_labelled(path, config)
    if texts.skip_note:
        progress.say(texts.skip_note)
    if texts.task_name != "classes" or texts.pairs is not None:
        has = (
            "pairs of texts"
            if texts.pairs
            else {"labels": "several labels per text", "rating": "ratings"}[texts.task_name]
        )
        raise DataError(
            f"{path} has {has}; prepared folders support one class per text only: use the original file with finetune"
        )
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


def check_output_folder(out: Path, kind: str) -> None:
    """Refuse to replace a folder that is neither empty nor a Headstart folder of this kind."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    manifest: Any = None
    if (out / MANIFEST).is_file():
        try:
            manifest = read_json(out / MANIFEST)
        except StoreError:
            manifest = None
    if not isinstance(manifest, Mapping) or manifest.get("kind") != kind:
        raise UsageError(f"{out} is not empty and is not a Headstart {kind} folder; choose another --out")


def _text_files(paths: Sequence[str]) -> list[str]:
    for path in paths:
        if is_shards(path):
            raise DataError(
                f"{path} is a prepared folder, which contains tokens and no text; use the text files that it was prepared from"
            )
    return expand_paths(paths)


def _unchanged(out: Path, mark: str, progress: Progress) -> Shards | None:
    if not is_shards(out):
        return None
    try:
        shards = Shards.open(out)
    except StoreError as error:
        progress.say(f"{error}; preparing it again")
        return None
    if shards.fingerprint != mark:
        progress.say(f"{out} was prepared from other text or with other settings; preparing it again")
        return None
    progress.say(
        f"{out} is up to date: {pluralize(shards.num_documents, 'document')}, {pluralize(shards.num_tokens, 'token')}; reused"
    )
    return shards


def _texts(files: Sequence[str], corpus: CorpusConfig) -> Iterator[str]:
    documents = read_documents(files, corpus)
    if excluded := excluded_sources(corpus):
        documents = Decontaminator(excluded, corpus).filter(documents)
    return (document.text for document in documents)


def _interleave(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """Yield the texts of all streams, each time from the one with the fewest characters so far.

    >>> list(_interleave([iter(["aa", "bb"]), iter(["c", "d", "e"])]))
    ['aa', 'c', 'd', 'bb', 'e']
    """
    characters = dict.fromkeys(range(len(streams)), 0)
    while characters:
        index = min(characters, key=lambda stream: characters[stream])
        text = next(streams[index], None)
        if text is None:
            del characters[index]
            continue
        characters[index] += len(text)
        yield text


def _first_texts(texts: Iterator[str]) -> list[str]:
    """Return the first texts, up to a size that can be measured within seconds."""
    first: list[str] = []
    characters = 0
    for text in texts:
        first.append(text)
        characters += len(text)
        if characters >= _REPORT_CHARACTERS:
            break
    return first


def parts_folder(out: Path) -> Path:
    """Return the folder that holds the finished files of a corpus until all are done."""
    return out.with_name(f"{out.name}.parts")


def cached_tokenizer(out: Path, mark: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Train the tokenizer of a corpus, or load the one that an interrupted run left among the parts."""
    folder = parts_folder(out) / "tokenizer"
    if (folder / MANIFEST).is_file() and read_manifest(folder, kind="tokenizer").get("fingerprint") == mark:
        return load_tokenizer(folder)
    return _save_tokenizer(train(), folder, mark)


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, mark: str | None = None) -> Tokenizer:
    about: dict[str, Any] = {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size}
    about |= {} if mark is None else {"fingerprint": mark}
    with atomic_folder(folder, kind="tokenizer", about=about) as draft:
        tokenizer.save(draft)
    return tokenizer


def prepare_by_parts(
    sources: Sequence[SourceFile],
    out: Path,
    corpus: CorpusConfig,
    tokenizer: Tokenizer,
    *,
    made: FingerprintInputs,
    mark: str,
    jobs: int,
    progress: Progress,
) -> Shards:
    """Encode every file that is not done yet, in `jobs` processes, and merge the parts in the order of `sources`."""
    work = parts_folder(out)
    if not (work / "tokenizer" / MANIFEST).is_file() or load_tokenizer(work / "tokenizer").digest != tokenizer.digest:
        _save_tokenizer(tokenizer, work / "tokenizer", mark)
    marks = {source: fingerprint([source], tokenizer.digest, made.settings) for source in sources}
    finished = {source: read_part(_part_folder(work, part_mark), part_mark) for source, part_mark in marks.items()}
    remaining = [(source, marks[source]) for source, part in finished.items() if part is None]
    with progress.task("prepare", len(marks), "files") as task, handle_signals() as stop:
        task.advance(len(marks) - len(remaining))
        if len(remaining) < len(marks):
            progress.say(f"{len(marks) - len(remaining):,} of {len(marks):,} files are already done; continuing")
        try:
            for _ in _encode_parts(work, corpus, remaining, min(jobs, len(remaining)), stop):
                task.advance()
        except StopRequested:
            done = sum(_part_folder(work, part_mark).is_dir() for part_mark in marks.values())
            raise Interrupted(
                f"{stop.why}: {done:,} of {len(marks):,} files are done and saved in {work}; run the same command to continue",
                stop.reason or "",
            ) from None
    parts = [part for source in sources if (part := read_part(_part_folder(work, marks[source]), marks[source]))]
    assert len(parts) == len(sources), "a part is missing"
    shards = _merge_into_shards(parts, out, tokenizer, made, mark, progress)
    remove_parts(work)
    return shards


def _merge_into_shards(
    parts: list[ShardPart], out: Path, tokenizer: Tokenizer, made: FingerprintInputs, mark: str, progress: Progress
) -> Shards:
    names = [source["name"] for part in parts for source in part.about["sources"]]
    exclusions = merged_exclusions(parts)
    if not any(part.about["documents"] for part in parts):
        record = exclusions.get("excluded", {"exact": 0, "near": 0})
        if record["exact"] + record["near"]:
            raise all_excluded_error([str(file["name"]) for file in record["files"]])
        raise no_text_error(names)
    extra = {"fingerprint": mark, **made.manifest_entry(), **exclusions}
    return merge_parts(parts, tokenizer, out, labels=None, extra=extra, progress=progress)


def _part_folder(work: Path, mark: str) -> Path:
    return work / f"part-{mark[:32]}"


def _encode_parts(
    work: Path, corpus: CorpusConfig, remaining: Sequence[PartJob], processes: int, stop: StopSignal
) -> Iterator[None]:
    """Encode the remaining parts; yield once for each."""
    if processes > 1:
        arguments = (str(work), corpus.model_dump(), True)
        note = f"finished files are kept in {work}"
        for done in run_parallel(_worker, arguments, remaining, processes, stop, "the same command", note):
            if done:
                yield
        stop.check()
    elif remaining:
        encode = _worker(str(work), corpus.model_dump(), False)
        for job in remaining:
            stop.check()
            encode(job, stop)
            yield


def _worker(work: str, settings: Mapping[str, Any], in_subprocess: bool) -> Callable[[PartJob, StopSignal], bool]:
    """Return the function that encodes one file; a subprocess keeps the tokenizer on one core."""
    if in_subprocess:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    corpus = CorpusConfig.model_validate(settings)
    tokenizer = load_tokenizer(Path(work) / "tokenizer")
    excluded = excluded_sources(corpus)
    decontaminator = Decontaminator(excluded, corpus) if excluded else None

    def encode(job: PartJob, stop: StopSignal) -> bool:
        source, mark = job
        documents = _stoppable(read_file_documents(source.name, corpus), stop)
        if decontaminator:
            documents = decontaminator.filter(documents, allow_empty=True)
        extra = decontaminator.record if decontaminator else {}
        folder = _part_folder(Path(work), mark)
        with SilentProgress().task("encode", None, "documents") as task:
            write_part(documents, tokenizer, folder, source=source, fingerprint=mark, extra=extra, task=task)
        return True

    return encode


def _stoppable(documents: Iterator[Document], stop: StopSignal) -> Iterator[Document]:
    for number, document in enumerate(documents):
        if number % _DOCUMENTS_PER_STOP_CHECK == 0:
            stop.check()
        yield document


def run_merge(folders: Sequence[Path], out: Path, progress: Progress) -> Shards:
    """Merge prepared folders, in this order, into one folder of shards at `out`."""
    check_output_folder(out, "shards")
    if any(out.resolve() == folder.resolve() for folder in folders):
        raise UsageError(f"{out} is one of the folders to merge; choose another --out")
    all_shards = [_open_shards(folder) for folder in folders]
    first = all_shards[0]
    for shards in all_shards[1:]:
        if shards.tokenizer_digest != first.tokenizer_digest:
            raise UsageError(
                f"{first.folder} and {shards.folder} have different tokenizers; prepare them with the same --tokenizer"
            )
        if shards.labels != first.labels:
            labels = f"{first.folder} has {_describe_labels(first)}, {shards.folder} has {_describe_labels(shards)}"
            raise UsageError(f"{labels}; they cannot be merged")
    parts = [ShardPart(shards.folder, shards.about) for shards in all_shards]
    extra = _merged_provenance(parts) | merged_exclusions(parts)
    if "excluded" not in extra and any("excluded" in part.about for part in parts):
        progress.say("these folders did not exclude the same files, so the merged folder does not record exclusions")
    tokenizer = load_tokenizer(first.tokenizer_folder)
    return merge_parts(parts, tokenizer, out, labels=first.labels, extra=extra, progress=progress)


def _open_shards(folder: Path) -> Shards:
    if not is_shards(folder):
        read_manifest(folder, kind="shards", deep=False)  # raises an error that names what the folder is
    return Shards.open(folder)


def _describe_labels(shards: Shards) -> str:
    return "no labels" if shards.labels is None else f"the labels {', '.join(shards.labels)}"


def _merged_provenance(parts: Sequence[ShardPart]) -> dict[str, Any]:
    """Return the fingerprint of merged parts: if all were read with the same settings, that of one preparation of all files."""
    recipes = [part.about.get("made") for part in parts]
    first = recipes[0]
    if first is None or any(
        recipe is None or (recipe["tokenizer"], recipe["settings"]) != (first["tokenizer"], first["settings"])
        for recipe in recipes
    ):
        fingerprints = [part.about["fingerprint"] for part in parts]
        return {"fingerprint": fingerprint([], parts[0].about["tokenizer"], {"merged": fingerprints})}
    modified = [time for recipe in recipes if recipe for time in recipe["modified"]]
    records = [source for part in parts for source in part.about["sources"]]
    sources = [SourceFile(record["name"], record["size"], time) for record, time in zip(records, modified, strict=True)]
    merged = FingerprintInputs(first["tokenizer"], first["settings"], tuple(modified))
    return {"fingerprint": fingerprint(sources, merged.tokenizer, merged.settings), **merged.manifest_entry()}
