"""Runs that several processes must do as one does: every objective, optimizer and layout, and rows that do not divide."""

MODERN = {"model.block": "modern", "optim.optimizer": "muon", "optim.weight_decay": 0.1, "optim.average": 0.9}

PRETRAIN = {
    "plain": {"loop.steps": 50, "optim.lr": 3e-3},
    "modern": {**MODERN, "objective": "hybrid", "loop.steps": 12, "loop.accumulate": 3, "runtime.recompute": True},
    "pairs": {"objective": "masked", "pairs.weight": 1.0, "corpus.layout": "documents", "loop.steps": 8},
    "turns": {"objective": "hybrid", "pairs.weight": 1.0, "masking.causal": 0.5, "loop.steps": 8},
    "odd": {"loop.steps": 8, "loop.batch_size": 3, "loop.accumulate": 1, "corpus.layout": "documents"},
}
FINETUNE = {
    "weighted": {"loop.batch_size": 5, "transfer.class_weights": "balanced", "labelled.long_texts": "windows"},
    "thawing": {"transfer.unfreeze_every": 1, "transfer.layer_decay": 0.9, "optim.average": 0.9},
    "frozen": {"transfer.freeze": True, "loop.choose": "last", "model.block": "modern"},
}
NOT_SHARDED = {"turns", "thawing"}
"""Refused in shards."""


def jobs(folder, parallel: str, *, only: set[str] | None = None) -> list[dict]:
    """All of them, each into a folder of its name."""
    wanted = [("pretrain", PRETRAIN), ("finetune", FINETUNE)]
    return [
        {"recipe": recipe, "out": str(folder / name), "settings": settings | {"runtime.parallel": parallel}}
        for recipe, runs in wanted
        for name, settings in runs.items()
        if (only is None or name in only) and not (parallel == "fsdp" and name in NOT_SHARDED)
    ]
