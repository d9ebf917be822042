"""Settings classes become flags, and flags become settings."""

from pathlib import Path

import pytest
from cyclopts import App

from headstart.cli.options import Flags, Options, use_option_names
from headstart.config.merge import iter_fields
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.errors import ConfigError, UsageError

PRETRAIN = Options(PretrainConfig, recipe="pretrain")
FINETUNE = Options(FinetuneConfig, recipe="finetune")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parse(options: Options, *typed: str) -> Flags | None:
    """The flags that a command would be called with."""
    app = App(result_action="return_value")

    @app.default
    @options.on
    def command(*, flags: Flags | None = None) -> Flags | None:
        return flags

    return app(list(typed), exit_on_error=False, print_error=False)


def message(options: Options, *typed: str, **others: object) -> str:
    with pytest.raises(ConfigError) as caught:
        options.settings(parse(options, *typed), **others)
    return str(caught.value)


@pytest.mark.parametrize("options", [PRETRAIN, FINETUNE], ids=["pretrain", "finetune"])
def test_every_setting_has_an_option(options):
    app = App()

    @app.default
    @options.on
    def command(*, flags: Flags | None = None) -> None: ...

    names = {name for argument in app.assemble_argument_collection() for name in argument.names}
    wanted = {f"--{name.replace('_', '-')}" for name, _ in iter_fields(options.config_class)}
    assert len(wanted) > 30
    assert wanted - names == {"--model.generic"}  # which a model from elsewhere brings, and nobody types


def test_no_flags_give_the_defaults():
    assert PRETRAIN.settings(parse(PRETRAIN)) == PretrainConfig()


def test_a_flag_is_read_as_its_setting_is_typed():
    settings = PRETRAIN.settings(parse(PRETRAIN, "--model.width", "16", "--optim.lr=1e-3", "--runtime.deterministic"))
    assert (settings.model.width, settings.optim.lr, settings.runtime.deterministic) == (16, 1e-3, True)
    assert settings.model.depth == PretrainConfig().model.depth


def test_a_flag_keeps_the_other_defaults_that_the_command_gives_its_section():
    settings = FINETUNE.settings(parse(FINETUNE, "--optim.clip", "1"))
    assert settings.optim.lr == FinetuneConfig().optim.lr == 1e-4


def test_flags_win_over_the_file_and_the_file_over_the_preset():
    Path("headstart.toml").write_text("[model]\ndepth = 7\nwidth = 32\n[finetune.loop]\nepochs = 3\n")
    settings = PRETRAIN.settings(parse(PRETRAIN, "--model.width", "64"), preset="classic")
    assert (settings.model.width, settings.model.depth, settings.model.heads) == (64, 7, 2)
    assert FINETUNE.settings(None).loop.epochs == 3


def test_the_config_option_replaces_the_default_toml_file():
    Path("headstart.toml").write_text("[model]\ndepth = 7\n")
    Path("mine.toml").write_text("[model]\nwidth = 32\n")
    settings = PRETRAIN.settings(None, path=Path("mine.toml"))
    assert (settings.model.width, settings.model.depth) == (32, 4)


def test_none_takes_a_setting_back():
    Path("headstart.toml").write_text("[loop]\nsteps = 7\n")
    assert PRETRAIN.settings(None).loop.steps == 7
    assert PRETRAIN.settings(parse(PRETRAIN, "--loop.steps", "none")).loop.steps is None


def test_a_column_may_be_called_none():
    assert PRETRAIN.settings(parse(PRETRAIN, "--corpus.text-column", "none")).corpus.text_column == "none"


def test_a_switch_can_be_turned_off_again():
    Path("headstart.toml").write_text("[runtime]\ndeterministic = true\n")
    assert PRETRAIN.settings(None).runtime.deterministic
    assert not PRETRAIN.settings(parse(PRETRAIN, "--runtime.no-deterministic")).runtime.deterministic


def test_a_switch_that_may_be_left_unset_is_a_switch_all_the_same():
    assert PRETRAIN.settings(None).runtime.compile is None
    assert PRETRAIN.settings(parse(PRETRAIN, "--runtime.compile")).runtime.compile is True
    assert PRETRAIN.settings(parse(PRETRAIN, "--runtime.no-compile")).runtime.compile is False


