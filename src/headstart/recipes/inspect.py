"""A report on data before training, and its checks.

What may be wrong with labelled files, one function a suspicion. Each returns findings; none of them stops.

A report on labelled files before anything is trained on them: what is in them, and what is wrong with them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data.corpus import read_documents
from headstart.data.decontamination import Membership
from headstart.data.diagnostics import RawFile, RawRow, encoding_issues, read_leniently
from headstart.data.io import single_line
from headstart.data.near_duplicates import Overlap, TextIndex, count_duplicates, find_in_stream, overlap
from headstart.errors import StoreError, UsageError
from headstart.files import read_json, read_manifest
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.tasks import TaskName
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

EXAMPLES = 3
CUT_SHORT = "cut short"
"""The kind of finding about a file that was not read to its end: whatever else is found is about a part of it."""
_STOPS = "training stops at the first, or leaves them out with labelled.skip_empty"
_FAULTS = {
    "text empty": f"no text; {_STOPS}",
    "text unreadable": "a text that is none (a number, a list, half of a character)",
    "label missing": f"no label; {_STOPS}",
    "label unreadable": "a label that is neither text nor a number",
}
_OTHERWISE = {
    ("label unreadable", "labels"): "labels that are no list of texts or numbers",
    ("label unreadable", "rating"): "a rating that is no finite number within its bounds",
    ("label missing", "labels"): f"no list of labels, not even an empty one; {_STOPS}",
    ("label missing", "rating"): f"no rating; {_STOPS}",
}
"""The same where labels are several or numbers."""
_MANY_LABELS = 0.5
_FEW_ROWS = 20


@dataclass(frozen=True)
class Finding:
    """One thing to know about a file."""

    kind: str
    file: str
    """As the user wrote it."""
    rows: int
    """Rows of the file that it concerns."""
    message: str
    examples: tuple[str, ...] = ()
    """The first of them, by their places."""
    texts: int | None = None
    """Different texts among those rows, where rows may repeat."""
    other: str | None = None
    """The file where the rows stand too."""
    other_rows: int | None = None
    """In how many rows of it."""


@dataclass(frozen=True)
class InspectedFile:
    """A file, and of its rows those that have a text."""

    file: RawFile
    short: str
    """What the file is called in lines about another."""

    @cached_property
    def rows(self) -> list[RawRow]:
        """The rows that have a text, in order."""
        return [row for row in self.file.rows if row.text.strip()]

    @cached_property
    def known(self) -> TextIndex:
        """Their texts."""
        return TextIndex([row.text for row in self.rows])

    def place(self, row: int) -> str:
        """Where a row with a text stands, without the name of the file if there is one file only."""
        return self.at(self.rows[row])

    def at(self, row: RawRow) -> str:
        """Where any row stands."""
        return row.where.removeprefix(f"{self.file.name}, ")


def fault_findings(one: InspectedFile) -> Iterator[Finding]:
    """Rows that training would refuse, and files that cannot be read to their ends."""
    for message in one.file.stopped:
        yield Finding(CUT_SHORT, one.file.name, 0, message)
    for fault, words in _FAULTS.items():
        rows = [row for row in one.file.rows if fault in row.faults]
        if rows:
            words = _OTHERWISE.get((fault, one.file.task_name), words)
            yield _finding(fault, one, rows, f"{_verb(len(rows), 'have', 'has')} {words}")
    for path in one.file.files_with_bom:
        yield Finding(
            "byte order mark", one.file.name, 0, f"{path} begins with a byte order mark; it is not read as text"
        )


def label_findings(one: InspectedFile) -> Iterator[Finding]:
    """Labels that are probably typing errors, or no labels."""
    found = Counter(name for row in one.file.rows for name in row.names)
    spelt: dict[str, list[str]] = defaultdict(list)
    for label in sorted(found):
        spelt[label.casefold()].append(label)
    for names in spelt.values():
        if len(names) > 1:
            rows = [row for row in one.file.rows if not set(names[1:]).isdisjoint(row.names)]
            shown = " and ".join(f"'{single_line(name)}'" for name in names)
            yield _finding("labels", one, rows, f"may be misspelt: {shown} are different labels")
    if len(found) == 1 and one.file.task_name == "classes":
        yield Finding(
            "labels", one.file.name, len(one.file.rows), f"every row has the label '{single_line(next(iter(found)))}'"
        )
    total = sum(found.values())
    if total >= _FEW_ROWS and len(found) > _MANY_LABELS * total:
        words = f"{len(found):,} different labels in {total:,} rows; is this the label column?"
        yield Finding("labels", one.file.name, total, words)


def unseen_label_findings(one: InspectedFile, train: InspectedFile) -> Iterator[Finding]:
    """Labels of validation or test that no training row has."""
    known = {name for row in train.file.rows for name in row.names}
    rows = [row for row in one.file.rows if not known.issuperset(row.names)]
    if rows:
        strange = {name for row in rows for name in row.names if name not in known}
        names = ", ".join(f"'{single_line(name)}'" for name in sorted(strange)[:5])
        have = _verb(len(rows), "have", "has")
        yield _finding("labels", one, rows, f"{have} a label that {train.short} does not have ({names})")


def duplicate_findings(one: InspectedFile) -> Iterator[Finding]:
    """Texts that stand more than once in a file, and those that have more than one label there."""
    repeats, texts, rows = count_duplicates(one.known.digests)
    if repeats:
        first = one.known.first_rows
        pairs = [(row, first[digest]) for row, digest in enumerate(one.known.digests) if first[digest] != row]
        yield Finding(
            "doubles",
            one.file.name,
            repeats,
            f"{_rows(repeats)} {_verb(repeats, 'repeat')} an earlier row word for word "
            f"({pluralize(texts, 'text')} in {rows:,} rows)",
            tuple(f"{one.place(row)} = {one.place(earlier)}" for row, earlier in pairs[:EXAMPLES]),
            texts=texts,
        )
    yield from _conflicts(one)


def _conflicts(one: InspectedFile) -> Iterator[Finding]:
    by_text: dict[int, list[RawRow]] = defaultdict(list)
    for digest, row in zip(one.known.digests, one.rows, strict=True):
        if row.label is not None:
            by_text[digest].append(row)
    torn = [rows for rows in by_text.values() if len({row.label for row in rows}) > 1]
    if torn:
        count = sum(map(len, torn))
        shown = tuple(
            " / ".join(f"{one.at(row)} {single_line(row.label or '')}" for row in rows[:3])
            + (" / ..." if len(rows) > 3 else "")
            for rows in torn[:EXAMPLES]
        )
        words = (
            f"{pluralize(len(torn), 'text')} {_verb(len(torn), 'have', 'has')} more than one label, in {count:,} rows"
        )
        yield Finding("conflict", one.file.name, count, words, shown, texts=len(torn))


def overlap_findings(one: InspectedFile, other: InspectedFile) -> Iterator[Finding]:
    """Rows of one file that stand in another, word for word or almost; and with another label there."""
    found: Overlap[int] = overlap(one.known, other.known)
    shown = _pairs(one, other, found.exact, "=")
    if found.exact:
        digests = {one.known.digests[row] for row in found.exact}
        there = sum(digest in digests for digest in other.known.digests)
        words = (
            f"{_rows(len(found.exact))} ({pluralize(len(digests), 'different text')}) {_verb(len(found.exact), 'stand')} "
            f"word for word in {other.short}, in {_rows(there)} there"
        )
        yield Finding(
            "overlap",
            one.file.name,
            len(found.exact),
            words,
            shown,
            texts=len(digests),
            other=other.file.name,
            other_rows=there,
        )
    if found.near:
        count = len(found.near)
        words = (
            f"{_rows(count)} almost {_verb(count, 'stand')} in {other.short}: words changed, or part of a longer text"
        )
        near = _pairs(one, other, found.near, "~")
        yield Finding("near-double", one.file.name, count, words, near, other=other.file.name)
    torn = {row: there for row, there in found.exact.items() if _is_split_pair(one.rows[row], other.rows[there])}
    if torn:
        words = (
            f"{_rows(len(torn))} {_verb(len(torn), 'have', 'has')} another label than the same text in {other.short}"
        )
        torn_shown = _pairs(one, other, torn, "=")
        yield Finding("conflict", one.file.name, len(torn), words, torn_shown, other=other.file.name)


def _is_split_pair(row: RawRow, other: RawRow) -> bool:
    return row.label is not None and other.label is not None and row.label != other.label


def _pairs(one: InspectedFile, other: InspectedFile, found: dict[int, int], sign: str) -> tuple[str, ...]:
    first = list(found.items())[:EXAMPLES]
    return tuple(f"{one.place(row)} {sign} {other.place(there)} there" for row, there in first)


def encoding_findings(one: InspectedFile) -> Iterator[Finding]:
    """Texts that were read in a wrong encoding on their way, or that markup was left in."""
    found: dict[str, list[tuple[RawRow, str]]] = defaultdict(list)
    for row in one.rows:
        for name, sign in encoding_issues(row.text).items():
            found[name].append((row, sign))
    for name, rows in found.items():
        shown = tuple(f"{one.at(row)} ({_visible(sign)})" for row, sign in rows[:EXAMPLES])
        words = f"{_rows(len(rows))} with {name}"
        yield Finding("encoding" if name != "HTML" else "markup", one.file.name, len(rows), words, shown)


def _visible(sign: str) -> str:
    """A sign that may not be printable, as its characters or their numbers."""
    return single_line(sign, 20) if sign.isprintable() else " ".join(f"U+{ord(letter):04X}" for letter in sign[:3])


def _finding(kind: str, one: InspectedFile, rows: Sequence[RawRow], words: str) -> Finding:
    shown = tuple(one.at(row) for row in rows[:EXAMPLES])
    return Finding(kind, one.file.name, len(rows), f"{_rows(len(rows))} {words}", shown)


def _rows(count: int) -> str:
    return pluralize(count, "row")


def _verb(count: int, plural: str, singular: str | None = None) -> str:
    return plural if count != 1 else singular or f"{plural}s"


def all_findings(files: Sequence[InspectedFile]) -> list[Finding]:
    """Every suspicion about every file, and about each file against those before it; the first is the training file."""
    found: list[Finding] = []
    for number, one in enumerate(files):
        suspicions: list[Iterable[Finding]] = [fault_findings(one), label_findings(one), duplicate_findings(one)]
        if number:
            suspicions.append(unseen_label_findings(one, files[0]))
        suspicions += [overlap_findings(one, other) for other in files[:number]]
        found += [finding for part in (*suspicions, encoding_findings(one)) for finding in part]
    return found


_CHUNK = 1000


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
    kind: TaskName = "classes"
    without: int = 0
    """Of several labels: rows that have none."""
    values: dict[str, float] | None = None
    """Of ratings: lowest, mean and highest."""


@dataclass(frozen=True)
class PretrainingOverlap:
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
    pretraining: tuple[PretrainingOverlap, ...]
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
    progress = progress or SilentProgress()
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
        files.append(InspectedFile(read_leniently(name, config), shorts[name]))
    facts = tuple(_facts(one, cutter, context, progress) for one in files)
    progress.say("looking for doubles")
    findings = all_findings(files)
    seen: list[PretrainingOverlap] = []
    notes: list[str] = []
    if texts:
        seen += _in_texts(files, texts, corpus or CorpusConfig(), progress)
    if bundle is not None:
        membership = Membership.load(bundle)
        if membership is None:
            notes.append(f"{source} does not know what it was pretrained on (no digests of its text were kept)")
        else:
            seen += [_in_model(one, str(source), membership) for one in files]
    return Inspection(facts, tuple(findings), tuple(seen), tuple(notes))


def _bundle(source: str) -> Path:
    from headstart.store.locate import find_bundle

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


def _facts(one: InspectedFile, tokenizer: Tokenizer | None, context: int | None, progress: Progress) -> FileFacts:
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
        beyond = (
            None if context is None else sum(count > context - tokenizer.special.num_special_tokens for count in tokens)
        )
    context = context if tokenizer else None
    counts = one.file.name, len(one.file.rows), labels, tuple(lengths), context, beyond
    return FileFacts(*counts, one.file.task_name, without, values)


def _tokens(texts: Sequence[str], tokenizer: Tokenizer, name: str, progress: Progress) -> Iterator[int]:
    with progress.task(f"encoding {name}", len(texts), "texts") as bar:
        for start in range(0, len(texts), _CHUNK):
            bite = texts[start : start + _CHUNK]
            yield from (len(ids) for ids in tokenizer.encode_batch(bite))
            bar.advance(len(bite))


def _in_texts(
    files: Sequence[InspectedFile], texts: Sequence[str], corpus: CorpusConfig, progress: Progress
) -> Iterator[PretrainingOverlap]:
    documents = 0

    def passing() -> Iterator[tuple[str, str]]:
        nonlocal documents
        with progress.task("reading pretraining text", None, "documents") as bar:
            for document in read_documents(texts, corpus):
                documents += 1
                bar.advance()
                yield document.where, document.text

    # one pass over the text for the rows of all files
    found = find_in_stream(TextIndex([text for one in files for text in one.known.texts]), passing())
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
        yield PretrainingOverlap(one.file.name, len(one.rows), name, documents, len(exact), len(near), shown)
        start = here.stop


def _in_model(one: InspectedFile, source: str, membership: Membership) -> PretrainingOverlap:
    rows = membership.rows_in(one.known.texts)
    shown = tuple(one.place(row) for row in rows[:EXAMPLES])
    counts = len(one.rows), source, len(membership), len(rows)
    return PretrainingOverlap(one.file.name, *counts, None, shown, membership.false_positive_rate)
