"""Command-line flags made from settings, and the names of options in messages.

A field `model.width` becomes the option `--model.width`, with the field's docstring as its help text. Flags stay strings
until `merge_config` validates them: there is one set of bounds and messages, and a rule between two fields is checked
once all layers are merged.
"""

import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from cyclopts import Group, Parameter
from pydantic import BaseModel

from headstart.config.merge import Settings, iter_fields, merge_config, nest, read_toml
from headstart.config.schema import FinetuneConfig, PretrainConfig, RuntimeConfig, Section
from headstart.errors import ConfigError, UsageError
from headstart.store.locate import STARTER_AUTO, STARTER_SCHEME, starters

SHORT_OPTIONS = {
    "loop.epochs": "--epochs",
    "loop.minutes": "--minutes",
    "loop.batch_size": "--batch-size",
    "optim.lr": "--lr",
    "tokenizer.vocab_size": "--vocab-size",
    "corpus.text_column": "--text-column",
    "corpus.encoding": "--encoding",
    "corpus.exclude": "--exclude",
    "labelled.task": "--task",
    "labelled.text_column": "--text-column",
    "labelled.label_column": "--label-column",
    "labelled.second_column": "--second-column",
    "labelled.separator": "--separator",
    "labelled.lowest": "--lowest",
    "labelled.highest": "--highest",
    "labelled.skip_empty": "--skip-empty",
    "labelled.encoding": "--encoding",
    "labelled.valid_fraction": "--valid-fraction",
    "runtime.seed": "--seed",
    "runtime.device": "--device",
    "runtime.threads": "--threads",
}
"""The short options of settings, the same in every command that has the setting."""


def option_flag(name: str) -> str:
    """Return the option of a setting.

    >>> option_flag("optim.weight_decay")
    '--optim.weight-decay'
    """
    return "--" + name.replace("_", "-")


def short_option(name: str, names: Collection[str]) -> str | None:
    """Return the short option of a setting, or None.

    Args:
        names: the settings of the command. Where both labelled and unlabelled text have a setting, the short option is
            that of labelled text.

    >>> short_option("corpus.text_column", ["corpus.text_column"])
    '--text-column'
    >>> short_option("corpus.text_column", ["corpus.text_column", "labelled.text_column"])
    """
    section, _, field_name = name.partition(".")
    return None if section == "corpus" and f"labelled.{field_name}" in names else SHORT_OPTIONS.get(name)


def use_option_names(message: str, names: Mapping[str, str] | None = None) -> str:
    """Replace the names of settings in a message with their options.

    Args:
        names: options by setting, where they differ from those of the training commands.

    >>> use_option_names("optim.weight_decay needs optim.optimizer adamw, got adam")
    '--optim.weight-decay needs --optim.optimizer adamw, got adam'
    """
    if ".toml: " in message:
        return message  # names in a file have no dashes
    settings = [name for section in (PretrainConfig, FinetuneConfig) for name, _ in iter_fields(section)]
    options = {name: option_flag(name) for name in settings if "." in name} | dict(names or {})
    for name, flag in options.items():
        # a quoted name is a value; a name without a dot may be any word of a sentence, except at its start
        start = r"(?<![\w.'\"-])" if "." in name else "^"
        message = re.sub(rf"{start}{re.escape(name)}(?!\w)", flag, message)
    return message


def use_short_options(message: str, arguments: Sequence[str], names: Collection[str] = ()) -> str:
    """Replace options in a message with their short forms if those were typed, or if the command has no other.

    >>> use_short_options("--loop.minutes must be greater than 0, got '-1'", ["pretrain", "a.txt", "--minutes", "-1"])
    "--minutes must be greater than 0, got '-1'"
    """
    typed = {word.partition("=")[0] for word in arguments}
    for name in SHORT_OPTIONS:
        # --encoding applies to both kinds of text
        short = SHORT_OPTIONS[name] if name.endswith(".encoding") else short_option(name, names)
        flag = option_flag(name)
        has_no_other = short == "--encoding" or (name == "labelled.text_column" and bool(names) and name not in names)
        if short and (short in typed or has_no_other):
            message = re.sub(rf"(?<![\w.'\"-]){re.escape(flag)}(?![\w-])", short, message)
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
"""The order of the sections in `--help-all`."""

