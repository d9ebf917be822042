"""Predictor: a classifier in torch that turns texts into predictions, and abstains below a chosen precision."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import RuntimeConfig
from headstart.data.datasets import LabelledDataset, encode_inputs
from headstart.errors import ConfigError, DataError, UsageError
from headstart.predict.outputs import ABSTAIN, AnyPrediction, make_prediction
from headstart.runtime import Runtime, setup_runtime
from headstart.store.bundle import Bundle, load_bundle
from headstart.store.model_card import HELD_OUT
from headstart.tasks import TextInput
from headstart.train.calibration import MIN_ROWS, Threshold
from headstart.train.scoring import score_texts

_MAX_VALID_FRACTION = 0.5
"""The largest fraction of labelled rows to suggest for validation; beyond it, labelling more rows helps more."""
_TASK_PHRASES = {"labels": "any number of labels", "rating": "a rating"}


class Predictor:
    """A classifier bundle on a device. A prediction does not depend on the other texts of its batch."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self.bundle, self.runtime = bundle, runtime
        self.labels, self.task = bundle.labels, bundle.task
        bundle.model.to(runtime.device)

    @classmethod
    def load(cls, folder: Path, runtime: RuntimeConfig | None = None) -> "Predictor":
        """Load a run folder or bundle made by `headstart finetune`."""
        return cls(load_bundle(folder, head_type="classify"), setup_runtime(runtime or RuntimeConfig()))

    def predict(
        self, texts: Sequence[TextInput], check: Callable[[], None] = lambda: None, *, abstain: float | None = None
    ) -> list[AnyPrediction]:
        """Predict every text, in order; texts of similar length are batched together.

        Args:
            texts: texts, or pairs of texts for a model of pairs.
            check: called between batches; it may raise to interrupt.
            abstain: the precision that predictions should have. A text whose most probable label is below the
                threshold for it, by the table that validation left in the bundle, gets the label `abstain`.
        """
        min_probability = self.min_probability(abstain)
        texts = _check_texts(texts, pair=self.task.pair)
        if not texts:
            return []
        ids = self.encode(texts)
        return self.make_predictions(ids, self.probabilities(ids, check), min_probability)

    def min_probability(self, abstain: float | None) -> float:
        """The probability below which predictions are withheld for a precision; 0 if none is given."""
        return 0.0 if abstain is None else threshold_for(self.bundle, abstain).threshold

    def encode(self, texts: Sequence[TextInput]) -> list[NDArray[np.int64]]:
        """Tokenize texts or pairs of texts, without truncation or special tokens around them."""
        return [np.asarray(text, dtype=np.int64) for text in encode_inputs(self.bundle.tokenizer, texts)]

    def probabilities(
        self, ids: Sequence[NDArray[np.int64]], check: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64]:
        """Compute the probability of every label, or the rating, one row per text. Not safe for concurrent calls."""
        return self.task.probabilities(score_texts(self.bundle.model, self._dataset(ids), self.runtime, check))

    def make_predictions(
        self, ids: Sequence[NDArray[np.int64]], probabilities: NDArray[np.float64], min_probability: float = 0.0
    ) -> list[AnyPrediction]:
        """Make predictions from token ids and `probabilities`; below `min_probability` they abstain."""
        max_tokens = self.bundle.config.context - self.bundle.tokenizer.special.num_special_tokens
        return [
            make_prediction(self.task, row, len(text) > max_tokens and not self.bundle.windows, min_probability)
            for text, row in zip(ids, probabilities, strict=True)
        ]

    def dataset(self, texts: Sequence[TextInput], labels: NDArray[Any] | None = None) -> LabelledDataset:
        """Encode texts as training did: the same tokenizer, context and treatment of long texts."""
        return self._dataset(self.encode(texts), labels)

    def _dataset(self, ids: Sequence[NDArray[np.int64]], labels: NDArray[Any] | None = None) -> LabelledDataset:
        return LabelledDataset(
            ids,
            [0] * len(ids) if labels is None else labels,
            self.bundle.tokenizer.special,
            context=self.bundle.config.context,
            windows=self.bundle.windows,
            pair=self.task.pair,
        )


