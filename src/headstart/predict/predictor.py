"""Predictor: a network in torch that turns texts into predictions."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import RuntimeConfig
from headstart.data.datasets import LabelledDataset, encode_inputs
from headstart.predict.bundle_predictor import BundlePredictor
from headstart.runtime import Runtime, setup_runtime
from headstart.store.bundle import Bundle, load_bundle
from headstart.tasks import TextInput
from headstart.train.scoring import bf16_copy, pack_for_scoring, score_texts

Ids = NDArray[np.int64]


class Predictor(BundlePredictor[Ids]):
    """A network on a device; a text is encoded as its token ids."""

    bundle: Bundle

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        super().__init__(bundle)
        self.runtime = runtime
        if runtime.device.type != "cpu":
            self.batch_overhead = sys.maxsize  # a GPU is not saturated even by full batches
        bundle.model.to(runtime.device)
        self._bf16_model = None if self.task.kind == "rating" else bf16_copy(bundle.model, runtime)
        self._packed = pack_for_scoring(bundle.model, runtime)

    @classmethod
    def load(cls, folder: Path, runtime: RuntimeConfig | None = None) -> "Predictor":
        """Load a run folder or bundle made by `headstart finetune`."""
        return cls(load_bundle(folder, head_type="classify"), setup_runtime(runtime or RuntimeConfig()))

    @property
    def max_tokens(self) -> int:
        """The tokens of a text that fit into the context, beside the special ones."""
        return self.bundle.config.context - self.bundle.tokenizer.special.num_special_tokens

    def encode(self, texts: Sequence[TextInput]) -> list[Ids]:
        """Tokenize texts or pairs of texts, without truncation or special tokens around them."""
        return [np.asarray(text, dtype=np.int64) for text in encode_inputs(self.bundle.tokenizer, texts)]

    def logits(
        self,
        encoded: Sequence[Ids],
        check: Callable[[], None] = lambda: None,
        done: Callable[[int], None] | None = None,
    ) -> NDArray[np.float64]:
        """Compute the logits in batches of similar length."""
        return score_texts(self.bundle.model, self._dataset(encoded), self.runtime, check, done, unpadded=self._packed)

    def rounded_logits(
        self, encoded: Sequence[Ids], check: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64] | None:
        """Compute the logits in bf16, where that is faster and the settings leave the choice; else return None."""
        if self._bf16_model is None:
            return None
        return score_texts(self._bf16_model, self._dataset(encoded), self.runtime, check, unpadded=True)

    def length(self, encoded: Ids) -> int:
        """The number of tokens, without the special ones."""
        return len(encoded)

    def padded_shape(self, encoded: Ids) -> tuple[int, int]:
        """The rows (one, or its windows) and their length."""
        num_special = self.bundle.tokenizer.special.num_special_tokens
        windows = -(-max(len(encoded), 1) // self.max_tokens) if self.bundle.windows else 1
        return windows, min(len(encoded) + num_special, self.bundle.config.context)

    def truncates(self, encoded: Ids) -> bool:
        """Whether a text exceeds the context, and is not read in windows."""
        return len(encoded) > self.max_tokens and not self.bundle.windows

    def dataset(self, texts: Sequence[TextInput]) -> LabelledDataset:
        """Encode texts as training did: the same tokenizer, context and treatment of long texts."""
        return self._dataset(self.encode(texts))

    def _dataset(self, encoded: Sequence[Ids]) -> LabelledDataset:
        return LabelledDataset(
            encoded,
            [0] * len(encoded),
            self.bundle.tokenizer.special,
            context=self.bundle.config.context,
            windows=self.bundle.windows,
            pair=self.task.pair,
        )
