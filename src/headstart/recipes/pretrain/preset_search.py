"""Choose the size of the network for `loop.minutes`: the largest preset that would see enough text on this machine.

Steps are timed as the run will make them: with CUDA graphs where steps are captured, and with compiled layers where that
decides whether a preset is affordable. Compiling takes half a minute, so that it is left out where it decides nothing.
"""

import time
from dataclasses import dataclass

import torch
from torch import nn

from headstart.config.merge import merge_config
from headstart.config.presets import PRESET_SIZES, preset_values
from headstart.config.schema import PretrainConfig, RuntimeConfig
from headstart.errors import UsageError
from headstart.kernels.dispatch import needs_full_batches
from headstart.model.heads import LanguageHead, Model, build_language_head
from headstart.model.transformer import build_backbone
from headstart.progress import Progress, pluralize
from headstart.recipes.bench import random_batches, time_steps
from headstart.recipes.pretrain.trainer import should_compile
from headstart.runtime import Runtime, rank_info, resolve_precision, setup_runtime
from headstart.train.cuda_graphs import token_graphs
from headstart.train.objectives import language_model_loss
from headstart.train.parallel import SINGLE

AUTO_PRESET = "auto"
TOKENS_PER_PARAMETER = 5
"""A network that would see less text than this is too large for the minutes. In RESULTS.md, the 40 M network that saw nine
tokens per parameter did well."""
MAX_COMPILE_GAIN = 2.0
"""Compiled steps are assumed to be at most this many times as fast as captured ones."""
_GPU_SECONDS = 0.5
"""Seconds of timed steps on a GPU; elsewhere the fewest steps are timed."""
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

    @property
    def may_be_affordable_compiled(self) -> bool:
        """True if compiled steps, which were not timed, could make the difference."""
        return not self.is_affordable and MAX_COMPILE_GAIN * self.tokens >= TOKENS_PER_PARAMETER * self.parameters


def choose_preset(config: PretrainConfig, progress: Progress) -> str:
    """Time the presets from the smallest up and return the last affordable one; the smallest if none is."""
    minutes = config.loop.minutes
    if minutes is None:
        raise UsageError("--preset auto needs a time limit; set it with --minutes")
    if rank_info().rank:
        return next(iter(PRESET_SIZES))  # the main process chooses: its settings are shared
    runtime = setup_runtime(_trial_runtime(config, next(iter(PRESET_SIZES))))
    progress.say(f"timing sizes for {pluralize(minutes, 'minute')} on {runtime.device}")
    compiles = _compiles(config, runtime, progress)
    chosen: PresetTrial | None = None
    started = time.monotonic()
    for preset in PRESET_SIZES:
        trial = _try_preset(preset, config, compiles=compiles)
        if trial is None or not (trial.is_affordable or chosen is None):
            break
        chosen = trial
        if time.monotonic() - started > _SEARCH_FRACTION * 60 * minutes:
            break
    assert chosen is not None
    about = "at least" if compiles else "about"  # most presets are timed without compiling them
    progress.say(
        f"preset {chosen.preset}: {chosen.parameters / 1e6:.1f} M parameters, "
        f"{about} {chosen.tokens / 1e6:,.1f} M tokens in that time"
    )
    return chosen.preset


def _compiles(config: PretrainConfig, runtime: Runtime, progress: Progress) -> bool:
    """Return whether the run will compile its layers, which its minutes decide whatever the network."""
    single_process = rank_info().world_size == 1
    return should_compile(config, nn.Module(), [], runtime.device, progress.say, single_process=single_process)


def _try_preset(preset: str, config: PretrainConfig, *, compiles: bool) -> PresetTrial | None:
    """Time a preset, with compiled layers only where they could make it affordable; None if the memory does not suffice."""
    runtime = setup_runtime(_trial_runtime(config, preset))
    trial = _time_preset(preset, config, runtime, compiled=False)
    if trial is None or not (compiles and trial.may_be_affordable_compiled):
        return trial
    try:
        return _time_preset(preset, config, runtime, compiled=True)
    finally:
        torch.compiler.reset()  # the run compiles its own layers, from the cache on disk


def _trial_runtime(config: PretrainConfig, preset: str) -> RuntimeConfig:
    """Return the runtime settings with the precision that a run of the preset would have."""
    model = merge_config(PretrainConfig, preset_values(preset, "pretrain")).model
    return config.runtime.model_copy(update={"precision": resolve_precision(config.runtime, model)})


def _time_preset(preset: str, config: PretrainConfig, runtime: Runtime, *, compiled: bool) -> PresetTrial | None:
    """Time a few steps on random tokens; None if the memory does not suffice."""
    trial = merge_config(PretrainConfig, preset_values(preset, "pretrain"))
    vocab_size, context = config.tokenizer.vocab_size, trial.model.context
    assert config.loop.minutes is not None
    model: Model[LanguageHead] = Model(
        build_backbone(trial.model, vocab_size, 0), build_language_head(trial.model, vocab_size, 0)
    ).to(runtime.device)
    model.backbone.recompute = config.runtime.recompute
    if compiled:
        model.backbone.compile_layers()
    full, processes = needs_full_batches(runtime.device), rank_info().world_size
    rows = trial.loop.batch_size if full else max(1, _CPU_TOKENS // context)
    graphs = token_graphs(model, runtime, SINGLE, lambda _: None) if processes == 1 else None
    batches = random_batches(trial, vocab_size, rows)
    try:
        budget = _GPU_SECONDS if full else 0.0
        seconds = time_steps(model, batches, language_model_loss, trial, runtime, budget, graphs)
    except torch.OutOfMemoryError:
        return None
    finally:
        if graphs:
            graphs.reset()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return PresetTrial(preset, parameters, 60 * config.loop.minutes * processes * rows * context / seconds)
