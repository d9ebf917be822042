"""The separator of a .csv is detected from its header, and a table reads the same with every separator."""

import csv
import gzip
import io
import os
import re
import tempfile
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data import io as data_io
from headstart.data.corpus import read_documents
from headstart.data.formats import CsvDialect, TableWriter, detect_dialect, detect_separator
from headstart.data.labelled import read_labelled
from headstart.data.sources import read_rows
from headstart.errors import DataError


def separator_of(header: str) -> str:
    return detect_separator(iter(re.findall("[^\n]*\n|[^\n]+", header)))[0]


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("text,label\n", ","),
        ("text;label\n", ";"),
        ("text\tlabel\r\n", "\t"),
        ("text\n", ","),
        ("", ","),
        ("\n\r\n\ntext;label\n", ";"),
        ("text,label;or not\n", ","),  # a comma outside quotes is enough
        ("text;label;note,too\n", ","),
        ('"text";"label"\n', ";"),
        ('"text";"label, as text"\n', ";"),
        ('text;"label, as text"\n', ";"),
        ('"text; or label"\n', ","),
        ('"text\tor label"\n', ","),
        ('"the ""text"", so; to say"\n', ","),
        ('"the ""text""";label\n', ";"),
        ('"text,\nor; so";label\n', ";"),  # a line break inside a name
        ('5" disc;label\n', ";"),  # not at the beginning of a cell: a quote is a letter
        ("text;label\tor not\n", ";"),
        ('"text;label\n', ","),  # never closed: the reader reports it
        ("sep=;\ntext,or not\n", ";"),  # set by the sep line, whatever the header holds
        ("\nSEP=\t\r\ntext,or not\n", "\t"),
        ('"sep=,"\r\ntext;label\n', ","),
        ("sep=|\ntext;label\n", ","),  # a header like any other
        ("sep=;label\n", ";"),
    ],
)
def test_the_separator_is_a_comma_unless_the_header_has_others_only(header, separator):
    assert separator_of(header) == separator


def test_later_rows_do_not_change_the_separator():
    assert separator_of("text\nfine;1\ndull;0\n") == ","
    assert separator_of("text;label\nfine,1\ndull,0\n") == ";"


def test_detecting_the_separator_loses_no_line():
    lines = ["\n", '"a\n', 'b";c\n', "1;2\n", "3;4\n"]
    separator, remaining = detect_separator(iter(lines))
    assert (separator, list(remaining)) == (";", lines[1:])


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(("sep_line", "separator"), [("sep=;\r\n", ";"), ("sep=,\n", ","), ('"sep=\t"\n', "\t")])
def test_a_line_that_sets_the_separator_is_no_row(tmp_path, bom, sep_line, separator):
    path = tmp_path / "r.csv"
    rows = f"text{separator}label\nfine{separator}1\ndull{separator}0\n"
    path.write_bytes(f"{bom}{sep_line}{rows}".encode())
    assert [(row.values, row.where) for row in read_rows(str(path))] == [
        ({"text": "fine", "label": "1"}, f"{path}, row 1"),
        ({"text": "dull", "label": "0"}, f"{path}, row 2"),
    ]
    assert detect_dialect(str(path)) == CsvDialect(separator, has_bom=bool(bom), has_sep_line=True)
    assert written([["text", "label"], ["fine", "1"], ["dull", "0"]], detect_dialect(str(path))) == (
        f"{bom}sep={separator}\n{rows}"
    )


def test_a_sep_line_below_the_header_is_a_row(tmp_path):
    (tmp_path / "r.csv").write_text("text\nsep=;\n")
    assert [row.values for row in read_rows(str(tmp_path / "r.csv"))] == [{"text": "sep=;"}]
    assert detect_dialect(str(tmp_path / "r.csv")) == CsvDialect()


def test_separator_detection_reads_only_the_header():
    def source():
        yield "text;label\n"
        raise AssertionError("read beyond the header")

    assert detect_separator(source())[0] == ";"


def test_a_quote_in_the_header_that_is_not_closed_ends_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(data_io, "MAX_LINE_BYTES", 1000)
    (tmp_path / "r.csv").write_text('"text;label\n' + "fine;1\n" * 1000)
    with pytest.raises(DataError) as caught:
        list(read_rows(str(tmp_path / "r.csv")))
    assert str(caught.value) == f"{tmp_path / 'r.csv'}, row 1: longer than 1000 characters; is a quote not closed?"


