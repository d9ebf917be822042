"""What settings are called on the command line, and messages that call them so."""

import re
from collections.abc import Mapping, Sequence

from headstart import config, layering

SHORT = {
    "corpus.leave_out": "--leave-out",
    "loop.minutes": "--minutes",
    "labelled.task": "--task",
    "labelled.text_column": "--text-column",
    "labelled.label_column": "--label-column",
    "labelled.second_column": "--second-column",
    "labelled.separator": "--separator",
    "labelled.lowest": "--lowest",
    "labelled.highest": "--highest",
    "labelled.skip_empty": "--skip-empty",
}
"""Options with a short name beside that of their setting: those for labelled text are called so by every command."""


def flag_of(name: str) -> str:
    """The option of a setting.

    >>> flag_of("optim.weight_decay")
    '--optim.weight-decay'
    """
    return "--" + name.replace("_", "-")


def short_of(name: str, others: Mapping[str, str]) -> str | None:
    """The short name of a setting beside others; none where it could as well be the column of unlabelled text."""
    return None if name.startswith("labelled.") and "corpus.text_column" in others else SHORT.get(name)


def as_typed(message: str, names: Mapping[str, str] | None = None) -> str:
    """Name settings in a message as they are typed on the command line.

    Args:
        names: the options by the dotted names of their fields, where they differ from those of the training commands.

    >>> as_typed("optim.weight_decay needs optim.optimizer adamw, got adam")
    '--optim.weight-decay needs --optim.optimizer adamw, got adam'
    """
    if ".toml: " in message:
        return message  # written in a file, where names have no dashes
    known = [name for kind in (config.PretrainConfig, config.FinetuneConfig) for name, _ in layering.fields_of(kind)]
    usual = {name: flag_of(name) for name in known if "." in name}
    for name, flag in (usual | dict(names or {})).items():
        # a quoted name is a value; a name without a dot may be any word of a sentence, except at its start
        start = r"(?<![\w.'\"-])" if "." in name else "^"
        message = re.sub(rf"{start}{re.escape(name)}(?!\w)", flag, message)
    return message


def in_short(message: str, arguments: Sequence[str]) -> str:
    """Name options by the short names that were typed for them.

    >>> in_short("--loop.minutes must be greater than 0, got '-1'", ["pretrain", "a.txt", "--minutes", "-1"])
    "--minutes must be greater than 0, got '-1'"
    """
    typed = {word.partition("=")[0] for word in arguments}
    for name, short in SHORT.items():
        if short in typed:
            message = re.sub(rf"(?<![\w.'\"-]){re.escape(flag_of(name))}(?![\w-])", short, message)
    return message
