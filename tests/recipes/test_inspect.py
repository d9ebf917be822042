"""`run_inspect`: every problem of a labelled file is counted, and none that can be counted stops the report."""

import json
import random
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.planted_copies import edited, reviews
from headstart.config.schema import LabelledConfig, TokenizerConfig
from headstart.errors import DataError, HeadstartError, UsageError
from headstart.recipes.inspect import Finding, Inspection, InspectRequest, run_inspect
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

ROWS = reviews(12, shortest=20, longest=40)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name: str, rows: list) -> str:
    """Write JSON lines; a tuple is a text and its label, anything else is written as it is."""
    objects = [dict(zip(("text", "label"), row, strict=False)) if isinstance(row, tuple) else row for row in rows]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in objects), encoding="utf-8")
    return name


def inspect(rows: list, **request) -> Inspection:
    for name in {"valid", "test"} & request.keys():
        request[name] = write(f"{name}.jsonl", request[name])
    return run_inspect(InspectRequest(write("train.jsonl", rows), **request), LabelledConfig())


def only_finding(report: Inspection, kind: str, file: str = "train.jsonl") -> Finding:
    (only,) = [finding for finding in report.findings if (finding.kind, finding.file) == (kind, file)]
    return only


def test_clean_files_have_no_findings():
    report = inspect(
        [(text, "ab"[i % 2]) for i, text in enumerate(ROWS)], test=[("something else", "a"), ("and more", "b")]
    )
    assert report.findings == ()
    train, test = report.files
    assert (train.rows, train.labels, test.rows) == (12, {"a": 6, "b": 6}, 2)


def test_lengths_are_those_of_the_texts():
    report = inspect([("one two", "a"), ("one two three four", "b"), ("x" * 90, "b")])
    assert [(one.unit, one.median, one.p90, one.longest, one.total) for one in report.files[0].lengths] == [
        ("characters", 18, 90, 90, 115),
        ("words", 2, 4, 4, 7),
    ]


def test_lengths_in_tokens_count_what_is_beyond_the_context():
    tokenizer = train_tokenizer(ROWS, TokenizerConfig(vocab_size=300))
    Path("tok").mkdir()
    tokenizer.save(Path("tok"))
    counts = sorted(len(ids) for ids in load_tokenizer(Path("tok")).encode_batch(ROWS))
    rows = [(text, "ab"[i % 2]) for i, text in enumerate(ROWS)]
    report = inspect(rows, tokenizer=Path("tok"), context=counts[-2]).files[0]
    assert (report.lengths[1].unit, report.lengths[1].longest) == ("tokens", counts[-1])
    assert (report.context, report.beyond) == (counts[-2], 2)  # one position is for the start token
    assert inspect(rows, tokenizer=Path("tok")).files[0].beyond is None


def test_rows_that_training_refuses_are_counted_each_by_its_fault():
    half = {"text": "\ud83d", "label": "a"}
    report = inspect(
        [
            {"label": "a"},
            ("fine", "a"),
            ("  ", "b"),
            ("also fine", "b"),
            {"text": "no label"},
            ("empty label", " "),
            ("not a number", float("nan")),
            (5, "a"),
            half,
            ("a list", ["a"]),
        ]
    )
    assert {finding.kind: (finding.message, finding.examples) for finding in report.findings} == {
        "text empty": (
            "2 rows have no text; auto skips such rows, other commands need labelled.skip_empty",
            ("line 1", "line 3"),
        ),
        "text unreadable": (
            "2 rows have a text that is not a string (a number, a list) or contains an unpaired surrogate",
            ("line 8", "line 9"),
        ),
        "label missing": (
            "3 rows have no label; auto uses such rows as unlabelled text, other commands need labelled.skip_empty",
            ("line 5", "line 6", "line 7"),
        ),
        "label unreadable": (
            "1 row has a label that is neither a string nor a number, or has more than 1,000 characters",
            ("line 10",),
        ),
    }
    assert report.files[0].rows == 10
    assert report.files[0].labels == {"a": 4, "b": 2}


