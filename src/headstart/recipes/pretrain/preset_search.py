"""How large a network the minutes allow: the largest preset that would still see enough text on this machine."""

from dataclasses import dataclass

import torch

from headstart.config.merge import merge_config
from headstart.config.presets import PRESET_SIZES, preset_values
from headstart.config.schema import IGNORE_INDEX, PretrainConfig
from headstart.data.batch import Batch
from headstart.errors import UsageError
from headstart.model.heads import LanguageHead, Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.progress import Progress, pluralize
from headstart.runtime import Runtime, rank_info, setup_runtime
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer

AUTO_PRESET = "auto"
TOKENS_PER_PARAMETER = 5
"""A network that would see less text than this is too large for the minutes. Of the runs in RESULTS.md, the 40 M network that
saw nine tokens a parameter did well."""
_WARM, _TIMED = 2, 3
_CPU_TOKENS = 2048


@dataclass(frozen=True)
class PresetTrial:
    """What a few steps of one size came to."""

    preset: str
    parameters: int
    tokens: float
    """That the minutes would allow."""

    @property
    def enough(self) -> bool:
        """Whether it would see enough text."""
        return self.tokens >= TOKENS_PER_PARAMETER * self.parameters


def choose_preset(config: PretrainConfig, progress: Progress) -> str:
    """Time the sizes from the smallest up, and take the last that would see enough text; the smallest in any case."""
    minutes = config.loop.minutes
    if minutes is None:
        raise UsageError("--preset auto plans for a time; say how long with --minutes")
    if rank_info().rank:
        return next(iter(PRESET_SIZES))  # the first of several processes chooses: its settings are everybody's
    runtime = setup_runtime(config.runtime)
    progress.say(f"timing sizes for {pluralize(minutes, 'minute')} on {runtime.device}")
    chosen: PresetTrial | None = None
    for preset in PRESET_SIZES:
        trial = _try(preset, minutes, config, runtime)
        if trial is None or not (trial.enough or chosen is None):
            break
        chosen = trial
    assert chosen is not None
    progress.say(
        f"preset {chosen.preset}: {chosen.parameters / 1e6:.1f} M parameters, "
        f"about {chosen.tokens / 1e6:,.1f} M tokens in that time"
    )
    return chosen.preset


def _try(preset: str, minutes: float, config: PretrainConfig, runtime: Runtime) -> PresetTrial | None:
    """Time a few steps on random tokens; None where the memory does not suffice."""
    given = merge_config(PretrainConfig, preset_values(preset, "pretrain"))
    vocab_size, context = config.tokenizer.vocab_size, given.model.context
    model: Model[LanguageHead] = Model(
        build_backbone(given.model, vocab_size, 0), build_language_head(given.model, vocab_size, 0)
    ).to(runtime.device)
    rows = given.loop.batch_size if runtime.device.type == "cuda" else max(1, _CPU_TOKENS // context)
    batch = _random(rows, context, vocab_size, given.masking.rate)
    state = TrainState(model, build_optimizer(model, given.optim), 0)
    steps = _WARM + _TIMED
    try:
        reports = list(
            fit(state, lambda _: [batch], lambda b: language_model_loss(model, b), given.optim, steps, runtime)
        )
    except torch.OutOfMemoryError:
        return None
    seconds = min(report.seconds for report in reports[_WARM:])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return PresetTrial(preset, parameters, 60 * minutes * rank_info().world_size * batch.ids_BT.numel() / seconds)


def _random(rows: int, context: int, vocab_size: int, rate: float) -> Batch:
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(4, vocab_size, (rows, context), generator=chance)
    scored = torch.rand(rows, context, generator=chance) < rate
    return Batch(
        ids, torch.zeros_like(ids), torch.where(scored, ids, IGNORE_INDEX), int(scored.sum()), attention="bidirectional"
    )
