"""Going on with a language model: its recipe, its best weights, and a word where it is not worth it."""

import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import Listener, change_runtime, pretrain_config, write_reviews
from headstart import api
from headstart.config.presets import preset_values
from headstart.config.schema import PretrainConfig
from headstart.errors import Interrupted
from headstart.files import read_json
from headstart.recipes.pretrain.continued import continued_settings
from headstart.recipes.pretrain.measuring import BestStep, describe_too_little


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Reviews, and a model of them."""
    folder = write_reviews(tmp_path_factory.mktemp("reviews"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=20))
    return folder


def go_on(base, out, listener=None, resume=False, **settings):
    if resume:
        return pretrain_run([], out, None, resume=True, progress=listener)
    config = pretrain_config(**{"loop__patience": 2, "loop__evaluate_every": 2, "loop__steps": 20} | settings)
    texts, backbone = [str(base / "texts.txt")], str(base / "base")
    return pretrain_run(texts, out, config, backbone=backbone, progress=listener)


def weights(run):
    return {path.name: path.read_bytes() for path in sorted((run / "bundle").glob("*.safetensors"))}


def test_a_modern_model_goes_on_with_the_modern_recipe():
    settings = continued_settings("starter:en")
    assert settings["optim"] == preset_values("modern-micro", "pretrain")["optim"]
    assert (settings["objective"], settings["loop"]["patience"]) == ("hybrid", 3)
    assert continued_settings(None) == {}


def test_settings_that_are_typed_win_over_those_of_the_model(base, tmp_path):
    settings = {"loop.steps": 1, "loop.patience": 7, "optim.lr": 1e-5, "runtime.threads": 1}
    run = api.pretrain(str(base / "texts.txt"), out=tmp_path / "run", backbone=base / "base", settings=settings)
    config = PretrainConfig.model_validate(read_json(run.path / "config.json"))
    assert (config.loop.patience, config.optim.lr, config.corpus.held_out) == (7, 1e-5, 0.05)
    assert config.optim.optimizer == "adam"  # as of classic: the model is of that block


def test_weights_that_only_become_worse_are_those_of_the_model(base, tmp_path):
    listener = Listener()
    run = go_on(base, tmp_path / "run", listener, optim__lr=30.0, optim__warmup=0.0)
    assert "stopped at step 4 of 20: no lower held-out loss in 2 measurements" in listener.lines
    kept = f"the held-out loss never fell below that of {base / 'base' / 'bundle'}: its weights are unchanged"
    assert kept in listener.lines
    assert weights(run.path) == weights(base / "base")
    result = read_json(run.path / "result.json")
    assert (result["steps"], result["best_step"]) == (4, 0)
    first, *_, last = run.metrics.read("evaluation")
    assert last["loss"] == first["loss"]  # all held-out text was measured each time
    assert result["tokens_seen"] < 5 * 8 * 24


def test_the_weights_with_the_lowest_held_out_loss_are_kept(base, tmp_path):
    listener = Listener()
    run = go_on(base, tmp_path / "run", listener, loop__patience=20, optim__lr=0.2, optim__schedule="constant")
    losses = {line["step"]: line["loss"] for line in run.metrics.read("evaluation")[:-1]}
    best = min(losses, key=losses.__getitem__)
    result = read_json(run.path / "result.json")
    assert result["best_step"] == best
    assert result["held_out"]["loss"] == pytest.approx(losses[best], abs=1e-6)
    assert (best == 20) != any(line.startswith(("keeping", "the held-out loss never")) for line in listener.lines)
    assert not list(run.path.glob("best-*"))


def test_a_run_that_keeps_the_best_weights_resumes_to_the_same_bits(base, tmp_path):
    settings = {"loop__patience": 3, "optim__lr": 0.1, "optim__schedule": "constant", "loop__steps": 14}
    whole = go_on(base, tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        go_on(base, tmp_path / "cut", runtime__time_limit=1e-5, **settings)
    for _ in range(9):
        with pytest.raises(Interrupted):
            go_on(base, tmp_path / "cut", resume=True)
    change_runtime(tmp_path / "cut", time_limit=None)
    cut = go_on(base, tmp_path / "cut", resume=True)
    assert weights(cut.path) == weights(whole.path)
    assert cut.metrics.read() == whole.metrics.read()
    assert (cut.path / "result.json").read_bytes() == (whole.path / "result.json").read_bytes()


def test_patience_also_keeps_the_best_weights_of_a_new_model(base, tmp_path):
    config = pretrain_config(loop__patience=2, loop__steps=6, loop__evaluate_every=2)
    run = pretrain_run([str(base / "texts.txt")], tmp_path / "run", config)
    assert read_json(run.path / "result.json")["best_step"] in (2, 4, 6)


def test_the_best_measurement_counts_those_that_were_worse():
    best = BestStep().after(0, 3.0).after(10, 2.0).after(20, 2.5).after(30, 2.0)
    assert best == BestStep(10, 2.0, 2)
    assert best.after(40, 1.9) == BestStep(40, 1.9, 0)


def test_a_tokenizer_that_does_not_fit_the_text_is_reported(base, tmp_path):
    (tmp_path / "zh.txt").write_text(
        "\n".join(f"房间很舒适也很干净，周围很安静{n}" for n in range(60)), encoding="utf-8"
    )
    for text, is_reported in ((tmp_path / "zh.txt", True), (base / "texts.txt", False)):
        listener = Listener()
        config = pretrain_config(loop__steps=1)
        pretrain_run([str(text)], tmp_path / text.stem, config, backbone=str(base / "base"), progress=listener)
        start = f"the tokenizer of {base / 'base'} does not fit this text: "
        lines = [line for line in listener.lines if line.startswith(start)]
        assert len(lines) == is_reported
        if lines:
            assert lines[0].endswith("; without --from, a tokenizer is trained on the text")


def test_a_run_that_reads_too_little_is_told_so(base, tmp_path):
    listener = Listener()
    pretrain_run([str(base / "texts.txt")], tmp_path / "run", pretrain_config(loop__steps=1), progress=listener)
    assert any(line.startswith("1 step will read ") for line in listener.lines)
    assert describe_too_little(90_000, 1_000_000, 11, continued=False) == (
        "11 steps will read 90,000 tokens, fewer than the network has parameters (1,000,000): too few to learn a "
        "language; use more time and text, or continue from a starter (--from starter:en)"
    )
    assert describe_too_little(1_000_000, 1_000_000, 11, continued=False) is None
    assert describe_too_little(50_000, 1_000_000, 4, continued=True) == (
        "4 steps will read 50,000 tokens: too few to change the model noticeably; use more time or more text"
    )
    assert describe_too_little(50_000, 1_000_000, 5, continued=True) is None


def test_a_run_is_measured_about_ten_times_however_many_steps_it_has(base, tmp_path):
    settings = {"loop__evaluate_every": None, "loop__evaluate_tokens": 20, "loop__accumulate": 1, "model__dropout": 0.0}
    for steps in (60, 200):
        config = pretrain_config(loop__steps=steps, **settings)
        run = pretrain_run([str(base / "texts.txt")], tmp_path / str(steps), config)
        assert [line["step"] for line in run.metrics.read("evaluation")] == list(
            range(steps // 10, steps + 1, steps // 10)
        )
    short = pretrain_run([str(base / "texts.txt")], tmp_path / "short", pretrain_config(loop__steps=1, **settings))
    assert [line["step"] for line in short.metrics.read("evaluation")] == [1]


def test_the_end_of_a_short_run_measures_a_part_of_the_held_out_text_and_says_so(base, tmp_path):
    listener, out = Listener(), tmp_path / "run"
    config = pretrain_config(loop__steps=5, loop__evaluate_tokens=20, corpus__held_out=0.3)
    run = pretrain_run([str(base / "texts.txt")], out, config, progress=listener)
    result = read_json(out / "result.json")
    tokens, held_out = result["held_out"]["tokens"], result["held_out_tokens"]
    assert 20 <= tokens < held_out
    # a tenth of 5 steps of 192 tokens is more than 80, and less than 160
    assert f"measuring on about 80 of {held_out:,} held-out tokens" in listener.lines
    assert any(f" over {tokens:,} of {held_out:,} tokens" in line for line in listener.lines)
    again = pretrain_run([str(base / "texts.txt")], tmp_path / "again", config)
    assert again.metrics.read("evaluation") == run.metrics.read("evaluation")
    all_of_it = config.model_copy(update={"loop": config.loop.model_copy(update={"evaluate_tokens": 50_000})})
    pretrain_run([str(base / "texts.txt")], tmp_path / "all", all_of_it, progress=listener)
    assert "measuring on all held-out text" in listener.lines
    assert "held_out_tokens" not in read_json(tmp_path / "all" / "result.json")
