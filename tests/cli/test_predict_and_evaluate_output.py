"""`predict --abstain`, `predict --explain` and `evaluate --errors`, as they are typed and as they are read."""

import csv
import json
import re
from contextlib import chdir

import pytest

from fixtures.output import without_quality
from headstart.cli.main import run
from headstart.cli.prediction_output import highlight_words
from headstart.predict.explain import WordWeight


@pytest.fixture(scope="module")
def sure(trained):
    """A classifier beside the others, chosen on enough rows to know how sure is sure enough."""
    words = {"positive": ("lovely", "superb", "moving"), "negative": ("awful", "dull", "weak")}
    rows = [(label, word, number) for number in range(40) for label, own in words.items() for word in own]
    lines = [f"the film is {word if number % 4 else 'so so'} {number},{label}" for label, word, number in rows]
    (trained / "many.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    with chdir(trained):
        line = "finetune train.csv --valid many.csv --from base --out sure --quiet --loop.epochs 6 --runtime.threads 1"
        assert run([*line.split(), "--optim.lr", "0.003"]) == 0
    return json.loads((trained / "sure" / "result.json").read_text())["calibration"]["thresholds"]


def test_texts_that_are_not_sure_enough_get_no_answer(sure, typed):
    wanted = next(row for row in sure if row["coverage"] < 1)
    code, out, err = typed(f"predict sure --input many.csv --abstain {wanted['wanted']:g}")
    assert code == 0
    rows = list(csv.DictReader(out.splitlines()))
    kept = [row for row in rows if row["abstained"] == "false"]
    assert len(kept) == wanted["answered"]
    assert {row["predicted_label"] for row in rows if row["abstained"] == "true"} == {"abstain"}
    right = sum(row["label"] == row["predicted_label"] for row in kept)
    assert right / len(kept) == pytest.approx(wanted["precision"])
    first, last = without_quality(err).splitlines()
    assert re.fullmatch(
        r"predictions with a probability below 0\.\d{3} are withheld: on 240 validation rows, \d+ % of the predictions "
        r"were kept, and [\d.]+ % of those were correct \(95 % interval [\d.]+ to [\d.]+\)",
        first,
    )
    assert last == f"{240 - len(kept)} of 240 rows are below the threshold of --abstain and not classified"


def test_without_abstaining_nothing_is_added(sure, typed):
    _, out, err = typed("predict sure --input many.csv")
    assert "abstained" not in out.splitlines()[0]
    assert without_quality(err) == ""


def test_an_answer_can_be_explained_in_words_and_in_json(sure, typed):
    code, out, _ = typed("predict sure 'the film is lovely' --explain")
    assert code == 0
    answer, words = out.splitlines()
    assert words.startswith(f"  for {answer.split()[0]}: ")
    plain = re.sub(r"\([+-][\d.]+\)", "", words.split(": ")[1])
    assert plain == "the film is lovely"
    assert "(" in words  # control: something has a weight
    _, out, _ = typed("predict sure 'the film is lovely' --explain --json")
    output = json.loads(out)["explanation"]
    assert [word for word, _ in output["words"]] == ["the", "film", "is", "lovely"]
    total = sum(weight for _, weight in output["words"])
    assert total == pytest.approx(output["margin"] - output["baseline"], abs=0.02 * max(1, abs(total)))


def test_colours_are_for_terminals():
    words = [WordWeight("good", 2.0), WordWeight("and", 0.01), WordWeight("bad", -0.8)]
    assert highlight_words(words, colour=False) == "good(+2.00) and bad(-0.80)"
    assert highlight_words(words, colour=True) == "\x1b[1;32mgood\x1b[0m and \x1b[31mbad\x1b[0m"
    assert highlight_words([WordWeight("\x1b[2J", 1.0)], colour=False) == "�[2J(+1.00)"
    assert highlight_words([WordWeight("so", 0.0)], colour=True) == "so"


def test_mistakes_are_shown_in_tables_and_words(sure, typed):
    code, out, _ = typed("evaluate sure many.csv --errors --mistakes 2")
    assert code == 0
    for part in ("calibration error ", "by length ", "by label ", "most confident errors:", "95 % interval"):
        assert part in out
    assert len(re.findall(r"^0\.\d{3}  \w+ \(true: \w+\)  many\.csv, row \d+$", out, re.MULTILINE)) == 2
    plain = typed("evaluate sure many.csv")[1]
    assert out.startswith(plain)  # what was there before is there still
    _, out, _ = typed("evaluate sure many.csv --errors --slice text --json")
    output = json.loads(out)
    assert set(output) == {"evaluation", "calibration", "confused", "mistakes", "slices"}
    assert set(output["slices"]) == {"length", "label", "text"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "predict clf hello --abstain 0.9",
            "clf/bundle was chosen on 8 validation rows, too few to choose a threshold",
        ),
        ("predict sure hello --abstain 2", "--abstain must be a precision between 0 and 1, such as 0.95, got 2"),
        ("predict sure --input many.csv --explain", "--explain cannot be written as csv; add --json, or"),
        ("evaluate sure many.csv --slice shop", "--slice needs --errors"),
        ("evaluate sure many.csv --errors --slice shop", "many.csv has no column 'shop'; its columns are text, label"),
    ],
)
def test_a_wrong_predict_or_evaluate_option_gives_one_line(sure, typed, line, message):
    code, out, err = typed(line)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"headstart: {message}")
