"""The runs that are tortured: every way of training, on texts and networks as small as they can be."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from headstart.progress import SilentProgress
from headstart.recipes.auto.run import AutoRequest, run_auto
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.prepare import run_prepare_labelled

STEPS = 30
PRETRAINING = {
    "causal": {},
    "masked": {"objective": "masked"},
    "hybrid": {"objective": "hybrid"},
    "pairs": {"objective": "masked", "next_sentence__weight": 0.5},
    "stages": {},
    "average": {"optim__ema_decay": 0.9},
    "accumulate": {"loop__accumulate": 3},
    "muon": {"optim__optimizer": "muon", "model__block": "modern"},
}
KINDS = (*PRETRAINING, "finetune", "compare", "auto")


def write_data(folder: Path) -> Path:
    """Texts, labelled files and a pretrained model to begin from."""
    write_reviews(folder)
    more = (folder / "texts.txt").read_text().replace("film", "novel").replace("plot", "page")
    (folder / "more.txt").write_text(more)
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=2))
    return folder


def go(kind: str, data: Path, out: Path, *, resume: bool, steps: int = STEPS) -> None:
    """Do one run, or go on with it."""
    texts, files = [str(data / "texts.txt")], {name: str(data / f"{name}.csv") for name in ("valid", "test")}
    if kind == "finetune":
        config = finetune_config(loop__epochs=6, optim__ema_decay=0.5)
        finetune_run(str(data / "train.csv"), out, config, backbone=str(data / "base"), resume=resume, **files)
    elif kind == "compare":
        plan = {"seeds": 2, "label_budgets": (16, None), "arms": ("majority", "scratch", "pretrained")}
        config = finetune_config(loop__epochs=2)
        backbones = (str(data / "base"),)
        request = CompareRequest(
            train=str(data / "train.csv"), out=out, backbones=backbones, resume=resume, **files, **plan
        )
        run_compare(request, config)
    elif kind == "auto":
        settings = {"loop": {"epochs": 2}, "optim": {"lr": 5e-3}, "runtime": {"threads": 1}}
        table, base = str(data / "train.csv"), str(data / "base")
        run_auto(AutoRequest(table=table, out=out, backbone=base, settings=settings, resume=resume))
    else:
        settings = {"loop__steps": steps, **PRETRAINING[kind]}
        if kind == "stages":
            settings["stages"] = [{"texts": [str(data / "more.txt")], "context": 9}, {"texts": texts, "fraction": 2}]
        pretrain_run([] if kind == "stages" else texts, out, pretrain_config(**settings), resume=resume)


def outcome(out: Path) -> dict[str, bytes]:
    """All that a finished run must have in common with one that nobody touched; times is not part of this export."""
    kept = [
        *out.glob("bundle/*.safetensors"),
        *out.glob("bundle/*.bin"),
        *out.glob("result.json"),
        *out.glob("data.json"),
    ]
    result = {str(path.relative_to(out)): path.read_bytes() for path in sorted(kept)}
    if (out / "metrics.jsonl").exists():
        lines = (out / "metrics.jsonl").read_text().splitlines()
        result["metrics.jsonl"] = "\n".join(_timeless(line) for line in lines).encode()
    return result | {str(path.name): _timeless(path.read_text()).encode() for path in sorted(out.glob("cells/*.json"))}


def _timeless(text: str) -> str:
    content = json.loads(text)
    for part in (content, *content.get("epochs", ())):
        for name in ("seconds", "seal"):
            part.pop(name, None)
    return json.dumps(content, sort_keys=True)


def in_a_copy(work: Callable[[Path], None], original: Path, target_folder: Path) -> Path:
    """Do something to a fresh copy of a folder."""
    shutil.rmtree(target_folder, ignore_errors=True)
    shutil.copytree(original, target_folder)
    work(target_folder)
    return target_folder


def tune(data: Path, out: Path) -> None:
    """A classifier that can abstain, which takes more validation rows than the tortured runs have, and labelled shards."""
    more = write_reviews(out.with_name(f"{out.name}-data"), train=120, valid=80)
    config = finetune_config(loop__epochs=3)
    finetune_run(str(more / "train.csv"), out, config, backbone=str(data / "base"), valid=str(more / "valid.csv"))
    labelled = config.labelled
    run_prepare_labelled(
        str(more / "train.csv"), out / "labelled", labelled, tokenizer=data / "base", progress=SilentProgress()
    )
