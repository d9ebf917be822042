"""Run a pretraining."""

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from headstart.config.merge import merge_config
from headstart.config.schema import PretrainConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError, UsageError
from headstart.files import MANIFEST, read_json
from headstart.interop.model_source import HF_SCHEME, load_model_source
from headstart.interrupts import handle_signals
from headstart.progress import Progress, SilentProgress
from headstart.recipes.pretrain.stages import open_shards
from headstart.recipes.pretrain.trainer import Distillation, PretrainTrainer, check_teacher_weight
from headstart.recipes.trainer import (
    distributed_run,
    for_several_processes,
    is_restarted_run,
    refuse_fsdp,
    shared_shards,
)
from headstart.runtime import environment, setup_runtime
from headstart.store.bundle import Bundle, bundle_objective
from headstart.store.run_folder import ReadOnlyRunFolder, RunFolder
from headstart.tokenization.base import Tokenizer
from headstart.train.distributed import ProcessGroup
from headstart.train.parallel import strategy_for


def run_pretrain(
    texts: Sequence[str],
    out: Path,
    config: PretrainConfig | None,
    *,
    source: str | None = None,
    tokenizer: Path | None = None,
    teacher: str | None = None,
    teacher_weight: float | None = None,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> RunFolder:
    """Pretrain on text files or on one folder of prepared shards; with `resume`, go on with the run in `out`.

    Args:
        texts: none when the settings have stages, which name their own.
        source: a language model to start from in place of random weights: general text first, one's own text next.
        teacher: a larger language model with the same tokenizer, to learn from beside the text.
        teacher_weight: how much it counts, from 0 to 1; a half unless told.
    """
    progress, since = progress or SilentProgress(), time.monotonic()
    asked: dict[str, Any] = {"tokenizer": str(tokenizer) if tokenizer else None, "source": source}
    asked |= {"teacher": teacher, "teacher_weight": teacher_weight}
    with distributed_run(out) as ranks:
        progress = progress if ranks.is_main else SilentProgress()
        resume = ranks.broadcast(lambda: resume or is_restarted_run(out, command))
        load = cache(partial(load_model_source, head_type="language"))  # looked at before a folder is made, used after
        facts = ranks.broadcast(lambda: _begin(texts, out, config, asked, resume, command, progress, load))
        run = RunFolder(out) if ranks.is_main else ReadOnlyRunFolder(out)
        if facts is not None:
            _go(
                run,
                merge_config(PretrainConfig, facts["config"]),
                facts["inputs"],
                resume,
                progress,
                since,
                ranks,
                load,
            )
    return run


def _begin(
    texts: Sequence[str],
    out: Path,
    config: PretrainConfig | None,
    asked: dict[str, Any],
    resume: bool,
    command: str,
    progress: Progress,
    load: Callable[[str], Bundle],
) -> dict[str, Any] | None:
    """Make the run folder or find the run in it: its settings and inputs; None where it is finished."""
    if resume:
        run = RunFolder.open(out, kind="pretrain")
        if run.finished:
            progress.say(f"{out} is finished already; its result is in {out / 'result.json'}")
            return None
        settings = merge_config(PretrainConfig, run.settings)
        refuse_fsdp(settings)
        return {"config": settings.model_dump(mode="json"), "inputs": run.facts["inputs"]}
    texts, weight = _texts(texts, config), check_teacher_weight(asked["teacher"], asked["teacher_weight"])
    assert config is not None
    # the thread count is part of the run: other threads add in another order
    used: dict[str, Any] = {"runtime": {"threads": setup_runtime(config.runtime).threads}}
    if source := asked["source"]:
        begun = load(source)
        _check_objective(begun, config)
        used["model"] = begun.config.model_dump()
        if config.objective != begun.objective:
            progress.say(
                f"{source} was pretrained with objective {begun.objective} and goes on with {config.objective}"
            )
    config = merge_config(PretrainConfig, config.model_dump(), used)
    refuse_fsdp(config)
    inputs = {"texts": list(texts), "tokenizer": asked["tokenizer"], "source": source}
    inputs |= {"teacher": asked["teacher"], "teacher_weight": weight} if asked["teacher"] else {}
    RunFolder.create(out, kind="pretrain", command=command, config=config, inputs=inputs)
    return {"config": config.model_dump(mode="json"), "inputs": inputs}


def _go(
    run: RunFolder,
    config: PretrainConfig,
    inputs: dict[str, Any],
    resume: bool,
    progress: Progress,
    since: float,
    ranks: ProcessGroup,
    load: Callable[[str], Bundle],
) -> None:
    source, texts = inputs["source"], inputs["texts"]
    start_from, taught = load(source) if source else None, _load_teacher(inputs)
    with run.locked():
        runtime = setup_runtime(config.runtime)
        run.write_json("environment.json", environment(runtime) | for_several_processes(config.runtime, ranks))
        with run.remove_on_error(new=not resume):
            own: Tokenizer | Path | None = start_from.tokenizer if start_from else None
            own = Path(inputs["tokenizer"]) if inputs["tokenizer"] else own
            shards = shared_shards(ranks, lambda: open_shards(texts, run.path, config, own, progress))
            run.check_inputs_unchanged(_input_facts(texts, config, shards, taught))
            way = strategy_for(config.runtime, ranks)
            pretraining = PretrainTrainer(
                run, config, shards, runtime, progress, start_from, taught, began=since, way=way
            )
            pretraining.prepare()
        with run.record_failure(), handle_signals(config.runtime.time_limit, since) as stop:
            stop.consensus = ranks.consensus if ranks.world_size > 1 else None
            pretraining.go(stop, resume=resume)


def _load_teacher(inputs: dict[str, Any]) -> Distillation | None:
    name = inputs.get("teacher")
    return Distillation(name, load_model_source(name, head_type="language"), inputs["teacher_weight"]) if name else None


def _texts(texts: Sequence[str], config: PretrainConfig | None) -> Sequence[str]:
    """All texts of a new run, wherever they were named."""
    staged = [text for stage in config.stages for text in stage.texts] if config else []
    if texts and staged:
        raise UsageError(
            f"{texts[0]} is given beside stages ({staged[0]} is in the first), which name their own texts; "
            "put it in a stage, or leave the stages out"
        )
    if config is None or not (texts or staged):
        raise UsageError("pretrain needs at least one text file or a folder of prepared shards")
    return texts or staged


def default_objective(source: str | None) -> dict[str, Any]:
    """What a model goes on with unless told otherwise: what it was pretrained to do."""
    if source is None:
        return {}
    found = load_model_source(source).objective if source.startswith(HF_SCHEME) else bundle_objective(Path(source))
    return {} if found == "classify" else {"objective": found}  # loading a classifier says what is wrong with it


def _check_objective(source: Bundle, config: PretrainConfig) -> None:
    """A stock model goes on with what its language head was made for."""
    if source.config.generic is None:
        return
    if config.objective != source.objective:
        way = "names a hidden token at its own place" if source.objective == "masked" else "names the next token"
        raise ConfigError(
            f"objective must be {source.objective}, got {config.objective}: {source.name} is a "
            f"{source.config.generic.family}, whose language head {way}"
        )
    if config.next_sentence.weight:
        raise ConfigError(
            f"next_sentence.weight is not for {source.name}, a {source.config.generic.family}: leave it out"
        )


def _input_facts(
    texts: Sequence[str], config: PretrainConfig, shards: Sequence[Shards], teaching: Distillation | None
) -> dict[str, Any]:
    """What the run reads, by a name that a message can use."""
    names = [f"stage {number} ({' '.join(stage.texts)})" for number, stage in enumerate(config.stages, start=1)]
    if len(names) < 2:
        names = [" ".join(texts)]
    facts = {name: read_json(part.folder / MANIFEST)["files"] for name, part in zip(names, shards, strict=True)}
    if teaching:
        facts[f"the teacher ({teaching.name})"] = read_json(teaching.bundle.path / MANIFEST)["files"]
    excluded = [part.excluded for part in shards]
    return facts | ({"what was left out": excluded[0] if len(excluded) == 1 else excluded} if any(excluded) else {})
