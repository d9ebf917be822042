"""Try a regular expression on texts that make some of them explode; a process of its own runs this file.

It reads the expression from standard input and exits with 0 if every text was split. The `tokenizers` library panics
where a match takes too many steps, and the limit of processor time ends what takes too long without a panic.
"""

import sys
from itertools import product

CHARACTERS = 5000
"""The length of a text: three nested repetitions over it are more than the 10 million steps of the library's limit."""
SECONDS = 10
"""Processor time for all texts. An expression that takes quadratic time, such as `\\s+$`, needs about a second or two."""
USUAL = "aA1 \n\t'.é中_"
MAX_LITERALS = 12


def probe_texts(pattern: str) -> list[str]:
    """Return texts that repeat a character or two, with and without an end that a match may fail on."""
    literals = list(dict.fromkeys(character for character in pattern if character.isalnum() or character.isspace()))
    alphabet = list(dict.fromkeys([*literals[:MAX_LITERALS], *USUAL]))
    all_literals = "".join(dict.fromkeys(pattern))  # without them, a search may end before it begins
    texts = [character * CHARACTERS + end for character in alphabet for end in ("", "!", "z", " ", f"\0{all_literals}")]
    texts += [(one + other) * (CHARACTERS // 2) + "!" for one, other in product(alphabet[:MAX_LITERALS], repeat=2)]
    return texts


def main() -> int:
    """Split every text with the expression."""
    import tokenizers
    from tokenizers.pre_tokenizers import Split

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    pattern = sys.stdin.read()
    split = Split(tokenizers.Regex(pattern), "isolated")
    for text in probe_texts(pattern):
        split.pre_tokenize_str(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
