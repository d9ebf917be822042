"""Pretrain a language model on text files or prepared shards: `run_pretrain`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from headstart.config.merge import merge_config
from headstart.config.schema import PretrainConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError, UsageError
from headstart.files import MANIFEST, read_json
from headstart.interop.model_source import load_model_source
from headstart.interrupts import StopRequested, handle_signals
from headstart.progress import Progress, SilentProgress
from headstart.recipes.memory import check_pretrain_memory
from headstart.recipes.pretrain.stages import open_shards
from headstart.recipes.pretrain.trainer import (
    Distillation,
    PretrainTrainer,
    check_teacher_weight,
    prepare_pretraining,
)
from headstart.recipes.run_request import RunRequest
from headstart.recipes.trainer import (
    StartedRun,
    check_fsdp,
    distributed_run,
    interrupted_error,
    open_run,
    process_facts,
    share_shards,
    start_run,
)
from headstart.runtime import describe_threads, environment, resolve_precision, resolve_threads, setup_runtime
from headstart.store.bundle import Bundle
from headstart.store.run_folder import RunFolder
from headstart.tokenization.base import Tokenizer
from headstart.train.distributed import ProcessGroup
from headstart.train.parallel import strategy_for

LoadBackbone = Callable[[str], Bundle]
MAX_TOKENS_RATIO = 1.8
"""A tokenizer does not fit a text if its tokens per byte exceed those on the text of the model by this factor."""


@dataclass(frozen=True, kw_only=True)
class PretrainRequest(RunRequest):
    """What to pretrain on, what to start from, and where to write the run."""

    texts: tuple[str, ...] = ()
    """Text files, or one folder of prepared shards; empty if the settings have stages, which name their own."""
    backbone: str | None = None
    """A language model to continue, in place of random weights."""
    tokenizer: Path | None = None
    teacher: str | None = None
    """A larger language model with the same tokenizer, to learn from beside the text."""
    teacher_weight: float | None = None
    """The weight of the teacher's loss, from 0 to 1; None takes one half."""

    def inputs(self) -> dict[str, Any]:
        """Return the inputs as the JSON values that run.json records."""
        inputs: dict[str, Any] = {
            "texts": list(self.texts),
            "tokenizer": str(self.tokenizer) if self.tokenizer else None,
            "backbone": self.backbone,
        }
        return inputs | ({"teacher": self.teacher, "teacher_weight": self.teacher_weight} if self.teacher else {})

    def with_inputs(self, inputs: Mapping[str, Any]) -> Self:
        """Return this request with the inputs that run.json records."""
        return replace(
            self,
            texts=tuple(inputs["texts"]),
            backbone=inputs["backbone"],
            tokenizer=Path(inputs["tokenizer"]) if inputs["tokenizer"] else None,
            teacher=inputs.get("teacher"),
            teacher_weight=inputs.get("teacher_weight"),
        )


def run_pretrain(
    request: PretrainRequest, config: PretrainConfig | None, progress: Progress | None = None
) -> RunFolder:
    """Pretrain on the texts of the request, or resume the run in its `out`.

    Args:
        config: the settings of a new run; a resumed one keeps its own.
    """
    progress, began = progress or SilentProgress(), request.began or time.monotonic()
    with distributed_run(request.out) as group:
        progress = progress if group.is_main else SilentProgress()
        # the backbone is checked before a folder is made, and used after: load it once
        load: LoadBackbone = cache(partial(load_model_source, head_type="language"))
        started = start_run(
            request,
            group,
            progress,
            kind="pretrain",
            config_class=PretrainConfig,
            resolve=lambda: _resolve(request, config, progress, load),
        )
        if started is not None:
            _pretrain(started, group, progress, load, began)
    return open_run(request.out, group)


def _resolve(
    request: PretrainRequest, config: PretrainConfig | None, progress: Progress, load: LoadBackbone
) -> tuple[PretrainRequest, PretrainConfig]:
    """Return the request and the settings of a new run, including those that depend on the backbone and the machine."""
    texts = _all_texts(request.texts, config)
    weight = check_teacher_weight(request.teacher, request.teacher_weight)
    assert config is not None
    threads = resolve_threads(config.runtime)
    if note := describe_threads(config.runtime, threads):
        progress.say(note)
    resolved: dict[str, Any] = {"runtime": {"threads": threads}}
    if request.backbone:
        backbone = load(request.backbone)
        _check_objective(backbone, config)
        resolved["model"] = backbone.config.model_dump()
        if config.objective != backbone.objective:
            progress.say(
                f"{request.backbone} was pretrained with objective {backbone.objective} and continues with "
                f"{config.objective}"
            )
    config = merge_config(PretrainConfig, config.model_dump(), resolved)
    precision = {"runtime": {"precision": resolve_precision(config.runtime, config.model)}}
    config = merge_config(PretrainConfig, config.model_dump(), precision)
    check_fsdp(config)
    check_pretrain_memory(config, backbone=request.backbone is not None)
    return replace(request, texts=texts, teacher_weight=weight if request.teacher else None), config


