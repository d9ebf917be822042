"""Several labels a text, ratings, pairs and twenty classes, from the command line; and what is said of labels that are none."""

import csv
import json
import shlex
from contextlib import chdir

import pytest

from fixtures.predictions import write_all
from headstart.cli.main import run
from headstart.files import read_json
from headstart.store.bundle import load_bundle

PAIR = "--labelled.text-column premise --labelled.second-column hypothesis"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stranger's folder, and a model of each kind in it."""
    folder = write_all(tmp_path_factory.mktemp("kinds"))
    with chdir(folder):
        for line in (
            "finetune labels.jsonl --test labels-test.jsonl --from scratch --out several --quiet",
            "finetune ratings.csv --task rating --test ratings-test.csv --from scratch --out rating --quiet",
            f"finetune pairs.csv {PAIR} --test pairs-test.csv --from scratch --out pair --quiet",
        ):
            assert run(line.split()) == 0
    return folder


@pytest.fixture
def typed(folder, monkeypatch, capsys):
    """`typed("params --json")` in that folder: exit code, stdout, stderr."""
    monkeypatch.chdir(folder)

    def call(line):
        capsys.readouterr()
        code = run(shlex.split(line))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.mark.parametrize(
    ("model", "file"), [("several", "labels-test.jsonl"), ("rating", "ratings-test.csv"), ("pair", "pairs-test.csv")]
)
def test_an_interrupted_file_is_resumed_to_the_same_bytes(typed, model, file, tmp_path, stop_after):
    whole, out = (tmp_path / f"{name}.csv" for name in ("whole", "out"))
    stop_after(None)
    assert typed(f"predict {model} --input {file} --out {whole}")[0] == 0
    stop_after(1)
    assert typed(f"predict {model} --input {file} --out {out}")[0] == 130
    stop_after(None)
    assert typed(f"predict {model} --input {file} --out {out} --resume")[0] == 0
    assert out.read_bytes() == whole.read_bytes()


def test_a_list_and_a_string_with_a_separator_are_the_same_labels(typed, folder):
    code, _, err = typed("finetune labels.csv --labelled.separator ; --from scratch --out text --loop.epochs 1")
    assert code == 0
    assert "imbalanced labels in labels.csv: from war " in err
    lists, text = (read_json(folder / name / "result.json")["data"]["train"] for name in ("several", "text"))
    assert text["sha256"] == lists["sha256"]
    assert text["counts"] == lists["counts"]
    assert text["without"] > 0  # texts without any label are learnt from


def test_labels_are_learnt_measured_and_answered_by_their_thresholds(typed, folder):
    result = read_json(folder / "several" / "result.json")
    task = load_bundle(folder / "several").task
    assert task.labels == ("crime", "love", "war")
    assert result["task"]["thresholds"] == dict(zip(task.labels, task.thresholds, strict=True))
    assert [row["threshold"] for row in result["test"]["per_class"]] == list(task.thresholds)
    assert result["test"]["micro_f1"] > 0.8
    code, shown, _ = typed("evaluate several labels-test.jsonl --json")
    assert code == 0
    assert json.loads(shown) == result["test"]
    code, shown, _ = typed("evaluate several labels-test.csv --separator ;")
    first, _, header, *rows, _, quality = shown.splitlines()
    assert (
        first == f"micro-F1 {result['test']['micro_f1']:.4f}   macro-F1 {result['test']['macro_f1']:.4f}   exact match "
        f"{result['test']['exact']:.4f}   rows 60"
    )
    assert header.split() == ["label", "precision", "recall", "F1", "rows", "threshold"]
    assert [row.split()[0] for row in rows] == ["crime", "love", "war"]
    assert quality.endswith(": the model is better")
    code, shown, _ = typed("predict several --input labels-test.jsonl")
    hits = 0
    for line in map(json.loads, shown.splitlines()):
        thresholds = result["task"]["thresholds"]
        assert line["labels"] == [
            name for name, probability in line["probabilities"].items() if probability >= thresholds[name]
        ]
        hits += line["labels"] == sorted(line["label"])
    assert hits == round(result["test"]["exact"] * 60)


def test_several_labels_in_words_and_in_a_csv(typed, folder):
    code, shown, _ = typed("predict several 'battle army the film kiss heart was' 'the film was'")
    assert code == 0
    first, second = shown.splitlines()
    assert first.startswith("love 0.")
    assert ", war 0." in first
    assert second.startswith("(none)  the film was")
    code, _, _ = typed("predict several --input labels-test.csv --out answered.csv --quiet")
    with (folder / "answered.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "text",
        "label",
        "labels",
        *(f"probability_{n}" for n in ("crime", "love", "war")),
        "truncated",
    ]
    assert any(";" in row["labels"] for row in rows)


