"""Whether torch compiles a network before it is pretrained: what that takes must be earned back."""

from collections.abc import Callable

import torch
from torch import nn

from headstart.config import PretrainConfig
from headstart.recipes.stages import Stage, wanted

WORTH = 4e16
"""Operations of a run, six a parameter and token, that earn it back: two minutes of an H200 at two fifths of its peak, where
compiling takes 20 to 40 seconds the first time (a few once torch has it in its cache)."""
_MINUTES = 3.0


def compiles(
    config: PretrainConfig,
    model: nn.Module,
    stages: list[Stage],
    device: torch.device,
    say: Callable[[str], None],
    *,
    alone: bool,
) -> bool:
    """What was asked for; unasked a long run on a GPU is compiled, if a compiler is there.

    How long it is follows from its settings alone, so that a run that is resumed decides alike.

    Args:
        alone: whether one process trains.
    """
    asked = config.runtime
    if asked.compile is not None:
        return asked.compile
    usual = device.type == "cuda" and alone and not asked.deterministic and not asked.recompute
    if not (usual and pays(config, model, stages)):
        return False
    fault = fault_of_the_compiler(device)
    if fault:
        say(f"layers are not compiled, which would be faster: {fault}")
    return fault is None


def pays(config: PretrainConfig, model: nn.Module, stages: list[Stage]) -> bool:
    """Whether a run is long enough: by its minutes, or by what it has to compute."""
    if config.loop.minutes is not None:
        return config.loop.minutes >= _MINUTES
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows = wanted(stages, config.loop) * max(stage.rows_a_step for stage in stages)
    return 6.0 * parameters * rows * config.model.context >= WORTH


def fault_of_the_compiler(device: torch.device) -> str | None:
    """Why nothing can be compiled here, in one line; None where all is well. Tried on a few numbers."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except (RuntimeError, OSError, ImportError) as error:  # no C compiler, no triton, an old GPU
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None
