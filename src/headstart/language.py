"""The languages and the script of a sample of texts, found offline by py3langid. No torch."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from unicodedata import name as character_name

MIN_LETTERS = 30
"""Fewer letters than this are too little text to tell a language."""
MIN_FRACTION = 0.2
"""A language with a smaller fraction of the letters is ignored: it may be a few quotations, or a mistake."""
MIN_TOTAL_FRACTION = 0.6
"""Languages are named if those above `MIN_FRACTION` have this fraction together."""
_PASSAGE_LETTERS = 60
"""Texts with fewer letters are joined, because a language is rarely certain from a few words."""
_MAX_LETTERS = 600
"""Letters of a text that count, so that a long text does not outweigh many others."""
_WIDE_LETTERS = 3
"""The weight of a letter of Chinese, Japanese or Korean."""

# runs of ASCII, because scripts without spaces continue right after an address or a number
_NOISE = re.compile(
    r"https?://[!-~]+|www\.[!-~]+|[!-~]+@[!-~]+|</?[a-zA-Z][^<>]*>|[@#]\w+"
    r"|[!-~]*(?:[\\/_{}=<>|`$^~\d]|\w\.\w|\w\(|::)[!-~]*"
)
_OTHER_SCRIPTS = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana"}
_WIDE = frozenset({"Han", "Kana", "Hangul"})
_TOGETHER = {"Han": "Kana"}
"""Scripts that are written together: Japanese texts have both."""
_NO_LANGUAGE = "zxx"
_MACROLANGUAGES = dict.fromkeys(("yue", "wuu", "lzh", "hak", "gan"), "zh") | {"nb": "no", "nn": "no"}
_NAMES = {
    "af": "Afrikaans",
    "am": "Amharic",
    "ar": "Arabic",
    "az": "Azerbaijani",
    "be": "Belarusian",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "br": "Breton",
    "bs": "Bosnian",
    "ca": "Catalan",
    "cs": "Czech",
    "cy": "Welsh",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "eo": "Esperanto",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fo": "Faroese",
    "fr": "French",
    "fy": "West Frisian",
    "ga": "Irish",
    "gd": "Scottish Gaelic",
    "gl": "Galician",
    "gu": "Gujarati",
    "ha": "Hausa",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "ht": "Haitian Creole",
    "hu": "Hungarian",
    "hy": "Armenian",
    "id": "Indonesian",
    "ig": "Igbo",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "jv": "Javanese",
    "ka": "Georgian",
    "kk": "Kazakh",
    "km": "Khmer",
    "kn": "Kannada",
    "ko": "Korean",
    "ku": "Kurdish",
    "ky": "Kyrgyz",
    "la": "Latin",
    "lb": "Luxembourgish",
    "lo": "Lao",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mg": "Malagasy",
    "mk": "Macedonian",
    "ml": "Malayalam",
    "mn": "Mongolian",
    "mr": "Marathi",
    "ms": "Malay",
    "mt": "Maltese",
    "my": "Burmese",
    "ne": "Nepali",
    "nl": "Dutch",
    "no": "Norwegian",
    "oc": "Occitan",
    "or": "Odia",
    "pa": "Punjabi",
    "pl": "Polish",
    "ps": "Pashto",
    "pt": "Portuguese",
    "qu": "Quechua",
    "ro": "Romanian",
    "ru": "Russian",
    "rw": "Kinyarwanda",
    "sa": "Sanskrit",
    "si": "Sinhala",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sn": "Shona",
    "so": "Somali",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "te": "Telugu",
    "tg": "Tajik",
    "th": "Thai",
    "tk": "Turkmen",
    "tl": "Tagalog",
    "tr": "Turkish",
    "tt": "Tatar",
    "ug": "Uyghur",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "uz": "Uzbek",
    "vi": "Vietnamese",
    "xh": "Xhosa",
    "yo": "Yoruba",
    "zh": "Chinese",
    "zu": "Zulu",
}


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if it has no name here.

    >>> language_name("de"), language_name("ltg")
    ('German', 'ltg')
    """
    return _NAMES.get(code, code)


