"""What torchrun starts several times: the jobs of a file, one after the other, by recipes as the command line calls them.

torchrun ... crew.py DATA JOBS.json     each job: {"recipe", "out", "settings", "source", "resume"}
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from headstart.recipes.finetune import run_finetune
from headstart.recipes.pretrain import run_pretrain
from tiny import finetune_config, pretrain_config

STILL = {"model.dropout": 0.0}
"""Dropped activations are drawn by each process for its own rows: without them the arithmetic is that of one process."""


def go(data: Path, job: dict) -> None:
    """One run."""
    out, resume = Path(job["out"]), job.get("resume", False)
    settings = {name.replace(".", "__"): value for name, value in {**STILL, **job.get("settings", {})}.items()}
    if job["recipe"] == "pretrain":
        texts = [] if "stages" in settings else [str(data / "texts.txt")]
        config = None if resume else pretrain_config(**settings)
        run_pretrain(texts, out, config, source=job.get("source"), resume=resume)
        return
    config = None if resume else finetune_config(**settings)
    files = {"valid": str(data / "valid.csv"), "test": str(data / "test.csv")}
    run_finetune(str(data / "train.csv"), out, config, source=job.get("source", "scratch"), resume=resume, **files)


if __name__ == "__main__":
    for each in json.loads(Path(sys.argv[2]).read_text()):
        go(Path(sys.argv[1]), each)
