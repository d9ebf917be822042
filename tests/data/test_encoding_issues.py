"""Signs of a wrong encoding are recognised, and intact text in any language has none."""

import pytest

from headstart.data.diagnostics import encoding_issues

GOOD = [
    "Très émouvant, à lire : « L'Œuvre » d'É. Zola… CAFÉ… À… NÃO À L'ÎLE",
    "Größe, Ärger, „Übung“, ÄÖÜ“ – süß",
    "Мне очень понравилась книга",
    "この本はとても面白かったです。",
    "Ça coûte 5 €, n° 3 & plus; a < b > c",
    "line one\nline two\tand a tab\r\n",
]


@pytest.mark.parametrize("text", GOOD)
def test_intact_text_has_no_encoding_issues(text):
    assert encoding_issues(text) == {}


@pytest.mark.parametrize("text", GOOD[:4])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_text_decoded_in_a_wrong_encoding_is_mojibake(text, encoding):
    damaged = text.encode("utf-8").decode(encoding, "replace")
    # five bytes are undefined in Windows-1252: some decoders use a replacement character, others keep the byte
    assert {"mojibake", "replacement characters"} & set(encoding_issues(damaged))
    assert encoding == "cp1252" or "mojibake" in encoding_issues(damaged)


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ("caf\ufffd", "replacement characters"),
        ("a\x07b", "control characters"),
        ("it\x92s", "control characters"),
        ("\ufeffUn livre", "byte order marks"),
        ("one<br /><br />two", "HTML"),
        ("Tom &amp; Jerry", "HTML"),
    ],
)
def test_other_damage_is_reported_by_name(text, issue):
    assert list(encoding_issues(text)) == [issue]
