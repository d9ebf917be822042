"""Fine-tune a classifier from a pretrained model or from random weights: `run_finetune`."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from headstart.config.merge import merge_config
from headstart.config.presets import preset_for_width
from headstart.config.schema import FinetuneConfig
from headstart.errors import UsageError
from headstart.interop.model_source import load_model_source
from headstart.interrupts import StopRequested, handle_signals
from headstart.metrics import RegressionEvaluation
from headstart.progress import Progress, SilentProgress
from headstart.recipes.finetune.backbone_preset import SCRATCH
from headstart.recipes.finetune.dataset import (
    LabelledData,
    build_classifier,
    check_training_memory,
    class_weights,
    load_labelled_data,
    model_config_for,
    note_pretraining_overlap,
    resolve_attention,
)
from headstart.recipes.finetune.trainer import INTERIM_FRACTION, FinetuneOutcome, FinetuneTrainer
from headstart.recipes.memory import check_finetune_memory
from headstart.recipes.quality import (
    LinearPredictions,
    Quality,
    commonest_labels,
    constant_baseline,
    fit_linear_predictions,
    judge,
    linear_baseline,
)
from headstart.recipes.run_request import RunRequest
from headstart.recipes.trainer import (
    StartedRun,
    check_fsdp,
    distributed_run,
    interrupted_error,
    open_run,
    process_facts,
    start_run,
)
from headstart.runtime import describe_threads, environment, resolve_precision, resolve_threads, setup_runtime
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.run_folder import RunFolder
from headstart.tasks import AnyEvaluation, Regression
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.calibration import Calibration, CalibrationResult
from headstart.train.distributed import ProcessGroup
from headstart.train.parallel import strategy_for

RECORDED_COLUMNS = ("text_column", "second_column", "label_column", "separator", "encoding")
"""The settings of the training file that `evaluate` and `predict` take as defaults."""
_MAX_SHOWN = 8
"""Labels whose thresholds are listed."""
_MIN_LABELS_FOR_WEAKEST = 3
"""With fewer labels the weakest one is not named."""

LoadBackbone = Callable[[str], Bundle | None]


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(RunRequest):
    """What to fine-tune on, what to start from, and where to write the run."""

    train: str | None = None
    """A labelled file or prepared labelled shards; None if the request resumes a run."""
    backbone: str | None = None
    """A pretrained model, or "scratch" for random weights; None if the request resumes a run."""
    valid: str | None = None
    test: str | None = None
    tokenizer: Path | None = None

    def inputs(self) -> dict[str, Any]:
        """Return the inputs as the JSON values that run.json records."""
        return {
            "train": self.train,
            "valid": self.valid,
            "test": self.test,
            "backbone": self.backbone,
            "tokenizer": str(self.tokenizer) if self.tokenizer else None,
        }

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return this request with the inputs that run.json records."""
        return replace(
            self,
            train=inputs["train"],
            backbone=inputs["backbone"],
            valid=inputs["valid"],
            test=inputs["test"],
            tokenizer=Path(inputs["tokenizer"]) if inputs["tokenizer"] else None,
        )


def run_finetune(
    request: FinetuneRequest, config: FinetuneConfig | None, progress: Progress | None = None
) -> RunFolder:
    """Fine-tune a classifier on the files of the request, or resume the run in its `out`.

    Args:
        config: the settings of a new run; a resumed one keeps its own.
    """
    progress, began = progress or SilentProgress(), request.began or time.monotonic()
    with distributed_run(request.out) as group:
        progress = progress if group.is_main else SilentProgress()
        # the backbone is checked before a folder is made, and used after: load it once
        load: LoadBackbone = cache(load_backbone)
        started = start_run(
            request,
            group,
            progress,
            kind="finetune",
            config_class=FinetuneConfig,
            resolve=lambda: _resolve(request, config, load, progress),
        )
        if started is not None:
            with started.run.locked():
                _finetune(started, group, progress, load(str(started.request.backbone)), began)
    return open_run(request.out, group)


