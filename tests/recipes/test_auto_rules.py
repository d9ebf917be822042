"""The rules of `headstart auto`: what is set aside, what fits, what the time allows, who wins."""

import json

import numpy as np
import pytest

from headstart.config.schema import FinetuneLoop, LabelledConfig
from headstart.data.labelled import LabelledTexts
from headstart.errors import DataError, UsageError
from headstart.linear.blend import blend_logits, fit_blend
from headstart.progress import SilentProgress
from headstart.recipes.auto.choice import BLEND, LINEAR, MAJORITY, NETWORK, Arm, above_majority, choose_winner
from headstart.recipes.auto.column_search import choose_columns
from headstart.recipes.auto.run import AutoRequest, default_out, run_auto
from headstart.recipes.auto.schedule import (
    NetworkPlan,
    Speed,
    plan_network,
    pretraining_minutes,
    seconds_for_network,
)
from headstart.recipes.auto.table import MAX_TEST_ROWS, load_table, set_aside, stratified_folds

LOOP = FinetuneLoop(batch_size=16, epochs=6, min_steps=300, max_steps=5000, select="last")


def labelled(texts, labels):
    where = tuple(f"row {row}" for row in range(len(texts)))
    return LabelledTexts("t.csv", tuple(texts), tuple(labels), where)


def rows(count, labels=("a", "b")):
    return labelled([f"text {row}" for row in range(count)], [labels[row % len(labels)] for row in range(count)])


def test_the_test_part_is_a_fifth_of_every_label_and_shares_no_text_with_train():
    texts = labelled(
        [f"text {row % 40}" for row in range(100)], [("a", "b", "b", "c")[row % 40 % 4] for row in range(100)]
    )
    train, test = set_aside(texts, seed=0)
    assert not set(train.digests) & set(test.digests)
    assert len(train) + len(test) == 100
    assert {label: round(count / texts.counts()[label], 1) for label, count in test.counts().items()} == {
        "a": 0.2,
        "b": 0.2,
        "c": 0.2,
    }


def test_a_text_with_two_labels_stays_in_train_with_all_copies():
    texts = labelled([*(f"text {row}" for row in range(20)), *["twice"] * 4], [*"ab" * 10, *"abab"])
    train, test = set_aside(texts, seed=0)
    assert train.texts.count("twice") == 4
    assert len(test) == 4


def test_the_test_part_of_many_rows_is_bounded():
    train, test = set_aside(rows(14_000), seed=0)
    assert (len(train), len(test)) == (14_000 - MAX_TEST_ROWS, MAX_TEST_ROWS)


def test_the_order_of_the_rows_does_not_change_what_is_set_aside():
    texts = rows(50)
    backwards = texts.take(range(49, -1, -1))
    assert sorted(set_aside(texts, seed=3)[1].texts) == sorted(set_aside(backwards, seed=3)[1].texts)
    assert sorted(set_aside(texts, seed=3)[1].texts) != sorted(set_aside(texts, seed=4)[1].texts)  # control


def test_too_few_rows_to_set_some_aside_are_one_clear_line():
    with pytest.raises(DataError) as error:
        set_aside(rows(4), seed=0)
    assert str(error.value) == (
        "t.csv: 4 labelled rows of 2 labels are too few to hold out test rows; label more rows, or use a "
        "test file with --test"
    )


def test_copies_are_named_where_they_leave_too_few_texts_to_set_some_aside():
    with pytest.raises(DataError) as error:
        set_aside(labelled(["one", "two"] * 20, ["a", "b"] * 20), seed=0)
    assert str(error.value) == (
        "t.csv: 40 labelled rows with 2 different texts of 2 labels are too few to hold out test rows; label "
        "more rows, or use a test file with --test"
    )


