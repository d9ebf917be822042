"""What a pretraining run measured on held-out text, in words and for its record."""

from dataclasses import asdict, dataclass
from typing import Any

from headstart.train.evaluate import LanguageScore
from headstart.train.pairs import PairScore


@dataclass(frozen=True)
class HeldOutScore:
    """What was measured on the held-out documents of one stage."""

    text: LanguageScore
    pairs: PairScore | None

    def about_pairs(self) -> dict[str, Any]:
        """For JSON; empty where the second question was not asked."""
        return {"pairs": asdict(self.pairs)} if self.pairs else {}

    def words(self, *, tokens: bool = False) -> str:
        """One line for a person."""
        text, pairs = self.text, self.pairs
        over = f" over {text.tokens:,} tokens" if tokens else ""
        bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.3f} bits per byte"
        told = f", pairs {100 * pairs.accuracy:.1f} % right of {pairs.pairs:,}" if pairs else ""
        return f"held-out loss {text.loss:.3f}, perplexity {text.perplexity:.1f}{bits}{over}{told}"
