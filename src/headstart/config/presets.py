"""Presets: named settings for pretrain and finetune. No torch.

`classic` is the experiment of the published course; its values are the defaults of the settings.
"""

import math
from typing import Any

from headstart.errors import ConfigError

_CLASSIC_MODEL = {
    "block": "classic",
    "width": 200,
    "depth": 4,
    "heads": 2,
    "feedforward": 200,
    "dropout": 0.0,
    "context": 512,
}

# (width, depth, heads, feed-forward width), context, batch size of pretraining
PRESET_SIZES = {
    "modern-nano": ((128, 4, 2, 352), 512, 32),
    "modern-micro": ((256, 6, 4, 704), 512, 64),
    "modern": ((512, 10, 8, 1408), 1024, 64),
    "modern-base": ((768, 12, 12, 2048), 1024, 64),
}
"""The modern presets from the smallest to the largest."""
PRESET_NAMES = ("classic", *PRESET_SIZES)


FINETUNE_LR, FINETUNE_WIDTH = 3e-4, 256
"""The learning rate of fine-tuning, up to this width; it decreases in inverse proportion for wider backbones."""


def _modern(size: tuple[int, int, int, int], context: int, batch_size: int) -> dict[str, dict[str, Any]]:
    width, depth, heads, feedforward = size
    model = {
        "block": "modern",
        "width": width,
        "depth": depth,
        "heads": heads,
        "feedforward": feedforward,
        "dropout": 0.1,
        "context": context,
    }
    return {
        "pretrain": {
            "objective": "hybrid",
            "model": model,
            "optim": {
                "optimizer": "muon",
                "lr": 2e-3,
                "weight_decay": 0.1,
                "beta2": 0.98,
                "warmup": 0.02,
                "schedule": "wsd",
                "clip": 1.0,
            },
            "loop": {"batch_size": batch_size},
        },
        "finetune": {
            "model": model,
            "optim": {
                "optimizer": "adamw",
                "lr": FINETUNE_LR * min(1.0, FINETUNE_WIDTH / width),
                "weight_decay": 0.01,
                "warmup": 0.1,
                "schedule": "linear",
                "clip": 1.0,
                "ema_decay": 0.99,
            },
            "loop": {
                "batch_size": 16,
                "epochs": 10,
                "min_steps": 300,
                "min_steps_per_label": 8,
                "max_steps": 5000,
                "select": "last",
            },
            "transfer": {"layer_decay": 0.9, "head_lr_multiplier": 5.0},
        },
    }


_PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "classic": {
        "pretrain": {
            "model": _CLASSIC_MODEL,
            "optim": {"optimizer": "adam", "lr": 3e-4, "schedule": "constant", "clip": 0.5},
            "loop": {"batch_size": 16},
        },
        "finetune": {
            "model": _CLASSIC_MODEL,
            "optim": {"optimizer": "adam", "lr": 1e-4, "schedule": "constant", "clip": 0.5},
            "loop": {"batch_size": 8, "epochs": 15},
        },
    },
    **{name: _modern(*size) for name, size in PRESET_SIZES.items()},
}


def preset_values(name: str, command: str) -> dict[str, Any]:
    """Return the settings of preset `name` for `command` (pretrain or finetune).

    >>> preset_values("classic", "finetune")["loop"]
    {'batch_size': 8, 'epochs': 15}
    """
    if name not in _PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESET_NAMES)}, got {name!r}")
    return _PRESETS[name][command]


def preset_for_width(width: int) -> str:
    """Return the modern preset whose width is nearest to that of a backbone, by ratio.

    >>> [preset_for_width(width) for width in (32, 128, 256, 320, 512, 768, 1024)]
    ['modern-nano', 'modern-nano', 'modern-micro', 'modern-micro', 'modern', 'modern-base', 'modern-base']
    """
    return min(PRESET_SIZES, key=lambda name: abs(math.log(PRESET_SIZES[name][0][0] / width)))
