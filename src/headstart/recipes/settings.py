"""Settings as they are given in Python, a mapping with dots or nested, on their way into the settings classes."""

from collections.abc import Mapping
from typing import Any, TypeVar

from headstart.config import FinetuneConfig, Section
from headstart.errors import ConfigError
from headstart.layering import fields_of, layered, nested
from headstart.model.presets import values

Settings = Mapping[str, Any]
C = TypeVar("C", bound=Section)


def settings_of(
    kind: type[C], preset: str, command: str, settings: Settings | None, usual: Settings | None = None
) -> C:
    """Layer the defaults, what is `usual` here, a preset and what was given."""
    return layered(kind, usual or {}, values(preset, command), as_nested(kind, settings))


def as_nested(kind: type[Section], settings: Settings | None) -> dict[str, Any]:
    """The settings as `layered` takes them."""
    dotted, known = dotted_names(kind, settings), [name for name, _ in fields_of(kind)]
    for name, value in dotted.items():
        if any(field.startswith(f"{name}.") for field in known):
            raise ConfigError(f"{name} is a group of settings; give a mapping of them, got {value!r:.40}")
        if name not in known:
            layered(kind, nested({name: value}))  # says what is wrong with the name
    return nested(dotted)


def dotted_names(kind: type[Section], settings: Settings | None, prefix: str = "") -> dict[str, Any]:
    """The settings by dotted name, hyphens read as underscores, however they are nested."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"settings must be a mapping such as {{'model.width': 64}}, got {settings!r:.40}")
    fields = dict(fields_of(kind))
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting is text such as 'model.width', got {name!r:.40}")
        option = prefix + name.replace("-", "_")
        if isinstance(value, Mapping) and option not in fields:
            found |= dotted_names(kind, value, f"{option}.")
        else:
            found[option] = value
    return found


def check_shape(source: object, settings: Settings | None) -> None:
    """A pretrained folder brings its own shape and tokenizer: settings that would be ignored are refused."""
    if source is not None and str(source) != "scratch":
        for name in dotted_names(FinetuneConfig, settings):
            if name.startswith(("model.", "tokenizer.")):
                raise ConfigError(f"{name} is set, but {source} brings its own; leave it out, or use source='scratch'")