Out = Annotated[Path, Parameter(metavar="FOLDER", help="Folder to write.")]
Train = Annotated[
    str | None, Parameter(name="TRAIN", help="Labelled file (csv, tsv, jsonl, parquet) or prepared folder.")
]
Valid = Annotated[
    str | None,
    Parameter(metavar="FILE", help="Labelled validation file. By default, a fraction of TRAIN is held out."),
]
Tokenizer = Annotated[
    Path | None, Parameter(metavar="FOLDER", help="Tokenizer to use. By default, one is trained on the text.")
]
Preset = Annotated[
    str | None,
    Parameter(
        metavar="NAME",
        help="Named settings: classic, modern-nano, modern-micro, modern or modern-base. "
        "auto chooses the largest that fits --minutes.",
    ),
]
FinetunePreset = Annotated[
    str | None,
    Parameter(
        metavar="NAME",
        help="Named settings: classic, modern-nano, modern-micro, modern or modern-base. By default, the one that fits "
        "--from: classic for scratch and for classic models, otherwise the modern preset with the nearest width.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    Parameter(
        name="--config", metavar="FILE", help="TOML file with settings. By default, ./headstart.toml if it exists."
    ),
]
Resume = Annotated[
    bool, Parameter(negative=(), show_default=False, help="Resume the run in --out with its recorded settings.")
]
Encoding = Annotated[
    str | None, Parameter(metavar="TEXT", help="Encoding of files that are not UTF-8, such as cp1252.")
]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON.")]
Quiet = Annotated[
    bool,
    Parameter(
        name=("--quiet", "-q"), negative=(), show_default=False, help="Print only results and errors, no progress."
    ),
]


Model = Annotated[Path, Parameter(name="MODEL", help="Run folder or model folder.")]
ModelOrStarter = Annotated[
    Path, Parameter(name="MODEL", help="Run folder, model folder, or a starter such as starter:en.")
]


class InferenceSettings(Section):
    """The settings of a command that runs a model without training it."""

    runtime: RuntimeConfig = RuntimeConfig()


RUNTIME_OPTIONS = {f"runtime.{name}": f"--runtime.{name}" for name in ("device", "precision", "threads")}
"""The runtime options of commands that do not train."""


@dataclass(frozen=True)
class Flags:
    """The settings given on a command line, an attribute per option; None if it was not given."""


class Options(Generic[ConfigClass]):
    """The options of a command whose settings are `config_class`.

    Args:
        names: the option of each field, by dotted name; all fields by default.
        recipe: the recipe whose presets and defaults apply; None for commands that do not train.
    """

    def __init__(
        self,
        config_class: type[ConfigClass],
        *,
        names: Mapping[str, str] | None = None,
        recipe: Literal["pretrain", "finetune"] | None = None,
    ) -> None:
        self.config_class = config_class
        self.recipe = recipe
        self._fields = dict(iter_fields(config_class))
        self.names = dict(names) if names is not None else {name: option_flag(name) for name in self._fields}
        self.names.pop("model.generic", None)  # read from an imported model
        if "stages" in self.names:
            self.names["stages"] = "--stage"  # given once per stage
        self.flags = self._build()

    def on(self, function: F) -> F:
        """Add these options to a command through the annotation of its parameter `flags`, which cyclopts reads."""
        function.__annotations__["flags"] = Annotated[self.flags | None, Parameter(name="*")]
        return function

    def typed(self, flags: Flags | None) -> dict[str, Any]:
        """Return the settings on the command line, by dotted name."""
        if flags is None:
            return {}
        values = {item.metadata["name"]: getattr(flags, item.name) for item in fields(flags)}
        return {name: self._parse(name, value) for name, value in values.items() if value is not None}

    def settings(
        self, flags: Flags | None, *, backbone: str | None = None, preset: str | None = None, path: Path | None = None
    ) -> ConfigClass:
        """Merge the defaults, the TOML file at `path` (or ./headstart.toml) and the flags, in this order."""
        layers = self.layers(flags, backbone=backbone, preset=preset, path=path)
        try:
            return merge_config(self.config_class, *(values for _, values in layers))
        except ConfigError as error:
            raise ConfigError(use_option_names(str(error), self.names)) from None

    def layers(
        self, flags: Flags | None, *, backbone: str | None = None, preset: str | None = None, path: Path | None = None
    ) -> list[tuple[str, Settings]]:
        """Return the settings that replace class defaults, each layer with its source, in increasing priority.

        Args:
            backbone: the model that training starts from; it determines defaults where no preset is named.
        """
        layers: list[tuple[str, Settings]] = []
        if backbone == STARTER_AUTO:  # which one is not known before the texts are read; their settings agree
            backbone = next((STARTER_SCHEME + name for name in starters()), None)
        if self.recipe == "pretrain" and backbone is not None:
            from headstart.recipes.pretrain.continued import continued_settings

            layers.append(("default", continued_settings(backbone)))
        if self.recipe == "finetune" and preset is None:
            from headstart.recipes.finetune.backbone_preset import default_preset

            preset = default_preset(backbone)
        if preset is not None:
            layers.append(("default", self.preset_values(preset)))
        if path is not None or TOML.exists():
            layers.append((str(path or TOML), read_toml(path or TOML, self.config_class)))
        return [*layers, ("given", nest(self.typed(flags)))]

    def refuse_with_resume(self, flags: Flags | None, out: Path, **options: object) -> None:
        """Raise an error for settings given with --resume: a run resumes with its recorded settings."""
        typed = [self.names[name] for name in self.typed(flags)]
        typed += [f"--{name}" for name, value in options.items() if value is not None]
        if typed:
            raise UsageError(f"--resume uses the recorded settings of {out}; remove {typed[0]}")

    def refuse_with_backbone(self, flags: Flags | None, backbone: str | None) -> None:
        """Raise an error for model and tokenizer settings given with a pretrained backbone, which has its own."""
        if backbone in (None, "scratch"):
            return
        for name in self.typed(flags):
            if name.startswith(("model.", "tokenizer.")):
                option, section = self.names[name], name.split(".")[0]
                raise UsageError(f"{option} cannot be used with --from {backbone}, which has its own {section}")

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
            short, long = short_option(name, self.names), option_flag(name)
            aliases = tuple(dict.fromkeys(alias for alias in (short, flag, long) if alias))
            parameter = Parameter.combine(parameter, Parameter(name=aliases))
            value_type: Any = bool if bool in _members(self._fields[name].annotation) else str
            if name == "stages":
                value_type, parameter = list[str], Parameter.combine(parameter, _STAGE)
            dataclass_field = field(default=None, metadata={"name": name})
            flag_fields.append((name.replace(".", "__"), Annotated[value_type | None, parameter], dataclass_field))
        flags = make_dataclass(
            f"{self.config_class.__name__}Flags", flag_fields, bases=(Flags,), frozen=True, kw_only=True
        )
        flags.__module__ = __name__  # cyclopts would treat a class of the module `types` as a builtin
        return flags

    def preset_values(self, preset: str) -> dict[str, Any]:
        """Return the settings of a preset that this command has."""
        from headstart.config import presets

        if preset not in presets.PRESET_NAMES:
            raise ConfigError(f"--preset must be one of {', '.join(presets.PRESET_NAMES)}, got {preset!r}")
        values = presets.preset_values(preset, self.recipe or "pretrain")
        return {name: value for name, value in values.items() if name in self.config_class.model_fields}

    def _parse(self, name: str, value: str | bool | list[str]) -> Any:
        """Parse what pydantic does not: none, NAME=NUMBER pairs and stages."""
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
            raise ConfigError(f"{self.names[name]} must be {expected} (for example a=1,b=2.5), got {value!r}")
        return {key.strip(): number for key, _, number in pairs}


