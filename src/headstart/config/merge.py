"""Merge settings: defaults, then preset, then headstart.toml, then flags or a mapping in Python.

How settings from several places become one configuration, or one clear line about what is wrong with them.

defaults  <  preset  <  headstart.toml  <  flags (or a mapping in Python)

Settings as they are given in Python, a mapping with dots or nested, on their way into the settings classes.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model

from headstart.config.presets import preset_values
from headstart.config.schema import FinetuneConfig, PretrainConfig, Section
from headstart.errors import ConfigError

C = TypeVar("C", bound=Section)
SettingValues = Mapping[str, Any]

_TOML_LIMIT = 16 * 1024 * 1024
_TYPE_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "list": "a list",
    "dictionary": "a group of settings",
}
"""What pydantic calls a kind of value, and what a person does."""


def merge_config(kind: type[C], *layers: SettingValues) -> C:
    """Build `kind` from nested mappings, a later layer winning field by field; refuse what `kind` does not know.

    >>> merge_config(PretrainConfig, {"model": {"depth": 6}}, {"model": {"width": 64}}).model.depth
    6
    >>> merge_config(FinetuneConfig, {"optim": {"clip": 1.0}}).optim.lr  # a command's own defaults hold under half a section
    0.0001
    """
    merged = kind().model_dump()
    for layer in layers:
        merged = _deep_merge(merged, layer)
    try:
        return kind.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, kind)) from None


def nest(dotted: SettingValues) -> dict[str, Any]:
    """Turn dotted names into nested mappings.

    >>> nest({"model.depth": 6, "objective": "causal"})
    {'model': {'depth': 6}, 'objective': 'causal'}
    """
    result: dict[str, Any] = {}
    for name, value in dotted.items():
        *sections, field = name.split(".")
        inner = result
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[field] = value
    return result


def read_toml(path: Path, kind: type[Section]) -> dict[str, Any]:
    """Read the settings of `kind` from a TOML file, types checked strictly; sections of other commands are let be.

    A file may hold tables for several commands: `[pretrain.model]` and `[finetune.optim]` are more specific than
    `[model]` and `[optim]`, which every command that knows them reads.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_TOML_LIMIT + 1)
        if len(raw) > _TOML_LIMIT:
            raise ConfigError(f"{path} is not a file of settings: it is longer than {_TOML_LIMIT} bytes")
        content = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers of many thousand digits
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    command = kind.__name__.removesuffix("Config").lower()
    commands: dict[str, type[Section]] = {"pretrain": PretrainConfig, "finetune": FinetuneConfig}
    known = {name for section in commands.values() for name in section.model_fields} | {"serve"}
    general: dict[str, Any] = {}
    for name, value in content.items():
        if name in commands:
            continue
        if name not in known:
            raise ConfigError(f"{path}: unknown setting {name}{_suggest(name, [*known, *commands])}")
        if name in kind.model_fields:
            general[name] = value
    values = _deep_merge(general, content.get(command, {}))
    _check_types(values, kind, str(path))
    return values


def _check_types(values: SettingValues, kind: type[Section], name: str) -> None:
    """Check each value by itself and strictly: rules between values wait until the flags are there too."""
    fields = dict(iter_fields(kind))
    for option, value in _flat(values, fields):
        if option not in fields:
            raise ConfigError(f"{name}: unknown setting {option}{_suggest(option, list(fields))}")
        alone = create_model("Alone", value=(fields[option].annotation, fields[option]))
        try:
            alone.model_validate({"value": value}, strict=True)
        except ValidationError as error:
            raise ConfigError(
                f"{name}: {describe_validation_error(error, alone).replace('value', option, 1)}"
            ) from None


