"""Small data folders for the course experiment, generated or cut from the real one, with the same file names.

cls-books/       {train,valid,test}.review.spm and .label, sentencepiece.french.model, dict.txt
french-novels/   paragraphs.parquet
french-reviews/  reviews.parquet
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece

MODEL = "sentencepiece.french.model"
_GOOD = (
    "superbe magnifique touchant drôle captivant remarquable sublime brillant émouvant passionnant délicieux parfait"
)
_BAD = "ennuyeux décevant plat confus raté lourd banal pénible mauvais interminable vide bâclé"
_THINGS = "livre roman récit texte style dialogue chapitre personnage auteur dénouement"
_FRAMES = (
    "ce {thing} est vraiment {word}",
    "j'ai trouvé le {thing} {word}",
    "le {thing} reste {word} jusqu'à la fin",
    "un {thing} {word}, dit ma sœur",
)
_NOVEL = (
    "Bonjour les amis, dit le vieux capitaine en ouvrant la porte",
    "La marquise sortit à cinq heures sans regarder la rue",
    "Il pleuvait sur la ville et les lampes tremblaient au vent",
    "Bonjour les enfants, répondit le maître d'école",
    "Le lendemain, la voiture partit pour la campagne",
)


def write_mini(folder: Path, *, documents: int = 200, train: int = 48, valid: int = 32, test: int = 40) -> Path:
    """Write generated reviews and paragraphs. Three texts of test also appear in train, as in the real files."""
    chance = random.Random(3)
    books = folder / "cls-books"
    books.mkdir(parents=True, exist_ok=True)
    novels = [f"{chance.choice(_NOVEL)}, le {number} mai." for number in range(documents // 2)]
    reviews = [_review(chance, bool(number % 2)) for number in range(documents)]
    engine = _train_pieces([*novels, *reviews], books)
    rows: dict[str, list[tuple[str, int]]] = {}
    for name, count in (("train", train), ("valid", valid), ("test", test)):
        rows[name] = [(_review(chance, bool(number % 2)), number % 2) for number in range(count)]
    rows["test"][:3] = rows["train"][:3]
    for name, pairs in rows.items():
        lines = [" ".join(engine.encode(text, out_type=str)) for text, _ in pairs]
        _write_pairs(books, name, lines, [str(label) for _, label in pairs])
    _write_parquet(folder, novels, reviews)
    return folder


def cut(data: Path, folder: Path, *, documents: int = 200, train: int = 48, valid: int = 32, test: int = 40) -> Path:
    """Write a small part of a real data folder: the first documents, and every n-th labelled row."""
    books = folder / "cls-books"
    books.mkdir(parents=True, exist_ok=True)
    for name in (MODEL, "dict.txt"):
        shutil.copyfile(data / "cls-books" / name, books / name)
    for name, count in (("train", train), ("valid", valid), ("test", test)):
        lines, labels = (
            (data / "cls-books" / f"{name}{suffix}").read_text("utf-8").splitlines()
            for suffix in (".review.spm", ".label")
        )
        # the files are ordered by label in places, so every n-th row is taken
        chosen = [round(index * len(lines) / count) for index in range(min(count, len(lines)))]
        _write_pairs(books, name, [lines[row] for row in chosen], [labels[row] for row in chosen])
    novels = list(islice(_texts(data / "french-novels" / "paragraphs.parquet"), documents // 2))
    reviews = list(islice(_texts(data / "french-reviews" / "reviews.parquet"), documents))
    _write_parquet(folder, novels, reviews)
    return folder


def _review(chance: random.Random, positive: bool) -> str:
    """Return two to four sentences, one in five of which has the opposite sentiment, so that no classifier is perfect."""
    sentences = []
    for _ in range(chance.randint(2, 4)):
        words = _GOOD if positive == (chance.random() < 0.8) else _BAD
        thing, word = chance.choice(_THINGS.split()), chance.choice(words.split())
        sentences.append(chance.choice(_FRAMES).format(thing=thing, word=word))
    return ". ".join(sentences) + "."


def _train_pieces(texts: Sequence[str], folder: Path) -> sentencepiece.SentencePieceProcessor:
    """Train a small SentencePiece model, and write the dict.txt that lists its pieces by frequency."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / "pieces"),
        model_type="bpe",
        vocab_size=300,
        hard_vocab_limit=False,
        minloglevel=3,
    )
    (folder / "pieces.model").rename(folder / MODEL)
    (folder / "pieces.vocab").unlink()
    engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL))
    counts = Counter(piece for text in texts for piece in engine.encode(text, out_type=str))
    lines = [f"{piece} {count}\n" for piece, count in counts.most_common()]
    (folder / "dict.txt").write_text("".join(lines), encoding="utf-8")
    return engine


def _write_pairs(folder: Path, name: str, lines: Sequence[str], labels: Sequence[str]) -> None:
    (folder / f"{name}.review.spm").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / f"{name}.label").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")


def _write_parquet(folder: Path, novels: Sequence[str], reviews: Sequence[str]) -> None:
    for position, columns in (
        ("french-novels/paragraphs.parquet", {"text": novels}),
        ("french-reviews/reviews.parquet", {"source": ["made up"] * len(reviews), "text": reviews}),
    ):
        (folder / position).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), folder / position)


def _texts(path: Path) -> Iterator[str]:
    for batch in pq.ParquetFile(path).iter_batches(batch_size=1000, columns=["text"]):
        yield from batch.column("text").to_pylist()
