"""BundlePredictor: the base class of the predictors of networks, linear classifiers and blends. No torch.

A predictor turns texts into predictions in three steps, which a server takes on different threads: `encode`,
`probabilities`, `make_predictions`. It abstains below a wanted precision, by the table that validation left in the bundle.

E is a text as its model reads it: token ids, the text itself, or both.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import RuntimeConfig
from headstart.errors import ConfigError, DataError, UsageError
from headstart.predict.outputs import ABSTAIN, AnyPrediction, decision_margins, make_prediction, predict_readable
from headstart.store.linear_bundle import classifier_kind
from headstart.store.model_card import HELD_OUT
from headstart.tasks import TextInput
from headstart.train.calibration import MIN_ROWS, Threshold

if TYPE_CHECKING:
    from headstart.store.bundle import AnyClassifierBundle

E = TypeVar("E")
CLOSE_MARGIN = 0.05
"""The margin below which a decision in bf16 is made again in fp32; docs/results/cpu.md has the changes that were measured."""
_MAX_VALID_FRACTION = 0.5
"""The largest fraction of labelled rows to suggest for validation; beyond it, labelling more rows helps more."""
_TASK_PHRASES = {"labels": "any number of labels", "rating": "a rating"}


class BundlePredictor(ABC, Generic[E]):
    """A classifier bundle of any kind. A prediction does not depend on the other texts of its batch."""

    bundle: "AnyClassifierBundle"
    length_unit = "tokens"
    """The unit of `length`."""
    batch_overhead = 24
    """The fixed cost of a batch in padded tokens; 24 was measured on a CPU core."""

    def __init__(self, bundle: "AnyClassifierBundle") -> None:
        self.bundle = bundle
        self.labels, self.task = bundle.labels, bundle.task

    @abstractmethod
    def encode(self, texts: Sequence[TextInput]) -> list[E]:
        """Encode texts or pairs of texts, without truncation."""

    @abstractmethod
    def logits(
        self,
        encoded: Sequence[E],
        check: Callable[[], None] = lambda: None,
        done: Callable[[int], None] | None = None,
    ) -> NDArray[np.float64]:
        """Compute the logits, or the rating, one row per text. Not safe for concurrent calls.

        Args:
            check: called between batches; it may raise to interrupt.
            done: called with the number of texts of each batch.
        """

    def rounded_logits(
        self,
        encoded: Sequence[E],  # noqa: ARG002
        check: Callable[[], None] = lambda: None,  # noqa: ARG002
    ) -> NDArray[np.float64] | None:
        """Compute the logits in bf16; None for a model that only has exact ones."""
        return None

    @abstractmethod
    def length(self, encoded: E) -> int:
        """The number of tokens, or words, of a text."""

    @abstractmethod
    def padded_shape(self, encoded: E) -> tuple[int, int]:
        """The rows and the length of a text as the model reads it, for batches of similar cost."""

    @abstractmethod
    def truncates(self, encoded: E) -> bool:
        """Whether the model reads the beginning of a text only."""

    def predict(
        self, texts: Sequence[TextInput], check: Callable[[], None] = lambda: None, *, abstain: float | None = None
    ) -> list[AnyPrediction | None]:
        """Predict every text, in order; texts of similar length are batched together.

        A blank text (or a pair with one) has no prediction: its place holds None, and the others have theirs.

        Args:
            texts: texts, or pairs of texts for a model of pairs; what is no text is refused.
            check: called between batches; it may raise to interrupt.
            abstain: the precision that predictions should have. A text whose most probable label is below the
                threshold for it, by the table that validation left in the bundle, gets the label `abstain`.
        """
        min_probability = self.min_probability(abstain)

        def predict(readable: list[TextInput]) -> list[AnyPrediction]:
            encoded = self.encode(readable)
            probabilities = self.probabilities(encoded, check, min_probability)
            return self.make_predictions(encoded, probabilities, min_probability)

        return predict_readable(_check_texts(texts, pair=self.task.pair), predict)

    def min_probability(self, abstain: float | None) -> float:
        """The probability below which predictions are withheld for a precision; 0 if none is given."""
        return 0.0 if abstain is None else threshold_for(self.bundle, abstain).threshold

    def probabilities(
        self,
        encoded: Sequence[E],
        check: Callable[[], None] = lambda: None,
        min_probability: "float | NDArray[np.float64]" = 0.0,
    ) -> NDArray[np.float64]:
        """Compute the probability of every label, or the rating, one row per text. Not safe for concurrent calls.

        Where there are logits in bf16, those of a text whose decision is closer than `CLOSE_MARGIN` are computed again. This
        depends on the text alone, so that a prediction does not depend on the others.

        Args:
            min_probability: of all texts or of each; below it predictions abstain, which is a decision as well.
        """
        rounded = self.rounded_logits(encoded, check)
        if rounded is None:
            return self.task.probabilities(self.logits(encoded, check))
        probabilities = self.task.probabilities(rounded)
        close = np.flatnonzero(decision_margins(self.task, probabilities, min_probability) < CLOSE_MARGIN)
        if len(close):
            exact = self.logits([encoded[int(index)] for index in close], check)
            probabilities[close] = self.task.probabilities(exact)
        return probabilities

    def make_predictions(
        self, encoded: Sequence[E], probabilities: NDArray[np.float64], min_probability: float = 0.0
    ) -> list[AnyPrediction]:
        """Make predictions from encoded texts and `probabilities`; below `min_probability` they abstain."""
        return [
            make_prediction(self.task, row, self.truncates(text), min_probability)
            for text, row in zip(encoded, probabilities, strict=True)
        ]


AnyPredictor = BundlePredictor[Any]


def load_predictor(folder: Path, runtime: RuntimeConfig | None = None) -> AnyPredictor:
    """Load a classifier of any kind; a linear one needs no torch, and `runtime` does not concern it."""
    kind = classifier_kind(folder)
    if kind == "linear":
        from headstart.predict.linear_predictor import LinearPredictor

        return LinearPredictor.load(folder)
    if kind == "blend":
        from headstart.predict.blend_predictor import BlendPredictor

        return BlendPredictor.load(folder, runtime)
    from headstart.predict.predictor import Predictor

    return Predictor.load(folder, runtime)


def _check_texts(texts: Sequence[TextInput], *, pair: bool) -> list[TextInput]:
    """Return the texts as a list; refuse a bare string, which is a sequence of letters, and what is no text."""
    if isinstance(texts, str):
        raise UsageError('predict takes a list of texts, got one text; write predict(["..."])')
    # a table or a dictionary would give the names of its columns as texts
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise UsageError(f'predict takes a list of texts, got {type(texts).__name__}; write predict(["..."])')
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
        checked.append((text[0], text[1]) if pair else text)
    return checked


def threshold_for(bundle: "AnyClassifierBundle", precision: float) -> Threshold:
    """Return the lowest threshold that reached a precision on validation; raise UsageError if none did."""
    if not 0 < precision < 1:
        raise ConfigError(f"--abstain must be a precision between 0 and 1, such as 0.95, got {precision:g}")
    if bundle.task.kind != "classes":
        raise UsageError(
            f"--abstain supports one class per text, but {bundle.path} predicts {_TASK_PHRASES[bundle.task.kind]}"
        )
    if ABSTAIN in bundle.labels:
        raise UsageError(
            f"{bundle.path} has a label called {ABSTAIN}: texts without a prediction could not be distinguished"
        )
    calibration = bundle.about.get("calibration")
    if not calibration:
        raise UsageError(f"{bundle.path} has no table of thresholds; fine-tune it again with this version")
    table = [Threshold(**row) for row in calibration["thresholds"]]
    num_rows = calibration["rows"]
    if num_rows < MIN_ROWS:
        raise UsageError(
            f"{bundle.path} was chosen on {num_rows} validation rows, too few to choose a threshold; "
            f"{_more_validation_rows_hint(bundle)}"
        )
    for threshold in table:
        if threshold.wanted >= precision - 1e-9:
            return threshold
    best = f"the highest was {table[-1].wanted:g}" if table else "fewer than half of the predictions were correct"
    raise UsageError(
        f"no threshold gave a precision of {precision:g} on the {num_rows:,} validation rows of {bundle.path}; {best}"
    )


def _more_validation_rows_hint(bundle: "AnyClassifierBundle") -> str:
    """Explain how to get enough validation rows: from a file, or with a larger held-out fraction of train."""
    if bundle.about.get("cross_validated"):  # validation rows are rows of train: of all folds, or of one hold-out
        more_time = ", or run headstart auto with more minutes" if bundle.about.get("folds") == 1 else ""
        return f"{MIN_ROWS} are needed: label more rows{more_time}"
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
    predictions with a probability below 0.810 are withheld
    on 400 validation rows, 62 % of the predictions were kept, and 95.6 % of those were correct (95 % interval 92.0 to 97.6)
    """
    interval = f"95 % interval {100 * threshold.low:.1f} to {100 * threshold.high:.1f}"
    return (
        f"predictions with a probability below {threshold.threshold:.3f} are withheld: on {rows:,} validation rows, "
        f"{100 * threshold.coverage:.0f} % of the predictions were kept, and {100 * threshold.precision:.1f} % of those were "
        f"correct ({interval})"
    )