def test_each_predicted_label_is_explained(typed):
    code, shown, _ = typed("predict several --explain --json 'battle army the film kiss heart was'")
    output = json.loads(shown)
    assert [one["label"] for one in output["explanation"]] == output["labels"] == ["love", "war"]
    love, war = (dict(one["words"]) for one in output["explanation"])
    assert love["kiss"] > love["battle"]
    assert war["battle"] > war["kiss"]
    code, shown, _ = typed("predict rating --explain 'great great awful'")
    assert code == 0
    assert "  for rating: " in shown


def test_a_rating_is_a_number_within_the_range_of_train(typed, folder):
    result = read_json(folder / "rating" / "result.json")
    assert result["test"]["rmse"] < 0.6 * result["test"]["baseline_rmse"]
    assert (result["labels"], result["calibration"], result["temperature"]) == ([], None, 1.0)
    _, shown, _ = typed("evaluate rating ratings-test.csv")
    output = result["test"]
    assert shown.splitlines() == [
        f"RMSE {output['rmse']:.4f}   MAE {output['mae']:.4f}   Spearman {output['spearman']:.4f}   rows 60",
        f"Pearson correlation {output['pearson']:.4f}   always predicting the training mean: "
        f"RMSE {output['baseline_rmse']:.4f}   MAE {output['baseline_mae']:.4f}",
        "",
        f"always predicting the training mean gives {output['baseline_rmse']:.4f}: the model is better",
    ]
    assert result["baselines"]["mean"]["test"] == {"rmse": output["baseline_rmse"], "mae": output["baseline_mae"]}
    _, shown, _ = typed("predict rating --json 'great great great great' 'awful awful awful awful'")
    high, low = (json.loads(line)["value"] for line in shown.splitlines())
    assert 1 <= low < 2 < 4 < high <= 5
    assert list(json.loads(shown.splitlines()[0])) == ["text", "value", "truncated"]


def test_a_pair_is_read_as_one_and_by_the_columns_of_training(typed, folder):
    _, shown, _ = typed("evaluate pair pairs-test.csv --json")
    assert json.loads(shown) == read_json(folder / "pair" / "result.json")["test"]
    _, shown, _ = typed("predict pair --input pairs-test.csv")
    rows = list(csv.DictReader(shown.splitlines()))
    _, alone, _ = typed(shlex.join(["predict", "pair", "--json", rows[0]["premise"], rows[0]["hypothesis"]]))
    assert json.loads(alone)["label"] == rows[0]["predicted_label"]
    assert json.loads(alone)["probability"] == pytest.approx(float(rows[0]["probability"]), abs=1e-6)
    _, turned, _ = typed(shlex.join(["predict", "pair", "--json", rows[0]["hypothesis"], rows[0]["premise"]]))
    assert json.loads(turned)["probability"] != json.loads(alone)["probability"]  # control: the order is read
    _, shown, _ = typed("predict pair --explain 'the battle' 'the kiss'")
    assert " | " in shown.splitlines()[1]


def test_twenty_classes_with_eight_examples_each(typed, folder):
    code, _, err = typed("finetune twenty.csv --test twenty-test.csv --from scratch --out twenty --loop.epochs 30")
    assert code == 0, err
    result = read_json(folder / "twenty" / "result.json")
    assert len(result["labels"]) == 20
    assert set(result["data"]["train"]["counts"].values()) == {6}
    assert set(result["data"]["valid"]["counts"].values()) == {2}
    assert result["test"]["accuracy"] > 0.9
    assert "weakest label" in err
    code, shown, _ = typed("predict twenty 'the word7 is very with word7'")
    assert shown.startswith("class 7 ")


def test_inspect_tells_how_labels_are_spread(typed):
    _, shown, _ = typed("inspect labels.jsonl --test labels-test.csv --separator ;")
    assert "; none " in shown
    assert shown.count("crime ") == 2
    _, shown, _ = typed("inspect ratings.csv --task rating --quiet")
    assert "ratings     from 1 to 5, mean " in shown
    _, shown, _ = typed("inspect pairs.csv --text-column premise --second-column hypothesis --quiet")
    assert "findings    none" in shown


