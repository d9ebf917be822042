"""Two texts as one row: `<sos> A <eos> B`, as pretraining's pairs are laid out; what does not fit is cut from both fairly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.data.labelled import Question
from headstart.text.tokenizer import Tokenizer


def encode_questions(tokenizer: Tokenizer, questions: Sequence[Question]) -> list[list[int]]:
    """The tokens of texts; of a pair those of both, the end token between them, which no text contains."""
    flat = [text for one in questions for text in ((one,) if isinstance(one, str) else one)]
    found = iter(tokenizer.encode_batch(flat))
    rows = []
    for one in questions:
        row = list(next(found))
        if not isinstance(one, str):
            row += [tokenizer.special.eos, *next(found)]
        rows.append(row)
    return rows


def fair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens each of two texts keeps: a short one all, two long ones half of the room each.

    The same to the token as `tokenizers` cuts with its strategy `longest_first`, so that exports cut alike.

    >>> fair_lengths(3, 20, 10), fair_lengths(20, 20, 11), fair_lengths(4, 5, 10)
    ((3, 7), (5, 6), (4, 5))
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (short, long) if first <= second else (long, short)


def cut_pair(ids: NDArray[np.integer], room: int, eos: int) -> NDArray[Any]:
    """A pair's tokens cut to `room`, the end token between them included."""
    if len(ids) <= room:
        return ids
    middle = int(np.argmax(ids == eos))
    first, second = fair_lengths(middle, len(ids) - middle - 1, room - 1)
    return np.concatenate((ids[:first], ids[middle : middle + 1 + second]))
