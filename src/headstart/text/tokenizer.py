"""The door of the room: every name that other rooms use, and the one way to find a tokenizer on disk.

tokenizer.json                      byte-level BPE, trained by Headstart
sentencepiece.model [+ dict.txt]    an existing SentencePiece model
foreign.json                        the tokenizer of a model that was imported
"""

from pathlib import Path

from headstart.errors import StoreError, UsageError
from headstart.files import is_pickled, pickle_words
from headstart.text.bytepair import BytePairTokenizer, train_tokenizer
from headstart.text.card import ReportCard, report_card
from headstart.text.foreign import ForeignTokenizer
from headstart.text.sentencepiece import SentencePieceTokenizer
from headstart.text.vocabulary import DICTIONARY_FILE, FOREIGN_FILE, TOKENIZER_FILE, SpecialIds, Tokenizer

__all__ = [
    "BytePairTokenizer",
    "ForeignTokenizer",
    "ReportCard",
    "SentencePieceTokenizer",
    "SpecialIds",
    "Tokenizer",
    "load_tokenizer",
    "report_card",
    "train_tokenizer",
]

_PLACES = ("", "tokenizer", "bundle/tokenizer")


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer at `path`.

    Args:
        path: a `tokenizer.json`; a SentencePiece `.model` file, numbered by a `dict.txt` beside it if there is one; a
            folder that holds one of those; or a folder of ours (shards, run, bundle) that holds such a folder.
    """
    found = _find(path)
    if found.name == FOREIGN_FILE:
        return ForeignTokenizer.load(found)
    if found.suffix != ".model":
        return BytePairTokenizer.load(found)
    dictionary = found.with_name(DICTIONARY_FILE)
    return SentencePieceTokenizer.load(found, dictionary if dictionary.exists() else None)


def _find(path: Path) -> Path:
    """The file that holds the tokenizer: never chosen among several."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; expected a tokenizer, or a folder that holds one")
    if not path.is_dir():
        if is_pickled(path):
            way = f"Expected {TOKENIZER_FILE}, which headstart tokenizer makes, or a SentencePiece .model file"
            raise UsageError(pickle_words(path, way))
        if path.suffix not in (".json", ".model"):
            raise UsageError(f"{path} is not a tokenizer; expected {TOKENIZER_FILE} or a SentencePiece .model file")
        return path
    for place in _PLACES:
        folder = path / place
        files = [
            file
            for file in (folder / TOKENIZER_FILE, folder / FOREIGN_FILE, *sorted(folder.glob("*.model")))
            if file.is_file()
        ]
        if len(files) > 1:
            raise StoreError(f"{folder} holds several tokenizers: {', '.join(file.name for file in files)}; name one")
        if files:
            return files[0]
    raise StoreError(f"{path} holds no tokenizer: neither {TOKENIZER_FILE} nor a SentencePiece .model file")
