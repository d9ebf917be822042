import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.data.corpus import Document
from headstart.data.hashing import text_digest
from headstart.data.provenance import SourceFile, fingerprint, stat_sources
from headstart.data.shards import Shards, is_shards, write_shards
from headstart.errors import DataError, StoreError
from headstart.files import atomic_folder, read_json
from headstart.progress import SilentProgress


def write(texts: list[str], tokenizer, folder: Path, **options) -> Shards:
    documents = (Document(text, f"row {number}") for number, text in enumerate(texts, 1))
    return write_shards(
        documents, tokenizer, folder, sources=[], fingerprint="mark", progress=SilentProgress(), **options
    )


@settings(max_examples=50)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=8))
def test_shards_hold_exactly_the_tokens_of_the_documents(tokenizer, texts):
    with tempfile.TemporaryDirectory() as folder:
        shards = write(texts, tokenizer, Path(folder) / "shards")
        expected = [tokenizer.encode(text) for text in texts]
        assert [shards.ids(index).tolist() for index in range(len(texts))] == expected
        assert shards.flat.tolist() == [id for ids in expected for id in ids]
        assert shards.lengths.tolist() == [len(ids) for ids in expected]
        assert shards.text_bytes.tolist() == [len(text.encode()) for text in texts]
        assert shards.digests.tolist() == [text_digest(text) for text in texts]
        assert (shards.num_documents, shards.num_tokens, shards.label_indices, shards.labels) == (
            len(texts),
            sum(map(len, expected)),
            None,
            None,
        )


def test_documents_are_written_in_batches(tokenizer, tmp_path):
    texts = [f"book {number}" for number in range(2500)]
    read = []

    def documents():
        for number, text in enumerate(texts):
            read.append(number)
            yield Document(text, "")

    class RecordingTokenizer:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def encode_batch(self, batch):
            batches.append((len(batch), len(read)))
            return tokenizer.encode_batch(batch)

    batches: list[tuple[int, int]] = []
    shards = write_shards(
        documents(), RecordingTokenizer(), tmp_path / "s", sources=[], fingerprint="", progress=SilentProgress()
    )
    assert batches == [(1000, 1000), (1000, 2000), (500, 2500)]
    assert [tokenizer.decode(shards.ids(index).tolist()) for index in (0, 999, 1000, 2499)] == [
        texts[index] for index in (0, 999, 1000, 2499)
    ]


def test_labels_are_stored_with_the_documents(tokenizer, tmp_path):
    shards = write(["fine", "dull", "fine"], tokenizer, tmp_path / "s", labels=[1, 0, 1], label_names=("neg", "pos"))
    assert shards.labels == ("neg", "pos")
    assert shards.label_indices is not None
    assert shards.label_indices.tolist() == [1, 0, 1]


