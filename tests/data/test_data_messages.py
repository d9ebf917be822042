"""The complete messages about wrong paths, unreadable files and files that do not fit together."""

import json

import pytest

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data import io as data_io
from headstart.data.corpus import read_documents
from headstart.data.labelled import LabelSet, check_split, read_labelled
from headstart.errors import DataError

KNOWN_SUFFIXES = ".txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .spm, each also with .gz"
GOOD = b"text,label\na fine book,positive\na dull one,negative\n"


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def message_of(read) -> str:
    with pytest.raises(DataError) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_file_is_reported_with_a_similar_name(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "reviews.csv").write_bytes(GOOD)
    read = lambda path: message_of(lambda: read_labelled(path, LabelledConfig()))  # noqa: E731
    assert read("data/revews.csv") == "no such file: data/revews.csv; did you mean data/reviews.csv?"
    assert read("data/else.parquet") == "no such file: data/else.parquet"
    assert read("dat/reviews.csv") == "no such file: dat/reviews.csv (there is no folder dat)"


@pytest.mark.parametrize("missing", ["test.csv", "labels.csv", ".csv", "r.csv"])
def test_a_name_that_shares_little_but_its_suffix_is_not_suggested(tmp_path, missing):
    for name in ("three.csv", "reviews.csv", "labelled-rows-of-june.csv"):
        (tmp_path / name).write_bytes(GOOD)
    assert message_of(lambda: read_labelled(missing, LabelledConfig())) == f"no such file: {missing}"


def test_the_same_name_with_another_suffix_is_suggested(tmp_path):
    (tmp_path / "train.csv").write_bytes(GOOD)
    (tmp_path / "train.jsonl.gz").write_bytes(b"")
    read = lambda path: message_of(lambda: read_labelled(path, LabelledConfig()))  # noqa: E731
    assert read("train.jsonl") == "no such file: train.jsonl; did you mean train.jsonl.gz?"
    assert read("Train.CSV.gz") == "no such file: Train.CSV.gz; did you mean train.csv?"


def test_a_symbolic_link_that_leads_nowhere_is_called_one(tmp_path):
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "a.csv").symlink_to("b.csv")
    (tmp_path / "b.csv").symlink_to("a.csv")
    (tmp_path / "gone.csv").symlink_to("moved.csv")
    read = lambda path: message_of(lambda: read_labelled(path, LabelledConfig()))  # noqa: E731
    looped = "{} is a symbolic link to {}, and leads back to itself; create the link again"
    assert read("loop.csv") == looped.format("loop.csv", "loop.csv")
    assert read("a.csv") == looped.format("a.csv", "b.csv")
    missing = "gone.csv is a symbolic link to moved.csv, which does not exist; create the link again"
    assert read("gone.csv") == missing


def test_a_folder_is_refused_as_labelled_file(tmp_path):
    (tmp_path / "data").mkdir()
    assert message_of(lambda: read_labelled("data", LabelledConfig())) == (
        "data is a folder; labelled text must be one file, or a pattern such as data/train-*.csv"
    )


def write_headstart_folder(folder, name: str = "run.json", kind: str = "pretrain") -> None:
    """Write a folder as Headstart does: a marker, and JSON that is not text."""
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps({"format": 1, "kind": kind}))
    (folder / "result.json").write_text('{"loss": 1}')


@pytest.mark.parametrize(
    ("name", "kind", "shown"),
    [
        ("run.json", "pretrain", "run"),
        ("demo.json", "demo", "demo"),
        ("manifest.json", "tokenizer", "tokenizer"),
        ("manifest.json", "bundle", "bundle"),
    ],
)
def test_a_folder_that_headstart_wrote_is_not_text(tmp_path, name, kind, shown):
    write_headstart_folder(tmp_path / "own", name, kind)
    message = message_of(lambda: list(read_documents(["own"], CorpusConfig())))
    assert message == f"own is a Headstart {shown} folder, not text; use the text files"


def test_folders_that_headstart_wrote_are_skipped(tmp_path):
    write_headstart_folder(tmp_path / "data" / "runs" / "base")
    write_headstart_folder(tmp_path / "data" / "tok", "manifest.json", "tokenizer")
    message = message_of(lambda: list(read_documents(["data"], CorpusConfig())))
    assert message == "data contains no text, only folders that Headstart wrote"
    (tmp_path / "data" / "texts").mkdir()
    (tmp_path / "data" / "texts" / "a.txt").write_text("fine\n")
    # a web page's manifest.json is not one of ours
    (tmp_path / "data" / "texts" / "manifest.json").write_text('{"text": "a page"}')
    texts = [document.text for document in read_documents(["data"], CorpusConfig())]
    assert texts == [document.text for document in read_documents(["data/*"], CorpusConfig())] == ["fine", "a page"]


