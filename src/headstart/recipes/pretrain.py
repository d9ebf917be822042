"""Pretraining: text in, a language model and its measure on held-out text out."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.config import PretrainConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError, UsageError
from headstart.files import MANIFEST, read_json, write_json
from headstart.interop.sources import load_from
from headstart.layering import layered
from headstart.progress import Progress, Quiet
from headstart.recipes.pretraining import Pretraining
from headstart.recipes.stages import open_shards
from headstart.recipes.teaching import Teaching, check_weight
from headstart.runtime import environment, start, stopping
from headstart.store.bundle import Bundle
from headstart.store.rundir import RunFolder


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
    progress, since = progress or Quiet(), time.monotonic()
    if resume:
        run = RunFolder.open(out, kind="pretrain")
        if run.finished:
            progress.say(f"{out} is finished already; its result is in {out / 'result.json'}")
            return run
        config = layered(PretrainConfig, run.settings)
        inputs = run.facts["inputs"]
        texts, source = inputs["texts"], inputs["source"]
        tokenizer = Path(inputs["tokenizer"]) if inputs["tokenizer"] else None
        start_from = load_from(source, task="language") if source else None
    else:
        texts, weight = _texts(texts, config), check_weight(teacher, teacher_weight)
        assert config is not None
        # the thread count is part of the run: other threads add in another order
        threads = start(config.runtime).threads
        start_from = load_from(source, task="language") if source else None
        used: dict[str, Any] = {"runtime": {"threads": threads}}
        if start_from:
            _check_objective(start_from, config)
            used["model"] = start_from.config.model_dump()
        config = layered(PretrainConfig, config.model_dump(), used)
        inputs = {"texts": list(texts), "tokenizer": str(tokenizer) if tokenizer else None, "source": source}
        inputs |= {"teacher": teacher, "teacher_weight": weight} if teacher else {}
        run = RunFolder.create(out, kind="pretrain", command=command, config=config, inputs=inputs)
    taught = _taught(inputs)
    with run.locked():
        runtime = start(config.runtime)
        write_json(out / "environment.json", environment(runtime))
        with run.discarded_on_error(new=not resume):
            own = start_from.tokenizer if start_from and tokenizer is None else tokenizer
            shards = open_shards(texts, out, config, own, progress)
            run.same_inputs(_facts(texts, config, shards, taught))
            pretraining = Pretraining(run, config, shards, runtime, progress, start_from, taught, began=since)
            pretraining.prepare()
        with stopping(config.runtime.time_limit, since) as stop:
            pretraining.go(stop, resume=resume)
    return run


def _taught(inputs: dict[str, Any]) -> Teaching | None:
    name = inputs.get("teacher")
    return Teaching(name, load_from(name, task="language"), inputs["teacher_weight"]) if name else None


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


def _check_objective(source: Bundle, config: PretrainConfig) -> None:
    """A stock model goes on with what its language head was made for."""
    if source.config.stock is None:
        return
    if config.objective != source.objective:
        way = "names a hidden token at its own place" if source.objective == "masked" else "names the next token"
        raise ConfigError(
            f"objective must be {source.objective}, got {config.objective}: {source.name} is a "
            f"{source.config.stock.family}, whose language head {way}"
        )
    if config.pairs.weight:
        raise ConfigError(f"pairs.weight is not for {source.name}, a {source.config.stock.family}: leave it out")


def _facts(
    texts: Sequence[str], config: PretrainConfig, shards: Sequence[Shards], teaching: Teaching | None
) -> dict[str, Any]:
    """What the run reads, by a name that a message can use."""
    names = [f"stage {number} ({' '.join(stage.texts)})" for number, stage in enumerate(config.stages, start=1)]
    if len(names) < 2:
        names = [" ".join(texts)]
    facts = {name: read_json(part.folder / MANIFEST)["files"] for name, part in zip(names, shards, strict=True)}
    if teaching:
        facts[f"the teacher ({teaching.name})"] = read_json(teaching.bundle.path / MANIFEST)["files"]
    left_out = [part.about.get("left_out") for part in shards]
    return facts | ({"what was left out": left_out[0] if len(left_out) == 1 else left_out} if any(left_out) else {})