def _flat(values: SettingValues, known: SettingValues, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        option = prefix + name
        if isinstance(value, Mapping) and option not in known:
            yield from _flat(value, known, f"{option}.")
        else:
            yield option, value


def describe_validation_error(error: ValidationError, kind: type[BaseModel]) -> str:
    """Say in one line what the first fault of a configuration is, naming the option with its dots."""
    fault = error.errors(include_url=False)[0]
    # pydantic adds the alternatives of a union to the path: keep what names an option; items of a list count from 1
    place = [part + 1 if isinstance(part, int) else part for part in fault["loc"]]
    name = ".".join(str(part) for part in place if not str(part).endswith("]"))
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "extra_forbidden":
        inside = _item_class(kind, place)
        known = [path for path, _ in iter_fields(inside or kind)]
        return f"unknown setting {name}{_suggest(str(place[-1]) if inside else name, known)}"
    if fault["type"] in ("missing", "too_short"):
        return f"{name} is {'missing' if fault['type'] == 'missing' else 'empty'}"
    wanted = fault["msg"].removeprefix("Input should be ").removeprefix("a valid ").replace("'", "")
    wanted = _TYPE_NAMES.get(wanted.split(",")[0].split(" or instance")[0], wanted)
    return f"{name} must be {wanted}, got {fault['input']!r}"


def _item_class(kind: type[BaseModel], place: Sequence[object]) -> type[BaseModel] | None:
    """The class of the items of a list of settings, if `place` lies in one."""
    field = kind.model_fields.get(str(place[0]))
    if field is None or len(place) < 2 or not isinstance(place[1], int):
        return None
    (item,) = get_args(field.annotation)
    return item if issubclass(item, BaseModel) else None


def iter_fields(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option of a configuration by its dotted name, with pydantic's description of it."""
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from iter_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def closest_name(name: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant: the same or almost after the dot, else almost the same as a whole.

    >>> closest_name("label_column", ["labelled.text_column", "labelled.label_column"])
    'labelled.label_column'
    """
    tails: dict[str, list[str]] = {}
    for one in known:
        tails.setdefault(_last_part(one), []).append(one)
    if close := difflib.get_close_matches(_last_part(name), tails, n=1):
        known = tails[close[0]]
        return max(known, key=lambda one: difflib.SequenceMatcher(None, name, one).ratio())
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _last_part(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2]


def _suggest(name: str, known: list[str]) -> str:
    close = closest_name(name, known)
    return f"; did you mean {close}?" if close else f"; known: {', '.join(sorted(known))}"


def _deep_merge(low: SettingValues, high: SettingValues) -> dict[str, Any]:
    merged = dict(low)
    for name, value in high.items():
        old = merged.get(name)
        merged[name] = _deep_merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


Settings = Mapping[str, Any]


def resolve_settings(
    kind: type[C], preset: str, command: str, settings: Settings | None, usual: Settings | None = None
) -> C:
    """Layer the defaults, what is `usual` here, a preset and what was given."""
    return merge_config(kind, usual or {}, preset_values(preset, command), nest_settings(kind, settings))


def nest_settings(kind: type[Section], settings: Settings | None) -> dict[str, Any]:
    """The settings as `layered` takes them."""
    dotted, known = flatten_settings(kind, settings), [name for name, _ in iter_fields(kind)]
    for name, value in dotted.items():
        if any(field.startswith(f"{name}.") for field in known):
            raise ConfigError(f"{name} is a group of settings; give a mapping of them, got {value!r:.40}")
        if name not in known:
            merge_config(kind, nest({name: value}))  # says what is wrong with the name
    return nest(dotted)


def flatten_settings(kind: type[Section], settings: Settings | None, prefix: str = "") -> dict[str, Any]:
    """The settings by dotted name, hyphens read as underscores, however they are nested."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings must be a mapping such as {{'model.width': 64}}, got {settings!r:.40}")
    fields = dict(iter_fields(kind))
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting is text such as 'model.width', got {name!r:.40}")
        option = prefix + name.replace("-", "_")
        if isinstance(value, Mapping) and option not in fields:
            found |= flatten_settings(kind, value, f"{option}.")
        else:
            found[option] = value
    return found


def refuse_model_settings(source: object, settings: Settings | None) -> None:
    """A pretrained folder brings its own shape and tokenizer: settings that would be ignored are refused."""
    if source is not None and str(source) != "scratch":
        for name in flatten_settings(FinetuneConfig, settings):
            if name.startswith(("model.", "tokenizer.")):
                raise ConfigError(
                    f"{name} is set, but {source} brings its own; leave it out, or use backbone='scratch'"
                )
