"""The settings of a pretraining run that continues from a model. No torch, unless the model is one of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.config.presets import PRESET_SIZES, preset_values
from headstart.store.linear_bundle import bundle_model, bundle_objective
from headstart.store.locate import HF_SCHEME

PATIENCE = 3
"""Evaluations without a lower held-out loss after which a run that continues from a model stops."""
CONTINUED_HELD_OUT = 0.05
"""The fraction of the text that such a run holds out: its text is often small, and the held-out loss decides."""
CONTINUED_BATCH_SIZE = 8
"""Rows per forward pass if such a run has a modern preset: 40 steps of 8 rows were better than 10 of 32."""


def continued_settings(backbone: str | None) -> dict[str, Any]:
    """Return the settings of a run that continues from a model, where they differ from the defaults; empty without one.

    The objective is that of the model, the optimizer that of the most similar preset. As such a run often has
    little text, more of it is held out, and the weights with the lowest held-out loss are kept.
    """
    if backbone is None:
        return {}
    if backbone.startswith(HF_SCHEME):
        from headstart.interop.model_source import load_model_source

        bundle = load_model_source(backbone)
        objective, model = bundle.objective, bundle.config.model_dump()
    else:
        objective, model = bundle_objective(Path(backbone)), bundle_model(Path(backbone))
    preset = similar_preset(model)
    recipe = preset_values(preset, "pretrain")
    batch_size = CONTINUED_BATCH_SIZE if preset in PRESET_SIZES else recipe["loop"]["batch_size"]
    values = {
        "optim": recipe["optim"],
        "loop": {"batch_size": batch_size, "patience": PATIENCE},
        "corpus": {"held_out": CONTINUED_HELD_OUT},
    }
    # loading a classifier reports the mistake
    return values if objective == "classify" else {"objective": objective, **values}


def similar_preset(model: Mapping[str, Any]) -> str:
    """Return the preset with the most similar block and width.

    >>> similar_preset({"block": "modern", "width": 320}), similar_preset({"block": "generic", "width": 768})
    ('modern-micro', 'classic')
    """
    if model.get("block") != "modern":
        return "classic"
    width = int(model.get("width", 0))
    return min(PRESET_SIZES, key=lambda name: abs(PRESET_SIZES[name][0][0] - width))
