"""A report on labelled files before anything is trained on them: what is in them, and what is wrong with them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.config import CorpusConfig, LabelledConfig
from headstart.data.corpus import read_documents
from headstart.data.doubles import Known, watch
from headstart.data.loose import read_loosely
from headstart.data.membership import Membership
from headstart.errors import StoreError, UsageError
from headstart.files import read_json, read_manifest
from headstart.kinds import Kind
from headstart.progress import Progress, Quiet
from headstart.recipes.findings import EXAMPLES, Finding, Inspected, all_of
from headstart.text.tokenizer import Tokenizer, load_tokenizer

_BITE = 1000


@dataclass(frozen=True)
class Lengths:
    """How long the texts of a file are."""

    unit: str
    median: int
    p90: int
    """Nine of ten texts are this long or shorter."""
    longest: int
    total: int

    @classmethod
    def of(cls, unit: str, lengths: Sequence[int]) -> "Lengths":
        """From the length of each text."""
        if not lengths:
            return cls(unit, 0, 0, 0, 0)
        half, most = np.percentile(lengths, [50, 90], method="inverted_cdf")
        return cls(unit, int(half), int(most), int(max(lengths)), int(sum(lengths)))


@dataclass(frozen=True)
class FileFacts:
    """What is in a file."""

    name: str
    rows: int
    labels: dict[str, int]
    """Rows of each label; a row may count for several, or none."""
    lengths: tuple[Lengths, ...]
    """In characters, and in tokens or words."""
    context: int | None = None
    beyond: int | None = None
    """Texts with more tokens than the context has room for beside the start token."""
    kind: Kind = "classes"
    without: int = 0
    """Of several labels: rows that have none."""
    values: dict[str, float] | None = None
    """Of ratings: lowest, mean and highest."""


@dataclass(frozen=True)
class Pretraining:
    """How many rows of a file stand in pretraining text."""

    file: str
    rows: int
    source: str
    """The text, or the model that was trained on it."""
    documents: int
    exact: int
    near: int | None
    """None where only the digests of the text are known: those find exact doubles only."""
    examples: tuple[str, ...] = ()
    false_positives: float = 0.0
    """The probability that a row is counted which was not there: not 0 where digests were cut short."""


@dataclass(frozen=True)
class Inspection:
    """What was found; plain values."""

    files: tuple[FileFacts, ...]
    findings: tuple[Finding, ...]
    pretraining: tuple[Pretraining, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"format": 1, **asdict(self)}


def run_inspect(
    train: str,
    config: LabelledConfig,
    *,
    valid: str | None = None,
    test: str | None = None,
    texts: Sequence[str] = (),
    corpus: CorpusConfig | None = None,
    tokenizer: Path | None = None,
    source: str | None = None,
    context: int | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Look at labelled files, and for their rows in pretraining text; nothing is written.

    Args:
        texts: pretraining text to look for the rows in; it is streamed.
        source: a model whose tokenizer and context count, and whose pretraining text is known by its digests.
        context: how many tokens a model reads, in place of that of `source`.
    """
    progress = progress or Quiet()
    if tokenizer is not None and source is not None:
        raise UsageError(f"{source} brings its own tokenizer; leave out --tokenizer, or --from")
    if context is not None and tokenizer is None and source is None:
        raise UsageError("--context counts tokens; give --tokenizer or --from with it")
    if context is not None and context < 2:
        raise UsageError(f"--context must be at least 2, got {context}")
    bundle = _bundle(source) if source is not None else None
    if bundle is not None:
        context = context or _context(bundle)
        tokenizer = bundle / "tokenizer"
    cutter = load_tokenizer(tokenizer) if tokenizer is not None else None
    names = [name for name in (train, valid, test) if name is not None]
    shorts = _short(names)
    files = []
    for name in names:
        progress.say(f"reading {name}")
        files.append(Inspected(read_loosely(name, config), shorts[name]))
    facts = tuple(_facts(one, cutter, context, progress) for one in files)
    progress.say("looking for doubles")
    findings = all_of(files)
    seen: list[Pretraining] = []
    notes: list[str] = []
    if texts:
        seen += _in_texts(files, texts, corpus or CorpusConfig(), progress)
    if bundle is not None:
        membership = Membership.read(bundle)
        if membership is None:
            notes.append(f"{source} does not know what it was pretrained on (no digests of its text were kept)")
        else:
            seen += [_in_model(one, str(source), membership) for one in files]
    return Inspection(facts, tuple(findings), tuple(seen), tuple(notes))


