"""Options that are no settings refuse infinity and what is not a number too, and so do the verbs of Python."""

import inspect
import re
from typing import get_args

import pytest

import headstart
from headstart.cli.commands import COMMANDS
from headstart.cli.main import build_command_app
from headstart.config.merge import iter_fields, merge_config
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.errors import ConfigError, UsageError

OPTIONS = {
    "generate base hello --temperature": "--temperature must be a finite number, got {}",
    "generate base hello --top-p": "--top-p must be above 0 and at most 1, got {}",
    "params --tokens": "--tokens must be a finite number, got {}",
    "predict clf hello --abstain": "--abstain must be a precision between 0 and 1, such as 0.95, got {}",
    "pretrain corpus.txt --teacher base --out OUT --teacher-weight": "--teacher-weight must be between 0 and 1, got {}",
    "auto train.csv --from none --out OUT --minutes": "--minutes must be a finite number, got {}",
    "tune train.csv --from base --out OUT --minutes": "--minutes must be a finite number, got {}",
    "finetune train.csv --from base --out OUT --minutes": "--minutes must be a finite number, got '{}'",
    "pretrain corpus.txt --out OUT --optim.lr": "--optim.lr must be a finite number, got '{}'",
    "finetune train.csv --from base --out OUT --lowest": "--lowest must be a finite number, got '{}'",
    "serve clf --serve.wait": "--serve.wait must be a finite number, got '{}'",
}
"""Command lines, and what each says of a number that is not finite."""


def test_every_option_that_takes_a_number_is_in_the_table():
    options = set()
    for command, *_ in COMMANDS:
        for parameter in inspect.signature(build_command_app()[command].default_command).parameters.values():
            annotation = (get_args(parameter.annotation) or (parameter.annotation,))[0]
            if float in (annotation, *get_args(annotation)):
                options.add((command, f"--{parameter.name.replace('_', '-')}"))
    assert len(options) >= 6
    assert options <= {(line.split()[0], line.split()[-1]) for line in OPTIONS}


@pytest.mark.parametrize("number", ["inf", "nan"])
@pytest.mark.parametrize("line", OPTIONS)
def test_an_option_that_is_not_finite_is_refused_by_name(typed, tmp_path, line, number):
    code, out, err = typed(line.replace("OUT", str(tmp_path / "out")) + f" {number}")
    assert (code, out, err) == (2, "", f"headstart: {OPTIONS[line].format(number)}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("section", [PretrainConfig, FinetuneConfig])
def test_every_setting_refuses_a_whole_number_that_no_float_can_be(section):
    names = [name for name, field in iter_fields(section) if int in (field.annotation, *get_args(field.annotation))]
    assert len(names) > 15
    for name in names:
        group, _, key = name.partition(".")
        with pytest.raises(ConfigError, match=rf"^(model\.width|{re.escape(name)}) must be "):
            merge_config(section, {group: {key: 10**400}})


@pytest.mark.parametrize("minutes", [float("inf"), float("nan")])
def test_a_search_in_python_refuses_minutes_that_are_not_finite(trained, tmp_path, minutes):
    with pytest.raises(UsageError, match=r"^--minutes must be a finite number, got (inf|nan)$"):
        headstart.tune(trained / "train.csv", out=tmp_path / "out", backbone=trained / "base", minutes=minutes)
