"""The root of all settings, and how labelled text is read. `config.py` has the rest, and these by the same names."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A group of settings: frozen, and closed to names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class LabelledConfig(Section):
    """How labelled text is read."""

    text_column: str | None = None
    """The column or key that holds the text; without it, the usual names are tried."""
    label_column: str | None = None
    """The column or key that holds the label; without it, the usual names are tried."""
    second_column: str | None = None
    """The column of a second text: a row is then a pair, such as a premise and a hypothesis, and is read as one."""
    task: Literal["auto", "classes", "labels", "rating"] = "auto"
    """classes: one label a text. labels: any number or none. rating: a number. auto: labels for lists, else classes."""
    separator: str | None = Field(None, min_length=1)
    """What stands between the labels of a cell that holds several, such as ; (lists in JSON and parquet need none)."""
    lowest: float | None = Field(None, allow_inf_nan=False)
    """rating only: a smaller number is refused, and none is answered; without it, the smallest of train."""
    highest: float | None = Field(None, allow_inf_nan=False)
    """rating only: a larger number is refused, and none is answered; without it, the largest of train."""
    skip_empty: bool = False
    """Leave out rows without a text or without a label, and say how many; without it, the first one stops training."""
    valid_share: float = Field(0.2, gt=0, lt=1)
    """Without a validation file, this stratified share of train is held out to choose on."""
    long_texts: Literal["truncate", "windows"] = "truncate"
    """Texts beyond the context: truncate counts and reports them; windows reads all of it and averages the scores."""

    @model_validator(mode="after")
    def _settings_fit_the_task(self) -> Self:
        if self.separator is not None and self.task not in ("auto", "labels"):
            raise ValueError(f"labelled.separator is for several labels a text, got labelled.task {self.task}")
        if self.task != "rating":
            for name in ("lowest", "highest"):
                if getattr(self, name) is not None:
                    raise ValueError(f"labelled.{name} is for numbers; add labelled.task rating, got {self.task}")
        if self.lowest is not None and self.highest is not None and self.lowest >= self.highest:
            raise ValueError(
                f"labelled.lowest must be below labelled.highest, got {self.lowest:g} and {self.highest:g}"
            )
        if self.second_column is not None and self.long_texts == "windows":
            raise ValueError(
                "labelled.long_texts windows does not go with labelled.second_column: a window would hold one text of a pair"
            )
        return self