def _bundle(source: str) -> Path:
    from headstart.store.bundle import find_bundle  # torch: only where a model is named

    path = find_bundle(Path(source))
    read_manifest(path, kind="bundle")
    return path


def _context(bundle: Path) -> int:
    facts = read_json(bundle / "bundle.json")
    try:
        return int(facts["model"]["context"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{bundle / 'bundle.json'} is damaged: {error}") from None


def _short(names: Sequence[str]) -> dict[str, str]:
    """The files' own names where these tell them apart."""
    own = Counter(Path(name).name for name in names)
    return {name: Path(name).name if own[Path(name).name] == 1 else name for name in names}


def _facts(one: Inspected, tokenizer: Tokenizer | None, context: int | None, progress: Progress) -> FileFacts:
    labels = dict(sorted(Counter(name for row in one.file.rows for name in row.names).items()))
    numbers = [row.number for row in one.file.rows if row.number is not None]
    values = {"lowest": min(numbers), "mean": float(np.mean(numbers)), "highest": max(numbers)} if numbers else None
    without = sum(row.label == "" for row in one.file.rows)
    texts = [row.text for row in one.rows]
    lengths = [Lengths.of("characters", [len(text) for text in texts])]
    beyond = None
    if tokenizer is None:
        lengths.append(Lengths.of("words", [len(text.split()) for text in texts]))
    else:
        tokens = list(_tokens(texts, tokenizer, one.short, progress))
        lengths.append(Lengths.of("tokens", tokens))
        beyond = None if context is None else sum(count > context - tokenizer.special.around for count in tokens)
    context = context if tokenizer else None
    counts = one.file.name, len(one.file.rows), labels, tuple(lengths), context, beyond
    return FileFacts(*counts, one.file.kind, without, values)


def _tokens(texts: Sequence[str], tokenizer: Tokenizer, name: str, progress: Progress) -> Iterator[int]:
    with progress.task(f"encoding {name}", len(texts), "texts") as bar:
        for start in range(0, len(texts), _BITE):
            bite = texts[start : start + _BITE]
            yield from (len(ids) for ids in tokenizer.encode_batch(bite))
            bar.advance(len(bite))


def _in_texts(
    files: Sequence[Inspected], texts: Sequence[str], corpus: CorpusConfig, progress: Progress
) -> Iterator[Pretraining]:
    documents = 0

    def passing() -> Iterator[tuple[str, str]]:
        nonlocal documents
        with progress.task("reading pretraining text", None, "documents") as bar:
            for document in read_documents(texts, corpus):
                documents += 1
                bar.advance()
                yield document.where, document.text

    # one pass over the text for the rows of all files
    found = watch(Known([text for one in files for text in one.known.texts]), passing())
    start = 0
    for one in files:
        here = range(start, start + len(one.rows))
        exact = {row - start: where for row, where in found.exact.items() if row in here}
        near = {row - start: where for row, where in found.near.items() if row in here}
        pairs = [(row, "=", where) for row, where in exact.items()] + [(row, "~", where) for row, where in near.items()]
        name = ", ".join(texts)
        shown = tuple(
            f"{one.place(row)} {sign} {where.removeprefix(f'{name}, ')} there" for row, sign, where in pairs[:EXAMPLES]
        )
        yield Pretraining(one.file.name, len(one.rows), name, documents, len(exact), len(near), shown)
        start = here.stop


def _in_model(one: Inspected, source: str, membership: Membership) -> Pretraining:
    rows = membership.rows_in(one.known.texts)
    shown = tuple(one.place(row) for row in rows[:EXAMPLES])
    counts = len(one.rows), source, len(membership), len(rows)
    return Pretraining(one.file.name, *counts, None, shown, membership.false_positives)