def test_folds_are_stratified_and_keep_copies_of_a_text_together():
    texts = labelled([f"text {row % 60}" for row in range(90)], ["ab"[row % 60 % 3 == 0] for row in range(90)])
    fold_of = stratified_folds(texts, 5, seed=0)
    folds_of_text = {text: {int(fold_of[row]) for row in range(90) if texts.texts[row] == text} for text in texts.texts}
    assert all(len(folds) == 1 for folds in folds_of_text.values())
    sizes = np.bincount(fold_of, minlength=5)
    assert sizes.max() - sizes.min() <= 3
    for label in "ab":
        counts = np.bincount(fold_of[np.array(texts.labels) == label], minlength=5)
        assert counts.max() - counts.min() <= 2


def load(path, texts=(), test=None):
    return load_table(str(path), texts, test, LabelledConfig(), 0, SilentProgress())


def test_rows_without_a_label_and_further_files_are_unlabelled_text_without_the_texts_of_test(tmp_path):
    lines = [f"good number {row},pos\nbad number {row},neg\n" for row in range(20)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(lines) + "not labelled,\ngood number 1,\n,pos\n")
    (tmp_path / "test.csv").write_text("text,label\nseen in test,pos\nalso seen,neg\n")
    (tmp_path / "more.txt").write_text("more text\nseen in test\n")
    table = load(tmp_path / "t.csv", [str(tmp_path / "more.txt")], str(tmp_path / "test.csv"))
    assert table.unlabelled == ("not labelled", "good number 1", "more text")
    assert (len(table.train), len(table.test)) == (40, 2)


def test_notes_count_rows_without_a_text_and_name_no_setting_that_auto_lacks(tmp_path):
    lines = [f"good number {row},pos\nbad number {row},nan\n" for row in range(20)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(lines) + " ,pos\n,\n")
    notes = load(tmp_path / "t.csv").notes
    assert f"2 rows of {tmp_path / 't.csv'} have no text; they are skipped" in notes
    (placeholder,) = [note for note in notes if "usually means that the label is missing" in note]
    assert placeholder.endswith("; remove these rows, or empty the cells")


def test_pairs_of_texts_are_refused_in_one_line(tmp_path):
    (tmp_path / "t.csv").write_text("text,other,label\n" + "one,two,a\nthree,four,b\n" * 20)
    with pytest.raises(UsageError) as error:
        load_table(str(tmp_path / "t.csv"), (), None, LabelledConfig(second_column="other"), 0, SilentProgress())
    assert str(error.value) == (
        "auto supports one text per row; for pairs (labelled.second_column) use headstart finetune"
    )


def test_a_table_of_several_labels_per_text_is_refused_in_one_line(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "one", "label": ["a", "b"]}\n' * 5)
    with pytest.raises(UsageError) as error:
        load(tmp_path / "t.jsonl")
    assert str(error.value) == (
        f"auto supports one class per text, but {tmp_path / 't.jsonl'} has several labels per text; use headstart finetune"
    )


def test_pretraining_needs_text_and_on_a_cpu_much_time():
    assert pretraining_minutes(0.5, 100, gpu=True, starter=False) == 0
    assert pretraining_minutes(2, 10, gpu=True, starter=False) > 0
    assert pretraining_minutes(2, 10, gpu=False, starter=False) == 0
    assert pretraining_minutes(2, 100, gpu=False, starter=False) > 0
    assert pretraining_minutes(2, 100, gpu=False, starter=True) == 0


@pytest.mark.parametrize(
    ("seconds", "plan"),
    [
        (10_000, NetworkPlan(5, 1000, None, True)),
        (1600, NetworkPlan(4, 1000, None, True)),
        (1300, NetworkPlan(3, 1000, None, True)),
        (900, NetworkPlan(2, 1000, None, True)),
        (700, NetworkPlan(1, 1000, None, True)),
        (400, NetworkPlan(1, 1000, None, False)),
        (60, None),
    ],
)
def test_less_time_means_fewer_folds_then_a_hold_out_then_no_network(seconds, plan):
    loop = LOOP.model_copy(update={"min_steps": 0})
    assert plan_network(1000, seconds, Speed(step=1.0, row=0.01), loop) == plan


def test_a_large_table_is_read_as_far_as_the_time_allows():
    speed = Speed(step=0.2, row=0.01)
    plan = plan_network(300_000, 500, speed, LOOP)
    assert plan.folds == 1
    assert not plan.refit
    assert plan.rows < 40_000
    assert plan.seconds(speed, LOOP) <= 500
    assert plan.training_steps(LOOP)[0] > 1000


