"""Run a fine-tuning, and its closing summary.

What a fine-tuning came to, in lines for people.

Fine-tuning: a pretrained folder, or random weights, and labelled text in; a classifier and its figures out.
"""

import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from headstart.config.merge import merge_config
from headstart.config.schema import FinetuneConfig
from headstart.errors import Interrupted, UsageError
from headstart.interop.model_source import HF_SCHEME, load_model_source
from headstart.interrupts import StopRequested, handle_signals
from headstart.metrics import RegressionEvaluation
from headstart.progress import Progress, SilentProgress
from headstart.recipes.finetune.dataset import (
    LabelledData,
    build_classifier,
    class_weights,
    load_labelled_data,
    model_config_for,
    note_pretraining_overlap,
    resolve_attention,
)
from headstart.recipes.finetune.trainer import FinetuneOutcome, FinetuneTrainer
from headstart.recipes.trainer import distributed_run, for_several_processes, is_restarted_run, refuse_fsdp
from headstart.runtime import environment, setup_runtime
from headstart.store.bundle import Bundle, bundle_block, save_bundle
from headstart.store.run_folder import ReadOnlyRunFolder, RunFolder
from headstart.tasks import AnyEvaluation, Regression
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.calibration import Calibration, CalibrationResult
from headstart.train.distributed import ProcessGroup
from headstart.train.parallel import strategy_for

_MAX_SHOWN = 8
"""Labels whose thresholds are named."""
_MANY_CLASSES = 3
"""Labels from which on the weakest is worth a word."""


def summary_lines(settled: CalibrationResult, last: AnyEvaluation) -> Iterator[str]:
    """What validation settled, and how the labels fared that a single figure hides.

    Args:
        last: on test, or on validation where there is none.
    """
    if settled.calibration is not None:
        yield _calibration_line(settled.calibration)
    if settled.thresholds:
        yield _threshold_lines(settled)
    if isinstance(last, RegressionEvaluation):
        assert isinstance(settled.task, Regression)
        yield (
            f"MAE {last.mae:.4f}, RMSE {last.rmse:.4f} (always answering the mean of train: {last.baseline_mae:.4f} and "
            f"{last.baseline_rmse:.4f}), Spearman {last.spearman:.3f}; answers stay within "
            f"{settled.task.lowest:g} and {settled.task.highest:g}"
        )
        return
    rest = ", ".join(f"{words} {getattr(last, name):.4f}" for name, words in list(last.FIGURES.items())[1:])
    seen = [one for one in last.per_class if one.rows]
    weak = min(seen, key=lambda one: one.f1) if len(seen) >= _MANY_CLASSES else None
    yield rest + (f"; weakest label {weak.label}: F1 {weak.f1:.3f} on {weak.rows:,} rows" if weak else "")


def _calibration_line(found: Calibration) -> str:
    """What was done to the probabilities, in a line."""
    if found.reason is not None:
        return f"probabilities as they came (temperature 1): {found.reason}"
    before, after = (f"{100 * one.ece:.1f}" for one in (found.before, found.after))
    return (
        f"probabilities calibrated on {found.rows:,} validation rows: temperature {found.temperature:.2f}, "
        f"calibration error {before} -> {after} points"
    )


def _threshold_lines(settled: CalibrationResult) -> str:
    chosen = [one for one in settled.thresholds if one.reason is None]
    kept = [one for one in settled.thresholds if one.reason is not None]
    shown = ", ".join(f"{one.label} {one.threshold:.2f}" for one in chosen[:_MAX_SHOWN])
    more = f", and {len(chosen) - _MAX_SHOWN:,} more" if len(chosen) > _MAX_SHOWN else ""
    parts = [f"thresholds of best F1 on validation: {shown}{more}"] if chosen else []
    if kept:
        names = ", ".join(one.label for one in kept[:_MAX_SHOWN]) + (", ..." if len(kept) > _MAX_SHOWN else "")
        parts.append(f"threshold 0.5 kept for {names}: {kept[0].reason}")
    return "; ".join(parts)


SCRATCH = "scratch"
ATTENTION = ("text_column", "second_column", "label_column", "separator")
"""Of how labelled text was read, what `evaluate` and `predict` go by where nothing else is said."""