@dataclass(frozen=True)
class Languages:
    """The languages of a sample of texts."""

    letters: int
    """How many letters were read; one of Chinese, Japanese or Korean counts as three."""
    fractions: Mapping[str, float] = field(default_factory=dict)
    """The fraction of the letters of each language (ISO 639 code), the largest first; empty if there is too little text."""
    script: str | None = None
    """The script of most letters: "Latin", "Cyrillic", "Han", ..."""

    @property
    def main(self) -> tuple[str, ...]:
        """The languages with a sufficient fraction; empty if there is too little text or no language prevails."""
        main = tuple(code for code, fraction in self.fractions.items() if fraction >= MIN_FRACTION)
        return main if sum(self.fractions[code] for code in main) >= MIN_TOTAL_FRACTION else ()

    def describe(self) -> str:
        """Describe the languages and the script in a few words.

        >>> Languages(900, {"en": 0.7, "de": 0.3}, "Latin").describe()
        'English (70 %) and German (30 %), Latin script'
        """
        if not self.fractions:
            return f"too little text to tell the language ({self.letters} letters)"
        codes = self.main or tuple(self.fractions)[:3]
        names = [f"{language_name(code)} ({100 * self.fractions[code]:.0f} %)" for code in codes]
        listing = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return f"{'' if self.main else 'in several languages: '}{listing}, {self.script} script"


def detect_languages(texts: Sequence[str]) -> Languages:
    """Find the languages and the script of a sample of texts.

    Addresses, mark-up, numbers and code are left out. In texts that are mostly in another script, so are Latin letters.

    >>> detect_languages(["The delivery was late, and the box was damaged when it came."]).main
    ('en',)
    """
    from py3langid import classify

    fractions: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    letters = 0
    for passage in _passages(texts):
        counts = _count_scripts(passage)
        letters += sum(counts.values())
        scripts += counts
        code = classify(passage)[0]
        if code != _NO_LANGUAGE:
            fractions[_MACROLANGUAGES.get(code, code)] += sum(counts.values())
    if letters < MIN_LETTERS or not fractions:
        return Languages(letters)
    total = fractions.total()
    ranked = sorted(fractions.items(), key=lambda item: (-item[1], item[0]))
    return Languages(letters, {code: count / total for code, count in ranked}, scripts.most_common(1)[0][0])


def _passages(texts: Sequence[str]) -> Iterator[str]:
    """Yield the texts without noise; short ones of a script are joined to passages of at least `_PASSAGE_LETTERS`."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    letters: Counter[str] = Counter()
    for text in texts:
        part = _main_script(_NOISE.sub(" ", text))
        counts = _count_scripts(part)
        if not counts:
            continue
        if counts.total() >= _PASSAGE_LETTERS:
            yield part
            continue
        script = counts.most_common(1)[0][0]
        script = _TOGETHER.get(script, script)
        parts[script].append(part)
        letters[script] += counts.total()
        if letters[script] >= _PASSAGE_LETTERS:
            yield "\n".join(parts.pop(script))
            del letters[script]
    yield from map("\n".join, parts.values())


def _main_script(text: str) -> str:
    """Return the first letters of a text; without Latin ones if other scripts prevail, in lower case if it is shouted."""
    counts = _count_scripts(text)
    total = sum(counts.values())
    if total > _MAX_LETTERS:
        text = text[: max(1, len(text) * _MAX_LETTERS // total)]
    if 3 * counts["Latin"] < 2 * total:
        text = "".join(" " if letter.isalpha() and _script(letter) == "Latin" else letter for letter in text)
    is_shouted = 2 * sum(map(str.isupper, text)) > sum(map(str.isalpha, text))
    return " ".join(text.lower().split() if is_shouted else text.split())


def _count_scripts(text: str) -> Counter[str]:
    counts = Counter(_script(letter) for letter in text if letter.isalpha())
    return Counter({script: count * (_WIDE_LETTERS if script in _WIDE else 1) for script, count in counts.items()})


@cache
def _script(letter: str) -> str:
    """Return the script of a letter, from the first word of its Unicode name."""
    word = character_name(letter, "OTHER").partition(" ")[0].partition("-")[0]
    return _OTHER_SCRIPTS.get(word, word.capitalize())
