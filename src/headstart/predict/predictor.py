"""Predictor: a classifier behind texts, and abstaining.

How sure an answer must be: the table that fine-tuning left in a bundle, read for a wanted precision.

A model that answers: texts in, labels and probabilities (or numbers) out, the same alone and in any batch.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import RuntimeConfig
from headstart.data.datasets import LabelledDataset, encode_inputs
from headstart.data.labelled import TextInput as Question
from headstart.errors import ConfigError, DataError, UsageError
from headstart.predict.predictions import ABSTAIN, AnyPrediction, make_prediction
from headstart.runtime import Runtime, setup_runtime
from headstart.store.bundle import Bundle, load_bundle
from headstart.store.model_card import HELD_OUT
from headstart.train.calibration import MIN_ROWS, Threshold
from headstart.train.scoring import score_texts

_MAX_PRECISION = 0.5
"""The share of labelled rows that may be held out: with less than half of them to learn from, more labels help more."""

_TASK_PHRASES = {"labels": "any number of labels", "rating": "a rating"}


def threshold_for(bundle: Bundle, wanted: float) -> Threshold:
    """The lowest threshold whose answers were right often enough on validation; refused where none was."""
    if not 0 < wanted < 1:
        raise ConfigError(f"--abstain is a wanted precision between 0 and 1, such as 0.95, got {wanted:g}")
    if bundle.task.kind != "classes":
        raise UsageError(
            f"--abstain is for one class a text, and {bundle.path} gives {_TASK_PHRASES[bundle.task.kind]}"
        )
    if ABSTAIN in bundle.labels:
        raise UsageError(f"{bundle.path} has a label called {ABSTAIN}: a text left without an answer could not be told")
    calibration = bundle.about.get("calibration")
    if not calibration:
        raise UsageError(f"{bundle.path} has no table of thresholds; fine-tune it again with this version")
    table = [Threshold(**row) for row in calibration["thresholds"]]
    rows = calibration["rows"]
    if rows < MIN_ROWS:
        raise UsageError(
            f"{bundle.path} was chosen on {rows} validation rows, too few to say how sure is sure enough; "
            f"{_how_to_get_more(bundle)}"
        )
    for row in table:
        if row.wanted >= wanted - 1e-9:
            return row
    best = f"the most was {table[-1].wanted:g}" if table else "not even half of the answers were right"
    raise UsageError(
        f"no threshold gave a precision of {wanted:g} on the {rows:,} validation rows of {bundle.path}; {best}"
    )


def _how_to_get_more(bundle: Bundle) -> str:
    """What to do for enough validation rows: a file of them, or a larger share where they were held out of the others."""
    data = bundle.about.get("data")
    parts = {name: part for name, part in data.items() if isinstance(part, dict)} if isinstance(data, dict) else {}
    valid, train = parts.get("valid", {}), parts.get("train", {})
    if not str(valid.get("name", "")).startswith(HELD_OUT) or not isinstance(train.get("rows"), int):
        return f"fine-tune with a validation file of at least {MIN_ROWS}"
    rows = train["rows"] + valid["rows"]
    # each label's part is rounded, which may take half a row of it
    share = math.ceil(100 * (MIN_ROWS + len(bundle.labels) / 2) / rows) / 100
    if share > _MAX_PRECISION:
        return f"there are {rows} labelled rows: label more, so that {MIN_ROWS} can be held out"
    return f"fine-tune with labelled.valid_fraction {share:g}, which holds out {MIN_ROWS} of the {rows} labelled rows"


def describe_threshold(found: Threshold, rows: int) -> str:
    """What a threshold can be trusted with.

    >>> print(describe_threshold(Threshold(0.95, 0.81, 0.956, 0.92, 0.976, 0.62, 248), 400).replace(": ", "\\n"))
    answers below 0.810 are withheld
    of 400 validation rows 62 % were answered, 95.6 % of those rightly (95 % interval 92.0 to 97.6)
    """
    interval = f"95 % interval {100 * found.low:.1f} to {100 * found.high:.1f}"
    return (
        f"answers below {found.threshold:.3f} are withheld: of {rows:,} validation rows {100 * found.coverage:.0f} % were "
        f"answered, {100 * found.precision:.1f} % of those rightly ({interval})"
    )


class Predictor:
    """A classifier bundle, loaded once and asked often."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self.bundle, self.runtime = bundle, runtime
        self.labels, self.task = bundle.labels, bundle.task
        bundle.model.to(runtime.device)

    @classmethod
    def load(cls, folder: Path, runtime: RuntimeConfig | None = None) -> "Predictor":
        """Load a run folder or bundle made by `headstart finetune`."""
        return cls(load_bundle(folder, head_type="classify"), setup_runtime(runtime or RuntimeConfig()))

    def predict(
        self, texts: Sequence[Question], check: Callable[[], None] = lambda: None, *, abstain: float | None = None
    ) -> list[AnyPrediction]:
        """Answer every text, in order; texts of like length are read together, which changes no answer.

        Args:
            texts: of a model that reads pairs, two texts each.
            abstain: the share of answers that should be right; a text whose answer is not sure enough for that, by
                the table that validation left in the bundle, gets the label `abstain`.
        """
        least = self.least(abstain)
        texts = _checked(texts, pair=self.task.pair)
        if not texts:
            return []
        ids = self.encode(texts)
        return self.answers(ids, self.probabilities(ids, check), least)

    def least(self, abstain: float | None) -> float:
        """The probability below which an answer is withheld for a wanted precision; none is where none was asked for."""
        return 0.0 if abstain is None else threshold_for(self.bundle, abstain).threshold

    def encode(self, texts: Sequence[Question]) -> list[NDArray[np.int64]]:
        """The tokens of each text, or of each pair."""
        return [np.asarray(text, dtype=np.int64) for text in encode_inputs(self.bundle.tokenizer, texts)]

    def probabilities(
        self, ids: Sequence[NDArray[np.int64]], check: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64]:
        """Of every label its probability, or the number, a row a text; from whichever thread, one at a time."""
        return self.task.probabilities(score_texts(self.bundle.model, self._rows(ids), self.runtime, check))

    def answers(
        self, ids: Sequence[NDArray[np.int64]], shares: NDArray[np.float64], least: float = 0.0
    ) -> list[AnyPrediction]:
        """Probabilities in words: the likeliest label, or `abstain` where it has less than `least`; or labels, or a number."""
        longest = self.bundle.config.context - self.bundle.tokenizer.special.num_special_tokens
        return [
            make_prediction(self.task, share, len(text) > longest and not self.bundle.windows, least)
            for text, share in zip(ids, shares, strict=True)
        ]

    def rows(self, texts: Sequence[Question], labels: NDArray[Any] | None = None) -> LabelledDataset:
        """The texts as training saw its own: the same tokenizer, context and long-text rule."""
        return self._rows(self.encode(texts), labels)

    def _rows(self, ids: Sequence[NDArray[np.int64]], labels: NDArray[Any] | None = None) -> LabelledDataset:
        return LabelledDataset(
            ids,
            [0] * len(ids) if labels is None else labels,
            self.bundle.tokenizer.special,
            context=self.bundle.config.context,
            windows=self.bundle.windows,
            pair=self.task.pair,
        )


def _checked(texts: Sequence[Question], *, pair: bool) -> list[Question]:
    """The texts as a list: a bare string would be read letter by letter, and nothing can be said of an empty text."""
    if isinstance(texts, str):
        raise UsageError('predict takes a list of texts, got one text; write predict(["..."])')
    checked: list[Question] = []
    for place, text in enumerate(texts):
        if pair and not (isinstance(text, (tuple, list)) and len(text) == 2):
            raise DataError(f'texts[{place}] is {text!r:.40}, expected a pair of texts, as in ("...", "...")')
        parts = (
            {f"texts[{place}][{side}]": part for side, part in enumerate(text)} if pair else {f"texts[{place}]": text}
        )
        for name, part in parts.items():
            if not isinstance(part, str):
                raise DataError(f"{name} is {part!r:.40}, expected a string")
            if not part.strip():
                raise DataError(f"{name} is empty; there is nothing to classify")
        checked.append((text[0], text[1]) if pair else text)
    return checked
