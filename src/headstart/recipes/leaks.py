"""What a model remembers of its pretraining text, and what that says about labelled rows."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from headstart.data.membership import FILE, Membership
from headstart.data.shards import Shards
from headstart.progress import Progress
from headstart.recipes.labelled_data import LabelledData
from headstart.store.bundle import Bundle


def carried(shards: Iterable[Shards], *sources: Bundle | None) -> dict[str, bytes]:
    """The digests of all that a model learnt from, as a file of its bundle.

    Args:
        sources: the models it went on from or was taught by; where one does not know its own text, nothing is carried:
            half of the truth would pass for the whole.
    """
    known = Membership.of([])
    for source in filter(None, sources):
        before = Membership.read(source.path)
        if before is None:
            return {}
        known |= before
    for part in shards:
        known |= Membership.of(part.digests)
    return {FILE: known.to_bytes()}


def pretraining_noted(data: LabelledData, source: Path | None, name: str | None, progress: Progress) -> LabelledData:
    """The data with a note on how many of its test rows the pretrained model at `source` has seen, if it knows."""
    known = Membership.read(source) if source is not None and data.test is not None else None
    if known is None or data.test is None:
        return data
    rows = len(known.rows_in(data.test.texts))
    what = f"{'none' if not rows else f'{rows:,}'} of the {len(data.test):,} texts of {data.test.name}"
    note = f"{what} {'were' if rows > 1 else 'was'} in the pretraining text of {name}, word for word"
    progress.say(note)
    return replace(data, notes=(*data.notes, note))
