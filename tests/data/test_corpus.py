import gzip

import pytest

from headstart.config.schema import CorpusConfig
from headstart.data.corpus import Document, read_documents
from headstart.errors import DataError


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def texts(*paths: str, **settings) -> list[str]:
    return [document.text for document in read_documents(paths, CorpusConfig(**settings))]


def test_documents_of_all_file_formats_are_read_in_order(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo\n")
    (tmp_path / "b.csv").write_text('id,Review\n1,"three, or so"\n2,\n3,four\n')
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"body": "five"}\n{"body": null}\n'))
    assert list(read_documents(["a.txt", "b.csv", "c.jsonl.gz"], CorpusConfig())) == [
        Document("one", "a.txt, line 1"),
        Document("two", "a.txt, line 4"),
        Document("three, or so", "b.csv, row 1"),
        Document("four", "b.csv, row 3"),
        Document("five", "c.jsonl.gz, line 1"),
    ]


def test_a_text_file_is_one_document_or_one_per_line(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "books" / "b.txt").write_text("three\n")
    (tmp_path / "books" / "empty.txt").touch()
    assert texts("books") == ["one", "two", "three"]
    assert texts("books", documents="file") == ["one\ntwo\n", "three\n"]


@pytest.mark.parametrize(
    ("header", "settings", "column"),
    [
        ("id,text", {}, 1),
        ("REVIEW,id", {}, 0),
        ("body,Text,review", {}, 1),
        ("message,comment", {}, 1),
        ("anything", {}, 0),
        ("text,other", {"text_column": "other"}, 1),
        (" text , label", {}, 0),
    ],
)
def test_the_text_column_is_chosen_by_name(tmp_path, header, settings, column):
    width = header.count(",") + 1
    (tmp_path / "r.csv").write_text(f"{header}\n{','.join(f'cell {number}' for number in range(width))}\n")
    assert texts("r.csv", **settings) == [f"cell {column}"]


def test_a_named_column_does_not_apply_to_plain_text_files(tmp_path):
    (tmp_path / "a.txt").write_text("plain\n")
    (tmp_path / "b.csv").write_text("text,body\nno,yes\n")
    assert texts("a.txt", "b.csv", text_column="body") == ["plain", "yes"]


def test_documents_are_read_lazily(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\xff\n")
    documents = read_documents(["a.txt", "a.txt"], CorpusConfig())
    assert next(documents).text == "one"
    with pytest.raises(DataError):  # control: the broken line is there
        next(documents)
