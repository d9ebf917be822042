"""The preset of a fine-tuning that names none. No torch, so that `--help-all` can show its values."""

from pathlib import Path

from headstart.config.presets import preset_for_width
from headstart.store.linear_bundle import bundle_shape
from headstart.store.locate import HF_SCHEME

SCRATCH = "scratch"


def default_preset(backbone: str | None) -> str:
    """Return the preset that fits the network of a backbone, for a run that names none."""
    if backbone is None or backbone == SCRATCH:
        return "classic"
    if backbone.startswith(HF_SCHEME):
        return "modern-base"
    block, width = bundle_shape(Path(backbone))
    return "classic" if block == "classic" else preset_for_width(width)
