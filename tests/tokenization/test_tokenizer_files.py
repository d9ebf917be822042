"""A tokenizer.json is untrusted: it has exactly our settings, or it is refused in one line."""

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
from headstart.tokenization import base
from headstart.tokenization.bpe import BPETokenizer, parse_engine, train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

CONTENT = train_tokenizer(["un livre, une livre, une vie"] * 3, TokenizerConfig(vocab_size=270))._content
SAMPLE = "une livre <eos>é\n\0中"
NAME = Path("tokenizer.json")


def assert_refused_or_works(content: bytes) -> None:
    """The file is refused in one line that names it, or it is a working tokenizer."""
    message = ""
    try:
        tokenizer = BPETokenizer(parse_engine(content, NAME), content)
    except StoreError as error:
        message = str(error)
    if message:
        assert message.startswith("tokenizer.json is ")
        assert "\n" not in message
        return
    ids = tokenizer.encode(SAMPLE)
    assert tokenizer.decode(ids) == SAMPLE
    assert min(ids) >= 4
    assert all(tokenizer.piece(id) for id in range(tokenizer.vocab_size))


def test_the_unchanged_file_works():
    tokenizer = BPETokenizer(parse_engine(CONTENT, NAME), CONTENT)
    assert tokenizer.vocab_size == 270
    assert tokenizer.decode(tokenizer.encode(SAMPLE)) == SAMPLE


@given(content=st.binary() | st.text().map(str.encode))
def test_random_bytes_are_refused(content):
    with pytest.raises(StoreError):
        parse_engine(content, NAME)


@given(data=st.data())
def test_a_file_with_changed_bytes_is_refused_or_works(data):
    start = data.draw(st.integers(0, len(CONTENT)))
    length = data.draw(st.integers(0, 20) | st.just(len(CONTENT)))
    assert_refused_or_works(CONTENT[:start] + data.draw(st.binary(max_size=8)) + CONTENT[start + length :])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["<eos>", "Ġ", "ByteLevel"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
def test_a_file_with_a_changed_value_is_refused_or_works(data):
    settings = json.loads(CONTENT)
    inner: Any = settings
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
    assert_refused_or_works(json.dumps(settings).encode("utf-8", errors="replace"))


def changed(*path: Any, to: Any) -> bytes:
    settings = json.loads(CONTENT)
    inner = settings
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(settings).encode()


VOCAB = json.loads(CONTENT)["model"]["vocab"]
SWAPPED = VOCAB | {"<sos>": 1, "<pad>": 0}
NO_BYTE = {"Zz" if piece == "Z" else piece: id for piece, id in VOCAB.items()}
STRANGE = {"中" if id == 269 else piece: id for piece, id in VOCAB.items()}
EXPECTED = (
    '{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_spac...'  # messages show 80 characters
)


@pytest.mark.parametrize(
    ("content", "message"),
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
        (changed("model", "vocab", to=NO_BYTE), "its vocabulary has no entry for the byte 0x5A"),
        (changed("model", "vocab", to=STRANGE), 'its vocabulary holds "\\u4e2d", which spells no bytes'),
        (changed("model", "merges", to=None), "it has no list of merges"),
        (changed("model", "merges", 0, to="a b"), 'its merge "a b" is not two pieces'),
        (changed("model", "merges", 0, to=["a", "Z"]), 'its merge ["a", "Z"] is of pieces outside the vocabulary'),
    ],
)
def test_a_file_with_other_settings_is_refused_naming_the_difference(content, message):
    with pytest.raises(StoreError) as caught:
        parse_engine(content, NAME)
    assert str(caught.value) == f"tokenizer.json is not a tokenizer of Headstart: {message}"


def test_merges_cannot_spell_a_special_token():
    """In place of three pieces, `os`, `eos` and `eos>`, the file lets `<` + `eos>` make id 2 from plain text."""
    settings = json.loads(CONTENT)
    pieces = dict(zip(["os", "eos", "eos>"], [267, 268, 269], strict=True))
    settings["model"]["vocab"] = {piece: id for piece, id in VOCAB.items() if id < 267} | pieces
    settings["model"]["merges"] = [["o", "s"], ["e", "os"], ["eos", ">"]]
    parse_engine(json.dumps(settings).encode(), NAME)  # control: so far it is accepted
    settings["model"]["merges"].append(["<", "eos>"])
    with pytest.raises(StoreError) as caught:
        parse_engine(json.dumps(settings).encode(), NAME)
    assert str(caught.value) == (
        'tokenizer.json is not a tokenizer of Headstart: its merge ["<", "eos>"] would make <eos> from plain text'
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[" * 100_000, "its brackets are nested too deeply"),
        (
            b"1" * 5000,
            "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; "
            "use sys.set_int_max_str_digits() to increase the limit",
        ),
    ],
)
def test_a_file_that_is_not_json_is_damaged(content, message):
    with pytest.raises(StoreError) as caught:
        parse_engine(content, NAME)
    assert str(caught.value) == f"tokenizer.json is damaged: {message}"


@pytest.mark.parametrize("depth", [50, 500, 900, 2000])
def test_deeply_nested_brackets_are_refused(depth):
    nested = b'{"model": {"type": ' + b"[" * depth + b"]" * depth + b"}}"
    assert_refused_or_works(nested)


def test_a_tokenizer_with_another_pre_tokenizer_is_refused(tmp_path):
    other_tokenizer = tokenizers.Tokenizer(models.BPE())
    other_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    other_tokenizer.train_from_iterator(["une vie, une livre"])
    path = tmp_path / "tokenizer.json"
    other_tokenizer.save(str(path))
    with pytest.raises(StoreError) as caught:
        load_tokenizer(path)
    assert str(caught.value) == (
        f'{path} is not a tokenizer of Headstart: its pre_tokenizer is {{"type": "Whitespace"}}, expected {EXPECTED}'
    )


def test_a_file_beyond_the_size_limit_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(CONTENT)
    load_tokenizer(path)  # control
    monkeypatch.setattr(base, "SIZE_LIMIT", len(CONTENT) - 1)
    with pytest.raises(StoreError) as caught:
        load_tokenizer(path)
    size = len(CONTENT)
    assert str(caught.value) == f"{path} is not a tokenizer: {size} bytes exceed the limit of {size - 1}"


def test_an_unreadable_file_is_refused_by_name(tmp_path):
    with pytest.raises(StoreError) as caught:
        BPETokenizer.load(tmp_path / "gone.json")
    assert str(caught.value) == f"cannot read {tmp_path / 'gone.json'}: No such file or directory"
