"""Text that looks like reviews, and copies of it with words changed."""

import random

CHANGES = ("changed", "deleted", "inserted")


def vocabulary(size: int = 4000, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk"
    return ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(size)]


WORDS = vocabulary()
OTHER_WORDS = vocabulary(seed=2)
PHRASES = [
    "it is one of the best books i have ever read",
    "i do not recommend this to anyone at all",
    "once upon a time there was",
]


def review(chance: random.Random, length: int) -> str:
    """Words as frequent as in a language (the n-th about 1/n), with a turn of phrase that many reviews share."""
    words = chance.choices(WORDS, weights=[1 / (rank + 3) for rank in range(len(WORDS))], k=length)
    words.insert(chance.randrange(length), chance.choice(PHRASES))
    return " ".join(words).capitalize() + "."


def reviews(count: int, seed: int = 0, shortest: int = 40, longest: int = 200) -> list[str]:
    chance = random.Random(seed)
    return [review(chance, chance.randint(shortest, longest)) for _ in range(count)]


def edited(text: str, share: float, kind: str, seed: int = 0) -> str:
    """A copy with a share of its words changed, deleted, or as many inserted."""
    chance = random.Random(f"{seed} {text}")
    words = text.split()
    places = sorted(chance.sample(range(len(words)), round(share * len(words))), reverse=True)
    for place in places:
        if kind == "deleted":
            del words[place]
        elif kind == "changed":
            words[place] = chance.choice(OTHER_WORDS)
        else:
            words.insert(place, chance.choice(OTHER_WORDS))
    return " ".join(words)
