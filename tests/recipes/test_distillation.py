"""Pretraining with a teacher: the record, the refusals, and resuming to the same bits."""

import pytest

from fixtures.recipes import pretrain_run
from fixtures.tiny import pretrain_config, write_reviews
from headstart.data.decontamination import Membership
from headstart.errors import ConfigError, Interrupted, UsageError
from headstart.files import read_json
from headstart.interrupts import StopSignal
from headstart.store.bundle import load_bundle

WEIGHTS = "backbone.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts, and `base`, a language model that may teach."""
    folder = write_reviews(tmp_path_factory.mktemp("teaching"))
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=6))
    return folder


def taught(folder, out, weight=0.5, resume=False, **settings):
    config = None if resume else pretrain_config(model__width=8, **settings)
    fields = {} if resume else {"teacher": str(folder / "base"), "teacher_weight": weight}
    return pretrain_run([] if resume else [str(folder / "base" / "tokens")], out, config, resume=resume, **fields)


def weights(run):
    return (run.path / "bundle" / WEIGHTS).read_bytes()


def test_a_teacher_changes_what_is_learnt_and_is_recorded(folder, tmp_path):
    run = taught(folder, tmp_path / "taught")
    assert read_json(run.path / "result.json")["teacher"] == {"name": "base", "weight": 0.5}
    plain = pretrain_run([str(folder / "base" / "tokens")], tmp_path / "plain", pretrain_config(model__width=8))
    nothing = taught(folder, tmp_path / "nothing", weight=0.0)
    assert weights(run) != weights(plain)
    assert weights(nothing) == weights(plain)


def test_a_taught_run_resumes_to_the_same_bits(folder, tmp_path, monkeypatch):
    whole = taught(folder, tmp_path / "whole")
    checks = iter(range(100))
    stop = StopSignal.check

    def at_the_fifth(self):
        if next(checks) == 5:
            self.reason = "stopped"
        stop(self)

    with monkeypatch.context() as patch:
        patch.setattr(StopSignal, "check", at_the_fifth)
        with pytest.raises(Interrupted):
            taught(folder, tmp_path / "cut")
    assert weights(taught(folder, tmp_path / "cut", resume=True)) == weights(whole)


def test_a_teacher_is_compiled_with_its_student_and_timing_knows_it(folder, tmp_path, monkeypatch):
    from headstart.model.transformer import Backbone
    from headstart.recipes import trainer

    widths, compiled_flags = [], []

    def record_width(self):
        self.compiled = True
        widths.append(self.config.width)

    def one_second_per_step(reports, budget, ranks, *, compiled):
        next(iter(reports))
        compiled_flags.append(compiled)
        return 1.0

    monkeypatch.setattr(Backbone, "compile_layers", record_width)
    monkeypatch.setattr(trainer, "seconds_per_step", one_second_per_step)
    for number, compiled in enumerate((True, False)):
        loop = {"loop__steps": None, "loop__minutes": 0.001}
        taught(folder, tmp_path / str(number), runtime__compile=compiled, **loop)
    assert sorted(widths) == [8, 16]
    assert compiled_flags == [True, False]


def test_the_membership_file_includes_the_teachers_text(folder, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"a wholly other text, number {number} of them" for number in range(40)))
    run = pretrain_run(
        [str(other)],
        tmp_path / "run",
        pretrain_config(model__width=8, loop__steps=1),
        tokenizer=folder / "base" / "bundle" / "tokenizer",
        teacher=str(folder / "base"),
    )
    known, before = (Membership.load(load_bundle(path).path) for path in (run.path, folder / "base"))
    assert len(known) == len(before) + 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"objective": "masked"},
            "--teacher {base} was trained with causal, which does not match the objective masked",
        ),
        (
            {"model__context": 48},
            "--teacher {base} has a context of 24 tokens, but rows have 48; set model.context to 24",
        ),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(folder, tmp_path, settings, message):
    with pytest.raises(UsageError) as caught:
        taught(folder, tmp_path / "run", **settings)
    assert str(caught.value) == message.format(base=folder / "base")
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_other_tokens_is_refused(folder, tmp_path):
    with pytest.raises(UsageError) as caught:
        pretrain_run(
            [str(folder / "texts.txt")],
            tmp_path / "run",
            pretrain_config(tokenizer__vocab_size=280),
            teacher=str(folder / "base"),
        )
    assert "has another tokenizer (" in str(caught.value)
    assert str(caught.value).endswith("prepare the text with that of the teacher")


def test_a_weight_out_of_bounds_or_without_a_teacher_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError) as caught:
        taught(folder, tmp_path / "run", weight=1.5)
    assert str(caught.value) == "--teacher-weight must be between 0 and 1, got 1.5"
    with pytest.raises(UsageError) as refused:
        pretrain_run([str(folder / "texts.txt")], tmp_path / "run", pretrain_config(), teacher_weight=0.5)
    assert str(refused.value) == "--teacher-weight needs --teacher"
