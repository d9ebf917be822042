"""SentencePiece models: ids by dictionary, exact pieces, and refusal of damaged files."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import StoreError
from headstart.tokenization.base import SpecialIds
from headstart.tokenization.sentencepiece import SentencePieceTokenizer
from headstart.tokenization.tokenizer import load_tokenizer


@pytest.fixture
def numbered(piece_folder: Path, tmp_path: Path) -> SentencePieceTokenizer:
    """The tiny model with a dictionary of four pieces, one of which (`ü`) the model does not have."""
    (tmp_path / "dict.txt").write_text("▁livre 9\n, 5\nü 2\n▁ce 1\n", encoding="utf-8")
    return SentencePieceTokenizer.load(piece_folder / "tiny.model", tmp_path / "dict.txt")


def test_the_dictionary_numbers_the_pieces_from_four_on(numbered):
    assert numbered.special == SpecialIds(sos=0, pad=1, eos=2, mask=None, unknown=3)
    assert numbered.vocab_size == 8
    assert [numbered.piece(id) for id in range(8)] == ["<sos>", "<pad>", "<eos>", "<oov>", "▁livre", ",", "ü", "▁ce"]


def test_pieces_outside_the_dictionary_are_unknown(numbered):
    text = "ce livre, ce chat"
    assert numbered.pieces(text) == ["▁ce", "▁livre", ",", "▁ce", "▁chat"]
    assert numbered.encode(text) == [7, 4, 5, 7, 3]


def test_a_piece_may_be_in_the_dictionary_and_not_in_the_model(numbered):
    assert numbered.encode("livreü")[-1] == 6


def test_without_a_dictionary_the_model_numbers_its_own_pieces(sentencepieces):
    engine = sentencepieces._engine
    assert [engine.id_to_piece(id) for id in range(3)] == ["<unk>", "<s>", "</s>"]
    assert sentencepieces.vocab_size == 4 + len(engine) - 3
    assert sentencepieces.piece(4) == engine.id_to_piece(3)
    assert sentencepieces.piece(sentencepieces.vocab_size - 1) == engine.id_to_piece(len(engine) - 1)


def test_text_of_known_pieces_decodes_to_itself(sentencepieces, french):
    ids = [sentencepieces.encode(text) for text in french[:2]]
    assert all(3 not in row for row in ids)
    assert [sentencepieces.decode([0, *row, 2, 1, 1]) for row in ids] == french[:2]


def test_unknown_pieces_are_missing_from_decoded_text(numbered):
    assert numbered.decode(numbered.encode("ce chat, ce livre")) == "ce, ce livre"
    assert numbered.decode([]) == ""


TEXTS = st.text() | st.lists(st.sampled_from(["<s>", "</s>", "<sos>", "<pad>", "<eos>", "<unk>", " ", "livre"])).map(
    "".join
)


@given(text=TEXTS)
def test_special_ids_never_come_from_plain_text(sentencepieces, text):
    assert not set(sentencepieces.encode(text)) & {0, 1, 2}


@given(texts=st.lists(TEXTS, max_size=4))
def test_a_batch_encodes_as_its_texts_do_singly(sentencepieces, texts):
    assert sentencepieces.encode_batch(texts) == [sentencepieces.encode(text) for text in texts]


@pytest.mark.parametrize("id", [-1, 8])
def test_an_id_outside_the_vocabulary_is_refused(numbered, id):
    for use in (numbered.piece, lambda id: numbered.decode([id])):
        with pytest.raises(IndexError) as caught:
            use(id)
        assert str(caught.value) == f"id {id} is not in a vocabulary of 8"


def test_saving_and_loading_preserves_ids_and_digest(numbered, sentencepieces, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    numbered.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["dict.txt", "sentencepiece.model"]
    loaded = load_tokenizer(folder)
    assert loaded.digest == numbered.digest
    assert loaded.encode("ce livre, oui") == numbered.encode("ce livre, oui")
    assert sentencepieces.digest != numbered.digest  # control: the dictionary counts


def test_a_model_saved_without_a_dictionary_does_not_pick_one_up(sentencepieces, numbered, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    numbered.save(folder)
    with pytest.raises(StoreError) as caught:
        sentencepieces.save(folder)
    assert (
        str(caught.value) == f"cannot save a tokenizer in {folder}: it already contains dict.txt of another tokenizer"
    )
    assert load_tokenizer(folder).digest == numbered.digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " is empty; expected a line 'piece count' for each piece"),
        (b"a 1\nlivre\n", ", line 2: expected 'piece count', found 'livre'"),
        (b"a 1\n\nb 1\n", ", line 2: expected 'piece count', found ''"),
        (b"a 1\n 2\n", ", line 2: expected 'piece count', found ' 2'"),
        (b"a 1\nb -2\n", ", line 2: expected 'piece count', found 'b -2'"),
        (b"a 1\r\n", ", line 1: expected 'piece count', found 'a 1\\r'"),
        ("a 1\nb ٣\n".encode(), ", line 2: expected 'piece count', found 'b ٣'"),
        ("a 1\nb 1\n▁c 2\nb 9\n".encode(), ", line 4: 'b' is on line 2 already"),
        (b"a 1\n\xff 1\n", ", line 2: not UTF-8"),
    ],
)
def test_a_faulty_dictionary_is_refused_with_its_line(piece_folder, tmp_path, content, message):
    path = tmp_path / "dict.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        SentencePieceTokenizer.load(piece_folder / "tiny.model", path)
    assert str(caught.value) == f"{path}{message}"


def test_a_dictionary_line_is_split_at_its_last_plain_space_only(piece_folder, tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("▁ce 3\n▁livre\u2028 2\na\u00a0b c 1\n, 1\n▁chat 1", encoding="utf-8")
    tokenizer = SentencePieceTokenizer.load(piece_folder / "tiny.model", path)
    assert [tokenizer.piece(id) for id in range(4, 9)] == ["▁ce", "▁livre\u2028", "a\u00a0b c", ",", "▁chat"]


def test_a_dictionary_of_another_model_is_refused(piece_folder, tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("wolf 3\nfox 2\n, 1\n", encoding="utf-8")
    model = piece_folder / "tiny.model"
    with pytest.raises(StoreError) as caught:
        SentencePieceTokenizer.load(model, path)
    assert str(caught.value) == f"{path} does not belong to {model}: 2 of its 3 pieces are not in the model"


@given(fraction=st.floats(0, 1, exclude_max=True))
@settings(max_examples=200)
def test_a_model_truncated_anywhere_is_refused(piece_folder, tmp_path_factory, fraction):
    content = (piece_folder / "tiny.model").read_bytes()
    path = tmp_path_factory.getbasetemp() / "short.model"
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(StoreError) as caught:
        SentencePieceTokenizer.load(path)
    assert str(caught.value) == f"{path} is not a SentencePiece model, or is damaged"


def test_a_model_truncated_between_two_pieces_is_refused_although_the_library_loads_it(piece_folder, tmp_path):
    content = (piece_folder / "tiny.model").read_bytes()
    path = tmp_path / "short.model"
    ends = [2 + content[1]]
    while content[ends[-1]] == 0x0A:  # the key of a piece; its length is one byte
        ends.append(ends[-1] + 2 + content[ends[-1] + 1])
    assert len(ends) == 70  # control: every piece is counted
    path.write_bytes(content[: ends[40]])
    with pytest.raises(StoreError) as caught:
        SentencePieceTokenizer.load(path)
    assert str(caught.value) == f"{path} is not a SentencePiece model, or is damaged"


@given(position=st.integers(0), byte=st.integers(0, 255))
def test_a_model_with_a_changed_byte_is_refused_or_works(piece_folder, tmp_path_factory, position, byte):
    content = bytearray((piece_folder / "tiny.model").read_bytes())
    content[position % len(content)] = byte
    path = tmp_path_factory.getbasetemp() / "changed.model"
    path.write_bytes(content)
    message = ""
    try:
        tokenizer = SentencePieceTokenizer.load(path)
    except StoreError as error:
        message = str(error)
    if message:
        assert message == f"{path} is not a SentencePiece model, or is damaged"
        return
    ids = tokenizer.encode("Le chat <s> ü")
    assert min(ids) >= 3
    assert isinstance(tokenizer.decode(ids), str)


def test_a_piece_that_is_not_utf8_is_refused(piece_folder, tmp_path):
    content = (piece_folder / "tiny.model").read_bytes()
    path = tmp_path / "changed.model"
    path.write_bytes(content.replace("▁livre".encode(), b"\xff" * 8))
    assert path.read_bytes() != content
    with pytest.raises(StoreError) as caught:
        SentencePieceTokenizer.load(path)
    assert str(caught.value) == f"{path} is not a SentencePiece model, or is damaged"


@pytest.mark.parametrize("content", [b"", b"not a model\n" * 100, b"\x0a\x00\x12\x00\x1a\x00"])
def test_a_file_that_is_no_model_is_refused(tmp_path, capfd, content):
    path = tmp_path / "some.model"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        load_tokenizer(path)
    assert str(caught.value) == f"{path} is not a SentencePiece model, or is damaged"
    assert capfd.readouterr() == ("", "")


@pytest.mark.data
def test_the_published_french_vocabulary_has_its_size_and_check_value(cls_books):
    tokenizer = load_tokenizer(cls_books / "sentencepiece.french.model")
    assert tokenizer.vocab_size == 50_001
    assert tokenizer.piece(1111) == "▁trop"
    assert tokenizer.encode("trop") == [1111]
    assert load_tokenizer(cls_books).digest == tokenizer.digest


@pytest.mark.data
@pytest.mark.parametrize(("split", "rows"), [("train", 1600), ("valid", 400), ("test", 2000)])
def test_every_published_row_has_the_published_pieces(cls_books, split, rows):
    tokenizer = load_tokenizer(cls_books)
    with (cls_books / f"{split}.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    published = (cls_books / f"{split}.review.spm").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(texts) == len(published) == rows
    assert [" ".join(tokenizer.pieces(text)) for text in texts] == published
    joined = ["".join(row.split(" ")).replace("▁", " ").strip() for row in published]
    assert [" ".join(tokenizer.pieces(text)) for text in joined] == published