@pytest.mark.parametrize("rows", [30, 600, 300_000])
@pytest.mark.parametrize("speed", [Speed(0.05, 0.001), Speed(2.0, 0.08)])
def test_the_time_that_would_be_enough_is_enough_and_less_is_not(rows, speed):
    seconds = seconds_for_network(rows, speed, LOOP)
    assert plan_network(rows, seconds, speed, LOOP).seconds(speed, LOOP) == pytest.approx(seconds)
    assert plan_network(rows, 0.99 * seconds, speed, LOOP) is None


@pytest.mark.parametrize("seconds", [150, 400, 1000, 2000, 5000])
def test_no_plan_takes_longer_than_its_time(seconds):
    for count in (30, 600, 8000, 300_000):
        plan = plan_network(count, seconds, Speed(0.5, 0.02), LOOP)
        assert plan is None or plan.seconds(Speed(0.5, 0.02), LOOP) <= seconds


def arm(name, right, **setting):
    """An arm that answers so many of 100 rows of class 0 rightly."""
    logits = np.zeros((100, 2))
    logits[:, 1] = np.where(np.arange(100) < right, -1.0, 1.0)
    return Arm(name, logits, setting, 0.0, 100)


GOLD = np.zeros(100, dtype=np.int64)


def test_a_near_tie_goes_to_the_blend_and_a_clear_lead_to_the_leader():
    blend = arm(BLEND, 90, weight=0.5)
    assert choose_winner({LINEAR: arm(LINEAR, 91), NETWORK: arm(NETWORK, 80), BLEND: blend}, GOLD) == BLEND
    assert choose_winner({LINEAR: arm(LINEAR, 99), NETWORK: arm(NETWORK, 80), BLEND: blend}, GOLD) == LINEAR
    assert choose_winner({LINEAR: arm(LINEAR, 60)}, GOLD) == LINEAR


def test_a_blend_with_almost_all_the_weight_on_one_part_is_that_part():
    gold = np.random.default_rng(0).integers(2, size=4000)
    rng = np.random.default_rng(1)
    good, noise = 2 * np.eye(2)[gold] + 0.6 * rng.normal(size=(4000, 2)), rng.normal(size=(4000, 2))

    def choose(network, linear):
        weight = fit_blend(network, linear, gold).weight
        blend = Arm(BLEND, blend_logits(network, linear, weight), {"weight": weight}, 0.0, 4000)
        arms = {LINEAR: Arm(LINEAR, linear, {}, 0.0, 4000), NETWORK: Arm(NETWORK, network, {}, 0.0, 4000), BLEND: blend}
        return choose_winner(arms, gold)

    assert choose(good, noise) == NETWORK
    assert choose(noise, good) == LINEAR
    assert choose(good, 2 * np.eye(2)[gold] + 0.6 * rng.normal(size=(4000, 2))) == BLEND  # control


def test_what_is_not_above_the_commonest_class_is_no_success():
    arms = {MAJORITY: arm(MAJORITY, 80), LINEAR: arm(LINEAR, 82)}
    assert not above_majority(arms, LINEAR, GOLD)
    assert above_majority(arms | {LINEAR: arm(LINEAR, 95)}, LINEAR, GOLD)


def test_the_folder_is_named_after_the_table():
    assert str(default_out("data/my mails.jsonl.gz")) == "runs/auto-my_mails"


def write_table(path, header, rows, separator=","):
    path.write_text("\n".join(separator.join(map(str, row)) for row in [header, *rows]) + "\n", encoding="utf-8")
    return str(path)


MAILS = [(row, f"where is refund number {row} of mine", ("billing", "delivery")[row % 2]) for row in range(12)]


def test_columns_without_usual_names_are_found_by_their_contents(tmp_path):
    path = write_table(tmp_path / "t.csv", ("id", "Anfrage", "Art"), MAILS, ";")
    config, line = choose_columns(path, LabelledConfig())
    assert (config.text_column, config.label_column) == ("Anfrage", "Art")
    assert line == (
        "columns found by their contents: text 'Anfrage', label 'Art' (--text-column and --label-column select others)"
    )


