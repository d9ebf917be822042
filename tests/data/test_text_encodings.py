"""Files in other encodings: the message about them shows how they read, and `encoding` reads them whole."""

import csv
import gzip
import io
import json

import pytest

from headstart.config.merge import merge_config
from headstart.config.schema import CorpusConfig, LabelledConfig
from headstart.data import io as data_io
from headstart.data.corpus import read_documents
from headstart.data.formats import CsvDialect, detect_dialect
from headstart.data.io import TextEncoding, guess_encodings
from headstart.data.labelled import read_labelled
from headstart.errors import ConfigError, DataError

TEXTS = {
    "cp932": "この本はとても面白かったです。\n映画は期待はずれで、途中で眠くなってしまった。",
    "euc_jp": "この本はとても面白かったです。\n映画は期待はずれで、途中で眠くなってしまった。",
    "gb18030": "这本书非常好看，情节紧凑，人物生动。\n我觉得很无聊，不推荐大家购买。",
    "big5": "這本書非常好看，情節緊湊，人物生動。\n我覺得很無聊，不推薦大家購買。",
    "cp949": "이 책은 정말 재미있었습니다. 추천합니다.\n영화가 너무 지루해서 중간에 잠들었다.",
    "cp1252": "Schöne Übersetzung, aber zu lang für mich.\n¡Qué película más aburrida!",
    "cp1251": "Очень хорошая книга, рекомендую всем.\nСкучно и неинтересно, не читайте.",
    "koi8_r": "Очень хорошая книга, рекомендую всем.\nСкучно и неинтересно, не читайте.",
    "cp1253": "Πολύ καλό βιβλίο, το συνιστώ σε όλους.\nΒαρετό και πολύ μεγάλο.",
    "cp1256": "كتاب جيد جدا أنصح الجميع بقراءته\nممل وطويل",
    "mac_roman": "Un très bon livre, à lire absolument.\nDéçu par la fin.",
    "utf-16": "この本はとても面白かったです。\nplain",
}


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def texts_of(path, **settings):
    return [document.text for document in read_documents([path], CorpusConfig(**settings))]


def message_of(read) -> str:
    with pytest.raises(DataError) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("encoding", TEXTS)
def test_the_encoding_of_a_text_is_recognized(encoding):
    assert [guess.codec for guess in guess_encodings(TEXTS[encoding].encode(encoding))] == [encoding]


@pytest.mark.parametrize("encoding", TEXTS)
def test_a_file_that_is_not_utf_8_is_refused_and_its_encoding_named(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(TEXTS[encoding].encode(encoding))
    message = message_of(lambda: texts_of("a.txt"))
    assert message.endswith(f": add corpus.encoding {encoding}, or save it as UTF-8")
    assert TEXTS[encoding][:6] in message


def test_two_encodings_that_fit_are_shown_where_they_differ(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\nUn livre médiocre et très long,0\n".encode("cp1252"))
    assert message_of(lambda: read_labelled("a.csv", LabelledConfig())) == (
        "a.csv, line 2: not UTF-8 (byte 11 is 0xe9); it looks like Windows-1252 ('re et très long,0') or Windows-1250 "
        "('re et trčs long,0'): add labelled.encoding cp1252 or cp1250, or save the spreadsheet as CSV UTF-8"
    )


def test_random_bytes_look_like_nothing():
    noise = bytes((number * 7919 + number * number * 104729) % 255 + 1 for number in range(4096))
    assert guess_encodings(noise) == []


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz"])
def test_a_file_is_read_whole_in_its_encoding(tmp_path, encoding, name):
    texts = TEXTS[encoding].split("\n") * 400
    raw = {"txt": "\n".join(texts), "csv": table(texts, ","), "tsv": table(texts, "\t")}
    raw |= {"jsonl": "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)}
    raw |= {"json": json.dumps([{"text": text} for text in texts], ensure_ascii=False)}
    content = raw[name.split(".")[1]].encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert texts_of(name, encoding=encoding) == texts


def table(texts, separator) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=separator).writerows([["text"], *([text] for text in texts)])
    return file.getvalue()


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_characters_across_blocks_are_whole(tmp_path, monkeypatch, size):
    monkeypatch.setattr(data_io, "_BLOCK_BYTES", size)
    text = TEXTS["gb18030"].replace("\n", "") * 20
    (tmp_path / "a.txt").write_bytes(text.encode("gb18030"))
    assert texts_of("a.txt", encoding="gb18030") == [text]


@pytest.mark.parametrize("encoding", ["cp932", "cp1252", "utf-16-le"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_utf_8_file_is_read_as_utf_8_whatever_the_encoding_of_the_others(tmp_path, encoding, bom):
    if encoding == "utf-16-le" and not bom:
        pytest.skip("plain letters in pairs are UTF-16 too")
    (tmp_path / "a.txt").write_bytes(bom + TEXTS["cp932"].encode("utf-8"))
    assert texts_of("a.txt", encoding=encoding) == TEXTS["cp932"].split("\n")


def test_few_letters_that_are_utf_8_by_accident_are_read_as_asked(tmp_path):
    by_accident = b"\xc4\xa3\xd0\xa1"  # two Chinese characters, and valid UTF-8
    (tmp_path / "a.txt").write_bytes(b"plain words, then " + by_accident)
    assert texts_of("a.txt", encoding="gb18030") == ["plain words, then " + by_accident.decode("gb18030")]


def test_bytes_that_are_not_of_the_encoding_are_refused_with_their_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(("fine\n" + TEXTS["cp1251"]).encode("cp1251"))
    assert message_of(lambda: texts_of("a.txt", encoding="cp932")) == (
        "a.txt, line 2: not cp932 (0xea); it looks like Windows-1251 ('Очень хорошая книга,'): "
        "add corpus.encoding cp1251, or save it as UTF-8"
    )


def test_a_file_that_ends_within_a_character_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXTS["gb18030"].encode("gb18030")[:-1])
    assert message_of(lambda: texts_of("a.txt", encoding="gb18030")) == (
        "a.txt ends inside a character of gb18030; is the file complete?"
    )


@pytest.mark.parametrize("name", ["cp99999", "", "rot13", "undefined", "a\0b", "hex"])
def test_an_unknown_encoding_is_refused_by_its_setting(name):
    with pytest.raises(ConfigError) as caught:
        merge_config(CorpusConfig, {"encoding": name})
    assert str(caught.value) == f"corpus.encoding must be a text encoding such as cp1252, cp932 or utf-16, got {name!r}"


def test_the_table_that_is_written_beside_one_in_another_encoding_has_a_byte_order_mark(tmp_path):
    (tmp_path / "a.csv").write_bytes("text;label\nété;1\n".encode("cp1252"))
    assert detect_dialect("a.csv", TextEncoding("cp1252")) == CsvDialect(";", has_bom=True)
