"""Files damaged at random: reading ends with rows or a DataError, whatever the bytes."""

import gzip
import io
import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data.corpus import read_documents
from headstart.data.labelled import read_labelled
from headstart.errors import DataError

ROWS = [{"text": f'n° {number}: "drôle", dit-elle,\net\ttendre', "label": "10"[number % 2]} for number in range(6)]


def parquet(compression: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, compression=compression, row_group_size=3)
    return sink.getvalue()


CSV = 'text,label\r\n"n° 1, ""drôle""\nou non",1\r\nmoyen,0\r\n'.encode()
FILES = {
    "a.txt": "une ligne\n\nune autre, pas drôle\n".encode(),
    "a.csv": CSV,
    "a.tsv": CSV.replace(b",", b"\t"),
    "semicolons.csv": CSV.replace(b",", b";"),
    "a.jsonl": "\n".join(json.dumps(row) for row in ROWS).encode(),
    "a.json": json.dumps(ROWS, ensure_ascii=False).encode(),
    "a.review.spm": "▁n ° ▁1 ▁dr ôle\n▁moyen\n".encode(),
    "a.parquet": parquet("snappy"),
    "plain.parquet": parquet("none"),
    "a.csv.gz": gzip.compress(CSV, mtime=0),
    "a.parquet.gz": gzip.compress(parquet("none"), mtime=0),
}
INSERTIONS = [
    b'"',
    b"\n",
    b"\r",
    b",",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"[" * 3000,
    b"9" * 5000,
    b"{",
    b"PAR1",
]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Apply a few random edits, as disks, downloads and editors cause them."""
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(content)))
        edit = draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if edit == "flip" and position < len(content):
            content = (
                content[:position] + bytes([content[position] ^ draw(st.integers(1, 255))]) + content[position + 1 :]
            )
        elif edit == "cut":
            content = content[:position]
        elif edit == "insert":
            content = (
                content[:position]
                + draw(st.sampled_from(INSERTIONS) | st.binary(min_size=1, max_size=8))
                + content[position:]
            )
        elif edit == "drop":
            content = content[:position] + content[position + draw(st.integers(1, 16)) :]
    return content


def read_all_ways(name: str, content: bytes, labels: bytes = b"1\n0\n") -> int:
    """Count the rows and documents read, with -1 for each reader that refused the file."""
    count, messages = 0, []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        Path(path).write_bytes(content)
        Path(folder, "a.label").write_bytes(labels)
        readers = [
            lambda: len(read_labelled(path, LabelledConfig())),
            lambda: len(list(read_documents([path], CorpusConfig()))),
            lambda: len(list(read_documents([path], CorpusConfig(documents="file")))),
        ]
        for reader in readers:
            try:
                count += reader()
            except DataError as error:
                count -= 1
                messages.append(str(error))
    assert not any("\n" in message for message in messages)
    return count


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name, data):
    read_all_ways(name, data.draw(damaged(FILES[name])))


@settings(max_examples=50)
@given(labels=damaged(b"1\n0\n"))
def test_damaged_labels_are_read_or_refused(labels):
    read_all_ways("a.review.spm", FILES["a.review.spm"], labels)


@pytest.mark.parametrize(
    ("name", "count"),
    [("a.txt", 2), ("a.csv", 6), ("a.jsonl", 18), ("a.json", 18), ("a.review.spm", 6), ("a.parquet", 18)],
)
def test_the_undamaged_files_are_read(name, count):
    assert read_all_ways(name, FILES[name]) == count


@pytest.mark.parametrize("cut", range(1, len(FILES["a.csv.gz"])))
def test_a_truncated_gzip_file_is_refused(cut):
    assert read_all_ways("a.csv.gz", FILES["a.csv.gz"][:cut]) == -3
