"""Inspect labelled files before training: their statistics and possible problems.

Each check is a function that yields findings; none of them stops the report.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data.columns import MAX_LABEL_CHARACTERS
from headstart.data.corpus import read_documents
from headstart.data.decontamination import Membership
from headstart.data.diagnostics import (
    Problem,
    RawFile,
    RawRow,
    encoding_issues,
    label_problems,
    read_leniently,
    text_problems,
)
from headstart.data.io import single_line
from headstart.data.near_duplicates import Overlap, TextIndex, count_duplicates, find_in_stream, overlap
from headstart.errors import DataError, StoreError, UsageError
from headstart.files import read_json, read_manifest
from headstart.progress import Progress, SilentProgress, pluralize
from headstart.recipes.auto.column_search import choose_columns
from headstart.tasks import TaskName
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

NUM_EXAMPLES = 3
CUT_SHORT = "cut short"
"""The kind of finding about a file that could not be read to its end: other findings cover only a part of it."""
_STOPS = "training stops at the first such row, or skips them with labelled.skip_empty"
_OTHERS_NEED = "other commands need labelled.skip_empty"
_FAULTS = {
    "text empty": f"no text; auto skips such rows, {_OTHERS_NEED}",
    "text unreadable": "a text that is not a string (a number, a list) or contains an unpaired surrogate",
    "label missing": f"no label; auto uses such rows as unlabelled text, {_OTHERS_NEED}",
    "label unreadable": f"a label that is neither a string nor a number, or has more than {MAX_LABEL_CHARACTERS:,} characters",
}
_FAULTS_BY_TASK = {
    ("label unreadable", "labels"): "labels that are not a list of strings or numbers",
    ("label unreadable", "rating"): "a rating that is not a finite number within its bounds",
    ("label missing", "labels"): f"no list of labels; {_STOPS}",
    ("label missing", "rating"): f"no rating; {_STOPS}",
}
"""Descriptions that differ for multi-label and regression files."""
_MAX_LABELS_PER_ROW = 0.5
_MIN_ROWS = 20
"""The minimum number of rows, and the number of different labels per row that suggests a wrong label column."""
_CHUNK = 1000


@dataclass(frozen=True)
class Finding:
    """One possible problem of a file."""

    kind: str
    file: str
    """The path as the user wrote it."""
    rows: int
    """The number of rows with the problem."""
    message: str
    examples: tuple[str, ...] = ()
    """The locations of the first rows with the problem."""
    texts: int | None = None
    """The number of different texts among those rows, where rows may repeat."""
    other: str | None = None
    """The other file that contains the rows."""
    other_rows: int | None = None
    """The number of rows of the other file."""


@dataclass(frozen=True)
class InspectedFile:
    """A file that was read leniently, with an index of its texts."""

    file: RawFile
    short_name: str
    """The name of the file in findings about another file."""

    @cached_property
    def rows(self) -> list[RawRow]:
        """The rows that have a text, in order."""
        return [row for row in self.file.rows if row.text.strip()]

    @cached_property
    def index(self) -> TextIndex:
        """The index of the texts of `rows`."""
        return TextIndex([row.text for row in self.rows])

    def location(self, row: RawRow) -> str:
        """Return the location of a row, without the name of this file."""
        return row.where.removeprefix(f"{self.file.name}, ")


def fault_findings(one: InspectedFile) -> Iterator[Finding]:
    """Find rows that cannot be used for training, and files that cannot be read completely."""
    for message in one.file.stopped:
        yield Finding(CUT_SHORT, one.file.name, 0, message)
    for fault, general in _FAULTS.items():
        rows = [row for row in one.file.rows if fault in row.faults]
        if rows:
            description = _FAULTS_BY_TASK.get((fault, one.file.task_name), general)
            yield _finding(fault, one, rows, f"{_verb(len(rows), 'have', 'has')} {description}")
    for path in one.file.files_with_bom:
        yield Finding(
            "byte order mark", one.file.name, 0, f"{path} begins with a byte order mark, which is not part of the text"
        )


def label_findings(one: InspectedFile, *, training: bool = True) -> Iterator[Finding]:
    """Find labels that are probably misspelt, missing or too rare, and columns that probably hold no labels."""
    counts = Counter(name for row in one.file.rows for name in row.names)
    names = [row.names for row in one.file.rows]
    yield from _as_findings(one, one.file.rows, label_problems(names, training=training))
    if len(counts) == 1 and one.file.task_name == "classes":
        yield Finding(
            "labels", one.file.name, len(one.file.rows), f"every row has the label '{single_line(next(iter(counts)))}'"
        )
    total = sum(counts.values())
    if total >= _MIN_ROWS and len(counts) > _MAX_LABELS_PER_ROW * total:
        message = f"{len(counts):,} different labels in {total:,} rows; is this the label column?"
        yield Finding("labels", one.file.name, total, message)


def text_findings(one: InspectedFile, config: LabelledConfig, *, training: bool = True) -> Iterator[Finding]:
    """Find columns that hold ids in place of texts, and files with few different texts."""
    texts = [row.text for row in one.rows]
    yield from _as_findings(one, one.rows, text_problems(one.file.name, texts, config, training=training))


def _as_findings(one: InspectedFile, rows: Sequence[RawRow], problems: Iterable[Problem]) -> Iterator[Finding]:
    for problem in problems:
        # a problem of every row needs no examples
        shown = problem.rows[:NUM_EXAMPLES] if len(problem.rows) < len(rows) else ()
        examples = tuple(one.location(rows[index]) for index in shown)
        yield Finding(problem.kind, one.file.name, len(problem.rows), problem.message, examples)


def unseen_label_findings(one: InspectedFile, train: InspectedFile) -> Iterator[Finding]:
    """Find labels of validation or test that no training row has."""
    train_labels = {name for row in train.file.rows for name in row.names}
    rows = [row for row in one.file.rows if not train_labels.issuperset(row.names)]
    if rows:
        unseen = {name for row in rows for name in row.names if name not in train_labels}
        names = ", ".join(f"'{single_line(name)}'" for name in sorted(unseen)[:5])
        have = _verb(len(rows), "have", "has")
        yield _finding("labels", one, rows, f"{have} a label that {train.short_name} does not have ({names})")


def duplicate_findings(one: InspectedFile) -> Iterator[Finding]:
    """Find texts that occur more than once in a file, and those with more than one label."""
    repeats, texts, rows = count_duplicates(one.index.digests)
    if repeats:
        first = one.index.first_rows
        pairs = [
            (one.rows[row], one.rows[first[digest]])
            for row, digest in enumerate(one.index.digests)
            if first[digest] != row
        ]
        yield Finding(
            "duplicates",
            one.file.name,
            repeats,
            f"{_rows(repeats)} {_verb(repeats, 'repeat')} an earlier row verbatim "
            f"({pluralize(texts, 'text')} in {rows:,} rows)",
            tuple(f"{one.location(row)} = {one.location(earlier)}" for row, earlier in pairs[:NUM_EXAMPLES]),
            texts=texts,
        )
    yield from _conflicts(one)


def _conflicts(one: InspectedFile) -> Iterator[Finding]:
    by_text: dict[int, list[RawRow]] = defaultdict(list)
    for digest, row in zip(one.index.digests, one.rows, strict=True):
        if row.label is not None:
            by_text[digest].append(row)
    conflicts = [rows for rows in by_text.values() if len({row.label for row in rows}) > 1]
    if conflicts:
        count = sum(map(len, conflicts))
        examples = tuple(
            " / ".join(f"{one.location(row)} {single_line(row.label or '')}" for row in rows[:3])
            + (" / ..." if len(rows) > 3 else "")
            for rows in conflicts[:NUM_EXAMPLES]
        )
        texts = f"{pluralize(len(conflicts), 'text')} {_verb(len(conflicts), 'have', 'has')}"
        message = f"{texts} more than one label, in {count:,} rows"
        yield Finding("conflict", one.file.name, count, message, examples, texts=len(conflicts))


def overlap_findings(one: InspectedFile, other: InspectedFile) -> Iterator[Finding]:
    """Find rows of one file that appear in another, exactly or nearly, and those with another label there."""
    shared: Overlap[int] = overlap(one.index, other.index)
    if shared.exact:
        digests = {one.index.digests[row] for row in shared.exact}
        other_rows = sum(digest in digests for digest in other.index.digests)
        count = len(shared.exact)
        message = (
            f"{_rows(count)} ({pluralize(len(digests), 'different text')}) {_verb(count, 'appear')} "
            f"verbatim in {other.short_name}, in {_rows(other_rows)} there"
        )
        yield Finding(
            "overlap",
            one.file.name,
            count,
            message,
            _pair_examples(one, other, shared.exact, "="),
            texts=len(digests),
            other=other.file.name,
            other_rows=other_rows,
        )
    if shared.near:
        count = len(shared.near)
        rows = f"{_rows(count)} {_verb(count, 'have', 'has')} near-duplicates in {other.short_name}"
        message = f"{rows}: some words differ, or the text is part of a longer one"
        examples = _pair_examples(one, other, shared.near, "~")
        yield Finding("near-duplicate", one.file.name, count, message, examples, other=other.file.name)
    conflicts = {row: match for row, match in shared.exact.items() if _labels_differ(one.rows[row], other.rows[match])}
    if conflicts:
        rows = f"{_rows(len(conflicts))} {_verb(len(conflicts), 'have', 'has')}"
        message = f"{rows} a different label than the same text in {other.short_name}"
        examples = _pair_examples(one, other, conflicts, "=")
        yield Finding("conflict", one.file.name, len(conflicts), message, examples, other=other.file.name)


def _labels_differ(row: RawRow, other: RawRow) -> bool:
    return row.label is not None and other.label is not None and row.label != other.label


def _pair_examples(one: InspectedFile, other: InspectedFile, matches: dict[int, int], sign: str) -> tuple[str, ...]:
    return tuple(
        f"{one.location(one.rows[row])} {sign} {other.location(other.rows[match])} there"
        for row, match in list(matches.items())[:NUM_EXAMPLES]
    )


def encoding_findings(one: InspectedFile) -> Iterator[Finding]:
    """Find texts that were decoded wrongly before, and texts that contain markup."""
    issues: dict[str, list[tuple[RawRow, str]]] = defaultdict(list)
    for row in one.rows:
        for name, sign in encoding_issues(row.text).items():
            issues[name].append((row, sign))
    for name, rows in issues.items():
        examples = tuple(f"{one.location(row)} ({_visible(sign)})" for row, sign in rows[:NUM_EXAMPLES])
        message = f"{_rows(len(rows))} with {name}"
        yield Finding("encoding" if name != "HTML" else "markup", one.file.name, len(rows), message, examples)


def _visible(sign: str) -> str:
    """Return a character sequence as it is, or its code points if it is not printable."""
    return single_line(sign, 20) if sign.isprintable() else " ".join(f"U+{ord(letter):04X}" for letter in sign[:3])


def _finding(kind: str, one: InspectedFile, rows: Sequence[RawRow], message: str) -> Finding:
    examples = tuple(one.location(row) for row in rows[:NUM_EXAMPLES])
    return Finding(kind, one.file.name, len(rows), f"{_rows(len(rows))} {message}", examples)


def _rows(count: int) -> str:
    return pluralize(count, "row")


def _verb(count: int, plural: str, singular: str | None = None) -> str:
    return plural if count != 1 else singular or f"{plural}s"


def all_findings(files: Sequence[InspectedFile], config: LabelledConfig) -> list[Finding]:
    """Check every file, and each file against those before it; the first is the training file."""
    findings: list[Finding] = []
    for number, one in enumerate(files):
        training = number == 0
        checks: list[Iterable[Finding]] = [fault_findings(one), text_findings(one, config, training=training)]
        checks += [label_findings(one, training=training), duplicate_findings(one)]
        if number:
            checks.append(unseen_label_findings(one, files[0]))
        checks += [overlap_findings(one, other) for other in files[:number]]
        findings += [finding for check in (*checks, encoding_findings(one)) for finding in check]
    return findings


@dataclass(frozen=True)
class Lengths:
    """The distribution of the text lengths of a file."""

    unit: str
    median: int
    p90: int
    """Nine of ten texts are this long or shorter."""
    longest: int
    total: int

    @classmethod
    def of(cls, unit: str, lengths: Sequence[int]) -> "Lengths":
        """Summarize the length of each text."""
        if not lengths:
            return cls(unit, 0, 0, 0, 0)
        median, p90 = np.percentile(lengths, [50, 90], method="inverted_cdf")
        return cls(unit, int(median), int(p90), int(max(lengths)), int(sum(lengths)))


@dataclass(frozen=True)
class FileFacts:
    """Statistics of a file."""

    name: str
    rows: int
    labels: dict[str, int]
    """The number of rows of each label; a row may count for several, or none."""
    lengths: tuple[Lengths, ...]
    """The text lengths in characters, and in tokens or words."""
    context: int | None = None
    beyond: int | None = None
    """The number of texts that do not fit the context with its special tokens."""
    kind: TaskName = "classes"
    without: int = 0
    """multi-label: the number of rows without a label."""
    values: dict[str, float] | None = None
    """regression: lowest, mean and highest."""


@dataclass(frozen=True)
class PretrainingOverlap:
    """How many rows of a file appear in pretraining text."""

    file: str
    rows: int
    source: str
    """The text files, or the model that was pretrained on them."""
    documents: int
    exact: int
    near: int | None
    """None if only digests of the text are available, which find exact duplicates only."""
    examples: tuple[str, ...] = ()
    false_positives: float = 0.0
    """The probability that a row is counted wrongly: above 0 where digests are truncated."""


@dataclass(frozen=True)
class Inspection:
    """The report of `headstart inspect`, as plain values."""

    files: tuple[FileFacts, ...]
    findings: tuple[Finding, ...]
    pretraining: tuple[PretrainingOverlap, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {"format": 1, **asdict(self)}


@dataclass(frozen=True)
class InspectRequest:
    """The files of an inspection, and what to compare them with."""

    train: str
    valid: str | None = None
    test: str | None = None
    texts: Sequence[str] = ()
    """Pretraining text that is searched for the rows; it is streamed."""
    tokenizer: Path | None = None
    """A tokenizer to measure texts in tokens."""
    backbone: str | None = None
    """A model whose tokenizer and context are used, and whose bundle has digests of its pretraining text."""
    context: int | None = None
    """The context of the model in tokens; by default, that of `backbone`."""

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.tokenizer is not None and self.backbone is not None:
            raise UsageError(f"{self.backbone} has its own tokenizer; omit --tokenizer or --from")
        if self.context is not None and self.tokenizer is None and self.backbone is None:
            raise UsageError("--context counts tokens and needs --tokenizer or --from")
        if self.context is not None and self.context < 2:
            raise UsageError(f"--context must be at least 2, got {self.context}")


def run_inspect(
    request: InspectRequest,
    labelled: LabelledConfig,
    corpus: CorpusConfig | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Inspect labelled files, and look for their rows in pretraining text; nothing is written."""
    progress = progress or SilentProgress()
    request.check()
    context, tokenizer_folder = request.context, request.tokenizer
    bundle = _bundle(request.backbone) if request.backbone is not None else None
    if bundle is not None:
        context = context or _context(bundle)
        tokenizer_folder = bundle / "tokenizer"
    tokenizer = load_tokenizer(tokenizer_folder) if tokenizer_folder is not None else None
    names = [name for name in (request.train, request.valid, request.test) if name is not None]
    labelled = _with_columns(names[0], labelled, progress)
    short_names = _short_names(names)
    files = []
    for name in names:
        progress.say(f"reading {name}")
        files.append(InspectedFile(read_leniently(name, labelled), short_names[name]))
    facts = tuple(_facts(one, tokenizer, context, progress) for one in files)
    progress.say("looking for duplicates")
    findings = all_findings(files, labelled)
    overlaps: list[PretrainingOverlap] = []
    notes: list[str] = []
    if request.texts:
        overlaps += _overlaps_with_texts(files, request.texts, corpus or CorpusConfig(), progress)
    if bundle is not None:
        membership = Membership.load(bundle)
        if membership is None:
            notes.append(f"{request.backbone} has no record of its pretraining text (no digests were saved)")
        else:
            overlaps += [_overlap_with_model(one, str(request.backbone), membership) for one in files]
    return Inspection(facts, tuple(findings), tuple(overlaps), tuple(notes))


