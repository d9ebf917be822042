"""Stages: each its text, its share of the steps, its row length; nothing held out is ever learnt from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fixtures.recipes import pretrain_run
from fixtures.runner import stages_of
from fixtures.tiny import CPU, SPECIAL, Listener, change_runtime, pretrain_config, write_reviews
from headstart import api
from headstart.cli.main import run as headstart
from headstart.config.merge import merge_config, read_toml
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError, DataError, HeadstartError, Interrupted, UsageError
from headstart.files import read_checksummed, read_json, write_checksummed
from headstart.interrupts import StopSignal
from headstart.progress import SilentProgress
from headstart.recipes.prepare import PrepareRequest, run_prepare
from headstart.recipes.pretrain.stages import build_stages, open_shards, stage_borders
from headstart.recipes.pretrain.trainer import PretrainTrainer, prepare_pretraining
from headstart.store.run_folder import RunFolder
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.plan import Plan


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def run(reviews, tmp_path_factory):
    """Three stages, the last two of the same text, over 20 steps."""
    out = tmp_path_factory.mktemp("run") / "run"
    config = pretrain_config(loop__steps=20, stages=stages_of(reviews))
    return pretrain_run([], out, config, progress=Listener())


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.integers(0, 1000))
def test_every_stage_has_its_fraction_of_the_steps_and_at_least_one(fractions, more):
    steps = len(fractions) + more
    ends = stage_borders(steps, fractions)
    sizes = np.diff([0, *ends])
    assert ends[-1] == steps
    assert sizes.min() >= 1
    if steps * min(fractions) / sum(fractions) > 2:  # where rounding up to one step moved nothing
        assert np.abs(sizes - steps * np.array(fractions) / sum(fractions)).max() <= 1 + 1e-9


def test_steps_are_marked_with_the_stage_they_read(run):
    lines = run.metrics.read("step")
    assert [line["stage"] for line in lines] == [1] * 6 + [2] * 6 + [3] * 8
    plan = read_json(run.path / "plan.json")
    assert [(part["first_step"], part["steps"]) for part in plan["stages"]] == [(1, 6), (7, 6), (13, 8)]
    # shorter rows, more of them: 4 rows of 24 tokens are 10 of 9 and 8 of 12
    assert [(part["context"], part["batch_size"]) for part in plan["stages"]] == [(9, 10), (12, 8), (24, 4)]


def test_the_learning_rate_is_scheduled_over_all_stages(run, reviews, tmp_path):
    plain = pretrain_run([str(reviews / "texts.txt")], tmp_path / "plain", pretrain_config(loop__steps=20))
    rates = [line["lr"] for line in run.metrics.read("step")]
    assert rates == [line["lr"] for line in plain.metrics.read("step")]
    assert "stage" not in plain.metrics.read("step")[0]  # control: a run without stages is as it was
    assert not (tmp_path / "plain" / "plan.json").exists()
    assert (tmp_path / "plain" / "tokens").is_dir()


def test_every_stage_is_measured_and_the_last_one_is_the_headline(run):
    result = read_json(run.path / "result.json")
    last = [line for line in run.metrics.read("evaluation") if line["step"] == 20]
    assert [line["stage"] for line in last] == [1, 2, 3]
    assert [part["held_out"]["loss"] for part in result["stages"]] == [line["loss"] for line in last]
    assert result["held_out"] == result["stages"][-1]["held_out"]
    assert result["held_out"] != result["stages"][0]["held_out"]
    assert result["tokens_seen"] == pytest.approx(sum(part["tokens_seen"] for part in result["stages"]), abs=3)


def test_stages_share_one_tokenizer_and_the_same_text_is_prepared_once(run):
    folders = sorted(path.name for path in run.path.glob("tokens*"))
    assert folders == ["tokens-1", "tokens-2"]
    digests = {load_tokenizer(run.path / name).digest for name in ("tokenizer", "bundle", *folders)}
    assert len(digests) == 1
    assert list(read_checksummed(run.path / "inputs.json")) == [
        f"stage {number} ({' '.join(stage['texts'])})"
        for number, stage in enumerate(read_json(run.path / "config.json")["stages"], start=1)
    ]


def test_a_tokenizer_of_stages_knows_the_words_of_each(tmp_path):
    """However much text comes first: the first stage alone is more than is read."""
    (tmp_path / "long.txt").write_text("alpha beta gamma\n" * 3000)
    (tmp_path / "own.txt").write_text("zebra quagga\n" * 300)
    files = [str(tmp_path / "long.txt"), str(tmp_path / "own.txt")]
    settings = {"tokenizer__megabytes": 0.02, "stages": [{"texts": file} for file in files]}
    shards = open_shards([], tmp_path / "run", pretrain_config(**settings), None, Listener())
    tokenizer = load_tokenizer(shards[1].tokenizer_folder)
    assert len(tokenizer.encode("zebra quagga")) < 4
    assert len(tokenizer.encode("kayak")) > 3  # control


@pytest.mark.parametrize("seed", range(6))
def test_what_one_stage_holds_out_no_stage_learns_from(seed, reviews, tmp_path):
    """Also where a stage is so small that a document must cross to its held-out side."""
    few = (reviews / "texts.txt").read_text().splitlines()[:3]
    (tmp_path / "few.txt").write_text("\n".join(few * 9))
    stages = [{"texts": str(reviews / "texts.txt")}, {"texts": str(tmp_path / "few.txt")}]
    config = pretrain_config(stages=stages, runtime__seed=seed, corpus__held_out=0.03)
    stages_built = build_stages(config, open_shards([], tmp_path / "run", config, None, Listener()), SPECIAL)
    held = {int(digest) for stage in stages_built for digest in stage.shards.digests[stage.held_out]}
    for stage in stages_built:
        learnt = {int(digest) for digest in stage.shards.digests[stage.packed.documents]}
        assert learnt
        assert not learnt & held


def test_the_same_text_in_two_stages_is_read_in_another_order(reviews, tmp_path):
    config = pretrain_config(stages=stages_of(reviews))
    first, second, third = build_stages(config, open_shards([], tmp_path / "run", config, None, Listener()), SPECIAL)
    assert second.shards is third.shards
    assert second.packed.seed != third.packed.seed
    assert first.packed.seed == config.runtime.seed  # as in a run without stages


def test_stages_may_be_prepared_folders_and_text_of_one_tokenizer(reviews, tmp_path):
    configs = pretrain_config().corpus, pretrain_config().tokenizer
    shards = run_prepare(PrepareRequest([str(reviews / "texts.txt")], tmp_path / "ready", *configs), Listener())
    stages = [{"texts": str(reviews / "train.csv")}, {"texts": str(tmp_path / "ready")}]
    run = pretrain_run([], tmp_path / "run", pretrain_config(loop__steps=2, stages=stages))
    assert Shards.open(run.path / "tokens-1").tokenizer_digest == shards.tokenizer_digest
    assert sorted(path.name for path in run.path.glob("tok*")) == ["tokens-1"]
    other = run_prepare(PrepareRequest([str(reviews / "train.csv")], tmp_path / "other", *configs), Listener())
    assert other.tokenizer_digest != shards.tokenizer_digest
    stages = [{"texts": str(tmp_path / "ready")}, {"texts": str(tmp_path / "other")}]
    with pytest.raises(UsageError) as caught:
        pretrain_run([], tmp_path / "no", pretrain_config(loop__steps=2, stages=stages))
    assert str(caught.value) == (
        f"{tmp_path / 'other'} was prepared with another tokenizer than {tmp_path / 'ready'}; prepare it again "
        "with that tokenizer"
    )
    assert not (tmp_path / "no").exists()


def test_minutes_are_planned_over_the_stages_and_kept(reviews, tmp_path):
    limits = {"loop__steps": None, "loop__minutes": 0.02, "runtime__time_limit": 1e-4}
    with pytest.raises(Interrupted):
        pretrain_run([], tmp_path / "run", pretrain_config(stages=stages_of(reviews), **limits))
    plan = read_checksummed(tmp_path / "run" / "plan.json")
    assert sum(part["steps"] for part in plan["stages"]) == Plan.from_dict(plan).steps >= 3
    write_checksummed(tmp_path / "run" / "plan.json", plan | {"steps": 10, "replans": []})
    change_runtime(tmp_path / "run", time_limit=None)
    pretrain_run([], tmp_path / "run", None, resume=True)
    result = read_json(tmp_path / "run" / "result.json")
    assert [part["steps"] for part in result["stages"]] == [3, 3, 4]  # not timed again


def test_epochs_are_passes_over_the_text_of_all_stages(reviews, tmp_path):
    config = pretrain_config(loop__steps=None, loop__epochs=2, stages=stages_of(reviews))
    run = pretrain_run([], tmp_path / "run", config)
    stages_built = build_stages(config, [Shards.open(run.path / f"tokens-{n}") for n in (1, 2, 2)], SPECIAL)
    rows = sum(stage.packed.num_tokens for stage in stages_built)
    assert read_json(run.path / "result.json")["tokens_seen"] == pytest.approx(2 * rows, rel=0.1)


def test_a_run_does_not_go_on_with_another_text_in_a_stage(tmp_path):
    reviews = write_reviews(tmp_path / "reviews")
    config = pretrain_config(stages=stages_of(reviews), runtime__time_limit=1e-4)
    with pytest.raises(Interrupted):
        pretrain_run([], tmp_path / "run", config)
    (reviews / "more.txt").write_text("something else\n" * 100 + "and this\n" * 30)
    with pytest.raises(HeadstartError) as caught:
        pretrain_run([], tmp_path / "run", None, resume=True)
    assert str(caught.value).endswith(
        f"is not what {tmp_path / 'run'} was started with; restore it, or start another run"
    )
    assert str(caught.value).startswith("stage 1 (")


def test_a_context_that_no_stage_reads_is_reported(reviews, tmp_path):
    listener = Listener()
    stages = [stage | {"context": 12} for stage in stages_of(reviews)]
    pretrain_run([], tmp_path / "run", pretrain_config(loop__steps=3, stages=stages), progress=listener)
    assert (
        "no stage has rows beyond 12 tokens: the model is not trained on longer texts, although its context is 24"
        in listener.lines
    )


def test_too_little_text_names_its_stage(reviews, tmp_path):
    (tmp_path / "t.txt").write_text("a\nb\nc\n")
    stages = [{"texts": str(reviews / "texts.txt")}, {"texts": str(tmp_path / "t.txt")}]
    with pytest.raises(DataError) as caught:
        pretrain_run([], tmp_path / "run", pretrain_config(stages=stages))
    assert str(caught.value) == (
        "the training text of stage 2 has 4 tokens, less than one row of 24; use more text or a smaller model.context"
    )
    assert not (tmp_path / "run").exists()


def test_texts_beside_stages_are_refused(reviews, tmp_path):
    with pytest.raises(UsageError) as caught:
        pretrain_run(["b.txt"], tmp_path / "run", pretrain_config(stages=[{"texts": "a.txt"}]))
    assert str(caught.value) == (
        "b.txt cannot be combined with stages (a.txt is in the first), which list their own texts; put it into a stage, "
        "or omit the stages"
    )


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([{"texts": []}], "stages.1.texts is empty"),
        ([{"fraction": 1}], "stages.1.texts is missing"),
        ([{"texts": "a"}, {"texts": "b", "fraction": 0}], "stages.2.fraction must be greater than 0, got 0"),
        ([{"texts": "a", "contxt": 8}], "unknown setting stages.1.contxt; did you mean context?"),
        ([{"texts": "a", "context": 25}], "stages.1.context must be at most model.context, got 25 and 24"),
        ([{"texts": "a"}] * 15, "loop.steps must be at least the number of stages, got 14 for 15 stages"),
        (["a.txt"], "stages.1 must be a group of settings, got 'a.txt'"),
        ("a.txt", "stages must be a list, got 'a.txt'"),
    ],
)
def test_a_mistake_in_a_stage_is_named_with_its_number(stages, expected):
    with pytest.raises(ConfigError) as caught:
        pretrain_config(stages=stages)
    assert str(caught.value) == expected


def test_stages_are_the_same_in_toml_on_the_command_line_and_in_python(reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my letters.txt").write_text((reviews / "texts.txt").read_text())
    small = {"model.width": 16, "model.depth": 1, "model.feedforward": 16, "model.context": 24, "loop.steps": 4}
    small |= {"runtime.threads": 1, "tokenizer.vocab_size": 300}
    toml = "".join(f"{name} = {value}\n" for name, value in small.items())
    toml += '[[stages]]\ntexts = ["my letters.txt"]\nfraction = 3\ncontext = 8\n[[stages]]\ntexts = "my letters.txt"\n'
    (tmp_path / "stages.toml").write_text(toml)
    flags = [word for name, value in small.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    stages = ["--stage", "'my letters.txt' fraction=3 context=8", "--stage", "'my letters.txt'"]
    assert headstart(["pretrain", "--config", "stages.toml", "--out", "toml", "--quiet"]) == 0
    assert headstart(["pretrain", *stages, *flags, "--out", "typed", "--quiet"]) == 0
    stages_in_python = [{"texts": ["my letters.txt"], "fraction": 3, "context": 8}, {"texts": ["my letters.txt"]}]
    api.pretrain(out="python", settings=small | {"stages": stages_in_python})
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("toml", "typed", "python")]
    assert results[0] == results[1] == results[2]
    assert [part["steps"] for part in results[0]["stages"]] == [3, 1]
    assert read_toml(tmp_path / "stages.toml", PretrainConfig)["stages"][1] == {"texts": "my letters.txt"}
    capsys.readouterr()
    assert headstart(["pretrain", "other.txt", *stages, "--out", "no"]) == 2
    assert headstart(["pretrain", "--stage", "'my letters.txt fraction=1", "--out", "no"]) == 2
    assert headstart(["pretrain", "--resume", *stages, "--out", "typed"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "headstart: other.txt cannot be combined with stages (my letters.txt is in the first), which list their own "
        "texts; put it into a stage, or omit the stages",
        'headstart: --stage has an unclosed quotation mark, got "\'my letters.txt fraction=1"',
        "headstart: --resume uses the recorded settings of typed; remove --stage",
    ]


def test_there_are_no_stages_by_default():
    assert merge_config(PretrainConfig).stages == []


def test_the_example_of_stages_matches_its_comments():
    path = Path(__file__).parents[2] / "examples" / "stages.toml"
    config = merge_config(PretrainConfig, read_toml(path, PretrainConfig))
    fractions = [stage.fraction for stage in config.stages]
    assert fractions[0] == sum(fractions) / 2
    assert [stage.context for stage in config.stages] == [128, 128, None]
    assert config.stages[1].texts == config.stages[2].texts
    assert config.model.context == 4 * 128
    assert (config.objective, config.next_sentence.weight, config.loop.minutes) == ("masked", 0.5, 30)
    read_toml(path, FinetuneConfig)  # the same file beside finetune: what is not its own is let be


def test_a_stage_begins_with_its_own_first_rows(reviews, tmp_path):
    config = pretrain_config(loop__steps=10, stages=stages_of(reviews), objective="masked")
    shards = open_shards([], tmp_path / "tokens", config, None, Listener())
    run = RunFolder.create(tmp_path / "run", kind="pretrain", command="", config=config, inputs={})
    trainer = PretrainTrainer(
        run, config, prepare_pretraining(config, shards, CPU), CPU, StopSignal(), SilentProgress()
    )
    trainer._plan_steps()
    for stage, first_step in zip(trainer.stages, (0, 3, 6), strict=True):
        for step in (0, 1):
            batches, expected = trainer._fetch(first_step + step), stage.fetch(step)
            assert len(batches) == len(expected) == 2
            for a, b in zip(batches, expected, strict=True):
                assert torch.equal(a.ids_BT, b.ids_BT)
                assert torch.equal(a.targets, b.targets)
        assert batches[0].ids_BT.shape == (stage.batch_size, stage.packed.context)
