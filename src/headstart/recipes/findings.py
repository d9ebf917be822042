"""What may be wrong with labelled files, one function a suspicion. Each returns findings; none of them stops."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from headstart.data.doubles import Known, Overlap, counts, overlap
from headstart.data.loose import LooseFile, LooseRow
from headstart.data.oddities import oddities
from headstart.data.opening import one_line
from headstart.progress import counted

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
_MANY = 0.5
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
class Inspected:
    """A file, and of its rows those that have a text."""

    file: LooseFile
    short: str
    """What the file is called in lines about another."""

    @cached_property
    def rows(self) -> list[LooseRow]:
        """The rows that have a text, in order."""
        return [row for row in self.file.rows if row.text.strip()]

    @cached_property
    def known(self) -> Known:
        """Their texts."""
        return Known([row.text for row in self.rows])

    def place(self, row: int) -> str:
        """Where a row with a text stands, without the name of the file if there is one file only."""
        return self.at(self.rows[row])

    def at(self, row: LooseRow) -> str:
        """Where any row stands."""
        return row.where.removeprefix(f"{self.file.name}, ")


def faults(one: Inspected) -> Iterator[Finding]:
    """Rows that training would refuse, and files that cannot be read to their ends."""
    for message in one.file.stopped:
        yield Finding(CUT_SHORT, one.file.name, 0, message)
    for fault, words in _FAULTS.items():
        rows = [row for row in one.file.rows if fault in row.faults]
        if rows:
            words = _OTHERWISE.get((fault, one.file.kind), words)
            yield _finding(fault, one, rows, f"{_verb(len(rows), 'have', 'has')} {words}")
    for path in one.file.marked:
        yield Finding(
            "byte order mark", one.file.name, 0, f"{path} begins with a byte order mark; it is not read as text"
        )


def labels(one: Inspected) -> Iterator[Finding]:
    """Labels that are probably typing errors, or no labels."""
    found = Counter(name for row in one.file.rows for name in row.names)
    spelt: dict[str, list[str]] = defaultdict(list)
    for label in sorted(found):
        spelt[label.casefold()].append(label)
    for names in spelt.values():
        if len(names) > 1:
            rows = [row for row in one.file.rows if not set(names[1:]).isdisjoint(row.names)]
            shown = " and ".join(f"'{one_line(name)}'" for name in names)
            yield _finding("labels", one, rows, f"may be misspelt: {shown} are different labels")
    if len(found) == 1 and one.file.kind == "classes":
        yield Finding(
            "labels", one.file.name, len(one.file.rows), f"every row has the label '{one_line(next(iter(found)))}'"
        )
    total = sum(found.values())
    if total >= _FEW_ROWS and len(found) > _MANY * total:
        words = f"{len(found):,} different labels in {total:,} rows; is this the label column?"
        yield Finding("labels", one.file.name, total, words)


def strange_labels(one: Inspected, train: Inspected) -> Iterator[Finding]:
    """Labels of validation or test that no training row has."""
    known = {name for row in train.file.rows for name in row.names}
    rows = [row for row in one.file.rows if not known.issuperset(row.names)]
    if rows:
        strange = {name for row in rows for name in row.names if name not in known}
        names = ", ".join(f"'{one_line(name)}'" for name in sorted(strange)[:5])
        have = _verb(len(rows), "have", "has")
        yield _finding("labels", one, rows, f"{have} a label that {train.short} does not have ({names})")


def inside(one: Inspected) -> Iterator[Finding]:
    """Texts that stand more than once in a file, and those that have more than one label there."""
    repeats, texts, rows = counts(one.known.digests)
    if repeats:
        first = one.known.first
        pairs = [(row, first[digest]) for row, digest in enumerate(one.known.digests) if first[digest] != row]
        yield Finding(
            "doubles",
            one.file.name,
            repeats,
            f"{_rows(repeats)} {_verb(repeats, 'repeat')} an earlier row word for word "
            f"({counted(texts, 'text')} in {rows:,} rows)",
            tuple(f"{one.place(row)} = {one.place(earlier)}" for row, earlier in pairs[:EXAMPLES]),
            texts=texts,
        )
    yield from _conflicts(one)


def _conflicts(one: Inspected) -> Iterator[Finding]:
    by_text: dict[int, list[LooseRow]] = defaultdict(list)
    for digest, row in zip(one.known.digests, one.rows, strict=True):
        if row.label is not None:
            by_text[digest].append(row)
    torn = [rows for rows in by_text.values() if len({row.label for row in rows}) > 1]
    if torn:
        count = sum(map(len, torn))
        shown = tuple(
            " / ".join(f"{one.at(row)} {one_line(row.label or '')}" for row in rows[:3])
            + (" / ..." if len(rows) > 3 else "")
            for rows in torn[:EXAMPLES]
        )
        words = f"{counted(len(torn), 'text')} {_verb(len(torn), 'have', 'has')} more than one label, in {count:,} rows"
        yield Finding("conflict", one.file.name, count, words, shown, texts=len(torn))


def across(one: Inspected, other: Inspected) -> Iterator[Finding]:
    """Rows of one file that stand in another, word for word or almost; and with another label there."""
    found: Overlap[int] = overlap(one.known, other.known)
    shown = _pairs(one, other, found.exact, "=")
    if found.exact:
        digests = {one.known.digests[row] for row in found.exact}
        there = sum(digest in digests for digest in other.known.digests)
        words = (
            f"{_rows(len(found.exact))} ({counted(len(digests), 'different text')}) {_verb(len(found.exact), 'stand')} "
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
    torn = {row: there for row, there in found.exact.items() if _torn(one.rows[row], other.rows[there])}
    if torn:
        words = (
            f"{_rows(len(torn))} {_verb(len(torn), 'have', 'has')} another label than the same text in {other.short}"
        )
        torn_shown = _pairs(one, other, torn, "=")
        yield Finding("conflict", one.file.name, len(torn), words, torn_shown, other=other.file.name)


def _torn(row: LooseRow, other: LooseRow) -> bool:
    return row.label is not None and other.label is not None and row.label != other.label


def _pairs(one: Inspected, other: Inspected, found: dict[int, int], sign: str) -> tuple[str, ...]:
    first = list(found.items())[:EXAMPLES]
    return tuple(f"{one.place(row)} {sign} {other.place(there)} there" for row, there in first)


def odd(one: Inspected) -> Iterator[Finding]:
    """Texts that were read in a wrong encoding on their way, or that markup was left in."""
    found: dict[str, list[tuple[LooseRow, str]]] = defaultdict(list)
    for row in one.rows:
        for name, sign in oddities(row.text).items():
            found[name].append((row, sign))
    for name, rows in found.items():
        shown = tuple(f"{one.at(row)} ({_visible(sign)})" for row, sign in rows[:EXAMPLES])
        words = f"{_rows(len(rows))} with {name}"
        yield Finding("encoding" if name != "HTML" else "markup", one.file.name, len(rows), words, shown)


def _visible(sign: str) -> str:
    """A sign that may not be printable, as its characters or their numbers."""
    return one_line(sign, 20) if sign.isprintable() else " ".join(f"U+{ord(letter):04X}" for letter in sign[:3])


def _finding(kind: str, one: Inspected, rows: Sequence[LooseRow], words: str) -> Finding:
    shown = tuple(one.at(row) for row in rows[:EXAMPLES])
    return Finding(kind, one.file.name, len(rows), f"{_rows(len(rows))} {words}", shown)


def _rows(count: int) -> str:
    return counted(count, "row")


def _verb(count: int, plural: str, singular: str | None = None) -> str:
    return plural if count != 1 else singular or f"{plural}s"


def all_of(files: Sequence[Inspected]) -> list[Finding]:
    """Every suspicion about every file, and about each file against those before it; the first is the training file."""
    found: list[Finding] = []
    for number, one in enumerate(files):
        suspicions: list[Iterable[Finding]] = [faults(one), labels(one), inside(one)]
        if number:
            suspicions.append(strange_labels(one, files[0]))
        suspicions += [across(one, other) for other in files[:number]]
        found += [finding for part in (*suspicions, odd(one)) for finding in part]
    return found
