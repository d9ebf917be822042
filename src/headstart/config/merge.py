"""Merge settings: defaults, then preset, then headstart.toml, then flags or a mapping in Python.

A later layer takes precedence, field by field. An invalid value raises a `ConfigError`, a line that names the setting. In
Python, settings are a mapping with dotted or nested names.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model

from headstart.config.presets import preset_values
from headstart.config.schema import FinetuneConfig, PretrainConfig, Section
from headstart.errors import ConfigError

C = TypeVar("C", bound=Section)
Settings = Mapping[str, Any]
"""Settings by name, nested or dotted."""

_TOML_LIMIT = 16 * 1024 * 1024
_TYPE_NAMES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "list": "a list",
    "dictionary": "a group of settings",
}
"""Our names for the types in messages of pydantic."""


def merge_config(config_class: type[C], *layers: Settings) -> C:
    """Build `config_class` from nested mappings; a later layer takes precedence. Unknown names are errors.

    >>> merge_config(PretrainConfig, {"model": {"depth": 6}}, {"model": {"width": 64}}).model.depth
    6
    >>> merge_config(FinetuneConfig, {"optim": {"clip": 1.0}}).optim.lr  # the other fields keep the defaults of the command
    0.0001
    """
    merged = config_class().model_dump()
    for layer in layers:
        merged = _deep_merge(merged, layer)
    try:
        return config_class.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, config_class)) from None


def nest(dotted: Settings) -> dict[str, Any]:
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


def read_toml(path: Path, config_class: type[Section]) -> dict[str, Any]:
    """Read the settings of `config_class` from a TOML file, with strict types; sections of other commands are ignored.

    A file may have tables for several commands: `[pretrain.model]` and `[finetune.optim]` take precedence over `[model]`
    and `[optim]`, which apply to every command with such a section.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_TOML_LIMIT + 1)
        if len(raw) > _TOML_LIMIT:
            raise ConfigError(f"{path} is not a settings file: it is larger than {_TOML_LIMIT} bytes")
        content = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also numbers with thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    command = config_class.__name__.removesuffix("Config").lower()
    commands: dict[str, type[Section]] = {"pretrain": PretrainConfig, "finetune": FinetuneConfig}
    names = {name for section in commands.values() for name in section.model_fields} | {"serve"}
    general: dict[str, Any] = {}
    for name, value in content.items():
        if name in commands:
            continue
        if name not in names:
            raise ConfigError(f"{path}: unknown setting {name}{_suggest(name, [*names, *commands])}")
        if name in config_class.model_fields:
            general[name] = value
    values = _deep_merge(general, content.get(command, {}))
    _check_types(values, config_class, str(path))
    return values


def _check_types(values: Settings, config_class: type[Section], name: str) -> None:
    """Check the type and range of each value; rules between values are checked after all layers are merged."""
    fields = dict(iter_fields(config_class))
    for option, value in _flatten(values, fields):
        if option not in fields:
            raise ConfigError(f"{name}: unknown setting {option}{_suggest(option, list(fields))}")
        single = _single_field_model(config_class, option)
        try:
            single.model_validate({"value": value}, strict=True)
        except ValidationError as error:
            raise ConfigError(
                f"{name}: {describe_validation_error(error, single).replace('value', option, 1)}"
            ) from None


@cache
def _single_field_model(config_class: type[Section], option: str) -> type[Section]:
    """Build the model of one setting, once: pydantic takes milliseconds, and more the more modules are imported."""
    field = dict(iter_fields(config_class))[option]
    return create_model("Single", __base__=Section, value=(field.annotation, field))