def test_the_manifest_describes_the_shards(tokenizer, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("fine\n")
    documents = [Document("fine", "a.txt, line 1")]
    sources = stat_sources([str(source)])
    shards = write_shards(
        documents, tokenizer, tmp_path / "s", sources=sources, fingerprint="mark", progress=SilentProgress()
    )
    tokens = len(tokenizer.encode("fine"))
    assert read_json(tmp_path / "s" / "manifest.json")["about"] == {
        "documents": 1,
        "tokens": tokens,
        "bytes": 4,
        "dtype": "uint16",
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.digest,
        "labels": None,
        "sources": [{"name": str(source), "size": 5, "sha256": hashlib.sha256(b"fine\n").hexdigest()}],
        "fingerprint": "mark",
    }
    assert (shards.vocab_size, shards.tokenizer_digest) == (tokenizer.vocab_size, tokenizer.digest)
    assert shards.fingerprint == "mark"
    assert (shards.tokenizer_folder / "tokenizer.json").is_file()


def test_a_vocabulary_beyond_sixteen_bits_is_stored_as_uint32(tokenizer, tmp_path):
    class LargeVocabulary:
        vocab_size = 70_000

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def encode_batch(self, texts):
            return [[69_999, 65_536, 4] for _ in texts]

    shards = write(["fine"], LargeVocabulary(), tmp_path / "s")
    assert shards.ids(0).tolist() == [69_999, 65_536, 4]
    assert shards.about["dtype"] == "uint32"


def test_a_failure_while_writing_leaves_no_folder(tokenizer, tmp_path):
    def documents():
        yield Document("fine", "")
        raise DataError("r.csv, row 2: broken")

    with pytest.raises(DataError, match=r"^r.csv, row 2: broken$"):
        write_shards(documents(), tokenizer, tmp_path / "s", sources=[], fingerprint="", progress=SilentProgress())
    assert list(tmp_path.iterdir()) == []


def test_no_documents_make_no_shards(tokenizer, tmp_path):
    with pytest.raises(DataError) as caught:
        write([], tokenizer, tmp_path / "s")
    assert str(caught.value) == f"no documents to write to {tmp_path / 's'}"
    assert not (tmp_path / "s").exists()


def rewrite_consistently(folder: Path, name: str = "", content: bytes = b"", **about) -> None:
    """Rewrite a folder with one change and a matching manifest, so that checksums agree and only the content is wrong."""
    manifest = read_json(folder / "manifest.json")
    files = {path: (folder / path).read_bytes() for path in manifest["files"]}
    with atomic_folder(folder, kind="shards", about=manifest["about"] | about) as draft:
        for path, bytes_ in (files | ({name: content} if name else {})).items():
            (draft / path).parent.mkdir(exist_ok=True)
            (draft / path).write_bytes(bytes_)


OFFSETS = {
    "backwards": [0, 3, 2, 6],
    "not from zero": [1, 2, 3, 6],
    "not to the end": [0, 1, 2, 5],
    "beyond the end": [0, 1, 2, 7],
}


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_inconsistent_offsets_are_refused(tokenizer, tmp_path, offsets):
    class TwoTokensPerText:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def encode_batch(self, texts):
            return [[4, 5] for _ in texts]

    folder = tmp_path / "s"
    assert write(["a", "b", "c"], TwoTokensPerText(), folder).offsets.tolist() == [0, 2, 4, 6]
    rewrite_consistently(folder, "offsets.bin", np.array(offsets, "<u8").tobytes())
    with pytest.raises(StoreError) as caught:
        Shards.open(folder)
    assert str(caught.value) == f"{folder / 'offsets.bin'} is damaged: the offsets do not run from 0 to 6"


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "bytes.bin", "digests.bin", "labels.bin"])
def test_a_file_of_another_size_is_refused_even_when_the_manifest_agrees(tokenizer, tmp_path, name):
    folder = tmp_path / "s"
    write(["fine", "dull"], tokenizer, folder, labels=[1, 0], label_names=("neg", "pos"))
    content = (folder / name).read_bytes()
    rewrite_consistently(folder, name, content[:-1])
    with pytest.raises(StoreError) as caught:
        Shards.open(folder)
    assert str(caught.value) == (
        f"{folder / name} is damaged: it has {len(content) - 1} bytes, expected {len(content)} bytes"
    )


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_without_a_name_is_refused(tokenizer, tmp_path, label):
    folder = tmp_path / "s"
    write(["fine", "dull"], tokenizer, folder, labels=[1, 0], label_names=("neg", "pos"))
    rewrite_consistently(folder, "labels.bin", np.array([label, 0], "<i4").tobytes())
    with pytest.raises(StoreError) as caught:
        Shards.open(folder)
    assert (
        str(caught.value) == f"{folder / 'labels.bin'} is damaged: a label index is not below the number of labels, 2"
    )


def test_a_changed_byte_is_detected_by_a_deep_check(tokenizer, tmp_path):
    folder = tmp_path / "s"
    shards = write(["fine", "dull"], tokenizer, folder)
    Shards.open(folder)  # control: undamaged, it opens
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[0] ^= 1
    del shards
    (folder / "tokens.bin").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        Shards.open(folder)
    assert str(caught.value) == (
        f"{folder / 'tokens.bin'} is damaged: its bytes are not those that were written (sha256)"
    )
    Shards.open(folder, deep=False)  # this checks sizes only


