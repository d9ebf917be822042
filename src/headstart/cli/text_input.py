"""How commands that train nothing read texts: by options, else as the model's own files were read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.errors import StoreError, UsageError

if TYPE_CHECKING:
    from headstart.data.formats import CsvDialect

LABELLED = {
    f"labelled.{name}": f"--{name.replace('_', '-')}"
    for name in ("text_column", "second_column", "label_column", "task", "separator", "lowest", "highest")
}
"""The options for labelled text."""


@dataclass(frozen=True)
class InputColumns:
    """The columns of a file, and whether each question is two texts."""

    pair: bool
    text: str | None
    second: str | None
    separator: str | None

    @classmethod
    def of(cls, model: Path, source: str | None, text: str | None, second: str | None) -> "InputColumns":
        """What was asked for, and of a model that reads pairs what its training file had."""
        pair, known = _as_trained(model)
        if pair is None:
            return cls(second is not None, text, second, None)
        if not pair:
            if second is not None:
                raise UsageError(f"{model} reads one text; leave out --second-column")
            return cls(False, text, None, known.get("separator"))
        second = second or known.get("second_column")
        if second is None and source is not None:
            raise UsageError(f"{model} reads pairs of texts; name the second column with --second-column")
        return cls(True, text or known.get("text_column"), second, known.get("separator"))


def output_dialect(source: str | None, out: Path | None) -> "CsvDialect | None":
    """The layout in which the rows of a .csv are written again: marks are for files, not for what another program reads."""
    from headstart.data.formats import detect_dialect
    from headstart.data.io import suffix_of

    if source is None or suffix_of(source) != ".csv":
        return None
    found = detect_dialect(source)
    return found if out is not None else replace(found, has_bom=False, has_sep_line=False)


def _as_trained(model: Path) -> tuple[bool | None, dict[str, str]]:
    """Whether a model reads pairs, and how its own files were read; of what is no model nothing, which loading will tell."""
    from headstart.files import read_json
    from headstart.store.locate import find_bundle

    try:
        facts = read_json(find_bundle(model) / "bundle.json")
    except (StoreError, UsageError):
        return None, {}
    task, about = (facts.get(name) if isinstance(facts, dict) else None for name in ("task", "about"))
    known = about.get("labelled") if isinstance(about, dict) else None
    pair = isinstance(task, dict) and task.get("pair") is True
    texts = known.items() if isinstance(known, dict) else ()
    return pair, {name: value for name, value in texts if isinstance(value, str)}