def _resolve(
    request: FinetuneRequest, config: FinetuneConfig | None, load: LoadBackbone, progress: Progress
) -> tuple[FinetuneRequest, FinetuneConfig]:
    """Return the request and the settings of a new run, including those that depend on the backbone and the machine."""
    if config is None or request.train is None or request.backbone is None:
        raise UsageError(
            "finetune needs a labelled file, and --from with a pretrained folder, a starter or the word scratch"
        )
    config = resolve_config(config, load(request.backbone), progress)
    check_fsdp(config)
    check_finetune_memory(config, backbone=request.backbone != SCRATCH)
    return request, config


def _finetune(
    started: StartedRun[FinetuneRequest, FinetuneConfig],
    group: ProcessGroup,
    progress: Progress,
    backbone: Bundle | None,
    began: float,
) -> None:
    run, request, config = started.run, started.request, started.config
    assert request.train is not None
    name = str(request.backbone)
    with run.remove_on_error(new=not request.resume):
        runtime = setup_runtime(config.runtime)
        run.write_json("environment.json", environment(runtime) | process_facts(config.runtime, group))
        data = load_labelled_data(
            request.train,
            request.valid,
            request.test,
            config.labelled,
            tokenizer=choose_tokenizer(backbone, request.tokenizer),
            tokenizer_config=config.tokenizer,
            seed=config.runtime.seed,
            progress=progress,
        )
        data = note_pretraining_overlap(data, backbone.path if backbone else None, name, progress)
        class_weights(config, data.task, data.train)  # raises if a name is wrong
        run.check_inputs_unchanged(data.fingerprints())
        attention = resolve_attention(config, backbone)
        check_training_memory(config, data, backbone)
        model, receipt = build_classifier(config.model, data, backbone, name, config.runtime.seed, attention)
        # before training, so that loop.minutes counts it; one process is enough
        linear = predict_linearly(data, config.runtime.seed, progress) if group.is_main else None
    if receipt:
        run.write_json("receipt.json", receipt.as_dict())
        progress.say(receipt.summary())
    with run.record_failure(), handle_signals(config.runtime.time_limit, began) as stop:
        stop.consensus = group.consensus if group.world_size > 1 else None
        strategy = strategy_for(config.runtime, group)
        trainer = FinetuneTrainer(
            run,
            config,
            data,
            model,
            runtime,
            stop,
            progress,
            began=began,
            strategy=strategy,
            interim_fraction=INTERIM_FRACTION,
        )
        try:
            outcome = trainer.train(resume=request.resume)
        except StopRequested:
            raise interrupted_error("finetune", run.path, stop, trainer.state.step, trainer.steps) from None
        # this takes seconds, and a stop waits for it
        group.broadcast(lambda: _write_result(run, config, data, outcome, linear, name, progress))


def _write_result(
    run: RunFolder,
    config: FinetuneConfig,
    data: LabelledData,
    outcome: FinetuneOutcome,
    linear: LinearPredictions | None,
    backbone: str,
    progress: Progress,
) -> None:
    calibrated = outcome.calibrated
    baselines, quality = compare_with_baselines(data, outcome, linear)
    splits = {"train": data.train, "valid": data.valid, "test": data.test}
    result = {
        "source": backbone,
        "labels": list(data.labels),
        "task": calibrated.task.facts(),
        "labelled": {name: getattr(config.labelled, name) for name in RECORDED_COLUMNS},
        "data": {name: split.describe(data.task) for name, split in splits.items() if split is not None},
        "notes": list(data.notes),
        "best_epoch": outcome.best_epoch,
        "select": config.loop.select,
        "temperature": calibrated.temperature,
        "calibration": calibrated.calibration.as_dict() if calibrated.calibration else None,
        "valid": outcome.valid.as_dict(),
        "test": outcome.test.as_dict() if outcome.test else None,
        "baselines": baselines,
        "quality": quality.as_dict(),
    }
    if calibrated.thresholds:
        result["thresholds"] = [threshold.as_dict() for threshold in calibrated.thresholds]
    save_bundle(run.path / "bundle", classifier_bundle(outcome, data, config, result))
    run.write_json("result.json", result)
    run.remove_checkpoints()
    for line in summary_lines(calibrated, outcome.test or outcome.valid):
        progress.say(line)
    test = f"; test {outcome.test.headline} (read once)" if outcome.test else ""
    selected = "best epoch {} by validation," if config.loop.select == "best" else "epoch {}, validation"
    progress.say(f"{selected.format(outcome.best_epoch)} {outcome.valid.headline}{test}; model in {run.path}")
    progress.say(quality.sentence)


