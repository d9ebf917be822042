"""A model that answers: texts in, labels and probabilities (or numbers) out, the same alone and in any batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import RuntimeConfig
from headstart.data.batches import LabelledRows
from headstart.data.joined import encode_questions
from headstart.data.labelled import Question as Question
from headstart.errors import DataError, UsageError
from headstart.predict.abstain import threshold_for
from headstart.predict.answers import AnyPrediction, answer
from headstart.predict.answers import Prediction as Prediction
from headstart.runtime import Runtime, start
from headstart.store.bundle import Bundle, load_bundle
from headstart.train.evaluate import score_texts


class Predictor:
    """A classifier bundle, loaded once and asked often."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self.bundle, self.runtime = bundle, runtime
        self.labels, self.target = bundle.labels, bundle.target
        bundle.model.to(runtime.device)

    @classmethod
    def load(cls, folder: Path, runtime: RuntimeConfig | None = None) -> "Predictor":
        """Load a run folder or bundle made by `headstart finetune`."""
        return cls(load_bundle(folder, task="classify"), start(runtime or RuntimeConfig()))

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
        texts = _checked(texts, pair=self.target.pair)
        if not texts:
            return []
        ids = self.encode(texts)
        return self.answers(ids, self.shares(ids, check), least)

    def least(self, abstain: float | None) -> float:
        """The probability below which an answer is withheld for a wanted precision; none is where none was asked for."""
        return 0.0 if abstain is None else threshold_for(self.bundle, abstain).threshold

    def encode(self, texts: Sequence[Question]) -> list[NDArray[np.int64]]:
        """The tokens of each text, or of each pair."""
        return [np.asarray(text, dtype=np.int64) for text in encode_questions(self.bundle.tokenizer, texts)]

    def shares(self, ids: Sequence[NDArray[np.int64]], check: Callable[[], None] = lambda: None) -> NDArray[np.float64]:
        """Of every label its probability, or the number, a row a text; from whichever thread, one at a time."""
        return self.target.shares(score_texts(self.bundle.model, self._rows(ids), self.runtime, check))

    def answers(
        self, ids: Sequence[NDArray[np.int64]], shares: NDArray[np.float64], least: float = 0.0
    ) -> list[AnyPrediction]:
        """Probabilities in words: the likeliest label, or `abstain` where it has less than `least`; or labels, or a number."""
        longest = self.bundle.config.context - self.bundle.tokenizer.special.around
        return [
            answer(self.target, share, len(text) > longest and not self.bundle.windows, least)
            for text, share in zip(ids, shares, strict=True)
        ]

    def rows(self, texts: Sequence[Question], labels: NDArray[Any] | None = None) -> LabelledRows:
        """The texts as training saw its own: the same tokenizer, context and long-text rule."""
        return self._rows(self.encode(texts), labels)

    def _rows(self, ids: Sequence[NDArray[np.int64]], labels: NDArray[Any] | None = None) -> LabelledRows:
        return LabelledRows(
            ids,
            [0] * len(ids) if labels is None else labels,
            self.bundle.tokenizer.special,
            context=self.bundle.config.context,
            windows=self.bundle.windows,
            pair=self.target.pair,
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