def test_a_file_that_breaks_off_is_reported_as_far_as_it_goes():
    write("train.jsonl", [("one text", "a"), ("one text", "a")])
    with Path("train.jsonl").open("a") as file:
        file.write("{broken\n")
    report = run_inspect(InspectRequest("train.jsonl"), LabelledConfig())
    assert only_finding(report, "cut short").message == (
        "reading stopped at row 3: train.jsonl, line 3: not valid JSON "
        "(Expecting property name enclosed in double quotes, column 2)"
    )
    assert only_finding(report, "duplicates").rows == 1


def test_duplicates_inside_a_file_are_counted_as_rows_and_as_texts():
    report = inspect([("a b", "x"), ("c", "y"), (" a  b", "x"), ("c", "y"), ("a b", "x"), ("d", "y")])
    assert asdict(only_finding(report, "duplicates")) == {
        "kind": "duplicates",
        "file": "train.jsonl",
        "rows": 3,
        "message": "3 rows repeat an earlier row verbatim (2 texts in 5 rows)",
        "examples": ("line 3 = line 1", "line 4 = line 2", "line 5 = line 1"),
        "texts": 2,
        "other": None,
        "other_rows": None,
    }


def test_duplicates_across_files_are_counted_on_both_sides():
    train = [(ROWS[0], "a"), (ROWS[0], "a"), (ROWS[1], "b")]
    report = inspect(
        train, valid=[(ROWS[2], "a")], test=[(ROWS[0], "a"), (ROWS[2], "b"), (ROWS[2], "b"), (ROWS[3], "a")]
    )
    in_train, in_valid = (finding for finding in report.findings if finding.kind == "overlap")
    assert in_train.message == "1 row (1 different text) appears verbatim in train.jsonl, in 2 rows there"
    assert in_valid.message == "2 rows (1 different text) appear verbatim in valid.jsonl, in 1 row there"
    assert (in_train.examples, in_valid.examples) == (
        ("line 1 = line 1 there",),
        ("line 2 = line 1 there", "line 3 = line 1 there"),
    )
    (conflict,) = (finding for finding in report.findings if finding.kind == "conflict")
    assert conflict.message == "2 rows have a different label than the same text in valid.jsonl"


def test_near_duplicates_across_files_are_found():
    test = [(edited(ROWS[3], 0.05, "changed"), "a"), ("nothing like it", "b"), (f"{ROWS[4]} {ROWS[5]}", "b")]
    report = inspect([(text, "ab"[i % 2]) for i, text in enumerate(ROWS[:5])], test=test)
    near = only_finding(report, "near-duplicate", "test.jsonl")
    assert (
        near.message
        == "2 rows have near-duplicates in train.jsonl: some words differ, or the text is part of a longer one"
    )
    assert near.examples == ("line 1 ~ line 4 there", "line 3 ~ line 5 there")


def test_one_text_with_two_labels_is_a_conflict():
    report = inspect([("a b", "x"), ("c", "y"), ("a  b", "y"), ("c", "y")])
    conflict = only_finding(report, "conflict")
    assert (conflict.message, conflict.texts) == ("1 text has more than one label, in 2 rows", 1)
    assert conflict.examples == ("line 1 x / line 3 y",)


def test_labels_that_look_like_mistakes_are_named():
    report = inspect([("a", "Good"), ("b", "good"), ("c", "bad")], test=[("d", "god"), ("e", "bad")])
    assert only_finding(report, "labels").message == "1 row may be misspelt: 'Good' and 'good' are different labels"
    assert (
        only_finding(report, "labels", "test.jsonl").message
        == "1 row has a label that train.jsonl does not have ('god')"
    )


def test_labels_that_carry_no_information_are_named():
    assert only_finding(inspect([("a", "x"), ("b", "x")]), "labels").message == "every row has the label 'x'"
    many = inspect([(f"text {number}", f"label {number}") for number in range(30)])
    assert only_finding(many, "labels").message == "30 different labels in 30 rows; is this the label column?"


