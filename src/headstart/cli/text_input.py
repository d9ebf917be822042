"""The columns that predict and evaluate read: those of the options, or else those of the model's training file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.errors import StoreError, UsageError

if TYPE_CHECKING:
    from headstart.data.formats import CsvDialect
    from headstart.data.io import TextEncoding

LABELLED_OPTIONS = {
    f"labelled.{name}": f"--{name.replace('_', '-')}"
    for name in ("text_column", "second_column", "label_column", "task", "separator", "lowest", "highest", "encoding")
}
"""The options for labelled text."""


@dataclass(frozen=True)
class InputColumns:
    """The columns of a file of texts, and whether an input is a pair of texts."""

    pair: bool
    text: str | None
    """The text column as typed. By default, that of training if the file has it, or else a common name."""
    second: str | None
    encoding: "TextEncoding"
    label: str | None = None
    """The label column as typed. By default, chosen like the text column; a file need not have one."""
    trained: Mapping[str, str] = field(default_factory=dict)
    """The columns and the separator of the training file, if they were specified."""

    @classmethod
    def of(
        cls,
        model: Path,
        file: str | None,
        text: str | None,
        second: str | None,
        label: str | None = None,
        encoding: str | None = None,
    ) -> "InputColumns":
        """Return the columns that were typed, completed by those of the model's training file.

        Args:
            encoding: the encoding of files that are not UTF-8. By default, that of the training file.
        """
        from headstart.config.merge import merge_config
        from headstart.config.schema import LabelledConfig
        from headstart.data.io import TextEncoding

        merge_config(LabelledConfig, {"encoding": encoding})  # raises an error for an unknown encoding
        pair, trained = _training_columns(model)
        default = trained.get("encoding") if file is not None else None
        decoding = TextEncoding(encoding or default, "labelled.encoding")
        if pair is None:
            return cls(second is not None, text, second, decoding, label)
        if not pair:
            if second is not None:
                raise UsageError(f"{model} expects single texts; remove --second-column")
            return cls(False, text, None, decoding, label, trained)
        second = second or trained.get("second_column")
        if second is None and file is not None:
            raise UsageError(f"{model} expects pairs of texts; name the second column with --second-column")
        return cls(True, text, second, decoding, label, trained)

    @property
    def separator(self) -> str | None:
        """The separator of several labels in a cell of the training file."""
        return self.trained.get("separator")

    def text_columns(self, path: str, columns: Sequence[str]) -> list[str]:
        """Return the text column, and for pairs also the second one."""
        from headstart.data.columns import column_named, text_column

        trained = self.trained.get("text_column")
        name = self.text or (trained if trained in columns else None)
        first = text_column(path, columns, name, "--text-column")
        return [first] if self.second is None else [first, column_named(path, columns, self.second)]

    def label_column(self, path: str, columns: Sequence[str], texts: Sequence[str]) -> str | None:
        """Return the column of existing labels, or None; `texts` are the text columns."""
        from headstart.data.columns import LABEL_NAMES, column_named

        if self.label is not None:
            return column_named(path, columns, self.label)
        if (trained := self.trained.get("label_column")) is not None:
            return trained if trained in columns else None
        by_lower_name = {column.lower(): column for column in reversed(columns) if column not in texts}
        return next((by_lower_name[name] for name in LABEL_NAMES if name in by_lower_name), None)


def output_dialect(file: str | None, out: Path | None, encoding: "TextEncoding") -> "CsvDialect | None":
    """Return the dialect of an input .csv; its byte order mark is written to files only, not to standard output."""
    from headstart.data.formats import detect_dialect
    from headstart.data.io import suffix_of

    if file is None or suffix_of(file) != ".csv":
        return None
    dialect = detect_dialect(file, encoding)
    return dialect if out is not None else replace(dialect, has_bom=False, has_sep_line=False)


def _training_columns(model: Path) -> tuple[bool | None, dict[str, str]]:
    """Return whether a model expects pairs, and its training columns; None if it cannot be read, which loading reports."""
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
