"""Shards prepared apart, on several machines perhaps, put together: the same folder as if prepared in one go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.data.parts import Part, join_parts, left_out_of_all
from headstart.data.provenance import Made, Source, fingerprint
from headstart.data.shards import Shards
from headstart.errors import UsageError
from headstart.files import read_manifest
from headstart.progress import Progress, Quiet
from headstart.recipes.prepare import check_out, is_shards
from headstart.text.tokenizer import load_tokenizer


def merge(folders: Sequence[str | Path], *, out: str | Path, progress: Progress | None = None) -> Shards:
    """Put together shards that were prepared apart with one tokenizer."""
    return run_merge([Path(folder) for folder in folders], Path(out), progress or Quiet())


def run_merge(folders: Sequence[Path], out: Path, progress: Progress) -> Shards:
    """Write the documents of all folders, in the order given, as one folder of shards at `out`."""
    check_out(out, "shards")
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
    parts = [Part(shards.folder, shards.about) for shards in opened]
    extra = _whole(parts) | left_out_of_all(parts)
    if "left_out" not in extra and any("left_out" in part.about for part in parts):
        progress.say(
            "not all of these folders left out the same files, so that nothing is said to be left out of the whole"
        )
    tokenizer = load_tokenizer(first.tokenizer_folder)
    return join_parts(parts, tokenizer, out, labels=first.labels, extra=extra, progress=progress)


def _opened(folder: Path) -> Shards:
    if not is_shards(folder):
        read_manifest(folder, kind="shards", deep=False)  # says what it is instead
    return Shards.open(folder)


def _labels(shards: Shards) -> str:
    return "no labels" if shards.labels is None else f"the labels {', '.join(shards.labels)}"


def _whole(parts: Sequence[Part]) -> dict[str, Any]:
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
    sources = [Source(fact["name"], fact["size"], mark) for fact, mark in zip(facts, marks, strict=True)]
    whole = Made(first["tokenizer"], first["settings"], tuple(marks))
    return {"fingerprint": fingerprint(sources, whole.tokenizer, whole.settings), **whole.about()}
