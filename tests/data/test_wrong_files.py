"""Labelled files that are wrong, each in one way: what is wrong, name, bytes, settings, and the line that tells it."""

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.config.schema import LabelledConfig
from headstart.data.labelled import read_labelled
from headstart.errors import DataError

KNOWN_SUFFIXES = ".txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .spm, each also with .gz"
GOOD = b"text,label\na fine book,positive\na dull one,negative\n"


def parquet_of(columns: dict[str, list[object]] | list[tuple[str, list[object]]]) -> bytes:
    sink = io.BytesIO()
    names, values = zip(*(columns.items() if isinstance(columns, dict) else columns), strict=True)
    pq.write_table(pa.table(list(map(pa.array, values)), names=names), sink)
    return sink.getvalue()


INTACT_PARQUET = parquet_of({"text": ["a fine book"], "label": ["positive"]})

LABELLED = [
    (
        "no common name for the label",
        "r.csv",
        b"text,mark\nfine,1\n",
        {},
        "r.csv has no column with a common name for the label; its columns are text, mark; "
        "name one with labelled.label_column",
    ),
    (
        "no common name for the text",
        "r.csv",
        b"words,label\nfine,1\n",
        {},
        "r.csv has no column with a common name for the text; its columns are words, label; "
        "name one with labelled.text_column",
    ),
    (
        "a column that is not there, but nearly",
        "r.csv",
        GOOD,
        {"label_column": "lable"},
        "r.csv has no column 'lable'; its columns are text, label; did you mean 'label'?",
    ),
    (
        "a column that is not there at all",
        "r.csv",
        GOOD,
        {"text_column": "opinion"},
        "r.csv has no column 'opinion'; its columns are text, label",
    ),
    (
        "names that would break the line",
        "r.csv",
        b'"a\nb","\x1b[31mred"\nfine,1\n',
        {},
        "r.csv has no column with a common name for the text; its columns are a b, [31mred; "
        "name one with labelled.text_column",
    ),
    (
        "a text file has no labels",
        "r.txt",
        b"fine\n",
        {},
        "r.txt: a .txt file has no labels; use a csv, tsv, jsonl or parquet file with a label column",
    ),
    (
        "an empty text",
        "r.csv",
        b"text,label\nfine,1\n  ,0\n",
        {},
        "r.csv, row 2: the text is empty; give the row a text, remove it, or skip such rows with labelled.skip_empty",
    ),
    (
        "a null text",
        "r.jsonl",
        b'{"text": null, "label": 1}\n',
        {},
        "r.jsonl, line 1: the text is empty; give the row a text, remove it, or skip such rows with labelled.skip_empty",
    ),
    (
        "a text that is a number",
        "r.jsonl",
        b'{"text": 5, "label": 1}\n',
        {},
        "r.jsonl, line 1: the text is 5, expected a string",
    ),
    (
        "an empty label",
        "r.csv",
        b"text,label\nfine,1\ndull,\n",
        {},
        "r.csv, row 2: the label is empty; give the row a label, remove it, or skip such rows with labelled.skip_empty",
    ),
    (
        "a label that is not a number",
        "r.parquet",
        parquet_of({"text": ["fine"], "label": [float("nan")]}),
        {},
        "r.parquet, row 1: the label is empty; give the row a label, remove it, or skip such rows with "
        "labelled.skip_empty",
    ),
    (
        "a label that is an object",
        "r.jsonl",
        b'{"text": "fine", "label": {"a": 1}}\n',
        {},
        "r.jsonl, line 1: the label is {'a': 1}, expected a string or a number",
    ),
    (
        "a later line without the key",
        "r.jsonl",
        b'{"text": "fine", "label": 1}\n{"txt": "dull", "label": 0}\n',
        {},
        "r.jsonl, line 2: no 'text'; it has 'txt', 'label'",
    ),
    (
        "not UTF-8",
        "r.csv",
        GOOD + "un chef-d'œuvre raté é,negative\n".encode("cp1252"),
        {},
        "r.csv, line 4: not UTF-8 (byte 11 is 0x9c); it looks like Windows-1252 ('chef-d'œuvre raté é') or "
        "Windows-1250 ('chef-d'śuvre raté é'): add labelled.encoding cp1252 or cp1250, or "
        "save the spreadsheet as CSV UTF-8",
    ),
    (
        "UTF-16",
        "r.csv",
        GOOD.decode().encode("utf-16"),
        {},
        "r.csv, line 1: UTF-16, expected UTF-8; it looks like UTF-16 ('text,label a fine bo'): "
        "add labelled.encoding utf-16, or save the spreadsheet as CSV UTF-8",
    ),
    (
        "UTF-32, whose byte order mark begins like that of UTF-16",
        "r.csv",
        GOOD.decode().encode("utf-32"),
        {},
        "r.csv, line 1: UTF-32, expected UTF-8; add labelled.encoding utf-32, or save the spreadsheet as CSV UTF-8",
    ),
    (
        "a label that is infinite, which is not an empty one",
        "r.jsonl",
        b'{"text": "a fine book", "label": 1e999}\n',
        {},
        "r.jsonl, line 1: the label is inf, expected a string or a number",
    ),
    (
        "a parquet column of a type that is not read",
        "r.parquet",
        parquet_of({"text": ["a fine book"], "label": [["positive"]]}),
        {},
        "r.parquet has no column with a common name for the label; its columns are text; name one with "
        "labelled.label_column; ignored because of their type: 'label' (list<element: string>); "
        "store them as strings or numbers",
    ),
    (
        "a parquet column of a type that is not read, by name",
        "r.parquet",
        parquet_of({"text": [b"a fine book"], "label": ["positive"]}),
        {"text_column": "text"},
        "r.parquet has no column 'text'; its columns are label; ignored because of their type: 'text' (binary); "
        "store them as strings or numbers",
    ),
    (
        "a NUL byte",
        "r.csv",
        GOOD + b"a\0b,positive\n",
        {},
        "r.csv, line 4: contains a NUL byte; is this a text file?",
    ),
    *(
        (
            f"a spreadsheet under another name ({kind})",
            "r.csv",
            first + bytes(range(256)),
            {},
            "r.csv, line 1: a spreadsheet or ZIP file, expected text; save the spreadsheet as CSV UTF-8",
        )
        for kind, first in (("xlsx", b"PK\x03\x04"), ("xls", bytes.fromhex("d0cf11e0a1b11ae1")))
    ),
    (
        "too many cells",
        "r.csv",
        GOOD + b"nice, really,positive\n",
        {},
        'r.csv, row 3: 3 cells, but the header has 2; put quotes around a text that contains the separator: "..."',
    ),
    (
        "too few cells",
        "r.tsv",
        b"text\tlabel\nfine\n",
        {},
        'r.tsv, row 1: 1 cell, but the header has 2; put quotes around a text that contains the separator (a tab): "..."',
    ),
    (
        "too many cells between semicolons",
        "r.csv",
        b"text;label\nfine;1\nnice; really;1\n",
        {},
        "r.csv, row 2: 3 cells, but the header has 2; "
        'put quotes around a text that contains the separator (a semicolon): "..."',
    ),
    (
        "commas where the header has semicolons",
        "r.csv",
        b"text;label\nfine,1\n",
        {},
        "r.csv, row 1: 1 cell, but the header has 2; "
        'put quotes around a text that contains the separator (a semicolon): "..."',
    ),
    (
        "semicolons where the header has commas",
        "r.csv",
        b"text,label\nfine;1\n",
        {},
        'r.csv, row 1: 1 cell, but the header has 2; put quotes around a text that contains the separator: "..."',
    ),
    (
        "a quote not closed",
        "r.csv",
        GOOD + b'"it goes on,positive\nand on,negative\n',
        {},
        'r.csv, row 3: the file ends inside quotes; a quote inside a quoted text is written twice: ""',
    ),
    (
        "a quote not doubled",
        "r.csv",
        GOOD + b'"so "good" it hurts",positive\n',
        {},
        "r.csv, row 3: ',' expected after '\"'; a quote inside a quoted text is written twice: \"\"",
    ),
    (
        "lines that end with a carriage return alone",
        "r.csv",
        b"text,label\rfine,1\rdull,0\r",
        {},
        "r.csv, row 1: a line ends with a carriage return (CR) alone, which is not supported; save the "
        "spreadsheet as CSV UTF-8",
    ),
    (
        "another separator",
        "r.csv",
        b"text|label\nfine|1\n",
        {},
        "r.csv: columns appear to be separated by '|', expected commas, semicolons or tabs; save it with commas",
    ),
    (
        "the separator of another suffix",
        "r.tsv",
        b"text;label\nfine;1\n",
        {},
        "r.tsv: columns appear to be separated by semicolons, expected tabs; call it .csv",
    ),
    (
        "no header, recognised by a cell of several words",
        "r.csv",
        b"what a very fine book,1\na dull one,0\n",
        {},
        "r.csv has no column with a common name for the text; its columns are what a very fine book, 1; "
        "name one with labelled.text_column; is the header line missing?",
    ),
    (
        "no header where a column is named",
        "r.csv",
        b"what a very fine book,1\na dull one,0\n",
        {"label_column": "label"},
        "r.csv has no column with a common name for the text; its columns are what a very fine book, 1; "
        "name one with labelled.text_column; is the header line missing?",
    ),
    (
        "no header where both columns are named",
        "r.csv",
        b"what a very fine book,1\na dull one,0\n",
        {"text_column": "text", "label_column": "label"},
        "r.csv has no column 'text'; its columns are what a very fine book, 1; is the header line missing?",
    ),
    (
        "two columns of a name",
        "r.csv",
        b"text,text,label\na,b,1\n",
        {},
        "r.csv: two columns are called 'text'; rename one",
    ),
    (
        "broken JSON",
        "r.jsonl",
        b'{"text": "fine", "label": 1}\n\n{"text": "dull" "label": 0}\n',
        {},
        "r.jsonl, line 3: not valid JSON (Expecting ',' delimiter, column 17)",
    ),
    (
        "a line that is not an object",
        "r.ndjson",
        b'["fine", 1]\n',
        {},
        'r.ndjson, line 1: expected an object such as {"text": "..."}, found a list',
    ),
    (
        "a list of other things",
        "r.json",
        b'[{"text": "fine", "label": 1}, null]',
        {},
        'r.json, row 2: expected an object such as {"text": "..."}, found null',
    ),
    (
        "a broken list",
        "r.json",
        b'[{"text": "fine",\n "label" 1}]',
        {},
        "r.json: not valid JSON (Expecting ':' delimiter, line 2, column 10)",
    ),
    (
        "half a character",
        "r.jsonl",
        rb'{"text": "fine \ud83d", "label": 1}' + b"\n",
        {},
        "r.jsonl, line 1: \\ud83d is an unpaired surrogate; was the text cut inside a character?",
    ),
    ("an empty file", "r.csv", b"", {}, "r.csv contains no rows; expected a text and a label in each row"),
    ("a header alone", "r.csv", b"text,label\n", {}, "r.csv contains no rows; expected a text and a label in each row"),
    (
        "an unknown suffix",
        "r.xlsx",
        b"PK",
        {},
        f"r.xlsx: unsupported file suffix; supported: {KNOWN_SUFFIXES}; save it as CSV UTF-8",
    ),
    (
        "cut gzip",
        "r.csv.gz",
        gzip.compress(GOOD, mtime=0)[:-9],
        {},
        "r.csv.gz is truncated: the gzip stream does not end; download or compress it again",
    ),
    (
        "gzip in name only",
        "r.csv.gz",
        GOOD,
        {},
        "r.csv.gz is not a complete gzip file (Not a gzipped file (b'te')); download or compress it again",
    ),
    (
        "not parquet",
        "r.parquet",
        GOOD,
        {},
        "r.parquet is not a complete parquet file: Parquet magic bytes not found in footer. "
        "Either the file is corrupted or this is not a parquet file",
    ),
    (
        "cut parquet",
        "r.parquet",
        INTACT_PARQUET[:-20],
        {},
        "r.parquet is not a complete parquet file: Parquet magic bytes not found in footer. "
        "Either the file is corrupted or this is not a parquet file",
    ),
    (
        "parquet with two columns of one name",
        "r.parquet",
        parquet_of([("text", ["fine"]), ("label", ["a"]), ("text", ["dull"])]),
        {},
        "r.parquet: two columns are called 'text'; rename one",
    ),
    (
        "parquet with a column without a name",
        "r.parquet",
        parquet_of({"": ["fine"], "label": ["a"]}),
        {},
        "r.parquet has no column with a common name for the text; its columns are one without a name, label; "
        "name one with labelled.text_column",
    ),
    (
        "a label as long as a text",
        "r.csv",
        b"text,label\nfine," + b"long " * 300 + b"\n",
        {},
        "r.csv, row 1: the label has 1,499 characters, and may have 1,000; is this the label column? "
        "select another with labelled.label_column",
    ),
    (
        "pieces without labels",
        "r.review.spm",
        "▁fine\n".encode(),
        {},
        "no such file: r.label",
    ),
]


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"), [case[1:] for case in LABELLED], ids=[case[0] for case in LABELLED]
)
def test_a_wrong_labelled_file_is_reported_in_one_line(tmp_path, name, content, settings, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_labelled(name, LabelledConfig(**settings))
    assert str(caught.value) == message
    assert "\n" not in message


def test_the_cases_begin_with_a_correct_file(tmp_path):
    (tmp_path / "r.csv").write_bytes(GOOD)
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress(GOOD))
    assert read_labelled("r.csv", LabelledConfig()).labels == ("positive", "negative")
    assert read_labelled("r.csv.gz", LabelledConfig()).labels == ("positive", "negative")
