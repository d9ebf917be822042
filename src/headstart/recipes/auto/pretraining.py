"""Pretraining for `headstart auto`: on the table's own text, from a starter or from random weights."""

import json
from pathlib import Path
from typing import Any

from headstart.config.merge import resolve_settings
from headstart.config.schema import PretrainConfig, RuntimeConfig
from headstart.files import atomic_write
from headstart.progress import Progress, pluralize
from headstart.recipes.auto.table import Table
from headstart.recipes.pretrain.continued import continued_settings
from headstart.recipes.pretrain.preset_search import choose_preset
from headstart.recipes.pretrain.run import PretrainRequest, run_pretrain
from headstart.store.run_folder import RunFolder

PRETRAINED = "pretrained"
_SMALL_MEGABYTES = 10.0
_SMALL_VOCABULARY = 8192
"""The vocabulary of a tokenizer that is trained on less text than that."""


def own_backbone(
    folder: Path, table: Table, start: str | None, minutes: float, runtime: RuntimeConfig, progress: Progress
) -> Path:
    """Pretrain on the text of the table, or go on with that; returns the run folder of the language model.

    Texts of test and their near-duplicates are left out.

    Args:
        start: a starter to continue; None begins from random weights, with a tokenizer of the table's own.
    """
    out = folder / PRETRAINED
    if (out / "run.json").is_file():
        if not RunFolder.open(out, kind="pretrain").finished:
            run_pretrain(PretrainRequest(out=out, resume=True), None, progress)
        return out
    work = folder / "work"
    work.mkdir(exist_ok=True)
    texts, test = work / "texts.jsonl", work / "test.jsonl"
    for path, rows in ((texts, (*table.train.texts, *table.unlabelled)), (test, table.test.texts)):
        if not path.is_file():  # not written twice: shards remember when their source was modified
            atomic_write(path, "".join(json.dumps({"text": row}) + "\n" for row in rows).encode("ascii"))
    progress.say(
        f"pretraining on {table.megabytes:.1f} MB of text for {pluralize(float(f'{minutes:.1f}'), 'minute')}, "
        f"from {start or 'random weights'}"
    )
    settings: dict[str, Any] = {
        "loop.minutes": minutes,
        "corpus.exclude": str(test),
        "runtime": runtime.model_dump(),
    }
    preset = None  # going on with a model has settings of its own
    if start is None:
        if table.megabytes < _SMALL_MEGABYTES:
            settings["tokenizer.vocab_size"] = _SMALL_VOCABULARY
        preset = choose_preset(resolve_settings(PretrainConfig, "classic", "pretrain", settings), progress)
    config = resolve_settings(PretrainConfig, preset, "pretrain", settings, continued_settings(start))
    run_pretrain(PretrainRequest(texts=(str(texts),), out=out, backbone=start), config, progress)
    return out
