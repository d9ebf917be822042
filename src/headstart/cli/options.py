"""Command-line flags made from settings, and the names of options in messages.

A field `model.width` becomes the option `--model.width`, with the field's docstring and default in `--help`. Until
`merge_config` validates them, flags are the text that was typed: there is one set of bounds and messages, and a rule
between two fields is checked once all layers are merged, never on the flags alone.
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

from headstart.config.merge import Settings, iter_fields, merge_config, nest, read_toml
from headstart.config.schema import FinetuneConfig, PretrainConfig, RuntimeConfig, Section
from headstart.errors import ConfigError, UsageError

SHORT_OPTIONS = {
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
"""Options with a short name besides the name of their setting; those for labelled text are the same in every command."""


def option_flag(name: str) -> str:
    """Return the option of a setting.

    >>> option_flag("optim.weight_decay")
    '--optim.weight-decay'
    """
    return "--" + name.replace("_", "-")


def short_option(name: str, names: Mapping[str, str]) -> str | None:
    """Return the short option of a setting; None where it could also mean the column of unlabelled text."""
    return None if name.startswith("labelled.") and "corpus.text_column" in names else SHORT_OPTIONS.get(name)


def use_option_names(message: str, names: Mapping[str, str] | None = None) -> str:
    """Name settings in a message as they are typed on the command line.

    Args:
        names: the options by the dotted names of their fields, where they differ from those of the training commands.

    >>> use_option_names("optim.weight_decay needs optim.optimizer adamw, got adam")
    '--optim.weight-decay needs --optim.optimizer adamw, got adam'
    """
    if ".toml: " in message:
        return message  # written in a file, where names have no dashes
    settings = [name for section in (PretrainConfig, FinetuneConfig) for name, _ in iter_fields(section)]
    options = {name: option_flag(name) for name in settings if "." in name} | dict(names or {})
    for name, flag in options.items():
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
    for name, short in SHORT_OPTIONS.items():
        if short in typed:
            message = re.sub(rf"(?<![\w.'\"-]){re.escape(option_flag(name))}(?![\w-])", short, message)
    return message


ConfigClass = TypeVar("ConfigClass", bound=Section)
F = TypeVar("F", bound=Callable[..., Any])

TOML = Path("headstart.toml")
"""Read from the working folder when no --config names another file."""

SECTION_ORDER = (
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
"""The order in which `--help` shows sections: the most used first."""

Out = Annotated[Path, Parameter(metavar="FOLDER", help="The folder to write.")]
Train = Annotated[str | None, Parameter(name="TRAIN", help="Labelled text: a file or a prepared folder.")]
Valid = Annotated[
    str | None, Parameter(metavar="FILE", help="Labelled text to choose the best epoch on; else a fraction of TRAIN.")
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


class InferenceSettings(Section):
    """The settings of a command that runs a model without training it."""

    runtime: RuntimeConfig = RuntimeConfig()


RUNTIME_OPTIONS = {f"runtime.{name}": f"--runtime.{name}" for name in ("device", "precision", "threads")}
"""The runtime options of such a command; the others of the section are for training."""


@dataclass(frozen=True)
class Flags:
    """The options of one command line, an attribute per option; None where it was not typed."""


class Options(Generic[ConfigClass]):
    """The options of a command whose settings are `config_class`.

    Args:
        names: the option of each field, by dotted name; all fields by default.
        preset: the command whose presets apply.
    """

    def __init__(
        self, config_class: type[ConfigClass], *, names: Mapping[str, str] | None = None, preset: str = "pretrain"
    ) -> None:
        self.config_class = config_class
        self._preset = preset
        self._fields = dict(iter_fields(config_class))
        self.names = dict(names) if names is not None else {name: option_flag(name) for name in self._fields}
        self.names.pop("model.generic", None)  # comes with an imported model; nobody types it
        if "stages" in self.names:
            self.names["stages"] = "--stage"  # typed once per stage
        self.flags = self._build()

    def on(self, function: F) -> F:
        """Add these options to a command through the annotation of its parameter `flags`, which cyclopts reads."""
        function.__annotations__["flags"] = Annotated[self.flags | None, Parameter(name="*")]
        return function

    def typed(self, flags: Flags | None) -> dict[str, Any]:
        """Return the settings that were typed, by dotted name."""
        if flags is None:
            return {}
        values = {item.metadata["name"]: getattr(flags, item.name) for item in fields(flags)}
        return {name: self._parse(name, value) for name, value in values.items() if value is not None}

    def settings(
        self,
        flags: Flags | None,
        *,
        defaults: Settings | None = None,
        preset: str | None = None,
        path: Path | None = None,
    ) -> ConfigClass:
        """Merge the class defaults, `defaults`, a preset, the TOML file at `path` (or ./headstart.toml) and the flags."""
        layers: list[Settings] = [defaults or {}]
        if preset is not None:
            layers.append(self._preset_values(preset))
        if path is not None or TOML.exists():
            layers.append(read_toml(path or TOML, self.config_class))
        try:
            return merge_config(self.config_class, *layers, nest(self.typed(flags)))
        except ConfigError as error:
            raise ConfigError(use_option_names(str(error), self.names)) from None

    def refuse_with_resume(self, flags: Flags | None, out: Path, **options: object) -> None:
        """Refuse settings beside --resume: a run continues with the settings it was started with."""
        typed = [self.names[name] for name in self.typed(flags)]
        typed += [f"--{name}" for name, value in options.items() if value is not None]
        if typed:
            raise UsageError(f"--resume goes on with the settings of {out}; leave out {typed[0]}")

    def refuse_with_backbone(self, flags: Flags | None, backbone: str | None) -> None:
        """Refuse model and tokenizer settings beside a pretrained backbone, which has its own."""
        if backbone in (None, "scratch"):
            return
        for name in self.typed(flags):
            if name.startswith(("model.", "tokenizer.")):
                option, section = self.names[name], name.split(".")[0]
                raise UsageError(f"{option} cannot be set beside --from; {backbone} brings its own {section}")

    def _build(self) -> type[Flags]:
        defaults = self.config_class()
        panels = {}
        for name, info in self.config_class.model_fields.items():
            section = info.annotation
            if isinstance(section, type) and issubclass(section, BaseModel):
                help_text = _first_paragraph(section)
                panels[name] = Group(name.capitalize(), help=help_text, sort_key=1 + SECTION_ORDER.index(name))
        flag_fields = []
        for name, flag in self.names.items():
            section_name, _, field_name = name.rpartition(".")
            value = getattr(getattr(defaults, section_name) if section_name else defaults, field_name)
            parameter = _parameter(self._fields[name], flag, value)
            if section_name and flag == option_flag(name):
                parameter = Parameter.combine(parameter, Parameter(group=panels[section_name]))
            if short := short_option(name, self.names):
                parameter = Parameter.combine(parameter, Parameter(name=(short, flag)))
            value_type: Any = bool if bool in _members(self._fields[name].annotation) else str
            if name == "stages":
                value_type, parameter = list[str], Parameter.combine(parameter, _STAGE)
            dataclass_field = field(default=None, metadata={"name": name})
            flag_fields.append((name.replace(".", "__"), Annotated[value_type | None, parameter], dataclass_field))
        flags = make_dataclass(
            f"{self.config_class.__name__}Flags", flag_fields, bases=(Flags,), frozen=True, kw_only=True
        )
        flags.__module__ = __name__  # cyclopts takes a class of the module `types` for a builtin, and shows no options
        return flags

    def _preset_values(self, preset: str) -> dict[str, Any]:
        from headstart.config import presets

        if preset not in presets.PRESET_NAMES:
            raise ConfigError(f"--preset must be one of {', '.join(presets.PRESET_NAMES)}, got {preset!r}")
        values = presets.preset_values(preset, self._preset)
        return {name: value for name, value in values.items() if name in self.config_class.model_fields}

    def _parse(self, name: str, value: str | bool | list[str]) -> Any:
        """Parse the text of a flag where pydantic cannot: none, NAME=NUMBER pairs, and stages."""
        if isinstance(value, list):
            return [_parse_stage(text) for text in value]
        members = _members(self._fields[name].annotation)
        if value == "none" and NoneType in members and str not in members:
            return None
        if not isinstance(value, str) or not any(get_origin(member) is dict for member in members):
            return value
        if any(value in get_args(member) for member in members if get_origin(member) is Literal):
            return value
        pairs = [pair.partition("=") for pair in value.split(",")]
        if not all(equals for _, equals, _ in pairs):
            expected = _metavar(self._fields[name].annotation)
            raise ConfigError(f"{self.names[name]} must be {expected} (as in a=1,b=2.5), got {value!r}")
        return {key.strip(): number for key, _, number in pairs}


def check_resumes(out: Path, kind: str, input_name: str, files: Sequence[str]) -> None:
    """Refuse files beside --resume that differ from those the run in `out` was started with."""
    from headstart.store.run_folder import RunFolder

    recorded = RunFolder.open(out, kind=kind).facts["inputs"][input_name]
    recorded_files = [recorded] if isinstance(recorded, str) else list(recorded)
    if files and list(files) != recorded_files:
        raise UsageError(
            f"--resume goes on with {' '.join(recorded_files)}, as {out} was started; got {' '.join(files)}"
        )


def command_line() -> str:
    """Return the command line as it was typed, for the record."""
    return shlex.join(["headstart", *sys.argv[1:]])


_STAGE = Parameter(
    name=("--stage", "--stages"),
    metavar="STAGE",
    negative=(),
    show_default=False,
    help="In place of TEXTS, once for each part, in order: 'general.txt fraction=0.6 context=128', then "
    "'own.txt fraction=0.4'.",
)


def _parse_stage(typed: str) -> dict[str, Any]:
    """Parse one --stage into a table of [[stages]]; a file name with a space is quoted once more.

    >>> _parse_stage("novels.parquet 'my letters.txt' fraction=0.6 context=128")
    {'texts': ['novels.parquet', 'my letters.txt'], 'fraction': '0.6', 'context': '128'}
    """
    lexer = shlex.shlex(typed, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""  # a backslash is part of a Windows path
    try:
        words = list(lexer)
    except ValueError:
        raise ConfigError(f"--stage has a quotation mark that does not end, got {typed!r}") from None
    settings = [word for word in words if word.startswith(("fraction=", "context="))]
    texts = [word for word in words if word not in settings]
    return {"texts": texts, **dict(word.split("=", 1) for word in settings)}


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
    """Return the values that may be typed for a field.

    >>> _metavar(int | None), _metavar(dict[str, float] | Literal["balanced"] | None), _metavar(Literal["a", "b"])
    ('INT', 'NAME=FLOAT,...|balanced', 'a|b')
    """
    type_names = {int: "INT", float: "FLOAT", str: "TEXT"}
    alternatives: list[str] = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            alternatives.extend(str(choice) for choice in get_args(member))
        elif get_origin(member) is dict:
            alternatives.append(f"NAME={type_names[get_args(member)[1]]},...")
        elif member in type_names:
            alternatives.append(type_names[member])
    return "|".join(alternatives)


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _first_paragraph(documented: type) -> str:
    return (documented.__doc__ or "").split("\n\n")[0]
