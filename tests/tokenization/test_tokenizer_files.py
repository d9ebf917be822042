"""A tokenizer.json is untrusted: it is exactly as ours, or it is named and refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from headstart.config.schema import TokenizerConfig
from headstart.errors import StoreError
from headstart.tokenization import base as vocabulary
from headstart.tokenization.bpe import BPETokenizer, parse_engine, train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

CONTENT = train_tokenizer(["un livre, une livre, une vie"] * 3, TokenizerConfig(vocab_size=270))._content
SAMPLE = "une livre <eos>é\n\0中"
NAME = Path("tokenizer.json")


def settled(content: bytes) -> None:
    """Either the file is refused in one line that names it, or it is a whole tokenizer."""
    why = ""
    try:
        found = BPETokenizer(parse_engine(content, NAME), content)
    except StoreError as error:
        why = str(error)
    if why:
        assert why.startswith("tokenizer.json is ")
        assert "\n" not in why
        return
    ids = found.encode(SAMPLE)
    assert found.decode(ids) == SAMPLE
    assert min(ids) >= 4
    assert all(found.piece(id) for id in range(found.vocab_size))


def test_the_unchanged_file_is_whole():
    found = BPETokenizer(parse_engine(CONTENT, NAME), CONTENT)
    assert found.vocab_size == 270
    assert found.decode(found.encode(SAMPLE)) == SAMPLE


@given(content=st.binary() | st.text().map(str.encode))
def test_any_bytes_are_refused(content):
    with pytest.raises(StoreError):
        parse_engine(content, NAME)


@given(data=st.data())
def test_a_file_with_changed_bytes_is_refused_or_whole(data):
    start = data.draw(st.integers(0, len(CONTENT)))
    length = data.draw(st.integers(0, 20) | st.just(len(CONTENT)))
    settled(CONTENT[:start] + data.draw(st.binary(max_size=8)) + CONTENT[start + length :])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["<eos>", "Ġ", "ByteLevel"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
def test_a_file_with_a_changed_value_is_refused_or_whole(data):
    whole = json.loads(CONTENT)
    inner: Any = whole
    while True:
        keys = sorted(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[key] = data.draw(JSON)
    else:
        del inner[key]
    settled(json.dumps(whole).encode("utf-8", errors="replace"))


def changed(*path: Any, to: Any) -> bytes:
    whole = json.loads(CONTENT)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(whole).encode()


VOCAB = json.loads(CONTENT)["model"]["vocab"]
SWAPPED = VOCAB | {"<sos>": 1, "<pad>": 0}
NO_BYTE = {"Zz" if piece == "Z" else piece: id for piece, id in VOCAB.items()}
STRANGE = {"中" if id == 269 else piece: id for piece, id in VOCAB.items()}
EXPECTED = '{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_spac...'  # 80 letters are enough


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "it is not a JSON object"),
        (b"{}", "it has no model"),
        (changed("model", "type", to="WordPiece"), 'its model.type is "WordPiece", expected "BPE"'),
        (changed("model", "dropout", to=0.1), "its model.dropout is 0.1, expected null"),
        (changed("model", "ignore_merges", to=True), "its model.ignore_merges is true, expected null"),
        (changed("normalizer", to={"type": "NFC"}), 'its normalizer is {"type": "NFC"}, expected null'),
        (changed("pre_tokenizer", to=None), f"its pre_tokenizer is null, expected {EXPECTED}"),
        (changed("model", "vocab", to=[]), "its vocabulary does not give each piece an id"),
        (changed("model", "vocab", "a", to=True), "its vocabulary does not give each piece an id"),
        (changed("model", "vocab", "a", to=270), "the ids of its vocabulary are not 0 to 269, each once"),
        (changed("model", "vocab", to=SWAPPED), "<sos> has the id 1, expected 0"),
        (changed("model", "vocab", to=NO_BYTE), "its vocabulary lacks the byte 0x5A"),
        (changed("model", "vocab", to=STRANGE), 'its vocabulary holds "\\u4e2d", which spells no bytes'),
        (changed("model", "merges", to=None), "it has no list of merges"),
        (changed("model", "merges", 0, to="a b"), 'its merge "a b" is not two pieces'),
        (changed("model", "merges", 0, to=["a", "Z"]), 'its merge ["a", "Z"] is of pieces outside the vocabulary'),
    ],
)
def test_a_file_that_is_not_ours_is_refused_naming_what_differs(content, why):
    with pytest.raises(StoreError) as caught:
        parse_engine(content, NAME)
    assert str(caught.value) == f"tokenizer.json is not a tokenizer of Headstart: {why}"


def test_merges_cannot_spell_a_special_token():
    """In place of three pieces, `os`, `eos` and `eos>`, the file lets `<` + `eos>` make id 2 from plain text."""
    whole = json.loads(CONTENT)
    pieces = dict(zip(["os", "eos", "eos>"], [267, 268, 269], strict=True))
    whole["model"]["vocab"] = {piece: id for piece, id in VOCAB.items() if id < 267} | pieces
    whole["model"]["merges"] = [["o", "s"], ["e", "os"], ["eos", ">"]]
    parse_engine(json.dumps(whole).encode(), NAME)  # control: so far it is ours
    whole["model"]["merges"].append(["<", "eos>"])
    with pytest.raises(StoreError) as caught:
        parse_engine(json.dumps(whole).encode(), NAME)
    assert str(caught.value) == (
        'tokenizer.json is not a tokenizer of Headstart: its merge ["<", "eos>"] would make <eos> from plain text'
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[" * 100_000, "its brackets are nested too deep"),
        (
            b"1" * 5000,
            "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; "
            "use sys.set_int_max_str_digits() to increase the limit",
        ),
    ],
)
def test_a_file_that_is_not_json_is_damaged(content, why):
    with pytest.raises(StoreError) as caught:
        parse_engine(content, NAME)
    assert str(caught.value) == f"tokenizer.json is damaged: {why}"


@pytest.mark.parametrize("depth", [50, 500, 900, 2000])
def test_brackets_however_deep_are_refused(depth):
    nested = b'{"model": {"type": ' + b"[" * depth + b"]" * depth + b"}}"
    settled(nested)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Whitespace()
    theirs.train_from_iterator(["une vie, une livre"])
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    with pytest.raises(StoreError) as caught:
        load_tokenizer(path)
    assert str(caught.value) == (
        f'{path} is not a tokenizer of Headstart: its pre_tokenizer is {{"type": "Whitespace"}}, expected {EXPECTED}'
    )


def test_a_file_beyond_all_measure_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(CONTENT)
    load_tokenizer(path)  # control
    monkeypatch.setattr(vocabulary, "SIZE_LIMIT", len(CONTENT) - 1)
    with pytest.raises(StoreError) as caught:
        load_tokenizer(path)
    size = len(CONTENT)
    assert str(caught.value) == f"{path} is not a tokenizer: {size} bytes are too many, the limit is {size - 1}"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(StoreError) as caught:
        BPETokenizer.load(tmp_path / "gone.json")
    assert str(caught.value) == f"cannot read {tmp_path / 'gone.json'}: No such file or directory"