def predict_linearly(data: LabelledData, seed: int, progress: Progress) -> LinearPredictions | None:
    """Return the predictions of a linear model for validation and test; None for tasks that it does not support."""
    if data.task.kind != "classes" or data.task.pair:
        return None
    splits = {"valid": data.valid.texts} | ({"test": data.test.texts} if data.test else {})
    with progress.task("fitting a linear model for comparison", None, "texts"):
        return fit_linear_predictions((data.train.texts, data.train.gold), splits, len(data.labels), seed)


def compare_with_baselines(
    data: LabelledData, outcome: FinetuneOutcome, linear: LinearPredictions | None
) -> tuple[dict[str, Any], Quality]:
    """Return the baselines on validation and test as JSON values, and the quality by test, or by validation without it."""
    answer = _constant_answer(data)
    baselines: dict[str, Any] = {}
    splits = [("valid", "validation", data.valid, outcome.valid, outcome.valid_logits)]
    if data.test is not None and outcome.test is not None and outcome.test_logits is not None:
        splits.append(("test", "test", data.test, outcome.test, outcome.test_logits))
    for split, title, rows, evaluation, logits in splits:
        constant, linear_score = constant_baseline(evaluation, answer), None
        baselines.setdefault(constant.name, {"answer": constant.answer})[split] = constant.figures
        if linear is not None:
            linear_score = linear_baseline(linear, split, logits.argmax(axis=1), rows.gold, len(data.labels))
            baselines.setdefault("linear", {"rows": linear.rows})[split] = linear_score.figures
        quality = judge(evaluation, constant, linear_score, title)
    return baselines, quality


def _constant_answer(data: LabelledData) -> str | list[str] | float:
    """Return the best constant prediction: the most frequent label or labels of the training rows, or their mean."""
    task = data.task
    if isinstance(task, Regression):
        return task.mean
    counts: dict[str, int] = task.describe(data.train.gold)["counts"]
    if task.kind == "labels":
        return commonest_labels(counts, len(data.train))
    return max(counts, key=lambda label: counts[label])


def classifier_bundle(
    outcome: FinetuneOutcome, data: LabelledData, config: FinetuneConfig, about: dict[str, Any]
) -> Bundle:
    """Return the trained classifier as a bundle.

    Args:
        about: the record that is kept with the model, as JSON values.
    """
    return Bundle(
        outcome.model,
        data.tokenizer,
        outcome.calibrated.task,
        windows=config.labelled.long_texts == "windows",
        attention=outcome.model.head.attention,
        about=about,
    )


