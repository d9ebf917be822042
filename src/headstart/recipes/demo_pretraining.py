"""For the demo without a starter: a small language model of one's own, pretrained in minutes on two CPU cores.

It learns from the unlabelled files of a person's folder and from the texts of the rows that are not judged by. So little
pretraining rarely beats a linear model; it shows the steps, and it needs nobody's text but one's own.
"""

from collections.abc import Iterable
from pathlib import Path

from headstart.config import CorpusConfig, PretrainConfig
from headstart.data.builtin import read_reviews
from headstart.data.corpus import read_documents
from headstart.layering import layered
from headstart.model.presets import values
from headstart.progress import Progress
from headstart.recipes.pretrain import run_pretrain

_SETTINGS = {
    "tokenizer": {"vocab_size": 4096, "megabytes": 5.0},
    "model": {"width": 128, "depth": 2, "heads": 2, "feedforward": 256, "context": 128, "dropout": 0.1},
    "corpus": {"held_out": 0.01},
    "optim": {
        "optimizer": "adamw",
        "lr": 2e-3,
        "weight_decay": 0.01,
        "warmup": 0.05,
        "schedule": "cosine",
        "clip": 1.0,
    },
    "loop": {"batch_size": 16, "steps": 1000, "evaluate_every": 250, "save_every": 250},
}


def unlabelled(data: Path | None, known: Iterable[Path]) -> list[str]:
    """The texts of the files of a folder that are not labelled ones; of the film reviews, those not judged by."""
    if data is None:
        return [review.text for review in read_reviews() if not review.set_aside]
    others = sorted({path for path in data.iterdir() if path.is_file()} - set(known))
    return [document.text for document in read_documents(list(map(str, others)), CorpusConfig())] if others else []


def pretrain_small(texts: Path, judged: list[str], out: Path, command: str, progress: Progress) -> str:
    """Pretrain, or go on; returns the folder.

    Args:
        judged: the files whose rows are not learnt from.
    """
    config = layered(
        PretrainConfig, values("classic", "pretrain"), _SETTINGS, {"corpus": {"leave_out": ",".join(judged)}}
    )
    resume = (out / "run.json").is_file()
    return str(run_pretrain([str(texts)], out, config, resume=resume, command=command, progress=progress).path)
