"""LinearPredictor: a linear classifier that turns texts into predictions, without torch."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.predict.bundle_predictor import BundlePredictor
from headstart.predict.outputs import single_texts
from headstart.store.linear_bundle import LinearBundle, load_linear_bundle
from headstart.tasks import TextInput

CHUNK = 256
"""Texts that are scored at a time."""
_CHARACTERS_PER_TOKEN = 4
"""A rough figure: it makes the cost of texts comparable with that of token ids."""


class LinearPredictor(BundlePredictor[str]):
    """A linear classifier; a text is encoded as itself, and no text is truncated."""

    bundle: LinearBundle
    length_unit = "words"
    batch_overhead = sys.maxsize  # nothing is padded, so texts of any lengths share a batch

    @classmethod
    def load(cls, folder: Path) -> "LinearPredictor":
        """Load a run folder or bundle that holds a linear classifier."""
        return cls(load_linear_bundle(folder))

    def encode(self, texts: Sequence[TextInput]) -> list[str]:
        """Return the texts as they are."""
        return single_texts(texts)

    def logits(
        self,
        encoded: Sequence[str],
        check: Callable[[], None] = lambda: None,
        done: Callable[[int], None] | None = None,
    ) -> NDArray[np.float64]:
        """Compute the logits, some texts at a time."""
        rows = np.zeros((len(encoded), len(self.labels)))
        for start in range(0, len(encoded), CHUNK):
            check()
            chunk = encoded[start : start + CHUNK]
            rows[start : start + len(chunk)] = self.bundle.classifier.logits(chunk)
            if done:
                done(len(chunk))
        return rows

    def length(self, encoded: str) -> int:
        """The number of words."""
        return len(encoded.split())

    def padded_shape(self, encoded: str) -> tuple[int, int]:
        """One row of about as many tokens as the text has; nothing is padded."""
        return 1, len(encoded) // _CHARACTERS_PER_TOKEN + 1

    def truncates(self, encoded: str) -> bool:  # noqa: ARG002 (the same for every text)
        """No text is truncated."""
        return False