def check_resumes(out: Path, kind: str, input_name: str, files: Sequence[str]) -> None:
    """Raise an error for files given with --resume that differ from those of the run in `out`."""
    from headstart.store.run_folder import RunFolder

    recorded = RunFolder.open(out, kind=kind).facts["inputs"][input_name]
    recorded_files = [recorded] if isinstance(recorded, str) else list(recorded)
    if files and list(files) != recorded_files:
        raise UsageError(
            f"--resume uses the recorded files of {out}, {' '.join(recorded_files)}; got {' '.join(files)}"
        )


def command_line() -> str:
    """Return the command line, to be recorded."""
    return shlex.join(["headstart", *sys.argv[1:]])


_STAGE = Parameter(
    name=("--stage", "--stages"),
    metavar="STAGE",
    negative=(),
    show_default=False,
    help="Stage of pretraining, instead of TEXTS; repeat for several, in order. Example: "
    "'general.txt fraction=0.6 context=128'.",
)


def _parse_stage(typed: str) -> dict[str, Any]:
    """Parse one --stage into a table of [[stages]]; a file name with a space needs quotation marks.

    >>> _parse_stage("novels.parquet 'my letters.txt' fraction=0.6 context=128")
    {'texts': ['novels.parquet', 'my letters.txt'], 'fraction': '0.6', 'context': '128'}
    """
    lexer = shlex.shlex(typed, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""  # a backslash is part of a Windows path
    try:
        words = list(lexer)
    except ValueError:
        raise ConfigError(f"--stage has an unclosed quotation mark, got {typed!r}") from None
    settings = [word for word in words if word.startswith(("fraction=", "context="))]
    texts = [word for word in words if word not in settings]
    return {"texts": texts, **dict(word.split("=", 1) for word in settings)}


def _parameter(info: Any, flag: str, value: Any) -> Parameter:
    text = f"{value:g}" if isinstance(value, float) else str(value).lower()
    if value is None and str in _members(info.annotation):
        text = ""
    return Parameter(
        name=flag,
        help=" ".join((info.description or "").split()),
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
