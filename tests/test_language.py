"""The language of a sample of texts is found by its words, not by addresses, code or shouting; too little is said so."""

import pytest

from headstart.language import Languages, detect_languages

SENTENCES = {
    "ar": ("وصل الطرد متأخرا وكانت العلبة مكسورة، لذلك أريد استعادة نقودي في أقرب وقت ممكن.", "Arabic"),
    "de": ("Das Paket kam zu spät an und die Schachtel war kaputt, deshalb möchte ich mein Geld zurück.", "Latin"),
    "en": ("The parcel came too late and the box was broken, so I would like to get my money back.", "Latin"),
    "es": (
        "El paquete llegó demasiado tarde y la caja estaba rota, así que quiero que me devuelvan el dinero.",
        "Latin",
    ),
    "fr": ("Le colis est arrivé trop tard et la boîte était cassée, je voudrais donc récupérer mon argent.", "Latin"),
    "it": ("Il pacco è arrivato troppo tardi e la scatola era rotta, quindi vorrei riavere i miei soldi.", "Latin"),
    "ja": ("荷物が届くのが遅すぎて、箱も壊れていたので、返金してもらいたいです。とても残念でした。", "Kana"),
    "nl": ("Het pakket kwam te laat aan en de doos was kapot, dus ik wil graag mijn geld terug.", "Latin"),
    "pl": ("Paczka przyszła za późno, a pudełko było zniszczone, więc chciałbym odzyskać pieniądze.", "Latin"),
    "pt": ("O pacote chegou tarde demais e a caixa estava quebrada, então quero o meu dinheiro de volta.", "Latin"),
    "ru": ("Посылка пришла слишком поздно, и коробка была сломана, поэтому я хочу вернуть свои деньги.", "Cyrillic"),
    "tr": ("Paket çok geç geldi ve kutu kırılmıştı, bu yüzden paramı geri almak istiyorum.", "Latin"),
    "zh": ("包裹送得太晚了，盒子也坏了，所以我想把钱要回来，希望你们尽快处理这个问题。", "Han"),
    "ko": ("소포가 너무 늦게 왔고 상자가 부서져 있어서 돈을 돌려받고 싶습니다.", "Hangul"),
    "sv": ("Paketet kom för sent och lådan var trasig, så jag skulle vilja få pengarna tillbaka.", "Latin"),
    "uk": ("Посилка прийшла занадто пізно, і коробка була зламана, тому я хочу повернути свої гроші.", "Cyrillic"),
}
NOISE = [
    "Look at https://example.org/de/der-die-das?und=oder @someone #hashtag {} 😀😀",
    "<p class='text'>{}</p> <br/> 12.05.2024 A4-XB/77",
    "{} for i in range(10): print(x_i) return self.value::get()",
]


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_has_its_language_and_script(code):
    text, script = SENTENCES[code]
    result = detect_languages([text])
    assert (result.main, result.script) == ((code,), script)


@pytest.mark.parametrize("code", SENTENCES)
@pytest.mark.parametrize("noise", NOISE)
def test_addresses_mark_up_and_code_do_not_count(code, noise):
    assert detect_languages([noise.format(SENTENCES[code][0])]).main == (code,)


def test_capitals_do_not_count():
    assert detect_languages([SENTENCES["pl"][0].upper()]).main == ("pl",)


@pytest.mark.parametrize(
    "texts", [[], [""], ["great"], ["😀😀😀 👍"], ["https://a.example/b"], ["0x7f 12 == x[3];"], ["好吃"]]
)
def test_too_little_text_has_no_language(texts):
    result = detect_languages(texts)
    assert (result.main, result.fractions) == ((), {})
    assert result.describe().startswith("too little text to tell the language (")


def test_short_texts_are_read_together():
    words = [
        "late",
        "broken",
        "damaged",
        "wonderful",
        "terrible",
        "delivery",
        "excellent",
        "waiting",
        "money",
        "nothing",
        "again",
        "never",
    ]
    assert detect_languages(words).main == ("en",)


def test_short_texts_of_different_scripts_are_not_read_together():
    """A passage with words of both would count as one language."""
    russian, english = "посылка пришла слишком поздно", "the parcel came much too late"
    result = detect_languages([russian, english] * 4 + [english] * 8)
    assert (list(result.fractions), result.script) == (["en", "ru"], "Latin")
    assert result.fractions["ru"] == pytest.approx(4 * 26 / (4 * 26 + 12 * 24))
    japanese = ["東京大学", "これはとても良い本です", "京都駅前", "配送が遅れて残念でした"] * 3
    assert detect_languages(japanese).main == ("ja",)


def test_a_table_of_two_languages_has_both_and_a_few_quotations_do_not_count():
    texts = [SENTENCES["en"][0]] * 6 + [SENTENCES["de"][0]] * 4
    assert detect_languages(texts).main == ("en", "de")
    assert detect_languages([SENTENCES["en"][0]] * 19 + [SENTENCES["de"][0]]).main == ("en",)


def test_where_no_language_prevails_the_first_ones_are_listed():
    result = Languages(900, {"en": 0.25, "de": 0.19, "fr": 0.19, "it": 0.19, "es": 0.18}, "Latin")
    assert result.main == ()
    assert result.describe() == ("in several languages: English (25 %), German (19 %) and French (19 %), Latin script")