@pytest.mark.parametrize(("content", "state"), [(None, "missing"), ("{", "damaged")])
def test_shards_without_their_manifest_are_not_text(tmp_path, content, state):
    (tmp_path / "tokens").mkdir()
    for name in ("tokens.bin", "offsets.bin"):
        (tmp_path / "tokens" / name).touch()
    if content:
        (tmp_path / "tokens" / "manifest.json").write_text(content)
    assert message_of(lambda: list(read_documents(["tokens"], CorpusConfig()))) == (
        f"tokens contains prepared shards, but their manifest.json is {state}; prepare them again"
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], f"data contains no readable file; found: nothing; supported: {KNOWN_SUFFIXES}"),
        (["a.md", "b.pdf"], f"data contains no readable file; found: a.md, b.pdf; supported: {KNOWN_SUFFIXES}"),
        (
            ["a.xlsx"],
            f"data contains no readable file; found: a.xlsx; supported: {KNOWN_SUFFIXES}; save spreadsheets as CSV UTF-8",
        ),
        (
            list("abcdefg"),
            f"data contains no readable file; found: a, b, c, d, e and 2 more; supported: {KNOWN_SUFFIXES}",
        ),
    ],
)
def test_a_folder_without_a_readable_file_is_reported_with_its_content(tmp_path, names, message):
    (tmp_path / "data").mkdir()
    for name in names:
        (tmp_path / "data" / name).touch()
    assert message_of(lambda: list(read_documents(["data"], CorpusConfig()))) == message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("*.csv", f"*.csv matches no readable file; found: nothing; supported: {KNOWN_SUFFIXES}"),
        ("notes.md", "no such file: notes.md"),
        ("memory://nowhere/a.csv", "no such file: memory://nowhere/a.csv"),
        (
            "memory://nowhere/*.csv",
            f"memory://nowhere/*.csv contains no readable file; found: nothing; supported: {KNOWN_SUFFIXES}",
        ),
        ("memory://nowhere/a", f"memory://nowhere/a: unsupported file suffix; supported: {KNOWN_SUFFIXES}"),
    ],
)
def test_a_path_without_a_file_is_reported(path, message):
    assert message_of(lambda: list(read_documents([path], CorpusConfig()))) == message


def test_an_unknown_protocol_is_reported():
    message = message_of(lambda: list(read_documents(["tape://a.csv"], CorpusConfig())))
    assert message == "cannot open tape://a.csv: Protocol not known: tape"


@pytest.mark.parametrize(
    ("name", "content", "documents"), [("a.txt", b"", "line"), ("a.txt", b" \n\n", "line"), ("a.txt", b"", "file")]
)
def test_a_corpus_without_text_is_reported(tmp_path, name, content, documents):
    (tmp_path / name).write_bytes(content)
    message = message_of(lambda: list(read_documents([name], CorpusConfig(documents=documents))))
    assert message == "a.txt: contains no text; every document is empty"


@pytest.mark.parametrize(
    ("name", "content", "documents", "message"),
    [
        ("a.txt", b"short\n" + b"x" * 101, "line", "a.txt, line 2: longer than 100 bytes; split it into lines"),
        ("a.txt", b"x" * 101, "file", "a.txt: longer than 100 bytes; read its lines as documents, or split the file"),
        (
            "a.jsonl",
            json.dumps({"text": "x" * 100}).encode(),
            "line",
            "a.jsonl, line 1: longer than 100 bytes; split it into lines",
        ),
        (
            "a.csv",
            b'text\nfine\n"' + b"x\n" * 60,
            "line",
            "a.csv, row 2: longer than 100 characters; is a quote not closed?",
        ),
    ],
)
def test_a_line_beyond_the_limit_is_refused(tmp_path, monkeypatch, name, content, documents, message):
    monkeypatch.setattr(data_io, "MAX_LINE_BYTES", 100)
    (tmp_path / name).write_bytes(content)
    assert message_of(lambda: list(read_documents([name], CorpusConfig(documents=documents)))) == message


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (3, 2, "r.review.spm, line 3: r.label has no such line; the two files must have the same number of lines"),
        (1, 2, "r.label, line 2: r.review.spm has no such line; the two files must have the same number of lines"),
    ],
)
def test_pieces_and_labels_must_pair_up(tmp_path, texts, labels, message):
    (tmp_path / "r.review.spm").write_text("▁fine\n" * texts)
    (tmp_path / "r.label").write_text("1\n" * labels)
    assert message_of(lambda: read_labelled("r.review.spm", LabelledConfig())) == message


def test_a_single_class_is_reported(tmp_path):
    (tmp_path / "train.csv").write_bytes(b"text,label\nfine,1\ndull,1\n")
    train = read_labelled("train.csv", LabelledConfig())
    assert message_of(lambda: LabelSet.from_training(train)) == (
        "train.csv: every row has the label '1'; a classifier needs at least two labels"
    )


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("postive", "test.csv, row 3: label 'postive' does not occur in train.csv; did you mean 'positive'?"),
        ("5", "test.csv, row 3: label '5' does not occur in train.csv; its labels are negative, positive"),
    ],
)
def test_a_label_missing_from_training_is_reported_with_its_row(tmp_path, label, message):
    (tmp_path / "train.csv").write_bytes(GOOD)
    (tmp_path / "test.csv").write_bytes(GOOD + f"so so,{label}\n".encode())
    train, test = (read_labelled(name, LabelledConfig()) for name in ("train.csv", "test.csv"))
    labels = LabelSet.from_training(train)
    check_split(labels, train, "train.csv")  # control: the training rows pass
    assert message_of(lambda: check_split(labels, test, "train.csv")) == message


def test_several_rows_with_labels_missing_from_training_are_counted(tmp_path):
    (tmp_path / "train.csv").write_bytes(GOOD)
    (tmp_path / "test.csv").write_bytes(GOOD + b"so so,5\nbad,postive\nfine,5\n")
    train, test = (read_labelled(name, LabelledConfig()) for name in ("train.csv", "test.csv"))
    assert message_of(lambda: check_split(LabelSet.from_training(train), test, "train.csv")) == (
        "test.csv, row 3: label '5' does not occur in train.csv; its labels are negative, positive; 3 rows have such "
        "labels: correct or remove them"
    )
