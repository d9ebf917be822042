import csv
import gzip
import io
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.data.sources import expand_paths, read_rows
from headstart.errors import DataError, UsageError

ROWS = [
    {"text": 'He said "no", twice,\nand left.', "label": "negative"},
    {"text": "été à Évreux ▁ 😀", "label": "positive"},
    {"text": "a\ttab; a semicolon", "label": "positive"},
]


def separated(delimiter: str) -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, ["text", "label"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return sink.getvalue().encode()


def parquet() -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(ROWS).append_column("vector", pa.array([[1.0]] * len(ROWS)))
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


FILES = {
    "r.csv": separated(","),
    "r.tsv": separated("\t"),
    "semicolons.csv": separated(";"),
    "tabs.csv": separated("\t"),
    "r.jsonl": "\n".join(json.dumps(row) for row in ROWS).encode(),
    "r.ndjson": "\r\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode(),
    "r.json": json.dumps(ROWS, indent=1).encode(),
    "lines.json": "\n".join(json.dumps(row) for row in ROWS).encode(),
    "r.parquet": parquet(),
}

BOM = b"\xef\xbb\xbf"  # the byte order mark that some programs put before UTF-8


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("name", "bom"), [(name, bom) for name in FILES for bom in (b"", BOM) if not (bom and name == "r.parquet")]
)
def test_the_same_rows_come_out_of_every_format(tmp_path, name, bom, compressed):
    path, content = (f"{name}.gz", gzip.compress(bom + FILES[name])) if compressed else (name, bom + FILES[name])
    (tmp_path / path).write_bytes(content)
    rows = list(read_rows(path))
    assert [dict(row.values) for row in rows] == ROWS
    unit = "line" if name in ("r.jsonl", "r.ndjson", "lines.json") else "row"
    assert [row.where for row in rows] == [f"{path}, {unit} {number}" for number in (1, 2, 3)]


