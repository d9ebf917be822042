"""No setting and no option takes infinity or what is not a number, and each refusal names it."""

import math
from typing import get_args, get_origin

import pytest

from headstart.config.merge import iter_fields, merge_config, nest, read_toml
from headstart.config.schema import FinetuneConfig, GenericConfig, PretrainConfig, StageConfig
from headstart.errors import ConfigError
from headstart.serve.config import ServeCommandConfig

SECTIONS = (PretrainConfig, FinetuneConfig, ServeCommandConfig, StageConfig, GenericConfig)
NEEDED = {StageConfig: {"texts": ["a.txt"]}, GenericConfig: {"family": "bert", "norm_first": True}}


def takes_floats(annotation):
    return float in (annotation, *get_args(annotation)) or any(
        get_origin(member) is dict and float in get_args(member) for member in (annotation, *get_args(annotation))
    )


FLOATS = [
    (section, name) for section in SECTIONS for name, field in iter_fields(section) if takes_floats(field.annotation)
]


def test_the_walk_finds_every_kind_of_setting():
    names = {name for _, name in FLOATS}
    assert names >= {
        "optim.lr",
        "loop.minutes",
        "transfer.class_weights",
        "labelled.lowest",
        "serve.wait",
        "local_base",
    }
    assert len(FLOATS) > 40


@pytest.mark.parametrize("typed", ["inf", "-inf", "nan", math.inf, math.nan])
@pytest.mark.parametrize(("section", "name"), FLOATS, ids=lambda value: getattr(value, "__name__", value))
def test_a_setting_that_is_not_finite_is_refused_by_name(section, name, typed):
    value, shown = ({"a": typed}, f"{name}.a") if name == "transfer.class_weights" else (typed, name)
    required = NEEDED.get(section, {})
    with pytest.raises((ConfigError, ValueError)) as caught:
        merge_config(section, nest({name: value})) if not required else section(**required, **{name: value})
    if not required:
        assert str(caught.value) == f"{shown} must be a finite number, got {typed!r}"
    else:
        assert "finite number" in str(caught.value)


def test_a_finite_number_is_taken():
    config = merge_config(FinetuneConfig, nest({"optim.lr": "1e-3", "transfer.class_weights": {"a": "2"}}))
    assert (config.optim.lr, config.transfer.class_weights) == (1e-3, {"a": 2.0})


def test_a_number_of_a_settings_file_must_be_finite(tmp_path):
    path = tmp_path / "headstart.toml"
    path.write_text("[optim]\nlr = inf\n")
    with pytest.raises(ConfigError) as caught:
        read_toml(path, FinetuneConfig)
    assert str(caught.value) == f"{path}: optim.lr must be a finite number, got inf"