def test_the_model_card_describes_the_task(folder):
    several, rating, pair = (
        (folder / name / "bundle" / "README.md").read_text() for name in ("several", "rating", "pair")
    )
    assert "It assigns any number of 3 labels, or none, to a text: `crime`, `love`, `war`." in several
    assert "| label | precision | recall | F1 | rows | threshold |" in several
    assert "It predicts a number between 1 and 5 for a text." in rating
    assert "| split | mean absolute error | root mean squared error | Spearman | Pearson | rows |" in rating
    assert "## Calibration" not in rating
    assert "It assigns one of 2 labels to a pair of texts: `other`, `same`." in pair
    assert 'headstart predict path/to/this/folder "the first text" "the second"' in pair
    assert "| label | precision | recall | F1 | rows |\n" in pair


LABEL, RATE = '{"text": "a film", "label": %s}\n', '{"text": "a film", "label": %s}\n'
BAD = {
    "unknown name": (
        "",
        LABEL % '["war", "lvoe"]',
        "bad.jsonl, line 1: label 'lvoe' does not occur in labels.jsonl; did you mean 'love'?",
    ),
    "wrong type": (
        "",
        LABEL % '["war", {"a": 1}]',
        "bad.jsonl, line 1: the labels contain {'a': 1}, expected strings or numbers in the list",
    ),
    "nothing": (
        "",
        LABEL % "null",
        "bad.jsonl, line 1: the labels are missing; write an empty list for a text without any, remove it, or "
        "skip such rows with --labelled.skip-empty",
    ),
    "no list": (
        "",
        LABEL % '"war;love"',
        "bad.jsonl, line 1: the labels are 'war;love', expected a list; set --labelled.separator to the "
        "character that separates them",
    ),
    "an empty name": (
        "",
        LABEL % '["war", " "]',
        "bad.jsonl, line 1: the label is empty; give the row a label or remove it",
    ),
    "a number for a list": (
        "",
        LABEL % "3",
        "bad.jsonl, line 1: the labels are 3, expected a list of strings or numbers",
    ),
    "text for a number": ("rating", RATE % '"good"', "bad.jsonl, line 1: the rating is 'good', expected a number"),
    "a decimal comma": (
        "rating",
        RATE % '"3,5"',
        "bad.jsonl, line 1: the rating is '3,5', expected a number; use a decimal point, not a comma",
    ),
    "no number at all": (
        "rating",
        RATE % "null",
        "bad.jsonl, line 1: the rating is empty; give the row a number, remove it, or skip such rows with "
        "--labelled.skip-empty",
    ),
    "not finite": ("rating", RATE % "NaN", "bad.jsonl, line 1: the rating is nan, expected a finite number"),
    "infinite": ("rating", RATE % '"inf"', "bad.jsonl, line 1: the rating is inf, expected a finite number"),
    "too large": ("rating", RATE % "7", "bad.jsonl, line 1: the rating is 7, expected 5 (--labelled.highest) or less"),
    "too small": ("rating", RATE % "-1", "bad.jsonl, line 1: the rating is -1, expected 1 (--labelled.lowest) or more"),
    "true": ("rating", RATE % "true", "bad.jsonl, line 1: the rating is True, expected a number"),
    "an empty side": (
        "pair",
        '{"premise": "a film", "hypothesis": " ", "label": "same"}\n',
        "bad.jsonl, line 1: the second text is empty; give the row a text, remove it, or skip such rows with "
        "--labelled.skip-empty",
    ),
    "half a pair": (
        "pair",
        '{"premise": "a film", "label": "same"}\n',
        "bad.jsonl has no column 'hypothesis'; its columns are premise, label",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_label_gets_one_line(typed, folder, case):
    kind, content, message = BAD[case]
    (folder / "bad.jsonl").write_text(content)
    line = {
        "": "finetune labels.jsonl",
        "rating": "finetune ratings.csv --task rating --labelled.lowest 1 --labelled.highest 5",
        "pair": f"finetune pairs.csv {PAIR}",
    }[kind]
    if kind == "rating":
        (folder / "bad.jsonl").write_text(content.replace('"label"', '"stars"'))
    code, shown, err = typed(f"{line} --test bad.jsonl --from scratch --out bad --quiet")
    assert (code, shown, err) == (2, "", f"headstart: {message}\n")
    assert not (folder / "bad").exists()


REFUSED = {
    "compare labels.jsonl --test labels-test.jsonl --arms majority,scratch --out cmp -q": (
        "compare supports one class per text, but labels.jsonl has several labels per text; run finetune with --test once with "
        "--from a pretrained folder and once with --from scratch, over several --runtime.seed, and compare their result.json"
    ),
    "predict several 'a film' --abstain 0.9": (
        "--abstain supports one class per text, but several/bundle predicts any number of labels"
    ),
    "predict rating 'a film' --abstain 0.9": "--abstain supports one class per text, but rating/bundle predicts a rating",
    "predict pair 'a film'": "this model expects pairs of texts, so an even number of texts, got 1",
    "predict several 'a film' --second-column b": "several expects single texts; remove --second-column",
    "evaluate rating ratings-test.csv --errors": (
        "--errors needs a model for one class per text, got rating; remove --errors"
    ),
    "evaluate rating ratings-test.csv --task labels": (
        "--task is labels, but rating/bundle predicts rating; remove the setting"
    ),
    "evaluate several labels-test.jsonl --second-column text": "several/bundle expects single texts; remove --second-column",
    "finetune ratings.csv --task rating --transfer.class-weights balanced --from scratch --out x -q": (
        "--transfer.class-weights needs labels, but the task is a rating; remove it"
    ),
    "finetune ratings.csv --labelled.lowest 1 --from scratch --out x": (
        "--labelled.lowest is for ratings and needs --labelled.task rating, got auto"
    ),
    "finetune ratings.csv --task rating --labelled.separator ; --from scratch --out x": (
        "--labelled.separator is for texts with several labels, but --task is rating"
    ),
    "finetune ratings.csv --task rating --labelled.lowest 5 --labelled.highest 1 --from scratch --out x": (
        "--labelled.lowest must be below --labelled.highest, got 5 and 1"
    ),
    f"finetune pairs.csv {PAIR} --labelled.long-texts windows --from scratch --out x": (
        "--labelled.long-texts windows cannot be used with --labelled.second-column: a window would split the pair"
    ),
    "finetune pairs.csv --labelled.text-column premise --labelled.second-column premise --from scratch --out x -q": (
        "pairs.csv: 'premise' would be both texts of a pair; name the other column with --labelled.text-column"
    ),
    "prepare labels.jsonl --labelled --tokenizer several/bundle/tokenizer --out shards -q": (
        "labels.jsonl has several labels per text; prepared folders support one class per text only: use "
        "the original file with finetune"
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(typed, line):
    code, shown, err = typed(line)
    assert (code, shown, err) == (2, "", f"headstart: {REFUSED[line]}\n")


def test_ratings_of_test_beyond_those_of_train_are_counted(typed, folder):
    (folder / "wide.csv").write_text("text,stars\ngreat great,9\nawful film,1\n")
    code, _, err = typed("evaluate rating wide.csv")
    assert code == 0
    assert "1 of 2 ratings of wide.csv are outside 1 to 5, the range of predictions\n" in err


def test_pairs_are_compared_like_any_classes(typed, folder):
    options = "--arms majority,linear,scratch --seeds 1 --out cmp -q --loop.epochs 1"
    assert typed(f"compare pairs.csv {PAIR} --test pairs-test.csv {options}")[0] == 0
    assert (folder / "cmp" / "report.html").is_file()


@pytest.mark.parametrize(
    ("name", "test"), [("several", "labels-test.jsonl"), ("rating", "ratings-test.csv"), ("pair", "pairs-test.csv")]
)
def test_a_compact_export_keeps_the_task_the_figures_and_the_card(typed, folder, name, test):
    code, shown, err = typed(f"export {name} --to compact --weights fp32 --out whole-{name}")
    assert (code, err) == (0, "")
    assert shown.endswith(f" MB in whole-{name} (fp32)\n")
    columns = f" {PAIR}" if name == "pair" else ""
    exported, original = (typed(f"evaluate {model} {test}{columns} --json") for model in (f"whole-{name}", name))
    assert exported[:2] == original[:2]
    assert exported[2] == original[2].replace(f"when {name} was", f"when whole-{name} was")
    code, _, err = typed(f"export {name} --to compact --out half-{name}")
    assert (code, err) == (0, "")
    whole, half = load_bundle(folder / name), load_bundle(folder / f"half-{name}")
    assert half.task == whole.task
    assert half.about == whole.about
    assert (half.windows, half.attention, half.objective) == (whole.windows, whole.attention, whole.objective)
    card = (whole.path / "README.md").read_text("utf-8")
    assert "## Evaluation" in card
    rounded = card.replace("Weights are safetensors;", "Weights are safetensors in bf16, fp32 in memory;")
    assert (half.path / "README.md").read_text("utf-8") == rounded != card