@pytest.mark.parametrize("wrong", [{"documents": "2"}, {"labels": 5}, {"dtype": "float32"}, {"tokens": True}])
def test_a_manifest_with_missing_or_wrong_entries_is_refused(tokenizer, tmp_path, wrong):
    folder = tmp_path / "s"
    write(["fine", "dull"], tokenizer, folder)
    rewrite_consistently(folder, **wrong)
    with pytest.raises(StoreError) as caught:
        Shards.open(folder)
    assert str(caught.value) == (
        f"{folder / 'manifest.json'} is damaged: what it says about the shards is not complete"
    )


@settings(max_examples=50)
@given(
    numbers=st.lists(st.integers(0, 12), min_size=2, max_size=30).filter(lambda numbers: len(set(numbers)) > 1),
    held_out=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**31 - 1),
)
def test_the_two_sides_of_a_split_have_no_text_in_common(tokenizer, numbers, held_out, seed):
    texts = [f"book {number}" for number in numbers]
    texts[0] = f"  {texts[0].replace(' ', '   ')}\n"  # white space does not make it another text
    with tempfile.TemporaryDirectory() as folder:
        shards = write(texts, tokenizer, Path(folder) / "s")
        train, held_out_documents = shards.split(held_out, seed)
        assert sorted([*train, *held_out_documents]) == list(range(len(texts)))
        assert len(train)
        assert len(held_out_documents)
        assert not {numbers[index] for index in train} & {numbers[index] for index in held_out_documents}


def test_a_split_depends_on_texts_and_seed_only(tokenizer, tmp_path):
    texts = [f"book {number}" for number in range(2000)]
    shards = write(texts, tokenizer, tmp_path / "s")
    held_out = [set(shards.split(0.1, seed)[1].tolist()) for seed in (0, 0, 1)]
    assert held_out[0] == held_out[1]
    assert len(held_out[0] & held_out[2]) < 60  # two independent tenths have about 20 of 2000 in common
    assert 150 < len(held_out[0]) < 250
    extended = write(["something new", *texts], tokenizer, tmp_path / "extended")
    assert {index - 1 for index in extended.split(0.1, 0)[1].tolist()} - {-1} == held_out[
        0
    ]  # the old ones keep their side


def test_a_split_never_changes_between_versions(tokenizer, tmp_path):
    """Held-out documents of existing shards must stay held out."""
    shards = write([f"book {number}" for number in range(20)], tokenizer, tmp_path / "s")
    assert [shards.split(0.3, seed)[1].tolist() for seed in (0, 1)] == [
        [0, 5, 10, 16, 18],
        [1, 3, 5, 10, 12, 19],
    ]


def test_a_single_document_cannot_be_split(tokenizer, tmp_path):
    shards = write(["fine", " fine "], tokenizer, tmp_path / "s")
    with pytest.raises(DataError) as caught:
        shards.split(0.5, 0)
    assert str(caught.value) == (f"{tmp_path / 's'} contains a single distinct document; no document can be held out")


def test_the_text_digest_is_the_documented_one():
    expected = int.from_bytes(hashlib.sha256("été à".encode()).digest()[:8], "big")
    assert text_digest(" \tété\u00a0\n à ") == expected
    assert text_digest("ete a") != expected


def test_any_difference_changes_the_fingerprint():
    source = SourceFile("a.txt", 5, "1")
    marks = [
        fingerprint([source], "digest", {"documents": "line"}),
        fingerprint([source, source], "digest", {"documents": "line"}),
        fingerprint([SourceFile("b.txt", 5, "1")], "digest", {"documents": "line"}),
        fingerprint([SourceFile("a.txt", 6, "1")], "digest", {"documents": "line"}),
        fingerprint([SourceFile("a.txt", 5, "2")], "digest", {"documents": "line"}),
        fingerprint([source], "other", {"documents": "line"}),
        fingerprint([source], "digest", {"documents": "file"}),
    ]
    assert len(set(marks)) == 7
    assert marks[0] == fingerprint([source], "digest", {"documents": "line"})


def test_shards_are_recognised_by_their_manifest(tokenizer, tmp_path):
    write(["fine"], tokenizer, tmp_path / "s")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"kind": "bundle"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    results = {name: is_shards(tmp_path / name) for name in ("s", "other", "broken", "nowhere")}
    assert results == {"s": True, "other": False, "broken": False, "nowhere": False}
    assert is_shards(str(tmp_path / "s"))