def test_a_column_of_addresses_is_not_the_text_however_long_they_are(tmp_path):
    rows = [(f"https://desk.example/t/{row}/where-is-my-long-address/a-b-c-d-e", *mail) for row, *mail in MAILS]
    path = write_table(tmp_path / "t.csv", ("ticket", "subject line", "kind"), rows)
    assert choose_columns(path, LabelledConfig())[0].text_column == "subject line"
    with pytest.raises(DataError, match="no column with a common name for the text"):
        choose_columns(
            write_table(tmp_path / "u.csv", ("ticket", "kind"), [row[::2] for row in rows]), LabelledConfig()
        )


def test_of_two_columns_the_text_may_have_single_words(tmp_path):
    rows = [(f"{'abcdefghijkl'[row]}lan", kind) for row, _, kind in MAILS]
    config, _ = choose_columns(write_table(tmp_path / "t.csv", ("name", "kind"), rows), LabelledConfig())
    assert (config.text_column, config.label_column) == ("name", "kind")


def test_a_label_as_the_name_of_its_column_suggests_that_the_header_is_missing(tmp_path):
    path = write_table(tmp_path / "t.csv", ("late again", "delivery"), [row[1:] for row in MAILS])
    _, line = choose_columns(path, LabelledConfig())
    assert line == (
        "columns found by their contents: text 'late again', label 'delivery' (--text-column and --label-column select "
        "others); is the header line missing?"
    )


def test_a_column_that_is_named_is_kept_and_the_other_one_is_found(tmp_path):
    rows = [(*row, f"a longer answer than the question, number {row[0]}, was given to it") for row in MAILS]
    path = write_table(tmp_path / "t.tsv", ("id", "question", "kind", "answer"), rows, "\t")
    assert choose_columns(path, LabelledConfig())[0].text_column == "answer"
    config, _ = choose_columns(path, LabelledConfig(text_column="question"))
    assert (config.text_column, config.label_column) == ("question", "kind")


def test_usual_names_are_taken_whatever_the_contents(tmp_path):
    path = write_table(tmp_path / "t.csv", ("text", "note", "label"), [(n, q, k) for n, q, k in MAILS])
    assert choose_columns(path, LabelledConfig()) == (LabelledConfig(), None)


@pytest.mark.parametrize(
    ("header", "rows", "line"),
    [
        (
            ("id", "question", "kind", "country"),
            [(*row, ("FR", "DE")[row[0] % 3 == 0]) for row in MAILS],
            "no column with a common name for the label; its columns are id, question, kind, country; name one with "
            "labelled.label_column; by their contents it could be kind, country",
        ),
        (
            ("id", "code", "kind"),
            [(row, f"X{row}", kind) for row, _, kind in MAILS],
            "no column with a common name for the text; its columns are id, code, kind; name one with "
            "labelled.text_column",
        ),
        (
            ("id", "question"),
            [row[:2] for row in MAILS],
            "no column with a common name for the label; its columns are id, question; name one with "
            "labelled.label_column",
        ),
    ],
    ids=["two columns could be the label", "no column has sentences", "no column repeats its values"],
)
def test_contents_that_do_not_decide_are_one_clear_line(header, rows, line, tmp_path):
    path = write_table(tmp_path / "t.csv", header, rows)
    with pytest.raises(DataError) as error:
        choose_columns(path, LabelledConfig())
    assert str(error.value) == f"{path} has {line}"


def test_the_columns_that_were_found_are_those_of_the_model_and_of_a_resumed_run(tmp_path):
    path = write_table(tmp_path / "t.csv", ("id", "Anfrage", "Art"), MAILS * 2)
    request = AutoRequest(table=path, out=tmp_path / "run", backbone="none", settings={"runtime.seed": 3})
    run_auto(request)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["labelled"]["text_column"], config["labelled"]["label_column"]) == ("Anfrage", "Art")
    assert config["runtime"]["seed"] == 3
