"""Forecasts: the counts follow from the shape, the constants from measured steps."""

import json
from pathlib import Path

import pytest

from headstart.cli.main import run
from headstart.config import presets
from headstart.config.merge import merge_config
from headstart.config.schema import ModelConfig, PretrainConfig
from headstart.errors import UsageError
from headstart.model.parameter_count import count_parameters
from headstart.recipes.forecast import (
    ERRORS,
    MACHINES,
    MEASURED,
    fit_factors,
    forecast,
    forecast_errors,
    median_and_max,
    step_of,
    target_fraction,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def config(preset="modern", **changes):
    return merge_config(PretrainConfig, presets.preset_values(preset, "pretrain"), changes)


def runs(name):
    return json.loads((RESULTS / f"steps-{name}.json").read_text())["runs"]


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_the_constants_are_those_of_the_measured_steps(name):
    assert fit_factors(runs(name), MACHINES[name]) == MEASURED[name]


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_the_printed_errors_are_those_of_steps_excluded_from_the_fit(name):
    errors = forecast_errors(runs(name), MACHINES[name])
    middle, worst = median_and_max([error["held_out"] for error in errors])
    memory = median_and_max([error["memory"] for error in errors])[1]
    printed = ERRORS[name]
    assert (printed.steps, printed.middle, printed.worst, printed.memory) == (
        len(errors),
        *(round(error, 2) for error in (middle, worst, memory)),
    )
    assert max(abs(error["within"]) for error in errors) < worst  # a step that is left out is harder to forecast


def test_the_full_runs_of_the_results_page_took_a_third_and_a_quarter_longer_than_the_forecast_of_their_steps():
    french, english = (forecast(config(), 16384, "h200", run_tokens=tokens) for tokens in (368_224_927, 439_000_000))
    assert french.rate / 939_000 == pytest.approx(1.33, abs=0.01)  # as docs/scaling.md states
    assert 7.5 / (60 * english.hours) == pytest.approx(1.28, abs=0.01)


def test_the_work_of_a_step_is_counted_by_shape():
    model = ModelConfig(block="modern", width=64, depth=3, heads=2, feedforward=160, context=128)
    one = step_of(model, 1000, tokens=256, num_targets=256, document=50, optimizer="adamw", bf16=False)
    two = step_of(model, 1000, tokens=512, num_targets=512, document=50, optimizer="adamw", bf16=False)
    assert one.parameters == count_parameters(model, 1000, None).total
    assert two.flops == 2 * one.flops
    assert two.activations == 2 * one.activations
    layer_weights = 3 * (4 * 64 * 64 + 3 * 64 * 160)
    assert one.flops == 6 * 256 * (layer_weights + 1000 * 64) + 12 * 64 * 50 * 3 * 256
    muon = step_of(model, 1000, tokens=256, num_targets=256, document=50, optimizer="muon", bf16=False)
    assert muon.flops > one.flops
    assert muon.state == one.state - 4 * layer_weights


@pytest.mark.parametrize(("objective", "fraction"), [("causal", 1.0), ("masked", 0.3), ("hybrid", 0.475)])
def test_objectives_predict_their_fraction_of_the_tokens(objective, fraction):
    assert target_fraction(config(objective=objective)) == pytest.approx(fraction)


def test_several_gpus_read_more_tokens_per_step_and_communicate():
    alone = forecast(config(), 16384, "h200")
    eight = forecast(config(), 16384, "h200", gpus=8)
    many = forecast(config(), 16384, "h200", gpus=64)
    assert (alone.communication, eight.tokens, many.tokens) == (0, 8 * alone.tokens, 64 * alone.tokens)
    assert alone.rate < eight.rate < 8 * alone.rate
    assert many.communication > eight.communication  # between hosts the link is slower
    sharded = forecast(config(), 16384, "h200", gpus=8, parallel="fsdp")
    assert sharded.memory < eight.memory
    assert sharded.communication == pytest.approx(1.5 * eight.communication)


def test_more_tokens_take_longer_and_too_large_a_network_does_not_fit():
    assert (
        forecast(config(), 16384, "a100", run_tokens=2e9).hours
        == 2 * forecast(config(), 16384, "a100", run_tokens=1e9).hours
    )
    assert forecast(config(), 16384, "a100").fits
    huge = config(model={"width": 8192, "depth": 60, "heads": 64, "feedforward": 22528})
    assert not forecast(huge, 16384, "a100").fits


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        ("abacus", {}, "--machine must be one of cpu, rtx4090, a100, h100, h200, got 'abacus'"),
        ("cpu", {"gpus": 2}, "--gpus must be 1 on cpu, got 2"),
        ("h200", {"gpus": 0}, "--gpus must be at least 1, got 0"),
        ("h200", {"gpus": 2, "parallel": "pipeline"}, "--parallel must be ddp or fsdp, got 'pipeline'"),
    ],
)
def test_what_cannot_be_forecast_is_refused(machine, options, message):
    with pytest.raises(UsageError) as caught:
        forecast(config(), 16384, machine, **options)
    assert str(caught.value) == message


def test_the_command_prints_the_forecast_and_how_far_it_was_off(capsys):
    assert run(["params", "--preset", "modern", "--forecast", "--tokens", "1e9"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "a100 (not measured)" in output
    assert "the leave-one-out error of the time is 11% in the median and 31% at most" in output
    assert "Startup, compilation, evaluation and saving are not included." in output
    assert run(["params", "--preset", "modern", "--forecast", "--machine", "h200", "--gpus", "8", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["machine"], result["gpus"], result["measured"], result["fits"]) == ("h200", 8, True, True)


def test_forecast_options_need_the_forecast_flag(capsys):
    assert run(["params", "--machine", "h200"]) == 2
    assert capsys.readouterr().err == "headstart: --machine, --gpus and --rows need --forecast\n"
