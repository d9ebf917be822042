"""Every file of every folder of ours, cut short and with bits flipped: whoever reads it must notice, and name it."""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.runs import go
from fixtures.tiny import finetune_config, language_model, pretrain_config
from headstart.data.shards import Shards
from headstart.errors import HeadstartError
from headstart.files import README, atomic_folder, read_manifest, write_checksummed
from headstart.progress import SilentProgress
from headstart.recipes.prepare import run_prepare_labelled
from headstart.store.bundle import load_bundle
from headstart.store.checkpoint import checkpoint_steps, newest_valid, save_checkpoint
from headstart.store.records import read_comparison_data, read_record
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import save_tensors
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.optimizers import build_optimizer, optimizer_tensors


@dataclass(frozen=True)
class Subject:
    """Files, and what reads them: it returns nothing if all is well, else it raises or says what is wrong."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], str | None]


def wounds(content: bytes, chance: random.Random, cuts: int, flips: int) -> Iterator[tuple[str, bytes]]:
    """A file cut short at some places and with a bit flipped at others."""
    ends = {0, 1, len(content) - 1} | {chance.randrange(len(content)) for _ in range(cuts)}
    for end in sorted(ends)[:cuts] if len(ends) > cuts else sorted(ends):
        if 0 <= end < len(content):
            yield f"cut at {end}", content[:end]
    for _ in range(flips):
        offset, bit = chance.randrange(len(content)), chance.randrange(8)
        yield (
            f"bit {bit} of byte {offset}",
            content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :],
        )


def torture(subject: Subject, cuts: int, flips: int) -> dict[str, Any]:
    """Damage every file of a subject in every way; what is not noticed, or not by name, is kept."""
    record: dict[str, Any] = {"files": len(subject.files), "damaged": 0, "refused": 0, "accepted": []}
    assert subject.read() is None, subject.name  # control: untouched it is read
    for path in subject.files:
        content = path.read_bytes()
        for wound, damaged in wounds(content, random.Random(f"{subject.name} {path.name}"), cuts, flips):
            path.write_bytes(damaged)
            record["damaged"] += 1
            try:
                output = subject.read()
            except HeadstartError as error:
                output = str(error)
            except Exception as error:  # whatever else comes out is a fault of ours
                output = None
                wound += f", {type(error).__name__}: {error}"
            if output and (str(path) in output or f"{path.parent} has format" in output or _of_a_link(path, output)):
                record["refused"] += 1
            else:
                record["accepted"].append(f"{path.name}, {wound}: {output}")
        path.write_bytes(content)
    assert subject.read() is None, subject.name
    return record


def _of_a_link(path: Path, output: str) -> bool:
    """config.json and run.json answer for each other: the one has the other's hash."""
    return path.name == "run.json" and str(path.with_name("config.json")) in output


def subjects(data: Path, work: Path) -> list[Subject]:
    """One of everything that we write, with its reader."""
    base = data / "base"
    shutil.copytree(base, work / "base")
    base = work / "base"
    go("finetune", data, work / "finetune", resume=False)
    go("compare", data, work / "compare", resume=False)
    labelled = run_prepare_labelled(
        str(data / "train.csv"),
        work / "labelled",
        finetune_config().labelled,
        tokenizer=base,
        progress=SilentProgress(),
    ).folder
    tokenizer = work / "tokenizer"
    own = load_tokenizer(base)
    with atomic_folder(tokenizer, kind="tokenizer", about={}) as draft:
        own.save(draft)
    cell = sorted((work / "compare" / "cells").iterdir())[-1]
    return [
        _checkpoint(work),
        Subject("language model", _files(base / "bundle"), _nothing(lambda: load_bundle(base))),
        Subject("classifier", _files(work / "finetune" / "bundle"), _nothing(lambda: load_bundle(work / "finetune"))),
        Subject("shards", _files(base / "tokens"), _nothing(lambda: Shards.open(base / "tokens"))),
        Subject("labelled shards", _files(labelled), _nothing(lambda: Shards.open(labelled))),
        Subject("tokenizer", _files(tokenizer), _nothing(lambda: read_manifest(tokenizer, kind="tokenizer"))),
        _best(work),
        Subject("cell of a comparison", (cell,), _nothing(lambda: read_record(cell))),
        Subject(
            "data.json", (work / "compare" / "data.json",), _nothing(lambda: read_comparison_data(work / "compare"))
        ),
        _run(work),
    ]


def _files(folder: Path) -> tuple[Path, ...]:
    """All that a reader answers for: a README is for people, who may change it."""
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != README))


def _nothing(work: Callable[[], object]) -> Callable[[], None]:
    def read() -> None:
        work()

    return read


def started(out: Path) -> RunFolder:
    """A run with two checkpoints."""
    run = RunFolder.create(out, kind="pretrain", command="", config=pretrain_config(), inputs={})
    for step in (1, 2):
        save_step(run, step, keep=2)
    return run


def save_step(run: RunFolder, step: int, keep: int) -> None:
    """Save the state of a tiny network that depends on the step."""
    model = language_model(seed=step)
    run.metrics.write("step", step=step)
    moments = optimizer_tensors(build_optimizer(model, pretrain_config().optim), model, None)
    save_checkpoint(run, step, model, moments, {"evaluated": 0}, keep)


def _checkpoint(work: Path) -> Subject:
    run = started(work / "checkpoints")
    older, newer = checkpoint_steps(run)

    def read() -> str | None:
        output: list[str] = []
        result = newest_valid(run, output.append)
        assert result == (older if output else newer)
        return output[0] if output else None

    return Subject("newest checkpoint, an older one beside it", _files(newer), read)


def _best(work: Path) -> Subject:
    folder = work / "best-0003"
    model = language_model()
    with atomic_folder(folder, kind="best") as draft:
        save_tensors(draft / "backbone.safetensors", model.backbone.state_dict())
        save_tensors(draft / "head.safetensors", model.head.state_dict())
    return Subject("weights of the best epoch", _files(folder), _nothing(lambda: read_manifest(folder, kind="best")))


def _run(work: Path) -> Subject:
    run = RunFolder.create(
        work / "a-run", kind="pretrain", command="x", config=pretrain_config(), inputs={"texts": ["a"]}
    )
    run.check_inputs_unchanged({"a": "b" * 64})
    write_checksummed(run.path / "plan.json", {"steps": 100, "seconds_per_step": 0.25})

    def read() -> None:
        from headstart.files import read_checksummed

        opened = RunFolder.open(run.path, kind="pretrain")
        assert opened.settings
        opened.check_inputs_unchanged({"a": "b" * 64})
        read_checksummed(run.path / "plan.json")

    names = ("run.json", "config.json", "inputs.json", "plan.json")
    return Subject("run.json, config.json, inputs.json, plan.json", tuple(run.path / name for name in names), read)
