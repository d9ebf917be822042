"""Command-line flags made from settings, and the names of options in messages.

What settings are called on the command line, and messages that call them so.

Flags made from the settings classes, and their way back into settings.

A field `model.width` becomes the option `--model.width`, with the field's own sentence and default in `--help`. Until
`layering.layered` reads them, flags are the text that was typed: there is one set of bounds and messages, and a rule
between two fields is checked once all layers are known, never on the half that the command line holds.
"""

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from cyclopts import Group, Parameter
from pydantic import BaseModel

from headstart.config import merge as layering
from headstart.config import schema as config
from headstart.errors import ConfigError, UsageError

SHORT = {
    "corpus.exclude": "--exclude",
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


def option_flag(name: str) -> str:
    """The option of a setting.

    >>> option_flag("optim.weight_decay")
    '--optim.weight-decay'
    """
    return "--" + name.replace("_", "-")


def short_option(name: str, others: Mapping[str, str]) -> str | None:
    """The short name of a setting beside others; none where it could as well be the column of unlabelled text."""
    return None if name.startswith("labelled.") and "corpus.text_column" in others else SHORT.get(name)


def use_option_names(message: str, names: Mapping[str, str] | None = None) -> str:
    """Name settings in a message as they are typed on the command line.

    Args:
        names: the options by the dotted names of their fields, where they differ from those of the training commands.

    >>> use_option_names("optim.weight_decay needs optim.optimizer adamw, got adam")
    '--optim.weight-decay needs --optim.optimizer adamw, got adam'
    """
    if ".toml: " in message:
        return message  # written in a file, where names have no dashes
    known = [name for kind in (config.PretrainConfig, config.FinetuneConfig) for name, _ in layering.iter_fields(kind)]
    usual = {name: option_flag(name) for name in known if "." in name}
    for name, flag in (usual | dict(names or {})).items():
        # a quoted name is a value; a name without a dot may be any word of a sentence, except at its start
        start = r"(?<![\w.'\"-])" if "." in name else "^"
        message = re.sub(rf"{start}{re.escape(name)}(?!\w)", flag, message)
    return message


def use_short_options(message: str, arguments: Sequence[str]) -> str:
    """Name options by the short names that were typed for them.

    >>> use_short_options("--loop.minutes must be greater than 0, got '-1'", ["pretrain", "a.txt", "--minutes", "-1"])
    "--minutes must be greater than 0, got '-1'"
    """
    typed = {word.partition("=")[0] for word in arguments}
    for name, short in SHORT.items():
        if short in typed:
            message = re.sub(rf"(?<![\w.'\"-]){re.escape(option_flag(name))}(?![\w-])", short, message)
    return message


C = TypeVar("C", bound=config.Section)
F = TypeVar("F", bound=Callable[..., Any])

TOML = Path("headstart.toml")
"""Read from the working folder when no --config names another file."""

PANELS = (
    "loop",
    "masking",
    "next_sentence",
    "optim",
    "transfer",
    "model",
    "corpus",
    "labelled",
    "tokenizer",
    "serve",
    "runtime",
)
"""The order in which `--help` shows sections: what one turns most often first."""

Out = Annotated[Path, Parameter(metavar="FOLDER", help="The folder to write.")]
Train = Annotated[str | None, Parameter(name="TRAIN", help="Labelled text: a file or a prepared folder.")]
Valid = Annotated[
    str | None, Parameter(metavar="FILE", help="Labelled text to choose the best epoch on; else a share of TRAIN.")
]
Tokenizer = Annotated[
    Path | None, Parameter(metavar="FOLDER", help="A tokenizer to use; without it, one is trained on the text.")
]
Preset = Annotated[
    str | None,
    Parameter(
        metavar="NAME", help="Named settings to start from, such as classic or modern-micro; auto with --minutes."
    ),
]
FinetunePreset = Annotated[
    str | None,
    Parameter(
        metavar="NAME",
        help="Named settings to start from. Without it they follow --from: classic, whose defaults are shown here, for scratch "
        "and for a model of that preset; modern for the starters and all others.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    Parameter(name="--config", metavar="FILE", help="Settings in TOML; without it, ./headstart.toml if there is one."),
]
Resume = Annotated[
    bool, Parameter(negative=(), show_default=False, help="Go on with the run in --out, with the settings it has.")
]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON.")]
Quiet = Annotated[
    bool,
    Parameter(
        name=("--quiet", "-q"),
        negative=(),
        show_default=False,
        help="No progress and no remarks, only results and errors.",
    ),
]


Model = Annotated[Path, Parameter(name="MODEL", help="A run folder, a bundle, or a starter such as starter:en.")]


class Running(config.Section):
    """The settings of a command that runs a model and trains none."""

    runtime: config.RuntimeConfig = config.RuntimeConfig()


RUNTIME = {f"runtime.{name}": f"--runtime.{name}" for name in ("device", "precision", "threads")}
"""The options of such a command; what else the section holds is for training."""


@dataclass(frozen=True)
class Flags:
    """The options of one command line; an attribute an option, None where it was not given."""


class Options(Generic[C]):
    """The options of a command that is configured by `kind`.

    Args:
        names: the fields that become options, by dotted name, and what each option is called; all of them by default.
        preset: the command whose presets apply.
    """

    def __init__(self, kind: type[C], *, names: Mapping[str, str] | None = None, preset: str = "pretrain") -> None:
        self.kind = kind
        self._preset = preset
        self._fields = dict(layering.iter_fields(kind))
        self.names = dict(names) if names is not None else {name: option_flag(name) for name in self._fields}
        self.names.pop("model.generic", None)  # a model from elsewhere brings it; nobody types it
        if "stages" in self.names:
            self.names["stages"] = "--stage"  # typed once for each of them
        """What each option is called, by the dotted name of its field."""
        self.flags = self._build()

    def on(self, function: F) -> F:
        """Give a command's parameter `flags` these options; cyclopts reads them from its annotation."""
        function.__annotations__["flags"] = Annotated[self.flags | None, Parameter(name="*")]
        return function

    def given(self, flags: Flags | None) -> dict[str, Any]:
        """What was typed, by dotted name."""
        if flags is None:
            return {}
        typed = {item.metadata["name"]: getattr(flags, item.name) for item in fields(flags)}
        return {name: self._read(name, value) for name, value in typed.items() if value is not None}

    def settings(
        self,
        flags: Flags | None,
        *,
        usual: layering.SettingValues | None = None,
        preset: str | None = None,
        path: Path | None = None,
    ) -> C:
        """Layer the defaults, what is `usual` here, a preset, the TOML file at `path` (or ./headstart.toml) and the flags."""
        # the defaults go first as values, because a section's own defaults may differ from those its command gives it
        layers: list[layering.SettingValues] = [usual or {}]
        if preset is not None:
            layers.append(self._preset_values(preset))
        if path is not None or TOML.exists():
            layers.append(layering.read_toml(path or TOML, self.kind))
        try:
            return layering.merge_config(self.kind, *layers, layering.nest(self.given(flags)))
        except ConfigError as error:
            raise ConfigError(use_option_names(str(error), self.names)) from None

    def refuse_with_resume(self, flags: Flags | None, out: Path, **others: object) -> None:
        """Refuse settings beside --resume: a run goes on with the settings it was started with."""
        named = [self.names[name] for name in self.given(flags)]
        named += [f"--{name}" for name, value in others.items() if value is not None]
        if named:
            raise UsageError(f"--resume goes on with the settings of {out}; leave out {named[0]}")

    def refuse_with_source(self, flags: Flags | None, source: str | None) -> None:
        """Refuse a shape or a vocabulary beside a pretrained folder, which brings both."""
        if source in (None, "scratch"):
            return
        for name in self.given(flags):
            if name.startswith(("model.", "tokenizer.")):
                typed = self.names[name]
                raise UsageError(f"{typed} cannot be set beside --from; {source} brings its own {name.split('.')[0]}")

    def _build(self) -> type[Flags]:
        defaults = self.kind()
        panels = {}
        for name, part in self.kind.model_fields.items():
            inner = part.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                panels[name] = Group(name.capitalize(), help=_first_paragraph(inner), sort_key=1 + PANELS.index(name))
        made = []
        for name, flag in self.names.items():
            section, _, short = name.rpartition(".")
            value = getattr(getattr(defaults, section) if section else defaults, short)
            parameter = _parameter(self._fields[name], flag, value)
            if section and flag == option_flag(name):
                parameter = Parameter.combine(parameter, Parameter(group=panels[section]))
            if brief := short_option(name, self.names):
                parameter = Parameter.combine(parameter, Parameter(name=(brief, flag)))
            kind: Any = bool if bool in _members(self._fields[name].annotation) else str
            if name == "stages":
                kind, parameter = list[str], Parameter.combine(parameter, _STAGE)
            made.append((name.replace(".", "__"), Annotated[kind | None, parameter], _field(name)))
        flags = make_dataclass(f"{self.kind.__name__}Flags", made, bases=(Flags,), frozen=True, kw_only=True)
        flags.__module__ = __name__  # cyclopts takes a class of the module `types` for a builtin, and shows no options
        return flags

    def _preset_values(self, preset: str) -> dict[str, Any]:
        from headstart.config import presets

        if preset not in presets.PRESET_NAMES:
            raise ConfigError(f"--preset must be one of {', '.join(presets.PRESET_NAMES)}, got {preset!r}")
        values = presets.preset_values(preset, self._preset)
        return {name: part for name, part in values.items() if name in self.kind.model_fields}

    def _read(self, name: str, value: str | bool | list[str]) -> Any:
        """The text of one flag, as far as pydantic cannot read it: nothing at all, pairs, and stages."""
        if isinstance(value, list):
            return [_stage(text) for text in value]
        members = _members(self._fields[name].annotation)
        if value == "none" and NoneType in members and str not in members:
            return None
        if not isinstance(value, str) or not any(get_origin(member) is dict for member in members):
            return value
        if any(value in get_args(member) for member in members if get_origin(member) is Literal):
            return value
        pairs = [pair.partition("=") for pair in value.split(",")]
        if not all(equals for _, equals, _ in pairs):
            wanted = _metavar(self._fields[name].annotation)
            raise ConfigError(f"{self.names[name]} must be {wanted} (as in a=1,b=2.5), got {value!r}")
        return {key.strip(): number for key, _, number in pairs}


def check_resumes(out: Path, kind: str, input_name: str, given: Sequence[str]) -> None:
    """Refuse other files beside --resume than those the run in `out` was started with; the same may be named again."""
    from headstart.store.run_folder import RunFolder

    recorded = RunFolder.open(out, kind=kind).facts["inputs"][input_name]
    before = [recorded] if isinstance(recorded, str) else list(recorded)
    if given and list(given) != before:
        raise UsageError(f"--resume goes on with {' '.join(before)}, as {out} was started; got {' '.join(given)}")


def command_line() -> str:
    """What was typed, for the record."""
    return shlex.join(["headstart", *sys.argv[1:]])


_STAGE = Parameter(
    name=("--stage", "--stages"),
    metavar="STAGE",
    negative=(),
    show_default=False,
    help="In place of TEXTS, once for each part, in order: 'general.txt share=0.6 context=128', then 'own.txt share=0.4'.",
)


def _stage(typed: str) -> dict[str, Any]:
    """One --stage as a table of [[stages]]; a text with a space in its name is quoted once more.

    >>> _stage("novels.parquet 'my letters.txt' share=0.6 context=128")
    {'texts': ['novels.parquet', 'my letters.txt'], 'share': '0.6', 'context': '128'}
    """
    lexer = shlex.shlex(typed, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""  # a backslash belongs to a Windows path
    try:
        words = list(lexer)
    except ValueError:
        raise ConfigError(f"--stage has a quotation mark that does not end, got {typed!r}") from None
    settings = [word for word in words if word.startswith(("share=", "context="))]
    texts = [word for word in words if word not in settings]
    return {"texts": texts, **dict(word.split("=", 1) for word in settings)}


def _field(name: str) -> Any:
    return field(default=None, metadata={"name": name})


def _parameter(info: Any, flag: str, value: Any) -> Parameter:
    text = f"{value:g}" if isinstance(value, float) else str(value).lower()
    if value is None and str in _members(info.annotation):
        text = ""
    return Parameter(
        name=flag,
        help=info.description,
        metavar=None if bool in _members(info.annotation) else _metavar(info.annotation),
        show_default=text or False,
    )


def _metavar(annotation: Any) -> str:
    """What may be typed for a field.

    >>> _metavar(int | None), _metavar(dict[str, float] | Literal["balanced"] | None), _metavar(Literal["a", "b"])
    ('INT', 'NAME=FLOAT,...|balanced', 'a|b')
    """
    words = {int: "INT", float: "FLOAT", str: "TEXT"}
    parts: list[str] = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            parts.extend(str(choice) for choice in get_args(member))
        elif get_origin(member) is dict:
            parts.append(f"NAME={words[get_args(member)[1]]},...")
        elif member in words:
            parts.append(words[member])
    return "|".join(parts)


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _first_paragraph(kind: type) -> str:
    return (kind.__doc__ or "").split("\n\n")[0]