def test_class_weights_are_typed_as_pairs_or_as_a_word():
    weights = FINETUNE.settings(parse(FINETUNE, "--transfer.class-weights", "good=1, bad=2.5")).transfer.class_weights
    assert weights == {"good": 1.0, "bad": 2.5}
    word = FINETUNE.settings(parse(FINETUNE, "--transfer.class-weights", "balanced")).transfer.class_weights
    assert word == "balanced"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["--model.width", "x"], "--model.width must be an integer, got 'x'"),
        (["--model.width", "15"], "--model.width must be a multiple of --model.heads, got 15 and 2"),
        (["--model.dropout", "1.5"], "--model.dropout must be less than 1, got '1.5'"),
        (["--corpus.layout", "model.width"], "--corpus.layout must be packed or documents, got 'model.width'"),
        (["--objective", "gap"], "--objective must be causal, masked or hybrid, got 'gap'"),
        (
            ["--optim.weight-decay", "0.1"],
            "--optim.weight-decay needs --optim.optimizer adamw or muon, got adam",
        ),
    ],
)
def test_a_wrong_flag_is_named_as_it_was_typed(typed, expected):
    assert message(PRETRAIN, *typed) == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("even", "--transfer.class-weights must be NAME=FLOAT,...|balanced (for example a=1,b=2.5), got 'even'"),
        ("a=1,b", "--transfer.class-weights must be NAME=FLOAT,...|balanced (for example a=1,b=2.5), got 'a=1,b'"),
        ("a=much", "--transfer.class-weights.a must be a number, got 'much'"),
        ("a=-1", "--transfer.class-weights must all be greater than 0, got {'a': -1.0}"),
    ],
)
def test_wrong_class_weights_give_an_example_of_the_format(typed, expected):
    assert message(FINETUNE, f"--transfer.class-weights={typed}") == expected


def test_a_rule_between_two_settings_waits_for_the_flags():
    Path("headstart.toml").write_text("[model]\nheads = 3\n")
    assert PRETRAIN.settings(parse(PRETRAIN, "--model.width", "300")).model.width == 300
    assert message(PRETRAIN) == "--model.width must be a multiple of --model.heads, got 200 and 3"


def test_a_rule_between_two_settings_sees_all_layers():
    Path("headstart.toml").write_text('[optim]\noptimizer = "adamw"\n')
    assert PRETRAIN.settings(parse(PRETRAIN, "--optim.weight-decay", "0.1")).optim.weight_decay == 0.1


def test_an_unknown_preset_error_lists_the_presets():
    assert (
        message(PRETRAIN, preset="modren")
        == "--preset must be one of classic, modern-nano, modern-micro, modern, modern-base, got 'modren'"
    )


def test_a_mistake_in_the_file_is_named_with_the_file():
    Path("headstart.toml").write_text('[model]\nwidth = "wide"\n')
    assert message(PRETRAIN) == "headstart.toml: model.width must be an integer, got 'wide'"
    assert use_option_names(message(PRETRAIN)) == message(PRETRAIN)  # nobody typed --model.width


def test_a_file_that_is_not_there_is_named():
    assert message(PRETRAIN, path=Path("no.toml")) == "cannot read no.toml: No such file or directory"


def test_resuming_refuses_settings_and_names_the_first():
    with pytest.raises(UsageError) as caught:
        PRETRAIN.refuse_with_resume(parse(PRETRAIN, "--model.width", "16"), Path("runs/a"), preset="classic")
    assert str(caught.value) == "--resume uses the recorded settings of runs/a; remove --model.width"
    with pytest.raises(UsageError) as caught:
        PRETRAIN.refuse_with_resume(None, Path("runs/a"), preset="classic")
    assert str(caught.value) == "--resume uses the recorded settings of runs/a; remove --preset"
    PRETRAIN.refuse_with_resume(None, Path("runs/a"), preset=None)


def test_messages_of_recipes_name_settings_by_their_options():
    assert use_option_names("use more text or a smaller model.context") == "use more text or a smaller --model.context"
    assert use_option_names("runtime.time_limit, not --runtime.device") == "--runtime.time-limit, not --runtime.device"
