"""A TOML file is typed: a number in quotes is a mistake, not a number."""

import pytest

from headstart.config.merge import read_toml
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.errors import ConfigError


def test_a_number_in_quotes_is_refused(tmp_path):
    path = tmp_path / "headstart.toml"
    path.write_text('[model]\nwidth = "64"\n')
    with pytest.raises(ConfigError) as caught:
        read_toml(path, PretrainConfig)
    assert str(caught.value) == f"{path}: model.width must be an integer, got '64'"


def test_a_table_of_the_command_wins_over_the_general_one(tmp_path):
    path = tmp_path / "headstart.toml"
    path.write_text("[optim]\nlr = 0.5\nclip = 2.0\n[finetune.optim]\nlr = 0.25\n")
    assert read_toml(path, FinetuneConfig) == {"optim": {"lr": 0.25, "clip": 2.0}}
    assert read_toml(path, PretrainConfig) == {"optim": {"lr": 0.5, "clip": 2.0}}