def run_finetune(
    train: str | None,
    out: Path,
    config: FinetuneConfig | None,
    *,
    source: str | None = None,
    valid: str | None = None,
    test: str | None = None,
    tokenizer: Path | None = None,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> RunFolder:
    """Fine-tune a classifier from `source` (a folder, or "scratch"); with `resume`, go on with the run in `out`."""
    progress, since = progress or SilentProgress(), time.monotonic()
    files = {"train": train, "valid": valid, "test": test, "source": source}
    inputs = files | {"tokenizer": str(tokenizer) if tokenizer else None}
    with distributed_run(out) as ranks:
        progress = progress if ranks.is_main else SilentProgress()
        resume = ranks.broadcast(lambda: resume or is_restarted_run(out, command))
        load = cache(load_source)  # a wrong folder is found out before anything is written
        facts = ranks.broadcast(lambda: _begin(out, config, inputs, resume, command, progress, load))
        run = RunFolder(out) if ranks.is_main else ReadOnlyRunFolder(out)
        if facts is not None:
            settings, inputs = merge_config(FinetuneConfig, facts["config"]), facts["inputs"]
            with run.locked():
                _finetune(run, settings, inputs, resume, progress, load(str(inputs["source"])), since, ranks)
    return run


def _begin(
    out: Path,
    config: FinetuneConfig | None,
    inputs: dict[str, str | None],
    resume: bool,
    command: str,
    progress: Progress,
    load: Callable[[str], Bundle | None],
) -> dict[str, Any] | None:
    """Make the run folder or find the run in it: its settings and inputs; None where it is finished."""
    if resume:
        run = RunFolder.open(out, kind="finetune")
        if run.finished:
            progress.say(f"{out} is finished already; its result is in {out / 'result.json'}")
            return None
        config, inputs = merge_config(FinetuneConfig, run.settings), run.facts["inputs"]
        refuse_fsdp(config)
    else:
        if config is None or inputs["train"] is None or inputs["source"] is None:
            raise UsageError("finetune needs a labelled file, and --from with a pretrained folder or the word scratch")
        config = resolve_config(config, load(inputs["source"]))
        refuse_fsdp(config)
        RunFolder.create(out, kind="finetune", command=command, config=config, inputs=inputs)
    return {"config": config.model_dump(mode="json"), "inputs": inputs}


def _finetune(
    run: RunFolder,
    config: FinetuneConfig,
    inputs: dict[str, Any],
    resume: bool,
    progress: Progress,
    source: Bundle | None,
    since: float,
    ranks: ProcessGroup,
) -> None:
    runtime = setup_runtime(config.runtime)
    run.write_json("environment.json", environment(runtime) | for_several_processes(config.runtime, ranks))
    with run.remove_on_error(new=not resume):
        data = load_labelled_data(
            inputs["train"],
            inputs["valid"],
            inputs["test"],
            config.labelled,
            tokenizer=choose_tokenizer(source, inputs["tokenizer"]),
            tokenizer_config=config.tokenizer,
            seed=config.runtime.seed,
            progress=progress,
        )
        data = note_pretraining_overlap(data, source.path if source else None, inputs["source"], progress)
        class_weights(config, data.task, data.train)
        run.check_inputs_unchanged(data.fingerprints())
        model, receipt = build_classifier(
            config.model, data, source, inputs["source"], config.runtime.seed, resolve_attention(config, source)
        )
    if receipt:
        run.write_json("receipt.json", receipt.as_dict())
        progress.say(receipt.summary())
    with run.record_failure(), handle_signals(config.runtime.time_limit, since) as stop:
        stop.consensus = ranks.consensus if ranks.world_size > 1 else None
        way = strategy_for(config.runtime, ranks)
        training = FinetuneTrainer(run, config, data, model, runtime, stop, progress, began=since, way=way)
        try:
            outcome = training.go(resume=resume)
        except StopRequested:
            raise Interrupted(
                f"{stop.why} at step {training.state.step} of {training.steps}; saved. Go on with: "
                f"headstart finetune --resume --out {run.path}",
                stop.reason or "",
            ) from None
        ranks.broadcast(
            lambda: _write(run, config, data, outcome, inputs["source"], progress)
        )  # seconds: a stop waits for it


def _write(
    run: RunFolder,
    config: FinetuneConfig,
    data: LabelledData,
    outcome: FinetuneOutcome,
    source: str,
    progress: Progress,
) -> None:
    parts, settled = {"train": data.train, "valid": data.valid, "test": data.test}, outcome.settled
    result = {
        "source": source,
        "labels": list(data.labels),
        "task": settled.task.facts(),
        "labelled": {name: getattr(config.labelled, name) for name in ATTENTION},
        "data": {name: part.describe(data.task) for name, part in parts.items() if part is not None},
        "notes": list(data.notes),
        "best_epoch": outcome.best_epoch,
        "temperature": settled.temperature,
        "calibration": settled.calibration.as_dict() if settled.calibration else None,
        "valid": outcome.valid.as_dict(),
        "test": outcome.test.as_dict() if outcome.test else None,
    }
    if settled.thresholds:
        result["thresholds"] = [one.as_dict() for one in settled.thresholds]
    bundle = Bundle(
        outcome.model,
        data.tokenizer,
        settled.task,
        windows=config.labelled.long_texts == "windows",
        attention=outcome.model.head.attention,
        about=result,
    )
    save_bundle(run.path / "bundle", bundle)
    run.write_json("result.json", result)
    run.remove_checkpoints()
    for line in summary_lines(settled, outcome.test or outcome.valid):
        progress.say(line)
    test = f"; test {outcome.test.headline} (read once)" if outcome.test else ""
    best = "best epoch {} by validation," if config.loop.select == "best" else "epoch {}, validation"
    kept = best.format(outcome.best_epoch)
    progress.say(f"{kept} {outcome.valid.headline}{test}; model in {run.path}")


def default_preset(source: str | None) -> str:
    """The preset that fits what is fine-tuned, when none is named: that of the pretrained network's kind."""
    if source is None or source == SCRATCH:
        return "classic"
    return "modern" if source.startswith(HF_SCHEME) or bundle_block(Path(source)) != "classic" else "classic"


def backbone_preset(source: Bundle | None) -> str:
    """The same of a model in hand."""
    return "modern" if source and source.config.block != "classic" else "classic"


def load_source(source: str) -> Bundle | None:
    """The folder to start from, or None for random weights."""
    return None if source == SCRATCH else load_model_source(source)


def choose_tokenizer(source: Bundle | None, path: str | None) -> Tokenizer | None:
    """The tokenizer given (a transfer checks that it is the source's), the source's, or None: train one."""
    if path is not None:
        return load_tokenizer(Path(path))
    return source.tokenizer if source else None


def resolve_config(config: FinetuneConfig, source: Bundle | None) -> FinetuneConfig:
    """What will really be used: the shape of the source, and the threads, because other threads add in another order."""
    used: dict[str, Any] = {"runtime": {"threads": setup_runtime(config.runtime).threads}}
    if source:
        used["model"] = model_config_for(source, config.transfer).model_dump()
    return merge_config(FinetuneConfig, config.model_dump(), used)
