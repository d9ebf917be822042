"""Choose the size of the network for `loop.minutes`: the largest preset that can train on enough text on this machine."""

import time
from dataclasses import dataclass

import torch

from headstart.config.merge import merge_config
from headstart.config.presets import PRESET_SIZES, preset_values
from headstart.config.schema import IGNORE_INDEX, PretrainConfig, RuntimeConfig
from headstart.data.batch import Batch
from headstart.errors import UsageError
from headstart.kernels.dispatch import needs_full_batches
from headstart.model.heads import LanguageHead, Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.progress import Progress, pluralize
from headstart.runtime import Runtime, rank_info, resolve_precision, setup_runtime
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer

AUTO_PRESET = "auto"
TOKENS_PER_PARAMETER = 5
"""A network that would see less text than this is too large for the minutes. In RESULTS.md, the 40 M network that saw nine
tokens per parameter did well."""
_WARMUP_STEPS, _TIMED_STEPS = 2, 3
_CPU_TOKENS = 2048
_SEARCH_FRACTION = 0.05
"""The fraction of the minutes after which no further preset is timed."""


@dataclass(frozen=True)
class PresetTrial:
    """The size of a preset and the tokens it can train on."""

    preset: str
    parameters: int
    tokens: float
    """The number of tokens that fit into the minutes."""

    @property
    def is_affordable(self) -> bool:
        """True if the number of tokens is sufficient for the size of the network."""
        return self.tokens >= TOKENS_PER_PARAMETER * self.parameters


def choose_preset(config: PretrainConfig, progress: Progress) -> str:
    """Time the presets from the smallest up and return the last affordable one; the smallest if none is."""
    minutes = config.loop.minutes
    if minutes is None:
        raise UsageError("--preset auto needs a time limit; set it with --minutes")
    if rank_info().rank:
        return next(iter(PRESET_SIZES))  # the main process chooses: its settings are shared
    runtime = setup_runtime(_trial_runtime(config, next(iter(PRESET_SIZES))))
    progress.say(f"timing sizes for {pluralize(minutes, 'minute')} on {runtime.device}")
    chosen: PresetTrial | None = None
    started = time.monotonic()
    for preset in PRESET_SIZES:
        trial = _time_preset(preset, minutes, config, setup_runtime(_trial_runtime(config, preset)))
        if trial is None or not (trial.is_affordable or chosen is None):
            break
        chosen = trial
        if time.monotonic() - started > _SEARCH_FRACTION * 60 * minutes:
            break
    assert chosen is not None
    progress.say(
        f"preset {chosen.preset}: {chosen.parameters / 1e6:.1f} M parameters, "
        f"about {chosen.tokens / 1e6:,.1f} M tokens in that time"
    )
    return chosen.preset


def _trial_runtime(config: PretrainConfig, preset: str) -> RuntimeConfig:
    """Return the runtime settings with the precision that a run of the preset would have."""
    model = merge_config(PretrainConfig, preset_values(preset, "pretrain")).model
    return config.runtime.model_copy(update={"precision": resolve_precision(config.runtime, model)})


def _time_preset(preset: str, minutes: float, config: PretrainConfig, runtime: Runtime) -> PresetTrial | None:
    """Time a few steps on random tokens; None if the memory does not suffice."""
    trial = merge_config(PretrainConfig, preset_values(preset, "pretrain"))
    vocab_size, context = config.tokenizer.vocab_size, trial.model.context
    model: Model[LanguageHead] = Model(
        build_backbone(trial.model, vocab_size, 0), build_language_head(trial.model, vocab_size, 0)
    ).to(runtime.device)
    rows = trial.loop.batch_size if needs_full_batches(runtime.device) else max(1, _CPU_TOKENS // context)
    batch = _random_batch(rows, context, vocab_size, trial.masking.rate)
    state = TrainState(model, build_optimizer(model, trial.optim, bf16=runtime.bf16), 0)
    steps = _WARMUP_STEPS + _TIMED_STEPS
    try:
        reports = list(
            fit(state, lambda _: [batch], lambda b: language_model_loss(model, b), trial.optim, steps, runtime)
        )
    except torch.OutOfMemoryError:
        return None
    seconds = min(report.seconds for report in reports[_WARMUP_STEPS:])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return PresetTrial(preset, parameters, 60 * minutes * rank_info().world_size * batch.ids_BT.numel() / seconds)


def _random_batch(rows: int, context: int, vocab_size: int, masking_rate: float) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, vocab_size, (rows, context), generator=generator)
    is_target = torch.rand(rows, context, generator=generator) < masking_rate
    targets = torch.where(is_target, ids, IGNORE_INDEX)
    return Batch(ids, torch.zeros_like(ids), targets, int(is_target.sum()), attention="bidirectional")