def test_encoding_issues_are_found_and_shown_safely():
    report = inspect([("caf\u00c3\u00a9", "a"), ("a\x1b[31m", "b"), ("fine", "a")])
    assert [(finding.message, finding.examples) for finding in report.findings] == [
        ("1 row with mojibake", ("line 1 (Ã©)",)),
        ("1 row with control characters", ("line 2 (U+001B)",)),
    ]


def test_a_byte_order_mark_is_reported_although_it_is_not_read():
    Path("train.csv").write_bytes(b"\xef\xbb\xbftext,label\na,x\nb,y\n")
    report = run_inspect(InspectRequest("train.csv"), LabelledConfig())
    assert only_finding(report, "byte order mark", "train.csv").message == (
        "train.csv begins with a byte order mark, which is not part of the text"
    )


def test_rows_are_looked_for_in_pretraining_text():
    test = [(text, "ab"[i % 2]) for i, text in enumerate(ROWS[:5])]
    lines = [ROWS[1], edited(ROWS[2], 0.05, "deleted"), f"{ROWS[8]} {ROWS[3]} {ROWS[9]}", ROWS[7]]
    Path("texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = inspect([("train text", "a"), ("more", "b")], test=test, texts=["texts.txt"])
    train, seen = report.pretraining
    assert (train.exact, train.near, train.examples) == (0, 0, ())
    assert (seen.file, seen.rows, seen.documents, seen.exact, seen.near) == ("test.jsonl", 5, 4, 1, 2)
    assert seen.examples == ("line 2 = line 1 there", "line 3 ~ line 2 there", "line 4 ~ line 3 there")


def test_files_of_one_name_are_distinguished_by_their_folders(tmp_path):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        write(f"{folder}/data.jsonl", [(ROWS[0], "x"), (ROWS[1], "y")])
    report = run_inspect(InspectRequest("a/data.jsonl", test="b/data.jsonl"), LabelledConfig())
    assert only_finding(report, "overlap", "b/data.jsonl").message.endswith("verbatim in a/data.jsonl, in 2 rows there")


def test_the_report_is_plain_values():
    report = inspect([("a", "x"), ("a", "y"), ("b", "x")], test=[("a", "x")])
    assert json.loads(json.dumps(report.as_dict()))["findings"][0]["kind"] == "duplicates"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.jsonl contains no rows; expected a text and a label in each row"),
        ("{", "t.jsonl, line 1: not valid JSON (Expecting property name enclosed in double quotes, column 2)"),
        (
            '{"a": 1, "b": 2}\n',
            "t.jsonl has no column with a common name for the text; its columns are a, b; name one with labelled.text_column",
        ),
    ],
)
def test_a_file_that_gives_no_row_is_refused(content, message):
    Path("t.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        run_inspect(InspectRequest("t.jsonl"), LabelledConfig())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 8}, "--context counts tokens and needs --tokenizer or --from"),
        ({"context": 1, "tokenizer": Path("tok")}, "--context must be at least 2, got 1"),
        (
            {"tokenizer": Path("tok"), "backbone": "runs/base"},
            "runs/base has its own tokenizer; omit --tokenizer or --from",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(UsageError) as caught:
        inspect([("a", "x")], **options)
    assert str(caught.value) == message


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.lists(st.text(max_size=3), max_size=2)
)
OBJECTS = st.fixed_dictionaries({}, optional={"text": VALUES, "label": VALUES, "id": VALUES})
LINES = (
    OBJECTS.map(json.dumps)
    | st.sampled_from(
        ["", "{", "[]", "null", '{"text": "\\ud800", "label": 1}', "\ufeff", '{"text": "Ã©", "label": "a"}']
    )
    | st.text(max_size=10)
)


@settings(max_examples=150)
@given(
    files=st.lists(st.lists(LINES, max_size=8), min_size=3, max_size=3),
    suffix=st.sampled_from([".jsonl", ".json", ".csv", ".tsv"]),
    ending=st.binary(max_size=6),
)
def test_any_files_give_a_report_or_a_one_line_error(files, suffix, ending):
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, f"{number}{suffix}")) for number in range(3)]
        for path, lines in zip(paths, files, strict=True):
            good = ["text,label", "fine,a"] if suffix == ".csv" else ['{"text": "fine", "label": "a"}']
            content = "\n".join([*(good if suffix != ".tsv" else ["text\tlabel", "fine\ta"]), *lines])
            Path(path).write_bytes(content.encode("utf-8", "surrogatepass") + ending)
        refusal, num_files = "", 3
        try:
            request = InspectRequest(paths[0], valid=paths[1], test=paths[2], texts=[paths[0]])
            report = run_inspect(request, LabelledConfig())
            num_files = len(json.loads(json.dumps(report.as_dict()))["files"])
        except HeadstartError as error:
            refusal = str(error)
    assert "\n" not in refusal
    assert num_files == 3


