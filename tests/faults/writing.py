"""Every write, flush, rename and new folder of every kind of save fails in turn: what was there before is still there."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.damage import save_step, started
from faults.disk import Disk, broken, full
from fixtures.tiny import language_model, pretrain_config
from headstart.config.schema import CorpusConfig, TokenizerConfig
from headstart.data.shards import Shards
from headstart.errors import HeadstartError
from headstart.files import read_json, write_json
from headstart.progress import SilentProgress
from headstart.recipes.prepare import PrepareRequest, run_prepare, run_tokenizer
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.checkpoint import load_checkpoint, newest_valid
from headstart.store.records import read_record, write_record
from headstart.store.run_folder import RunFolder
from headstart.tokenization.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Save:
    """Something that is saved in a folder where an earlier one of its kind stands."""

    name: str
    before: Callable[[Path], Any]
    save: Callable[[Path], Any]
    state: Callable[[Path], Any]
    """What is there: refuses what is not whole."""


def torture(save: Save, work: Path) -> dict[str, Any]:
    """Let each operation of a save fail, with a full disk and with a broken one."""
    record: dict[str, Any] = {"operations": 0, "failed": 0, "kept": 0, "faults": []}
    original, target_folder = work / "before", work / "now"
    shutil.rmtree(work, ignore_errors=True)
    original.mkdir(parents=True)
    save.before(original)
    shutil.copytree(original, target_folder)
    old = save.state(target_folder)
    with Disk(target_folder) as disk:
        save.save(target_folder)
    new = save.state(target_folder)
    assert old != new, save.name  # control: the save does something
    record["operations"] = len(disk.log)
    for number, operation in enumerate(disk.log):
        for act in (full, broken):
            shutil.rmtree(target_folder)
            shutil.copytree(original, target_folder)
            record["failed"] += 1
            fault = _failure(save, target_folder, Disk(target_folder, number, act), old, new)
            if fault:
                record["faults"].append(f"{operation}, {act.__name__}: {fault}")
            else:
                record["kept"] += 1
    return record


def _failure(save: Save, target_folder: Path, disk: Disk, old: Any, new: Any) -> str | None:
    """What went wrong besides the disk, or None."""
    try:
        with disk:
            save.save(target_folder)
        result = None  # an operation that nothing depends on
    except HeadstartError as error:
        result = str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if result is not None and ("\n" in result or ".writing-" in result):
        return f"not a line for a person: {result}"
    left = [path.name for path in target_folder.rglob(".*") if ".writing-" in path.name or ".old-" in path.name]
    if left:
        return f"left behind: {left}"
    try:
        state = save.state(target_folder)
    except HeadstartError as error:
        return f"nothing whole is left: {error}"
    return None if state in ((old, new) if result is not None else (new,)) else "another state"


def saves(data: Path) -> list[Save]:
    """One of each kind."""
    tokenizer = load_tokenizer(data / "base")
    shape = load_bundle(data / "base")

    def bundle(folder: Path, seed: int) -> None:
        shape.model.backbone.embedding.weight.data.fill_(seed)
        save_bundle(folder / "bundle", Bundle(shape.model, tokenizer, objective="causal", about={"seed": seed}))

    def shards(folder: Path, name: str) -> None:
        request = PrepareRequest([str(data / name)], folder / "tokens", CorpusConfig(), TokenizerConfig(), tokenizer)
        run_prepare(request, SilentProgress())

    def cell(folder: Path, seconds: float) -> None:
        write_record(folder, _a_cell().model_copy(update={"seconds": seconds}))

    def create(folder: Path, name: str) -> None:
        RunFolder.create(folder / name, kind="pretrain", command="", config=pretrain_config(), inputs={})

    def learn(folder: Path) -> None:
        run_tokenizer(
            [str(data / "texts.txt")], folder / "tok", TokenizerConfig(vocab_size=300), CorpusConfig(), SilentProgress()
        )

    return [
        Save("checkpoint", lambda at: started(at / "run"), lambda at: save_step(RunFolder(at / "run"), 3, 1), _newest),
        Save("bundle", lambda at: bundle(at, 1), lambda at: bundle(at, 2), lambda at: load_bundle(at / "bundle").about),
        Save("shards", lambda at: shards(at, "texts.txt"), lambda at: shards(at, "more.txt"),
             lambda at: Shards.open(at / "tokens").fingerprint),
        Save("tokenizer", lambda at: None, learn,
             lambda at: load_tokenizer(at / "tok").digest if (at / "tok").exists() else None),
        Save("cell", lambda at: cell(at, 1.0), lambda at: cell(at, 2.0),
             lambda at: read_record(next((at / "cells").glob("*.json"))).seconds),
        Save("result", lambda at: write_json(at / "result.json", [1]), lambda at: write_json(at / "result.json", [2]),
             lambda at: read_json(at / "result.json")),
        Save("new run", lambda at: create(at, "a"), lambda at: create(at, "b"), _runs),
        Save("metrics", _log, _log, lambda at: len(RunFolder(at).metrics.read())),
    ]  # fmt: skip


def _newest(at: Path) -> int:
    folder = newest_valid(RunFolder(at / "run"), lambda _: None)
    assert folder is not None
    return int(load_checkpoint(folder, language_model())[1]["step"])


def _runs(at: Path) -> list[str]:
    """The runs there are; one that was begun and came to nothing can be begun again."""
    result = [name for name in ("a", "b") if (at / name / "run.json").is_file()]
    for name in result:
        RunFolder.open(at / name, kind="pretrain")
    if "b" not in result and (at / "b").exists():
        RunFolder.create(at / "b", kind="pretrain", command="", config=pretrain_config(), inputs={})
    return result


def _log(at: Path) -> None:
    RunFolder(at).metrics.write("epoch", epoch=1)


def _a_cell() -> Any:
    from headstart.store.records import RunRecord, Score

    score = Score(accuracy=0.5, macro_f1=0.5, confusion=((1, 0), (1, 0)))
    return RunRecord(arm="linear", labels="all", rows=2, seed=0, setting={}, epochs=(), best_epoch=None, valid=score,
                test=score, predictions=(0, 0), seconds=1.0)  # fmt: skip