def _check_texts(texts: Sequence[TextInput], *, pair: bool) -> list[TextInput]:
    """Return the texts as a list; refuse a bare string, which is a sequence of letters, and empty texts."""
    if isinstance(texts, str):
        raise UsageError('predict takes a list of texts, got one text; write predict(["..."])')
    checked: list[TextInput] = []
    for index, text in enumerate(texts):
        if pair and not (isinstance(text, (tuple, list)) and len(text) == 2):
            raise DataError(f'texts[{index}] is {text!r:.40}, expected a pair of texts, as in ("...", "...")')
        parts = (
            {f"texts[{index}][{side}]": part for side, part in enumerate(text)} if pair else {f"texts[{index}]": text}
        )
        for name, part in parts.items():
            if not isinstance(part, str):
                raise DataError(f"{name} is {part!r:.40}, expected a string")
            if not part.strip():
                raise DataError(f"{name} is empty; there is nothing to classify")
        checked.append((text[0], text[1]) if pair else text)
    return checked


def threshold_for(bundle: Bundle, precision: float) -> Threshold:
    """Return the lowest threshold that reached a precision on validation; raise UsageError if none did."""
    if not 0 < precision < 1:
        raise ConfigError(f"--abstain is a wanted precision between 0 and 1, such as 0.95, got {precision:g}")
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
    num_rows = calibration["rows"]
    if num_rows < MIN_ROWS:
        raise UsageError(
            f"{bundle.path} was chosen on {num_rows} validation rows, too few to say how sure is sure enough; "
            f"{_more_validation_rows_hint(bundle)}"
        )
    for threshold in table:
        if threshold.wanted >= precision - 1e-9:
            return threshold
    best = f"the most was {table[-1].wanted:g}" if table else "not even half of the answers were right"
    raise UsageError(
        f"no threshold gave a precision of {precision:g} on the {num_rows:,} validation rows of {bundle.path}; {best}"
    )


def _more_validation_rows_hint(bundle: Bundle) -> str:
    """How to get enough validation rows: from a file, or by a larger fraction if they were held out of train."""
    data = bundle.about.get("data")
    splits = {name: split for name, split in data.items() if isinstance(split, dict)} if isinstance(data, dict) else {}
    valid, train = splits.get("valid", {}), splits.get("train", {})
    if not str(valid.get("name", "")).startswith(HELD_OUT) or not isinstance(train.get("rows"), int):
        return f"fine-tune with a validation file of at least {MIN_ROWS}"
    rows = train["rows"] + valid["rows"]
    # the split is rounded by label, which may cost half a row for each
    fraction = math.ceil(100 * (MIN_ROWS + len(bundle.labels) / 2) / rows) / 100
    if fraction > _MAX_VALID_FRACTION:
        return f"there are {rows} labelled rows: label more, so that {MIN_ROWS} can be held out"
    return (
        f"fine-tune with labelled.valid_fraction {fraction:g}, which holds out {MIN_ROWS} of the {rows} labelled rows"
    )


def describe_threshold(threshold: Threshold, rows: int) -> str:
    """Describe a threshold, its coverage and its precision on validation.

    >>> print(describe_threshold(Threshold(0.95, 0.81, 0.956, 0.92, 0.976, 0.62, 248), 400).replace(": ", "\\n"))
    answers below 0.810 are withheld
    of 400 validation rows 62 % were answered, 95.6 % of those rightly (95 % interval 92.0 to 97.6)
    """
    interval = f"95 % interval {100 * threshold.low:.1f} to {100 * threshold.high:.1f}"
    return (
        f"answers below {threshold.threshold:.3f} are withheld: of {rows:,} validation rows "
        f"{100 * threshold.coverage:.0f} % were answered, {100 * threshold.precision:.1f} % of those rightly ({interval})"
    )
