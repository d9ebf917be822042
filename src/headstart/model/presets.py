"""Named settings: what a preset says that differs from the defaults, for each command. No torch here.

`classic` is the published course experiment to the letter, and also the defaults' choice of network.
"""

from typing import Any

from headstart.errors import ConfigError

NAMES = ("classic",)

_CLASSIC_MODEL = {
    "block": "classic",
    "width": 200,
    "depth": 4,
    "heads": 2,
    "feedforward": 200,
    "dropout": 0.0,
    "context": 512,
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
}


def values(name: str, command: str) -> dict[str, Any]:
    """The settings that preset `name` gives to `command` (pretrain or finetune).

    >>> values("classic", "finetune")["loop"]
    {'batch_size': 8, 'epochs': 15}
    """
    if name not in _PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(NAMES)}, got {name!r}")
    return _PRESETS[name][command]
