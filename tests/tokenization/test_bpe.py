"""Byte-level BPE: decoding is lossless, plain text has no special ids, and training is deterministic."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

import headstart
from headstart.config.schema import TokenizerConfig
from headstart.errors import DataError, StoreError
from headstart.progress import ProgressTask
from headstart.tokenization.base import SpecialIds
from headstart.tokenization.bpe import byte_to_unicode, train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

SPECIAL_TOKENS = ["<sos>", "<pad>", "<eos>", "<mask>"]
TRICKY = st.lists(
    st.sampled_from([*SPECIAL_TOKENS, "<", "eos>", " ", "\n", "le", " chat", "é", "e\u0301", "中", "😀", "\0"])
)
TEXTS = st.text() | TRICKY.map("".join)


@given(text=TEXTS)
def test_any_text_decodes_to_itself(bytepair, text):
    assert bytepair.decode(bytepair.encode(text)) == text


@given(text=TEXTS)
def test_special_ids_never_come_from_plain_text(bytepair, text):
    assert not set(bytepair.encode(text)) & {0, 1, 2, 3}


@given(texts=st.lists(TEXTS, max_size=5))
def test_a_batch_encodes_as_its_texts_do_singly(bytepair, texts):
    assert bytepair.encode_batch(texts) == [bytepair.encode(text) for text in texts]


@given(text=TEXTS)
def test_a_saved_and_loaded_tokenizer_encodes_the_same(bytepair, tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "saved-bytepair"
    if not folder.exists():
        folder.mkdir()
        bytepair.save(folder)
    assert load_tokenizer(folder).encode(text) == bytepair.encode(text)


def test_merges_make_words_shorter_than_their_bytes(bytepair):
    assert [bytepair.piece(id) for id in bytepair.encode("Le chat a lu")] == ["Le", "▁chat", "▁a", "▁lu"]


def test_special_ids_come_first_and_then_bytes(bytepair):
    assert bytepair.special == SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
    assert [bytepair.piece(id) for id in range(5)] == [*SPECIAL_TOKENS, "!"]


def test_unprintable_pieces_show_their_bytes(bytepair):
    shown = {bytepair.piece(id) for id in range(bytepair.vocab_size)}
    assert {"<0x0A>", "<0xC3>", "<0xFF>", "▁", "a"} <= shown
    assert len(shown) == bytepair.vocab_size  # control: no two ids look the same


def test_special_ids_are_ignored_by_decoding(bytepair):
    ids = bytepair.encode("Le chat")
    assert bytepair.decode([0, *ids, 3, 2, 1, 1]) == "Le chat"


@pytest.mark.parametrize("id", [-1, 300, 10**12])
def test_an_id_outside_the_vocabulary_is_refused(bytepair, id):
    assert bytepair.vocab_size == 300
    for use in (bytepair.piece, lambda id: bytepair.decode([id])):
        with pytest.raises(IndexError) as caught:
            use(id)
        assert str(caught.value) == f"id {id} is not in a vocabulary of 300"


def test_the_byte_alphabet_is_that_of_the_library():
    assert set(byte_to_unicode()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_a_small_text_gives_a_smaller_vocabulary():
    small = train_tokenizer(["abab"], TokenizerConfig(vocab_size=1000))
    assert small.vocab_size == 261  # 4 special, 256 bytes, and "ab", the only pair seen twice
    assert small.piece(260) == "ab"


def test_training_reads_no_further_than_its_budget():
    def texts() -> Iterator[str]:
        yield "ab" * 10
        yield "cd" * 10
        raise AssertionError("read too far")

    few = train_tokenizer(texts(), TokenizerConfig(megabytes=24e-6))  # 20 bytes of "ab", then "cdcd"
    learned = {few.piece(id) for id in range(260, few.vocab_size)}
    assert {"ab", "cd"} <= learned
    assert "cdcd" not in learned
    assert "abab" in learned  # control: a text that is read completely gives longer pieces


def test_a_text_truncated_inside_a_character_trains_on_the_complete_ones():
    cut = train_tokenizer(["ééé"], TokenizerConfig(megabytes=5e-6))
    assert cut.digest == train_tokenizer(["éé"], TokenizerConfig()).digest
    assert cut.digest != train_tokenizer(["ééé"], TokenizerConfig()).digest  # control


@pytest.mark.parametrize(("texts", "documents"), [([], "0 documents"), ([""], "1 document"), (["", ""], "2 documents")])
def test_training_without_text_is_refused(texts, documents):
    with pytest.raises(DataError) as caught:
        train_tokenizer(texts, TokenizerConfig())
    assert str(caught.value) == f"there is no text to train a tokenizer on: 0 bytes in {documents}"


LONE = r"a text contains the unpaired surrogate '\ud800' at character 2, which UTF-8 cannot encode; remove it from the data"


def test_a_lone_surrogate_is_refused_by_training_and_encoding(bytepair, sentencepieces):
    for use in (
        bytepair.encode,
        lambda text: bytepair.encode_batch(["fine", text]),
        lambda text: train_tokenizer([text], TokenizerConfig()),
        sentencepieces.encode,
        sentencepieces.pieces,
        lambda text: sentencepieces.encode_batch(["fine", text]),
    ):
        with pytest.raises(DataError) as caught:
            use("ab\ud800c")
        assert str(caught.value) == LONE


def test_training_reports_how_much_it_read():
    class RecordingProgress:
        megabytes = 0.0
        notes: tuple[str, ...] = ()

        def say(self, line: str) -> None:
            raise AssertionError(line)

        def advance(self, amount: float = 1, note: str = "") -> None:
            self.megabytes += amount
            self.notes += (note,)

        @contextmanager
        def task(self, name: str, total: float | None, unit: str) -> Iterator[ProgressTask]:
            assert (name, total, unit) == ("tokenizer: reading text", None, "MB")
            yield self

    progress = RecordingProgress()
    train_tokenizer(["ab " * 200_000] * 4, TokenizerConfig(vocab_size=262), progress)
    assert progress.megabytes == pytest.approx(2.4)
    assert progress.notes == ("", "", "learning pieces")  # bounded batches: two full ones and the end


def test_no_piece_spans_more_than_64_bytes_however_long_the_word():
    """Learning is quadratic in the longest word, so the bound makes it linear."""
    long = train_tokenizer(["a" * 100_000], TokenizerConfig())
    assert max(len(long.piece(id)) for id in range(260, long.vocab_size)) == 64
    assert len(long.encode("a" * 200_000)) == 2 * len(long.encode("a" * 100_000)) - 1 == 3125
    assert long.decode(long.encode("é" * 1001)) == "é" * 1001  # a cut may fall inside a character


PROGRAM = """
import sys
from headstart.config.schema import TokenizerConfig
from headstart.tokenization.bpe import train_tokenizer
words = ["mot%d" % (n * n % 97) for n in range(4000)]
texts = [" ".join(words[start:start + 50]) + sys.argv[1] for start in range(0, 4000, 50)]
print(train_tokenizer(texts, TokenizerConfig(vocab_size=500)).digest)
"""


def digest_in_a_fresh_process(end: str, threads: int, hash_seed: int) -> str:
    source = str(Path(headstart.__file__).parents[1])
    environment = {"PYTHONPATH": source, "RAYON_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, end], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_fresh_processes_train_the_same_file_on_any_number_of_threads():
    first = digest_in_a_fresh_process(".", threads=1, hash_seed=1)
    assert len(first) == 65
    assert first == digest_in_a_fresh_process(".", threads=4, hash_seed=2)
    assert first != digest_in_a_fresh_process(" fin", threads=1, hash_seed=1)  # control: another text, another file


def test_the_library_reads_our_file_by_itself(bytepair, french, tmp_path):
    bytepair.save(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    reference.encode_special_tokens = True
    assert [reference.encode(text).ids for text in french] == bytepair.encode_batch(french)


def test_saving_and_loading_preserves_every_byte_and_the_digest(bytepair, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    bytepair.save(first)
    loaded = load_tokenizer(first)
    loaded.save(second)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    assert loaded.digest == bytepair.digest
    assert loaded.vocab_size == bytepair.vocab_size == 300
    assert train_tokenizer(["abab"], TokenizerConfig()).digest != bytepair.digest  # control


def test_saving_beside_files_of_another_tokenizer_is_refused(bytepair, tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(StoreError) as caught:
        bytepair.save(tmp_path)
    assert (
        str(caught.value) == f"cannot save a tokenizer in {tmp_path}: it already contains dict.txt of another tokenizer"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["dict.txt"]
