"""Signs of a wrong encoding are seen, and good text in any language is left alone."""

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
def test_good_text_is_not_odd(text):
    assert encoding_issues(text) == {}


@pytest.mark.parametrize("text", GOOD[:4])
@pytest.mark.parametrize("wrong", ["latin-1", "cp1252"])
def test_text_read_in_a_wrong_encoding_is_mojibake(text, wrong):
    spoilt = text.encode("utf-8").decode(wrong, "replace")
    # five bytes mean nothing in Windows-1252: some readers put a replacement character, some put the byte
    assert {"mojibake", "replacement characters"} & set(encoding_issues(spoilt))
    assert wrong == "cp1252" or "mojibake" in encoding_issues(spoilt)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("caf\ufffd", "replacement characters"),
        ("a\x07b", "control characters"),
        ("it\x92s", "control characters"),
        ("\ufeffUn livre", "byte order marks"),
        ("one<br /><br />two", "HTML"),
        ("Tom &amp; Jerry", "HTML"),
    ],
)
def test_other_damage_has_its_name(text, kind):
    assert list(encoding_issues(text)) == [kind]
