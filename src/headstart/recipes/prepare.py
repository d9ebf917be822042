"""Text files -> a tokenizer, or token shards ready to train on. Done again only when something changed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.config import CorpusConfig, LabelledConfig, TokenizerConfig
from headstart.data.corpus import Document, read_documents
from headstart.data.formats import label_path
from headstart.data.labelled import LabelledTexts, LabelSet, check_split, read_labelled
from headstart.data.leaveout import LeaveOut, leave_out_sources, left_out_words
from headstart.data.opening import suffix_of
from headstart.data.provenance import Made, describe, fingerprint
from headstart.data.shards import Shards, is_shards, write_shards
from headstart.data.sources import expand
from headstart.errors import DataError, StoreError, UsageError
from headstart.files import MANIFEST, read_json, read_manifest, whole_folder
from headstart.progress import Progress, counted
from headstart.recipes.parts import kept_tokenizer, prepare_by_parts
from headstart.text.tokenizer import ReportCard, Tokenizer, load_tokenizer, report_card, train_tokenizer

__all__ = ["check_out", "is_shards", "run_prepare", "run_prepare_labelled", "run_shared_tokenizer", "run_tokenizer"]

_CARD_CHARACTERS = 2_000_000


def run_tokenizer(
    paths: Sequence[str], out: Path, config: TokenizerConfig, corpus: CorpusConfig, progress: Progress
) -> ReportCard:
    """Train a tokenizer on text, save it at `out`, and measure it on the beginning of the text."""
    check_out(out, "tokenizer")
    if (out / MANIFEST).is_file():
        raise UsageError(f"{out} already holds a tokenizer; choose another --out")
    files = _text_files(paths)
    tokenizer = train_tokenizer(_texts(files, corpus), config, progress)
    card = report_card(tokenizer, _beginning(_texts(files, corpus)))
    with whole_folder(
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
    sources = describe(sorted({file for part in files for file in part}))
    settings = {"text_column": corpus.text_column, "documents": corpus.documents, "stages": files}
    mark = fingerprint(sources, f"trained {config.model_dump_json()}", settings)
    if (out / MANIFEST).is_file() and read_manifest(out, kind="tokenizer").get("fingerprint") == mark:
        return load_tokenizer(out)
    tokenizer = train_tokenizer(_in_turns([_texts(part, corpus) for part in files]), config, progress)
    about = {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size, "fingerprint": mark}
    with whole_folder(out, kind="tokenizer", about=about) as draft:
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
    check_out(out, "shards")
    files = _text_files(paths)
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer)
    sources = describe(files)
    settings: dict[str, Any] = {"text_column": corpus.text_column, "documents": corpus.documents}
    if unwanted := leave_out_sources(corpus):
        settings["leave_out"] = [[source.name, source.size, source.modified] for source in unwanted]
    made_with = tokenizer.digest if tokenizer else f"trained {tokenizer_config.model_dump_json()}"
    mark = fingerprint(sources, made_with, settings)
    made = Made(made_with, settings, tuple(source.modified for source in sources))
    if shards := _unchanged(out, mark, progress):
        return shards
    if jobs is not None and len(files) > 1:
        tokenizer = tokenizer or kept_tokenizer(
            out, mark, lambda: train_tokenizer(_texts(files, corpus), tokenizer_config, progress)
        )
        shards = prepare_by_parts(sources, out, corpus, tokenizer, made=made, mark=mark, jobs=jobs, progress=progress)
        return _told(shards, progress)
    if tokenizer is None:
        tokenizer = train_tokenizer(_texts(files, corpus), tokenizer_config, progress)
    guard = LeaveOut(unwanted, corpus) if unwanted else None
    documents, extra = read_documents(files, corpus), guard.record if guard else None
    if guard:
        documents = guard.keep(documents)
    shards = write_shards(
        documents, tokenizer, out, sources=sources, fingerprint=mark, progress=progress, made=made, extra=extra
    )
    return _told(shards, progress)


def _told(shards: Shards, progress: Progress) -> Shards:
    if words := left_out_words(shards):
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
    check_out(out, "shards")
    files = _text_files([path])
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer)
    sources = describe([*files, *(label_path(file) for file in files if suffix_of(file) == ".spm")])
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


def check_out(out: Path, kind: str) -> None:
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
    return expand(paths)


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
        f"{out} is up to date: {counted(shards.documents, 'document')}, {counted(shards.tokens, 'token')}; reused"
    )
    return shards


def _texts(files: Sequence[str], corpus: CorpusConfig) -> Iterator[str]:
    documents = read_documents(files, corpus)
    if unwanted := leave_out_sources(corpus):
        documents = LeaveOut(unwanted, corpus).keep(documents)
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
