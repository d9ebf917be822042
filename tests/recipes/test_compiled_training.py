"""A compiled network learns what the plain one learns, and is saved as the plain one."""

import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import pretrain_config, write_reviews
from headstart.store.bundle import load_bundle

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("block", ["classic", "modern"])
def test_compiling_changes_rounding_alone(block, tmp_path):
    data = write_reviews(tmp_path / "data")
    settings = {"model__block": block, "model__dropout": 0.0, "loop__steps": 6, "loop__prompt": "the"}
    losses = []
    for compiled in (False, True):
        config = pretrain_config(**settings, runtime__compile=compiled)
        run = pretrain_run([str(data / "texts.txt")], tmp_path / str(compiled), config)
        losses.append([line["loss"] for line in run.metrics.read("step")])
        load_bundle(run.path)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