def _pretrain(
    started: StartedRun[PretrainRequest, PretrainConfig],
    group: ProcessGroup,
    progress: Progress,
    load: LoadBackbone,
    began: float,
) -> None:
    run, request, config = started.run, started.request, started.config
    backbone = load(request.backbone) if request.backbone else None
    distillation = _load_distillation(request)
    with run.locked():
        with run.remove_on_error(new=not request.resume):
            runtime = setup_runtime(config.runtime)
            run.write_json("environment.json", environment(runtime) | process_facts(config.runtime, group))
            strategy = strategy_for(config.runtime, group)
            tokenizer: Tokenizer | Path | None = request.tokenizer or (backbone.tokenizer if backbone else None)
            shards = share_shards(group, lambda: open_shards(request.texts, run.path, config, tokenizer, progress))
            if backbone and request.backbone:
                _say_tokenizer_fit(request.backbone, backbone, shards, progress)
            run.check_inputs_unchanged(_input_facts(request.texts, config, shards, distillation))
            setup = prepare_pretraining(config, shards, runtime, backbone, strategy.portion)
            if setup.receipt:
                run.write_json("receipt.json", setup.receipt.as_dict())
                progress.say(setup.receipt.summary())
            teacher = distillation.load_teacher(config, setup.tokenizer, runtime) if distillation else None
        with run.record_failure(), handle_signals(config.runtime.time_limit, began) as stop:
            stop.consensus = group.consensus if group.world_size > 1 else None
            trainer = PretrainTrainer(
                run,
                config,
                setup,
                runtime,
                stop,
                progress,
                distillation=distillation,
                teacher=teacher,
                began=began,
                strategy=strategy,
            )
            try:
                trainer.train(resume=request.resume)
            except StopRequested:
                raise interrupted_error("pretrain", run.path, stop, trainer.state.step, trainer.steps) from None


def _load_distillation(request: PretrainRequest) -> Distillation | None:
    if request.teacher is None:
        return None
    assert request.teacher_weight is not None
    return Distillation(
        request.teacher, load_model_source(request.teacher, head_type="language"), request.teacher_weight
    )


def _all_texts(texts: Sequence[str], config: PretrainConfig | None) -> tuple[str, ...]:
    """Return the texts of a new run: those of the request, or those of its stages."""
    staged = [text for stage in config.stages for text in stage.texts] if config else []
    if texts and staged:
        raise UsageError(
            f"{texts[0]} cannot be combined with stages ({staged[0]} is in the first), which list their own texts; put "
            "it into a stage, or omit the stages"
        )
    if config is None or not (texts or staged):
        raise UsageError("pretrain needs at least one text file or a folder of prepared shards")
    return tuple(texts or staged)


def _say_tokenizer_fit(name: str, backbone: Bundle, shards: Sequence[Shards], progress: Progress) -> None:
    """Report if the tokenizer of a model needs many more tokens per byte for this text than for its training text."""
    measured = backbone.about.get("held_out")
    if not isinstance(measured, dict) or not measured.get("bytes"):
        return
    own = measured["tokens"] / measured["bytes"]
    here = sum(corpus.num_tokens for corpus in shards) / max(1, sum(int(corpus.text_bytes.sum()) for corpus in shards))
    if here > MAX_TOKENS_RATIO * own:
        progress.say(
            f"the tokenizer of {name} does not fit this text: {here:.2f} tokens per byte, compared with "
            f"{own:.2f} on its own text; without --from, a tokenizer is trained on the text"
        )


def _check_objective(backbone: Bundle, config: PretrainConfig) -> None:
    """Raise an error for an objective that does not match the language head of an imported model."""
    if backbone.config.generic is None:
        return
    if config.objective != backbone.objective:
        masked = backbone.objective == "masked"
        predicts = "predicts a masked token at its own position" if masked else "predicts the next token"
        raise ConfigError(
            f"objective must be {backbone.objective}, got {config.objective}: {backbone.name} is a "
            f"{backbone.config.generic.family}, whose language head {predicts}"
        )
    if config.next_sentence.weight:
        raise ConfigError(
            f"next_sentence.weight does not support {backbone.name}, a {backbone.config.generic.family}; remove it"
        )


def _input_facts(
    texts: Sequence[str], config: PretrainConfig, shards: Sequence[Shards], distillation: Distillation | None
) -> dict[str, Any]:
    """Return the hashes of the inputs of the run, by their names in messages."""
    names = [f"stage {number} ({' '.join(stage.texts)})" for number, stage in enumerate(config.stages, start=1)]
    if len(names) < 2:
        names = [" ".join(texts)]
    facts = {name: read_json(corpus.folder / MANIFEST)["files"] for name, corpus in zip(names, shards, strict=True)}
    if distillation:
        facts[f"the teacher ({distillation.name})"] = read_json(distillation.bundle.path / MANIFEST)["files"]
    excluded = [corpus.excluded for corpus in shards]
    return facts | ({"the excluded texts": excluded[0] if len(excluded) == 1 else excluded} if any(excluded) else {})
