"""What tokenizers that the `tokenizers` library runs have in common, whoever trained them."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from headstart.text.vocabulary import digest_of, utf8_of, write_files


class EngineTokenizer:
    """Ids from an engine of the library, and one file that saving must change no byte of."""

    def __init__(self, engine: tokenizers.Tokenizer, file: str, content: bytes, vocab_size: int) -> None:
        # without this switch "<eos>" in a text is id 2; the library writes it to no file, so it is set here
        engine.encode_special_tokens = True
        self._engine, self._file, self._content, self._vocab_size = engine, file, content, vocab_size
        self._digest = digest_of({file: content})

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def content(self) -> bytes:
        """Of the file that `save` writes."""
        return self._content

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            utf8_of(text)
        return [found.ids for found in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def save(self, folder: Path) -> None:
        write_files(folder, {self._file: self._content})