def _with_columns(name: str, labelled: LabelledConfig, progress: Progress) -> LabelledConfig:
    """Return the settings with the columns that the contents of a file reveal, where they have no common name."""
    try:
        labelled, line = choose_columns(name, labelled)
    except DataError:  # described when the file is read
        return labelled
    if line:
        progress.say(line)
    return labelled


def _bundle(backbone: str) -> Path:
    from headstart.store.locate import find_bundle

    path = find_bundle(Path(backbone))
    read_manifest(path, kind="bundle")
    return path


def _context(bundle: Path) -> int:
    facts = read_json(bundle / "bundle.json")
    try:
        return int(facts["model"]["context"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{bundle / 'bundle.json'} is damaged: {error}") from None


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the file names without folders where these are unique."""
    counts = Counter(Path(name).name for name in names)
    return {name: Path(name).name if counts[Path(name).name] == 1 else name for name in names}


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
        tokens = list(_token_counts(texts, tokenizer, one.short_name, progress))
        lengths.append(Lengths.of("tokens", tokens))
        if context is not None:
            beyond = sum(count > context - tokenizer.special.num_special_tokens for count in tokens)
    return FileFacts(
        name=one.file.name,
        rows=len(one.file.rows),
        labels=labels,
        lengths=tuple(lengths),
        context=context if tokenizer else None,
        beyond=beyond,
        kind=one.file.task_name,
        without=without,
        values=values,
    )


def _token_counts(texts: Sequence[str], tokenizer: Tokenizer, name: str, progress: Progress) -> Iterator[int]:
    with progress.task(f"encoding {name}", len(texts), "texts") as bar:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            yield from (len(ids) for ids in tokenizer.encode_batch(chunk))
            bar.advance(len(chunk))


def _overlaps_with_texts(
    files: Sequence[InspectedFile], texts: Sequence[str], corpus: CorpusConfig, progress: Progress
) -> Iterator[PretrainingOverlap]:
    documents = 0

    def stream() -> Iterator[tuple[str, str]]:
        nonlocal documents
        with progress.task("reading pretraining text", None, "documents") as bar:
            for document in read_documents(texts, corpus):
                documents += 1
                bar.advance()
                yield document.where, document.text

    # one pass over the text for the rows of all files
    matches = find_in_stream(TextIndex([text for one in files for text in one.index.texts]), stream())
    start, source = 0, ", ".join(texts)
    for one in files:
        indices = range(start, start + len(one.rows))
        exact = {row - start: where for row, where in matches.exact.items() if row in indices}
        near = {row - start: where for row, where in matches.near.items() if row in indices}
        pairs = [(row, "=", where) for row, where in exact.items()] + [(row, "~", where) for row, where in near.items()]
        examples = tuple(
            f"{one.location(one.rows[row])} {sign} {where.removeprefix(f'{source}, ')} there"
            for row, sign, where in pairs[:NUM_EXAMPLES]
        )
        yield PretrainingOverlap(one.file.name, len(one.rows), source, documents, len(exact), len(near), examples)
        start = indices.stop


def _overlap_with_model(one: InspectedFile, backbone: str, membership: Membership) -> PretrainingOverlap:
    rows = membership.rows_in(one.index.texts)
    return PretrainingOverlap(
        file=one.file.name,
        rows=len(one.rows),
        source=backbone,
        documents=len(membership),
        exact=len(rows),
        near=None,
        examples=tuple(one.location(one.rows[row]) for row in rows[:NUM_EXAMPLES]),
        false_positives=membership.false_positive_rate,
    )