def summary_lines(calibrated: CalibrationResult, evaluation: AnyEvaluation) -> Iterator[str]:
    """Yield the last lines of a run: calibration, thresholds, and the metrics in addition to the headline.

    Args:
        evaluation: on test, or on validation without a test file.
    """
    if calibrated.calibration is not None:
        yield _calibration_line(calibrated.calibration)
    if calibrated.thresholds:
        yield _threshold_line(calibrated)
    if isinstance(evaluation, RegressionEvaluation):
        assert isinstance(calibrated.task, Regression)
        yield (
            f"MAE {evaluation.mae:.4f}, RMSE {evaluation.rmse:.4f} (always predicting the training mean: "
            f"{evaluation.baseline_mae:.4f} and {evaluation.baseline_rmse:.4f}), Spearman {evaluation.spearman:.3f}; "
            f"predictions are clipped to {calibrated.task.lowest:g} and {calibrated.task.highest:g}"
        )
        return
    figures = ", ".join(
        f"{title} {getattr(evaluation, name):.4f}" for name, title in list(evaluation.FIGURES.items())[1:]
    )
    results = [result for result in evaluation.per_class if result.rows]
    weakest = min(results, key=lambda result: result.f1) if len(results) >= _MIN_LABELS_FOR_WEAKEST else None
    yield figures + (
        f"; weakest label {weakest.label}: F1 {weakest.f1:.3f} on {weakest.rows:,} rows" if weakest else ""
    )


def _calibration_line(calibration: Calibration) -> str:
    if calibration.reason is not None:
        return f"probabilities not calibrated (temperature 1): {calibration.reason}"
    before, after = calibration.before, calibration.after
    bound = f" ({calibration.bound})" if calibration.bound else ""
    worse = ""
    if after.ece > before.ece:
        worse = f": it increased, although the log-loss decreased from {before.log_loss:.4f} to {after.log_loss:.4f}"
    return (
        f"probabilities calibrated on {calibration.rows:,} validation rows: temperature {calibration.temperature:.2f}{bound}, "
        f"calibration error {100 * before.ece:.1f} -> {100 * after.ece:.1f} points{worse}"
    )


def _threshold_line(calibrated: CalibrationResult) -> str:
    chosen = [threshold for threshold in calibrated.thresholds if threshold.reason is None]
    default = [threshold for threshold in calibrated.thresholds if threshold.reason is not None]
    shown = ", ".join(f"{threshold.label} {threshold.threshold:.2f}" for threshold in chosen[:_MAX_SHOWN])
    more = f", and {len(chosen) - _MAX_SHOWN:,} more" if len(chosen) > _MAX_SHOWN else ""
    phrases = [f"thresholds of best F1 on validation: {shown}{more}"] if chosen else []
    if default:
        names = ", ".join(threshold.label for threshold in default[:_MAX_SHOWN])
        names += ", ..." if len(default) > _MAX_SHOWN else ""
        phrases.append(f"threshold 0.5 kept for {names}: {default[0].reason}")
    return "; ".join(phrases)


def backbone_preset(backbone: Bundle | None) -> str:
    """Return the preset that fits a loaded backbone."""
    return preset_for_width(backbone.config.width) if backbone and backbone.config.block != "classic" else "classic"


def load_backbone(backbone: str) -> Bundle | None:
    """Load the model that --from names; None for "scratch"."""
    return None if backbone == SCRATCH else load_model_source(backbone)


def choose_tokenizer(backbone: Bundle | None, path: str | Path | None) -> Tokenizer | None:
    """Return the tokenizer at `path`, else the backbone's; None if one must be trained.

    A transfer checks that a tokenizer at `path` is the backbone's.
    """
    if path is not None:
        return load_tokenizer(Path(path))
    return backbone.tokenizer if backbone else None


def resolve_config(config: FinetuneConfig, backbone: Bundle | None, progress: Progress | None = None) -> FinetuneConfig:
    """Return the settings with those that depend on the backbone and the machine: shape, threads and precision."""
    threads = resolve_threads(config.runtime)
    if progress is not None and (note := describe_threads(config.runtime, threads)):
        progress.say(note)
    model = model_config_for(backbone, config.transfer) if backbone else config.model
    resolved: dict[str, Any] = {
        "runtime": {"threads": threads, "precision": resolve_precision(config.runtime, model)},
        "model": model.model_dump(),
    }
    return merge_config(FinetuneConfig, config.model_dump(), resolved)