def _flatten(values: Settings, fields: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        option = prefix + name
        if isinstance(value, Mapping) and option not in fields:
            yield from _flatten(value, fields, f"{option}.")
        else:
            yield option, value


def describe_validation_error(error: ValidationError, config_class: type[BaseModel]) -> str:
    """Describe the first error of a configuration in one line that names the setting."""
    fault = error.errors(include_url=False)[0]
    # pydantic adds the members of a union to the path; list items are numbered from 1
    path = [key + 1 if isinstance(key, int) else key for key in fault["loc"]]
    name = ".".join(str(key) for key in path if not str(key).endswith("]"))
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "extra_forbidden":
        item_class = _item_class(config_class, path)
        names = [field for field, _ in iter_fields(item_class or config_class)]
        return f"unknown setting {name}{_suggest(str(path[-1]) if item_class else name, names)}"
    if fault["type"] in ("missing", "too_short"):
        return f"{name} is {'missing' if fault['type'] == 'missing' else 'empty'}"
    expected = fault["msg"].removeprefix("Input should be ").removeprefix("a valid ").replace("'", "")
    expected = _TYPE_NAMES.get(expected.split(",")[0].split(" or instance")[0], expected)
    return f"{name} must be {expected}, got {fault['input']!r}"


def _item_class(config_class: type[BaseModel], path: Sequence[object]) -> type[BaseModel] | None:
    """Return the class of the items if `path` is inside a list of settings."""
    field = config_class.model_fields.get(str(path[0]))
    if field is None or len(path) < 2 or not isinstance(path[1], int):
        return None
    (item,) = get_args(field.annotation)
    return item if issubclass(item, BaseModel) else None


def iter_fields(config_class: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the pydantic field of every setting."""
    for name, field in config_class.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from iter_fields(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def closest_name(name: str, names: Sequence[str]) -> str | None:
    """Return the closest match: of the part after the last dot if possible, otherwise of the full name.

    >>> closest_name("label_column", ["labelled.text_column", "labelled.label_column"])
    'labelled.label_column'
    """
    tails: dict[str, list[str]] = {}
    for candidate in names:
        tails.setdefault(_last_part(candidate), []).append(candidate)
    if close := difflib.get_close_matches(_last_part(name), tails, n=1):
        candidates = tails[close[0]]
        return max(candidates, key=lambda candidate: difflib.SequenceMatcher(None, name, candidate).ratio())
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _last_part(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2]


def _suggest(name: str, names: list[str]) -> str:
    close = closest_name(name, names)
    return f"; did you mean {close}?" if close else f"; known settings: {', '.join(sorted(names))}"


def _deep_merge(low: Settings, high: Settings) -> dict[str, Any]:
    merged = dict(low)
    for name, value in high.items():
        lower = merged.get(name)
        merged[name] = _deep_merge(lower, value) if isinstance(lower, Mapping) and isinstance(value, Mapping) else value
    return merged


def resolve_settings(
    config_class: type[C], preset: str | None, command: str, settings: Settings | None, defaults: Settings | None = None
) -> C:
    """Merge the class defaults, `defaults`, the preset if one is named, and `settings`, in this order."""
    values = preset_values(preset, command) if preset is not None else {}
    return merge_config(config_class, defaults or {}, values, nest_settings(config_class, settings))


def nest_settings(config_class: type[Section], settings: Settings | None) -> dict[str, Any]:
    """Nest settings for `merge_config`; unknown names are errors."""
    dotted, names = flatten_settings(config_class, settings), [name for name, _ in iter_fields(config_class)]
    for name, value in dotted.items():
        if any(field.startswith(f"{name}.") for field in names):
            raise ConfigError(f"{name} is a group of settings and must be a mapping, got {value!r:.40}")
        if name not in names:
            merge_config(config_class, nest({name: value}))  # raises the error with a suggestion
    return nest(dotted)


def flatten_settings(config_class: type[Section], settings: Settings | None, prefix: str = "") -> dict[str, Any]:
    """Return the settings by dotted name, with hyphens read as underscores."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings must be a mapping such as {{'model.width': 64}}, got {settings!r:.40}")
    fields = dict(iter_fields(config_class))
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting must be a string such as 'model.width', got {name!r:.40}")
        option = prefix + name.replace("-", "_")
        if isinstance(value, Mapping) and option not in fields:
            flat |= flatten_settings(config_class, value, f"{option}.")
        else:
            flat[option] = value
    return flat


def refuse_model_settings(backbone: object, settings: Settings | None) -> None:
    """Raise an error for model and tokenizer settings given with a pretrained backbone, which has its own."""
    if backbone is not None and str(backbone) != "scratch":
        for name in flatten_settings(FinetuneConfig, settings):
            if name.startswith(("model.", "tokenizer.")):
                section = name.partition(".")[0]
                raise ConfigError(
                    f"{name} cannot be used with {backbone}, which has its own {section}; remove it, or use backbone='scratch'"
                )
