"""A search for settings within a time or a number of trials, on validation alone; ends with a file and a command."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from headstart.config import FinetuneConfig
from headstart.errors import UsageError
from headstart.files import write_json, write_whole
from headstart.layering import layered
from headstart.model.presets import values
from headstart.progress import Progress, Quiet
from headstart.recipes.finetune import load_source, settled, usual_preset
from headstart.recipes.grid import Engine, with_threads
from headstart.recipes.settings import Settings, check_shape, settings_of
from headstart.recipes.space import SEARCHED, check_installed, knobs_of
from headstart.recipes.tuning import Tuning
from headstart.runtime import stopping
from headstart.store.rundir import RunFolder
from headstart.store.trials import Trial, best_of

BEST = "best.toml"


@dataclass(frozen=True)
class Tuned:
    """What a search came to."""

    path: Path
    trials: tuple[Trial, ...]
    best: Trial
    toml: Path
    """The settings of the best trial, for `--config`."""
    command: str
    """The fine-tuning that repeats it."""


def tune(
    train: str | Path,
    *,
    out: str | Path,
    source: str | Path,
    valid: str | Path | None = None,
    tokenizer: str | Path | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    search: Sequence[str] = SEARCHED,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    preset: str | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Tuned:
    """Search for the settings of a fine-tuning that validation likes best.

    Args:
        source: a pretrained folder, hf: and a model of transformers, or "scratch".
        minutes: no trial is begun that would end later; beside `trials`, whichever comes first.
        search: what may be turned: lr, epochs, layer_decay, dropout, reading.
        jobs: trials at the same time, in processes of their own; a script must then guard its main part.
        engine: "ray" makes the trials on the Ray cluster at `address`, or on one that is started here.
    """
    check_shape(source, settings)
    preset = preset or usual_preset(str(source))
    return run_tune(
        str(train),
        Path(out),
        None if resume else settings_of(FinetuneConfig, preset, "finetune", settings),
        source=str(source),
        valid=None if valid is None else str(valid),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        minutes=minutes,
        trials=trials,
        search=search,
        jobs=jobs,
        engine=engine,
        address=address,
        preset=preset,
        resume=resume,
        progress=progress,
    )


def run_tune(
    train: str | None,
    out: Path,
    config: FinetuneConfig | None,
    *,
    source: str | None = None,
    valid: str | None = None,
    tokenizer: Path | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    search: Sequence[str] = SEARCHED,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    preset: str = "classic",
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Tuned:
    """Run the trials; with `resume`, those that are left of the search in `out`."""
    progress, since = progress or Quiet(), time.monotonic()
    grid = Engine(cast(Literal["local", "ray"], engine), jobs, address)
    grid.check()
    check_installed()
    if resume:
        run = RunFolder.open(out, kind="tune")
        config, inputs = layered(FinetuneConfig, run.settings), run.facts["inputs"]
    else:
        if config is None or train is None or source is None:
            raise UsageError("tune needs a labelled file, and --from with a pretrained folder or the word scratch")
        inputs = {"train": train, "valid": valid, "source": source, "tokenizer": str(tokenizer) if tokenizer else None}
        inputs |= {"minutes": minutes, "trials": trials, "search": list(search), "preset": preset}
        run, config = _started(out, config, inputs, grid, command)
    with run.locked():
        tuning = Tuning(run, config, dict(inputs), progress)
        tuning.inputs["until"] = _until(run, inputs["minutes"], jobs or 1)
        with run.discarded_on_error(new=not resume):
            tuning.prepare()
        with stopping(config.runtime.time_limit, since) as stop:
            found = tuning.go(stop, replace(grid, threads=config.runtime.threads))
            return _finish(run, tuning, found)


def _started(
    out: Path, config: FinetuneConfig, inputs: dict[str, Any], engine: Engine, command: str
) -> tuple[RunFolder, FinetuneConfig]:
    """The folder of a new search, and the settings that its trials begin from."""
    if inputs["minutes"] is None and inputs["trials"] is None:
        raise UsageError("tune needs --minutes or --trials: how long to search")
    for name in ("minutes", "trials"):
        if inputs[name] is not None and inputs[name] <= 0:
            raise UsageError(f"--{name} must be above 0, got {inputs[name]:g}")
    if config.loop.watch_test:
        raise UsageError("loop.watch_test looks at test, which a search for settings may not see")
    bundle = load_source(inputs["source"])  # a wrong folder is found out before anything is written
    config = with_threads(config, engine)
    config = settled(config, bundle)
    knobs_of(config, bundle, inputs["search"])
    return RunFolder.create(out, kind="tune", command=command, config=config, inputs=inputs), config


def _until(run: RunFolder, minutes: float | None, jobs: int) -> float | None:
    """When the minutes end, by the clock on the wall, which processes share; what went before an interruption counts."""
    from headstart.store.trials import read_trials

    spent = sum(trial.seconds for trial in read_trials(run.path)) / jobs
    return None if minutes is None else time.time() + 60 * minutes - spent


def _finish(run: RunFolder, tuning: Tuning, trials: list[Trial]) -> Tuned:
    best, toml, inputs = best_of(trials), run.path / BEST, tuning.inputs
    used = tuning.settled(dict(best.settings))
    usual = layered(FinetuneConfig, values(inputs["preset"], "finetune"))
    write_whole(toml, _as_toml(used, usual, brought=inputs["source"] != "scratch").encode("utf-8"))
    words = ["headstart", "finetune", inputs["train"], "--from", inputs["source"]]
    for name in ("valid", "tokenizer", "preset"):
        words += [f"--{name}", inputs[name]] if inputs[name] else []
    command = shlex.join([*words, "--config", str(toml), "--out", f"{run.path}-clf"])
    result = {"best": best.model_dump(mode="json"), "trials": len(trials), "settings": BEST, "command": command}
    write_json(run.path / "result.json", result)  # written last: the search is finished
    return Tuned(run.path, tuple(trials), best, toml, command)


def _as_toml(used: FinetuneConfig, usual: FinetuneConfig, *, brought: bool) -> str:
    """What differs from the preset, by section; a pretrained network brings its own shape and tokenizer."""
    lines = []
    before = usual.model_dump()
    for section, fields in used.model_dump().items():
        if brought and section in ("model", "tokenizer"):
            continue
        other = {name: value for name, value in fields.items() if value != before[section][name] and value is not None}
        if other:
            lines += [f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in other.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + " }"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
