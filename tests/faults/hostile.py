"""Text that breaks tokenizers: it must come back as it was, in about the time that plain text of its length takes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.readers import sentencepiece_model
from headstart.config.schema import TokenizerConfig
from headstart.errors import DataError
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

FACTOR = 4
"""A text so many times longer may take three times that much longer (caches fill up): quadratic time takes four times that."""


def texts(size: int) -> dict[str, str]:
    """Hostile texts of about `size` characters."""
    kinds = {
        "plain words": "un roman drôle et tendre ",
        "one letter": "a",
        "one letter and no space": "abcdefghij",
        "spaces": " ",
        "line ends": "\n",
        "digits": "0123456789",
        "punctuation": "!?.,;:'\"()[]{}",
        "control characters": "".join(chr(code) for code in range(1, 32)),
        "NULs": "\0",
        "right to left": "\u202eشلوم שלום\u202c ",
        "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
        "combining marks": "e" + "\u0301" * 50,
        "beyond the plane": "𝒜𐍈",
        "special tokens": "<sos><pad><eos><mask>▁<0x00>",
    }
    return {name: (piece * (size // len(piece) + 1))[:size] for name, piece in kinds.items()}


def torture(data: Path, size: int) -> Iterator[dict[str, Any]]:
    """Encode and decode all of them at two lengths."""
    folder = data / "sentencepiece"
    folder.mkdir(exist_ok=True)
    (folder / "sentencepiece.model").write_bytes(sentencepiece_model()[0])
    # merges of hostile pieces are there to be used
    learnt = train_tokenizer([*texts(50_000).values()] * 2, TokenizerConfig(vocab_size=2000))
    for kind, tokenizer in (("byte-level BPE", learnt), ("SentencePiece", load_tokenizer(folder))):
        for name, text in texts(size).items():
            short, seconds = text[: len(text) // FACTOR], []
            for part in (short, text):
                times = []
                for _ in range(3):
                    started = time.process_time()
                    ids = tokenizer.encode(part)
                    times.append(time.process_time() - started)
                seconds.append(min(times))
            faults = []
            if kind == "byte-level BPE" and tokenizer.decode(ids) != text:
                faults.append("it does not come back as it was")
            if seconds[1] > 0.1 and seconds[1] > 3 * FACTOR * seconds[0]:
                faults.append(f"{FACTOR} times the text took {seconds[1] / seconds[0]:.1f} times as long")
            if min(ids, default=4) < 3:
                faults.append("plain text gave a special token")
            row = {"name": f"{kind}: {name}", "characters": len(text), "tokens": len(ids)}
            yield row | {"times_as_long": round(seconds[1] / max(seconds[0], 1e-9), 1), "faults": faults}
        yield {"name": f"{kind}: a lone surrogate", "characters": 3, "tokens": 0, "faults": _surrogate(tokenizer)}


def _surrogate(tokenizer: Any) -> list[str]:
    try:
        tokenizer.encode("a\ud800b")
    except DataError:
        return []
    return ["it was taken for text"]