@pytest.mark.data
def test_every_known_problem_of_the_book_reviews_is_found(real_data):
    train, valid, test = (str(real_data / "cls-books" / f"{name}.jsonl") for name in ("train", "valid", "test"))
    report = run_inspect(InspectRequest(train, valid=valid, test=test), LabelledConfig())
    counted = {(one.kind, Path(one.file).stem, one.other and Path(one.other).stem): one for one in report.findings}
    duplicates = {key[1:]: (one.rows, one.texts) for key, one in counted.items() if key[0] == "duplicates"}
    assert duplicates == {("train", None): (20, 20), ("valid", None): (1, 1), ("test", None): (35, 34)}
    across = {key[1:]: (one.rows, one.texts, one.other_rows) for key, one in counted.items() if key[0] == "overlap"}
    assert across == {
        ("valid", "train"): (13, 13, 13),
        ("test", "train"): (43, 43, 45),
        ("test", "valid"): (12, 9, 10),
    }
    assert not [one for one in report.findings if one.kind in ("near-duplicate", "conflict", "labels", "text empty")]
    assert {one.labels["positive"] for one in report.files} == {800, 200, 1000}
    assert report.as_dict()["files"][0]["rows"] == 1600


@pytest.mark.data
def test_no_test_row_appears_in_the_unlabelled_reviews(real_data):
    files = {name: str(real_data / "cls-books" / f"{name}.jsonl") for name in ("train", "test")}
    texts = [str(real_data / "french-reviews" / "reviews.parquet")]
    request = InspectRequest(files["train"], test=files["test"], texts=texts)
    train, test = run_inspect(request, LabelledConfig()).pretraining
    assert (test.exact, test.near, test.documents) == (0, 0, 24_978)
    assert train.exact > 1500  # control: training rows are there


def test_shuffling_rows_changes_locations_but_no_counts():
    rows = [(text, "ab"[i % 2]) for i, text in enumerate([*ROWS, *ROWS[:4], edited(ROWS[5], 0.05, "changed")])]
    shuffled = random.Random(0).sample(rows, len(rows))
    first, second = (inspect(order, test=[(ROWS[5], "a"), (ROWS[0], "b")]) for order in (rows, shuffled))
    assert [(one.kind, one.rows, one.texts) for one in first.findings] == [
        (one.kind, one.rows, one.texts) for one in second.findings
    ]


def test_ids_placeholders_and_rare_labels_are_findings():
    rows = [{"document": f"C-{n}", "narrative": text, "label": "ab"[n % 2]} for n, text in enumerate(ROWS * 2)]
    rows[0]["label"], rows[5]["label"] = "rare", "null"
    rows[6]["label"] = "null"
    write("train.jsonl", rows)
    report = run_inspect(InspectRequest("train.jsonl", test=write("test.jsonl", rows)), LabelledConfig())
    summary = [(one.kind, one.rows, one.examples) for one in report.findings if one.file == "train.jsonl"]
    assert summary == [
        ("texts", 24, ()),
        ("labels", 2, ("line 6", "line 7")),
        ("labels", 1, ("line 1",)),
    ]
    assert [one.message for one in report.findings if one.kind == "texts"] == [
        "the text column 'document' holds ids, numbers or addresses, such as 'C-0', not sentences; 'narrative' looks "
        "like the text column: select it with labelled.text_column, or name 'document' to keep it"
    ] * 2
    assert not any("single row" in one.message for one in report.findings if one.file == "test.jsonl")
