"""Runs one recipe in a process of its own, so that a test can kill it.

python runner.py pretrain|masked|hybrid|stages|finetune|compare DATA OUT [resume]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from headstart.errors import HeadstartError
from headstart.recipes.compare import run_compare
from headstart.recipes.finetune import run_finetune
from headstart.recipes.pretrain import run_pretrain
from tiny import finetune_config, pretrain_config

STEPS = 100
EPOCHS = 14


def stages_of(data: Path) -> list[dict]:
    """Short rows of a second text, then the usual text in short and in full rows."""
    more = data / "more.txt"
    if not more.exists():  # written once: a resumed run finds what it began with
        more.write_text((data / "texts.txt").read_text().replace("film", "novel").replace("plot", "page"))
    return [
        {"texts": [str(more)], "share": 0.3, "context": 9},
        {"texts": [str(data / "texts.txt")], "share": 0.3, "context": 12},
        {"texts": [str(data / "texts.txt")], "share": 0.4},
    ]


def go(what: str, data: Path, out: Path, resume: bool) -> None:
    if what in ("pretrain", "masked", "hybrid"):
        objective = "causal" if what == "pretrain" else what
        config = pretrain_config(loop__steps=STEPS, objective=objective)
        run_pretrain([str(data / "texts.txt")], out, config, resume=resume)
    elif what == "stages":
        config = pretrain_config(loop__steps=STEPS, stages=stages_of(data))
        run_pretrain([], out, config, resume=resume)
    elif what == "finetune":
        config = finetune_config(loop__epochs=EPOCHS)
        files = {"valid": str(data / "valid.csv"), "test": str(data / "test.csv")}
        run_finetune(str(data / "train.csv"), out, config, source="scratch", resume=resume, **files)
    else:
        config = finetune_config(loop__epochs=3)
        files = {"valid": str(data / "valid.csv"), "test": str(data / "test.csv")}
        arms = ("majority", "scratch")
        run_compare(str(data / "train.csv"), out, config, seeds=2, labels=(16, None), arms=arms, resume=resume, **files)


if __name__ == "__main__":
    try:
        go(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), len(sys.argv) > 4)
    except HeadstartError as error:
        sys.exit(f"headstart: {error}")
