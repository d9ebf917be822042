"""What `headstart bench` says of a machine."""

import json

import numpy as np
import pytest

import headstart
from headstart.config.schema import ModelConfig
from headstart.errors import ConfigError
from headstart.model.parameter_count import count_parameters
from headstart.model.transformer import build_backbone
from headstart.recipes.bench import lengths, num_layer_weights, run_bench

TINY = {"model": {"width": 16, "depth": 1, "heads": 2, "feedforward": 16, "context": 32}, "tokenizer.vocab_size": 400}


@pytest.mark.parametrize("preset", ["modern-nano", pytest.param("classic", marks=pytest.mark.slow)])
def test_everything_is_timed_and_set_beside_what_the_machine_can(preset):
    result = run_bench(preset, {**TINY, "runtime": {"threads": 1, "device": "cpu"}}, seconds=0)
    assert [figure.what.split(",")[0] for figure in result.figures] == [
        "pretraining step",
        "fine-tuning step",
        "predicting short texts",
        "predicting long texts",
        "headstart predict",
    ]
    for figure in result.figures:
        assert figure.seconds > 0
        assert figure.mfu is None or 0 < figure.mfu < 1.5
    assert result.parameters == count_parameters(ModelConfig(**_shape(preset)), 400, None).total
    assert result.environment["threads"] == 1
    assert json.loads(json.dumps(result.as_dict()))["preset"] == preset


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler about parts of torch that nobody asked for
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_bench_compiles_layers_on_request(compiled):
    runtime = {"threads": 1, "device": "cpu", "compile": compiled}
    step = run_bench("modern-nano", {**TINY, "runtime": runtime}, seconds=0).figures[0]
    assert step.what.startswith("pretraining step, compiled, " if compiled else "pretraining step, 32 rows")


def _shape(preset: str) -> dict:
    return {**TINY["model"], "block": "classic" if preset == "classic" else "modern"}


def test_drawn_lengths_have_the_requested_mean():
    assert np.mean(lengths(20_000, 135)) == pytest.approx(135, rel=0.03)


def test_what_a_token_is_multiplied_by_are_the_matrices_of_the_layers():
    shape = ModelConfig(width=16, depth=3, heads=2, feedforward=24)
    assert num_layer_weights(build_backbone(shape, 50, 0)) == 3 * (4 * 16 * 16 + 2 * 16 * 24)


def test_an_unknown_preset_is_named():
    with pytest.raises(ConfigError) as caught:
        headstart.bench("large")
    assert str(caught.value) == (
        "preset must be one of classic, modern-nano, modern-micro, modern, modern-base, got 'large'"
    )