def test_a_text_file_has_a_row_per_line_and_only_a_line_feed_ends_a_line(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\r\n\ntwo\u2028three\x0bfour\x85five\nlast".encode())
    rows = list(read_rows("a.txt"))
    assert [row.values["text"] for row in rows] == ["one", "", "two\u2028three\x0bfour\x85five", "last"]
    assert [row.where for row in rows] == [f"a.txt, line {number}" for number in (1, 2, 3, 4)]


def test_a_text_file_can_be_one_row(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\n\ntwo\n")
    (row,) = read_rows("a.txt", file_as_row=True)
    assert (row.values, row.where) == ({"text": "one\n\ntwo\n"}, "a.txt")


def test_pieces_are_joined_and_paired_with_their_labels(tmp_path):
    (tmp_path / "t.review.spm").write_text("▁Un ▁roman ▁in oubli able .\n▁J ' aime\n", encoding="utf-8")
    (tmp_path / "t.label").write_text("0\n1\n")
    expected = [("Un roman inoubliable.", "0", "t.review.spm, line 1"), ("J'aime", "1", "t.review.spm, line 2")]
    pairs = list(read_rows("t.review.spm", with_labels=True))
    assert [(row.values["text"], row.values["label"], row.where) for row in pairs] == expected
    alone = list(read_rows("t.review.spm"))
    assert [(row.values, row.where) for row in alone] == [({"text": text}, where) for text, _, where in expected]


def test_blank_lines_of_csv_are_no_rows(tmp_path):
    (tmp_path / "r.csv").write_bytes(b"\ntext,label\n\nfine,1\r\n\r\ndull,0\n\n")
    assert [(row.values["text"], row.where) for row in read_rows("r.csv")] == [
        ("fine", "r.csv, row 1"),
        ("dull", "r.csv, row 2"),
    ]


def test_a_cell_longer_than_the_default_limit_of_csv_is_read(tmp_path):
    text = "word " * 100_000
    csv.field_size_limit(131_072)  # the module's own default, whatever was read before in this process
    (tmp_path / "r.csv").write_text(f"text\n{text}\n")
    assert [row.values["text"] for row in read_rows("r.csv")] == [text]


def test_a_larger_csv_limit_of_the_caller_is_preserved(tmp_path):
    (tmp_path / "r.csv").write_text("text\nfine\n")
    before = csv.field_size_limit(2**30)
    try:
        assert len(list(read_rows("r.csv"))) == 1
        assert csv.field_size_limit() == 2**30
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".parquet"])
def test_rows_are_streamed(tmp_path, suffix):
    """The first row is read before a broken one further on is reached."""
    if suffix == ".parquet":
        table = pa.table({"text": [f"row {number} " * 50 for number in range(20_000)]})
        pq.write_table(table, tmp_path / "r.parquet", row_group_size=2000, compression="none", use_dictionary=False)
        content = bytearray((tmp_path / "r.parquet").read_bytes())
        content[len(content) // 2 : len(content) // 2 + 200_000] = b"\xff" * 200_000
        (tmp_path / "r.parquet").write_bytes(content)
    else:
        line = {".jsonl": b'{"text": "fine"}\n'}.get(suffix, b"text\n")
        (tmp_path / f"r{suffix}").write_bytes(line * 1000 + b"\xff\n")
    rows = read_rows(f"r{suffix}")
    assert next(rows).values["text"]
    with pytest.raises(
        DataError,
        match=r"^r\.(txt|csv|jsonl), line 1001: not UTF-8|^r\.parquet is not a complete parquet file after row",
    ):
        list(rows)


def test_folders_and_globs_are_expanded_in_order(tmp_path):
    for name in ("b.csv", "a.txt", "deep/c.JSONL.gz", "deep/notes.md", ".hidden/d.txt", ".e.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    everything = ["data/a.txt", "data/b.csv", "data/deep/c.JSONL.gz"]
    assert expand_paths(["data"]) == everything
    assert expand_paths(["data/"]) == everything
    assert expand_paths(["data/*"]) == everything
    assert expand_paths(["data/**/c*"]) == ["data/deep/c.JSONL.gz"]
    assert expand_paths(["data/b.csv", "data/?.txt", "data/b.csv"]) == ["data/b.csv", "data/a.txt", "data/b.csv"]


def test_a_file_name_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "café.txt").touch()
    assert expand_paths(["data"]) == ["data/café.txt"]
    try:
        (tmp_path / "data" / os.fsdecode(b"caf\xe9.txt")).touch()
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    with pytest.raises(UsageError) as caught:
        expand_paths(["data"])
    assert str(caught.value) == "data/caf\ufffd.txt: the name is not valid UTF-8; rename the file or folder"


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    (tmp_path / "a[1].txt").touch()
    (tmp_path / "a1.txt").touch()
    assert expand_paths(["a[1].txt"]) == ["a[1].txt"]


def test_urls_are_read_like_files():
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe(
        {"/books/b.csv": FILES["r.csv"], "/books/a.csv.gz": gzip.compress(FILES["r.csv"]), "/books/x.md": b""}
    )
    filesystem.pipe({"/books/p.parquet": FILES["r.parquet"]})
    try:
        urls = ["memory:///books/a.csv.gz", "memory:///books/b.csv"]
        assert expand_paths(["memory://books/*.csv*"]) == urls
        assert expand_paths(["memory://books"]) == [*urls, "memory:///books/p.parquet"]
        for path in ("memory://books/b.csv", "memory://books/p.parquet", *urls):
            assert [dict(row.values) for row in read_rows(path)] == ROWS
    finally:
        filesystem.rm("/books", recursive=True)


def test_the_url_of_a_single_file_needs_no_request():
    assert expand_paths(["https://nowhere.invalid/train.csv?version=2"]) == [
        "https://nowhere.invalid/train.csv?version=2"
    ]
