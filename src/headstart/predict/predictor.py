"""A classifier that answers: texts in, labels and probabilities out, the same alone and in any batch."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.config import RuntimeConfig
from headstart.data.batches import LabelledRows
from headstart.errors import DataError, UsageError
from headstart.predict.abstain import ABSTAIN, threshold_for
from headstart.predict.prediction import Prediction
from headstart.runtime import Runtime, start
from headstart.store.bundle import Bundle, load_bundle
from headstart.train.evaluate import score_texts
from headstart.train.shares import probabilities


class Predictor:
    """A classifier bundle, loaded once and asked often."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self.bundle, self.runtime = bundle, runtime
        self.labels = bundle.labels
        bundle.model.to(runtime.device)

    @classmethod
    def load(cls, folder: Path, runtime: RuntimeConfig | None = None) -> "Predictor":
        """Load a run folder or bundle made by `headstart finetune`."""
        return cls(load_bundle(folder, task="classify"), start(runtime or RuntimeConfig()))

    def predict(
        self, texts: Sequence[str], check: Callable[[], None] = lambda: None, *, abstain: float | None = None
    ) -> list[Prediction]:
        """Answer every text, in order; texts of like length are read together, which changes no answer.

        Args:
            abstain: the share of answers that should be right; a text whose answer is not sure enough for that, by
                the table that validation left in the bundle, gets the label `abstain`.
        """
        least = self.least(abstain)
        texts = _checked(texts)
        if not texts:
            return []
        ids = self.encode(texts)
        return self.answers(ids, self.shares(ids, check), least)

    def least(self, abstain: float | None) -> float:
        """The probability below which an answer is withheld for a wanted precision; none is where none was asked for."""
        return 0.0 if abstain is None else threshold_for(self.bundle, abstain).threshold

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The tokens of each text."""
        return [np.asarray(text, dtype=np.int64) for text in self.bundle.tokenizer.encode_batch(texts)]

    def shares(self, ids: Sequence[NDArray[np.int64]], check: Callable[[], None] = lambda: None) -> NDArray[np.float64]:
        """The probability of every label, a row a text; from whichever thread, as long as it is one at a time."""
        return probabilities(score_texts(self.bundle.model, self._rows(ids), self.runtime, check))

    def answers(
        self, ids: Sequence[NDArray[np.int64]], shares: NDArray[np.float64], least: float = 0.0
    ) -> list[Prediction]:
        """Probabilities in words: the likeliest label, or `abstain` where it has less than `least`."""
        longest = self.bundle.config.context - 1  # the start token takes a place
        return [
            Prediction(
                label=ABSTAIN if share.max() < least else self.labels[int(share.argmax())],
                probability=float(share.max()),
                probabilities=dict(zip(self.labels, map(float, share), strict=True)),
                truncated=len(text) > longest and not self.bundle.windows,
                abstained=bool(share.max() < least),
            )
            for text, share in zip(ids, shares, strict=True)
        ]

    def rows(self, texts: Sequence[str], labels: Sequence[int] | None = None) -> LabelledRows:
        """The texts as training saw its own: the same tokenizer, context and long-text rule."""
        return self._rows(self.encode(texts), labels)

    def _rows(self, ids: Sequence[NDArray[np.int64]], labels: Sequence[int] | None = None) -> LabelledRows:
        return LabelledRows(
            ids,
            [0] * len(ids) if labels is None else labels,
            self.bundle.tokenizer.special,
            context=self.bundle.config.context,
            windows=self.bundle.windows,
        )


def _checked(texts: Sequence[str]) -> list[str]:
    """The texts as a list: a bare string would be read letter by letter, and nothing can be said of an empty text."""
    if isinstance(texts, str):
        raise UsageError('predict takes a list of texts, got one text; write predict(["..."])')
    checked = list(texts)
    for place, text in enumerate(checked):
        if not isinstance(text, str):
            raise DataError(f"texts[{place}] is {text!r:.40}, expected a string")
        if not text.strip():
            raise DataError(f"texts[{place}] is empty; there is nothing to classify")
    return checked
