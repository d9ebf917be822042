"""A larger model that a smaller one learns from beside the text: whether it can, and what is kept of it."""

from dataclasses import dataclass
from typing import Any

from headstart.config import PretrainConfig
from headstart.errors import ConfigError, UsageError
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle
from headstart.store.card import bare
from headstart.text.tokenizer import Tokenizer
from headstart.train.distil import Teacher

WEIGHT = 0.5
"""How much a teacher's opinion counts unless told: as much as the text."""


def check_weight(teacher: str | None, weight: float | None) -> float:
    """The weight that will be used: 0 without a teacher."""
    if teacher is None:
        if weight is not None:
            raise UsageError("--teacher-weight says how much --teacher counts; name one")
        return 0.0
    weight = WEIGHT if weight is None else weight
    if not 0 <= weight <= 1:
        raise ConfigError(f"--teacher-weight must lie between 0 and 1, got {weight:g}")
    return weight


@dataclass(frozen=True)
class Teaching:
    """The teacher of a run."""

    name: str
    """As the person wrote it."""
    bundle: Bundle
    weight: float

    def begin(self, config: PretrainConfig, tokenizer: Tokenizer, runtime: Runtime) -> Teacher | None:
        """The teacher at its place, if it can teach this; None where it has nothing to say."""
        _refuse(self.name, self.bundle, config, tokenizer)
        if not self.weight:
            return None
        return Teacher(self.bundle.model.to(runtime.device).requires_grad_(False), self.weight)

    def about(self) -> dict[str, Any]:
        """For the record of what was learnt."""
        return {"name": bare(self.name), "weight": self.weight}


def _refuse(name: str, teacher: Bundle, config: PretrainConfig, tokenizer: Tokenizer) -> None:
    """Refuse one that speaks of other tokens, was asked other questions, or reads less."""
    if teacher.tokenizer.digest != tokenizer.digest:
        raise UsageError(
            f"--teacher {name} has another tokenizer ({teacher.tokenizer.digest[:12]}, not {tokenizer.digest[:12]}); "
            "prepare the text with the teacher's"
        )
    if teacher.objective not in (config.objective, "hybrid"):
        raise UsageError(f"--teacher {name} learnt {teacher.objective}, which does not teach {config.objective}")
    if config.pairs.weight:
        raise UsageError("--teacher has no opinion on pairs; leave pairs.weight at 0")
    if teacher.config.context < config.model.context:
        raise UsageError(
            f"--teacher {name} reads {teacher.config.context} tokens, the rows have {config.model.context}; "
            f"set model.context to {teacher.config.context}"
        )
