"""Fine-tuning: a pretrained folder, or random weights, and labelled text in; a classifier and its figures out."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from headstart.config import FinetuneConfig
from headstart.errors import Interrupted, UsageError
from headstart.interop.sources import SCHEME, load_from
from headstart.layering import layered
from headstart.progress import Progress, Quiet
from headstart.recipes.classifier import build_classifier, class_weights, reading_of, shape_of
from headstart.recipes.in_words import told
from headstart.recipes.labelled_data import LabelledData, load_data
from headstart.recipes.leaks import pretraining_noted
from headstart.recipes.together import is_continued, of_several, refuse_sharded, together
from headstart.recipes.training import Finetuning, Outcome
from headstart.runtime import Halt, environment, start, stopping
from headstart.store.bundle import Bundle, block_of, save_bundle
from headstart.store.rundir import Onlooker, RunFolder
from headstart.text.tokenizer import Tokenizer, load_tokenizer
from headstart.train.parallel import way_of
from headstart.train.ranks import Ranks

SCRATCH = "scratch"
READING = ("text_column", "second_column", "label_column", "separator")
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
    progress, since = progress or Quiet(), time.monotonic()
    files = {"train": train, "valid": valid, "test": test, "source": source}
    inputs = files | {"tokenizer": str(tokenizer) if tokenizer else None}
    with together(out) as ranks:
        progress = progress if ranks.first else Quiet()
        resume = ranks.tell(lambda: resume or is_continued(out, command))
        load = cache(load_source)  # a wrong folder is found out before anything is written
        facts = ranks.tell(lambda: _begin(out, config, inputs, resume, command, progress, load))
        run = RunFolder(out) if ranks.first else Onlooker(out)
        if facts is not None:
            settings, inputs = layered(FinetuneConfig, facts["config"]), facts["inputs"]
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
        config, inputs = layered(FinetuneConfig, run.settings), run.facts["inputs"]
        refuse_sharded(config)
    else:
        if config is None or inputs["train"] is None or inputs["source"] is None:
            raise UsageError("finetune needs a labelled file, and --from with a pretrained folder or the word scratch")
        config = settled(config, load(inputs["source"]))
        refuse_sharded(config)
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
    ranks: Ranks,
) -> None:
    runtime = start(config.runtime)
    run.note("environment.json", environment(runtime) | of_several(config.runtime, ranks))
    with run.discarded_on_error(new=not resume):
        data = load_data(
            inputs["train"],
            inputs["valid"],
            inputs["test"],
            config.labelled,
            tokenizer=choose_tokenizer(source, inputs["tokenizer"]),
            tokenizer_config=config.tokenizer,
            seed=config.runtime.seed,
            progress=progress,
        )
        data = pretraining_noted(data, source.path if source else None, inputs["source"], progress)
        class_weights(config, data.target, data.train)
        run.same_inputs(data.fingerprints())
        model, receipt = build_classifier(
            config.model, data, source, inputs["source"], config.runtime.seed, reading_of(config, source)
        )
    if receipt:
        run.note("receipt.json", receipt.as_dict())
        progress.say(receipt.summary())
    with run.failure_noted(), stopping(config.runtime.time_limit, since) as stop:
        stop.agree = ranks.agree if ranks.world > 1 else None
        way = way_of(config.runtime, ranks)
        training = Finetuning(run, config, data, model, runtime, stop, progress, began=since, way=way)
        try:
            outcome = training.go(resume=resume)
        except Halt:
            raise Interrupted(
                f"{stop.why} at step {training.state.step} of {training.steps}; saved. Go on with: "
                f"headstart finetune --resume --out {run.path}",
                stop.reason or "",
            ) from None
        ranks.tell(
            lambda: _write(run, config, data, outcome, inputs["source"], progress)
        )  # seconds: a stop waits for it


def _write(
    run: RunFolder, config: FinetuneConfig, data: LabelledData, outcome: Outcome, source: str, progress: Progress
) -> None:
    parts, settled = {"train": data.train, "valid": data.valid, "test": data.test}, outcome.settled
    result = {
        "source": source,
        "labels": list(data.labels),
        "target": settled.target.facts(),
        "labelled": {name: getattr(config.labelled, name) for name in READING},
        "data": {name: part.describe(data.target) for name, part in parts.items() if part is not None},
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
        settled.target,
        windows=config.labelled.long_texts == "windows",
        visibility=outcome.model.head.visibility,
        about=result,
    )
    save_bundle(run.path / "bundle", bundle)
    run.note("result.json", result)
    run.tidy()
    for line in told(settled, outcome.test or outcome.valid):
        progress.say(line)
    test = f"; test {outcome.test.headline} (read once)" if outcome.test else ""
    best = "best epoch {} by validation," if config.loop.choose == "best" else "epoch {}, validation"
    kept = best.format(outcome.best_epoch)
    progress.say(f"{kept} {outcome.valid.headline}{test}; model in {run.path}")


def usual_preset(source: str | None) -> str:
    """The preset that fits what is fine-tuned, when none is named: that of the pretrained network's kind."""
    if source is None or source == SCRATCH:
        return "classic"
    return "modern" if source.startswith(SCHEME) or block_of(Path(source)) != "classic" else "classic"


def preset_of(source: Bundle | None) -> str:
    """The same of a model in hand."""
    return "modern" if source and source.config.block != "classic" else "classic"


def load_source(source: str) -> Bundle | None:
    """The folder to start from, or None for random weights."""
    return None if source == SCRATCH else load_from(source)


def choose_tokenizer(source: Bundle | None, path: str | None) -> Tokenizer | None:
    """The tokenizer given (a transfer checks that it is the source's), the source's, or None: train one."""
    if path is not None:
        return load_tokenizer(Path(path))
    return source.tokenizer if source else None


def settled(config: FinetuneConfig, source: Bundle | None) -> FinetuneConfig:
    """What will really be used: the shape of the source, and the threads, because other threads add in another order."""
    used: dict[str, Any] = {"runtime": {"threads": start(config.runtime).threads}}
    if source:
        used["model"] = shape_of(source, config.transfer).model_dump()
    return layered(FinetuneConfig, config.model_dump(), used)