@pytest.mark.parametrize("header", ["text,label", '"text","label"'])
def test_a_file_may_begin_with_several_byte_order_marks(tmp_path, header):
    (tmp_path / "r.csv").write_text(f"\ufeff\ufeff{header}\nfine,1\n", encoding="utf-8")
    assert read_labelled(str(tmp_path / "r.csv"), LabelledConfig()).texts == ("fine",)


def test_a_file_of_one_column_stays_one_column(tmp_path):
    (tmp_path / "r.csv").write_text('text\nfine; really\n"well, well"\n')
    assert [row.values for row in read_rows(str(tmp_path / "r.csv"))] == [
        {"text": "fine; really"},
        {"text": "well, well"},
    ]


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz", "*.csv", "memory://sheets/r.csv"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_labels_and_documents_are_read_from_files_patterns_and_urls(tmp_path, monkeypatch, name, separator):
    monkeypatch.chdir(tmp_path)
    content = f'label{separator}text\n1{separator}"fine; well, fine"\n0{separator}dull\n'.encode()
    with fsspec.open(name if "://" in name else f"file://{tmp_path}/{name.replace('*', 'r')}", "wb") as file:
        file.write(gzip.compress(content) if name.endswith(".gz") else content)
    rows = read_labelled(name, LabelledConfig())
    assert list(rows.texts) == ["fine; well, fine", "dull"]
    assert [document.text for document in read_documents([name], CorpusConfig())] == ["fine; well, fine", "dull"]


def test_files_of_a_pattern_may_have_different_separators(tmp_path):
    for name, separator in (("a.csv", ","), ("b.csv", ";"), ("c.csv", "\t")):
        (tmp_path / name).write_text(f"text{separator}label\n{name}{separator}1\n")
    rows = read_labelled(str(tmp_path / "*.csv"), LabelledConfig())
    assert list(rows.texts) == ["a.csv", "b.csv", "c.csv"]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_the_dialect_is_the_separator_and_the_byte_order_mark(tmp_path, bom):
    (tmp_path / "r.csv").write_bytes(bom + b"text;label\nfine;1\n")
    assert detect_dialect(str(tmp_path / "r.csv")) == CsvDialect(";", has_bom=bool(bom))


LETTERS = st.sampled_from(list(',;\t"\n\r |a\u00e9\U0001f600')) | st.characters(codec="utf-8", exclude_characters="\0")
CELLS = st.text(LETTERS, max_size=8)
NAMES = st.text(LETTERS, min_size=1, max_size=8).filter(
    lambda name: name == name.strip() and not name.startswith("\ufeff")
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """A header of different names and rows of as many cells."""
    header = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    return [header, *draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=4))]


def rows_of(content: str, suffix: str = ".csv") -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"r{suffix}")
        Path(path).write_bytes(content.encode())
        return [dict(row.values) for row in read_rows(path)]


def written(table: list[list[str]], dialect: CsvDialect) -> str:
    sink = io.StringIO(newline="")
    writer = TableWriter(sink, dialect)
    writer.header(table[0])
    for cells in table[1:]:
        writer.row(cells)
    return sink.getvalue()


@settings(max_examples=200)
@given(table=tables(), has_bom=st.booleans(), has_sep_line=st.booleans())
def test_a_table_reads_the_same_with_commas_semicolons_and_tabs(table, has_bom, has_sep_line):
    header, *body = table
    expected = [dict(zip(header, cells, strict=True)) for cells in body]
    for separator in (",", ";", "\t"):
        everything_quoted = io.StringIO(newline="")
        csv.writer(everything_quoted, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(table)
        for content in (written(table, CsvDialect(separator, has_bom, has_sep_line)), everything_quoted.getvalue()):
            assert separator_of(content.removeprefix("\ufeff")) == separator
            assert rows_of(content) == expected
            if separator == "\t" and not (has_sep_line and content.removeprefix("\ufeff").startswith("sep=")):
                assert rows_of(content, ".tsv") == expected


def test_written_tables_end_lines_with_a_line_feed_and_quote_what_must_be_quoted():
    table = [["id", "a, b"], ["1", "x\ry"], ["2", "z; z"]]
    assert written(table, CsvDialect(";", has_bom=True)) == '\ufeff"id";"a, b"\n1;"x\ry"\n2;"z; z"\n'
    assert written(table, CsvDialect()) == 'id,"a, b"\n1,"x\ry"\n2,z; z\n'
