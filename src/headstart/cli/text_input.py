"""The columns that predict and evaluate read: those of the options, else those of the model's training file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.errors import StoreError, UsageError

if TYPE_CHECKING:
    from headstart.data.formats import CsvDialect

LABELLED_OPTIONS = {
    f"labelled.{name}": f"--{name.replace('_', '-')}"
    for name in ("text_column", "second_column", "label_column", "task", "separator", "lowest", "highest")
}
"""The options for labelled text."""


@dataclass(frozen=True)
class InputColumns:
    """The columns of a file of texts, and whether an input is a pair of texts."""

    pair: bool
    text: str | None
    second: str | None
    separator: str | None

    @classmethod
    def of(cls, model: Path, file: str | None, text: str | None, second: str | None) -> "InputColumns":
        """Return the columns that were typed, completed for a model of text pairs by those of its training file."""
        pair, trained = _training_columns(model)
        if pair is None:
            return cls(second is not None, text, second, None)
        if not pair:
            if second is not None:
                raise UsageError(f"{model} reads one text; leave out --second-column")
            return cls(False, text, None, trained.get("separator"))
        second = second or trained.get("second_column")
        if second is None and file is not None:
            raise UsageError(f"{model} reads pairs of texts; name the second column with --second-column")
        return cls(True, text or trained.get("text_column"), second, trained.get("separator"))


def output_dialect(file: str | None, out: Path | None) -> "CsvDialect | None":
    """Return the dialect of an input .csv; its byte order mark is written to files only, not to standard output."""
    from headstart.data.formats import detect_dialect
    from headstart.data.io import suffix_of

    if file is None or suffix_of(file) != ".csv":
        return None
    dialect = detect_dialect(file)
    return dialect if out is not None else replace(dialect, has_bom=False, has_sep_line=False)


def _training_columns(model: Path) -> tuple[bool | None, dict[str, str]]:
    """Return whether a model reads pairs, and its training columns; None where loading will report that it is no model."""
    from headstart.files import read_json
    from headstart.store.locate import find_bundle

    try:
        facts = read_json(find_bundle(model) / "bundle.json")
    except (StoreError, UsageError):
        return None, {}
    task, about = (facts.get(name) if isinstance(facts, dict) else None for name in ("task", "about"))
    trained = about.get("labelled") if isinstance(about, dict) else None
    pair = isinstance(task, dict) and task.get("pair") is True
    columns = trained.items() if isinstance(trained, dict) else ()
    return pair, {name: value for name, value in columns if isinstance(value, str)}
