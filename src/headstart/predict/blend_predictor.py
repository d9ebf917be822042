"""BlendPredictor: a network and a linear classifier that answer together."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import RuntimeConfig
from headstart.errors import UsageError
from headstart.linear.blend import blend_logits
from headstart.predict.bundle_predictor import BundlePredictor
from headstart.predict.linear_predictor import LinearPredictor
from headstart.predict.outputs import single_texts
from headstart.predict.predictor import Ids, Predictor
from headstart.runtime import Runtime, setup_runtime
from headstart.store.bundle import BlendBundle, load_classifier
from headstart.store.linear_bundle import LinearBundle
from headstart.tasks import TextInput


class EncodedBlend(NamedTuple):
    """A text and its token ids."""

    text: str
    ids: Ids


class BlendPredictor(BundlePredictor[EncodedBlend]):
    """A network on a device and a linear classifier, blended by `blend_logits`."""

    bundle: BlendBundle

    def __init__(self, bundle: BlendBundle, runtime: Runtime) -> None:
        super().__init__(bundle)
        self.network = Predictor(bundle.network, runtime)
        self.batch_overhead = self.network.batch_overhead
        self.linear = LinearPredictor(LinearBundle(bundle.linear, bundle.task))

    @classmethod
    def load(cls, folder: Path, runtime: RuntimeConfig | None = None) -> "BlendPredictor":
        """Load a run folder or bundle that holds a blend."""
        bundle = load_classifier(folder)
        if not isinstance(bundle, BlendBundle):
            raise UsageError(f"{folder} does not contain a blend of a network and a linear classifier")
        return cls(bundle, setup_runtime(runtime or RuntimeConfig()))

    def encode(self, texts: Sequence[TextInput]) -> list[EncodedBlend]:
        """Tokenize texts for the network, and keep them for the linear classifier."""
        singles = single_texts(texts)
        return [EncodedBlend(text, ids) for text, ids in zip(singles, self.network.encode(singles), strict=True)]

    def logits(
        self,
        encoded: Sequence[EncodedBlend],
        check: Callable[[], None] = lambda: None,
        done: Callable[[int], None] | None = None,
    ) -> NDArray[np.float64]:
        """Compute the blended logits; the linear classifier takes little of the time."""
        network = self.network.logits([text.ids for text in encoded], check, done)
        return self._blend(network, encoded, check)

    def rounded_logits(
        self, encoded: Sequence[EncodedBlend], check: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64] | None:
        """Compute the blended logits with those of the network in bf16; None where the network has none."""
        network = self.network.rounded_logits([text.ids for text in encoded], check)
        return None if network is None else self._blend(network, encoded, check)

    def _blend(
        self, network: NDArray[np.float64], encoded: Sequence[EncodedBlend], check: Callable[[], None]
    ) -> NDArray[np.float64]:
        linear = self.linear.logits([text.text for text in encoded], check)
        return blend_logits(network, linear, self.bundle.weight, self.bundle.temperature)

    def length(self, encoded: EncodedBlend) -> int:
        """The number of tokens that the network would read."""
        return self.network.length(encoded.ids)

    def padded_shape(self, encoded: EncodedBlend) -> tuple[int, int]:
        """The rows and their length as the network reads them."""
        return self.network.padded_shape(encoded.ids)

    def truncates(self, encoded: EncodedBlend) -> bool:
        """Whether the network reads the beginning of a text only; the linear classifier reads all of it."""
        return self.network.truncates(encoded.ids)
