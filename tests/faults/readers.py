"""Every reader with a valid file for it: whatever becomes of the file, reading it ends with content or with one line."""

import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from faults.asking import requests
from faults.damage import started
from faults.reached import ROOMS
from fixtures.small_models import blend, linear
from fixtures.tiny import language_model
from headstart.config.merge import merge_config, read_toml
from headstart.config.schema import CorpusConfig, FinetuneConfig, LabelledConfig, PretrainConfig, RuntimeConfig
from headstart.data import formats
from headstart.data import io as opening
from headstart.data.corpus import read_documents
from headstart.data.decontamination import Membership
from headstart.data.labelled import read_labelled
from headstart.data.shards import Shards
from headstart.errors import HeadstartError
from headstart.files import FORMAT, MANIFEST, _canonical_json, _checksum, read_json, read_manifest, sha256_of
from headstart.predict.bundle_predictor import load_predictor
from headstart.predict.explain import explain_prediction
from headstart.store.bundle import load_bundle
from headstart.store.checkpoint import checkpoint_steps, load_checkpoint
from headstart.store.records import read_comparison_data, read_excerpts, read_record
from headstart.store.run_folder import Metrics, RunFolder
from headstart.tokenization.tokenizer import load_tokenizer

ROWS = [{"text": f'n° {number}: "drôle", dit-elle,\net\ttendre', "label": "10"[number % 2]} for number in range(6)]
CSV = 'text,label\r\n"n° 1, ""drôle""\nou non",1\r\nmoyen,0\r\nun roman,1\r\n'.encode()
TOML = b"""objective = "masked"
[model]
width = 64
depth = 2
[optim]
lr = 3e-4
ema_decay = 0.9
[pretrain.loop]
steps = 100
prompt = "the film"
[pretrain.runtime]
seed = 3
[[stages]]
texts = ["a.txt"]
fraction = 0.5
"""


@dataclass(frozen=True)
class Reader:
    """A folder with valid files, the names of those to be changed, and what reads them."""

    name: str
    folder: Path
    files: tuple[str, ...]
    read: Callable[[Path], object]
    """Reads the folder it is given."""
    ready: Callable[[Path], object] = bool
    """What is done to the folder after a file was changed, before it is read."""
    rooms: tuple[str, ...] = ROOMS
    """Where the lines are that its cases should reach."""


def readers(data: Path, compared: Path, tuned: Path, work: Path) -> list[Reader]:
    """All of them. `data` has a pretrained model, `compared` is a comparison's folder, `tuned` a classifier's."""
    made: list[Reader] = []

    def add(name: str, file: str, content: bytes, read: Callable[[Path], object], ready=bool, **beside: bytes) -> None:
        folder = work / name.replace(" ", "-")
        folder.mkdir(parents=True)
        (folder / file).write_bytes(content)
        for other, more in beside.items():
            (folder / other.replace("__", ".")).write_bytes(more)
        made.append(Reader(name, folder, (file,), read, ready))

    def several(name: str, files: dict[str, bytes], read: Callable[[Path], object]) -> None:
        folder = work / name.replace(" ", "-").replace("/", "")
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        made.append(Reader(name, folder, tuple(files), read, rooms=("serve/",)))

    def copy(name: str, original: Path, files: tuple[str, ...], read: Callable[[Path], object]) -> None:
        folder = work / name.replace(" ", "-")
        shutil.copytree(original, folder)
        made.append(Reader(name, folder, files, read))

    def sealed(name: str, original: Path, files: tuple[str, ...], read: Callable[[Path], object]) -> None:
        """Sealed again after the change, as a program that means harm would."""
        folder = work / f"{name}-sealed-again"
        shutil.copytree(original, folder)
        made.append(Reader(f"{name}, sealed again", folder, files, read, lambda at: seal(at, files)))

    _tables(add)
    base = data / "base" / "bundle"
    add("toml", "headstart.toml", TOML, lambda at: _toml(at / "headstart.toml"))
    copy("manifest", base, (MANIFEST,), lambda at: read_manifest(at, kind="bundle"))
    sealed("manifest", base, (MANIFEST,), lambda at: read_manifest(at, kind="bundle"))
    weights = ("bundle.json", "bundle.json", "backbone.safetensors", "head.safetensors")
    copy("bundle", base, weights, load_bundle)
    sealed("bundle", base, weights, load_bundle)
    sealed("classifier", tuned / "bundle", weights, load_bundle)
    sealed("membership", base, ("membership.bin",), Membership.load)
    arrays = ("offsets.bin", "tokens.bin", "digests.bin", "bytes.bin", MANIFEST, MANIFEST)
    sealed("shards", data / "base" / "tokens", arrays, _shards)
    sealed("labelled shards", tuned / "labelled", (*arrays, "labels.bin", "labels.bin"), _shards)
    _tokenizers(add, base)
    _records(add, compared)
    _runs(add, sealed, data, work)
    if find_spec("fastapi") and find_spec("h11"):
        requests({"language": data / "base", "classifier": tuned}, several)
    return made


def _linear_and_blend(sealed: Callable[..., None], work: Path) -> None:
    linear(work / "linear-as-it-was")
    blend(work / "blend-as-it-was")
    files = ("linear.json", "linear.safetensors", "linear.safetensors", "bundle.json")
    for kind in ("linear", "blend"):
        sealed(kind, work / f"{kind}-as-it-was", files, _answer)


def _answer(folder: Path) -> None:
    """Load a classifier of any kind and use it: what was read in must also be usable."""
    predictor = load_predictor(folder, RuntimeConfig(threads=1, device="cpu"))
    for prediction in predictor.predict(["a wonderful film", 'n° 1, "drôle"']):
        assert abs(sum(prediction.probabilities.values()) - 1) < 1e-4, prediction  # NaN is not below anything
    explain_prediction(predictor, "a wonderful film")


def _tokenizers(add: Callable[..., None], base: Path) -> None:
    add("tokenizer", "tokenizer.json", (base / "tokenizer" / "tokenizer.json").read_bytes(), _tokenizer)
    model, dictionary = sentencepiece_model()
    add("sentencepiece", "sentencepiece.model", model, _tokenizer, dict__txt=dictionary)
    add("sentencepiece alone", "sentencepiece.model", model, _tokenizer)
    add("tokenizer from elsewhere", "imported.json", _hf_tokenizer(base), _tokenizer)
    add("sentencepiece dictionary", "dict.txt", dictionary, _tokenizer, sentencepiece__model=model)


def _records(add: Callable[..., None], compared: Path) -> None:
    cell = compared / "cells" / "scratch-16-seed0.json"
    for name, content in (("cell", cell.read_bytes()), ("cell without a seal", _without_seal(cell))):
        add(name, "scratch-16-seed0.json", content, lambda at: read_record(at / "scratch-16-seed0.json"))
    add("data.json", "data.json", _without_seal(compared / "data.json"), read_comparison_data)
    add("quotes.json", "quotes.json", (compared / "quotes.json").read_bytes(), read_excerpts)


def _tables(add: Callable[..., None]) -> None:
    files = {
        "txt": ("a.txt", "une ligne\n\nune autre, pas drôle\n".encode()),
        "csv": ("a.csv", CSV),
        "tsv": ("a.tsv", CSV.replace(b",", b"\t")),
        "jsonl": ("a.jsonl", "\n".join(json.dumps(row) for row in ROWS).encode()),
        "json": ("a.json", json.dumps(ROWS, ensure_ascii=False).encode()),
        "parquet": ("a.parquet", _parquet("snappy")),
        "plain parquet": ("a.parquet", _parquet("none")),
        "gzip": ("a.csv.gz", gzip.compress(CSV, mtime=0)),
        "gzipped parquet": ("a.parquet.gz", gzip.compress(_parquet("none"), mtime=0)),
    }
    for name, (file, content) in files.items():
        add(name, file, content, lambda at, file=file: _table(at / file))
    pieces, labels = "▁n ° ▁1 ▁dr ôle\n▁moyen\n".encode(), b"1\n0\n"
    add("spm pieces", "a.review.spm", pieces, lambda at: _table(at / "a.review.spm"), a__label=labels)
    labelled = lambda at: read_labelled(str(at / "a.review.spm"), LabelledConfig())  # noqa: E731
    add("spm labels", "a.label", labels, labelled, a__review__spm=pieces)


def _runs(add: Callable[..., None], sealed: Callable[..., None], data: Path, work: Path) -> None:
    _linear_and_blend(sealed, work)
    run = started(work / "run")
    config, facts = (run.path / "config.json").read_bytes(), _without_seal(data / "base" / "run.json")
    add("config.json", "config.json", config, _config, _run_of)
    add("run.json", "run.json", facts, lambda at: RunFolder.open(at, kind="pretrain"))
    lines = (data / "base" / "metrics.jsonl").read_bytes()
    add("metrics", "metrics.jsonl", lines, lambda at: Metrics(at / "metrics.jsonl").read("step"))
    checkpoint = checkpoint_steps(run)[-1]
    files = ("state.json", "state.json", "optimizer.safetensors", "backbone.safetensors")
    model = language_model()  # loading fills it or leaves it as it is
    sealed("checkpoint", checkpoint, files, lambda at: load_checkpoint(at, model))


def seal(folder: Path, files: tuple[str, ...]) -> None:
    """Make the manifest of a folder agree with files that were changed; a changed manifest seals itself."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        manifest.pop("seal", None)
        for file in set(files) - {MANIFEST} if files != (MANIFEST,) else ():
            path = folder / file
            manifest["files"][file] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
        (folder / MANIFEST).write_bytes(
            _canonical_json(manifest | {"seal": _checksum(manifest)})
        )  # unflushed: there are many
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # it is no manifest any more: what reads it must say so


def _table(path: Path) -> None:
    """All ways to read a table; of every few cases one has its columns named, and one meets limits that it can reach."""
    names = {"text_column": "text", "label_column": "label"} if path.stat().st_size % 4 == 1 else {}
    low = path.stat().st_size % 4 == 2
    limits = {"MAX_LINE_BYTES": 60, "MAX_INFLATION": 1} if low else {"MAX_LINE_BYTES": opening.MAX_LINE_BYTES}
    ways: list[Callable[[], object]] = [
        lambda: read_labelled(str(path), LabelledConfig(**names)),
        lambda: list(read_documents([str(path)], CorpusConfig())),
    ]
    if path.suffix == ".txt":
        ways.append(lambda: list(read_documents([str(path)], CorpusConfig(documents="file"))))
    refusals = []
    with patch.multiple(opening, **limits), patch.object(formats, "JSON_LIMIT", 400 if low else formats.JSON_LIMIT):
        for way in ways:
            try:
                way()
            except HeadstartError as error:
                refusals.append(error)
    if len(refusals) == len(ways):
        raise refusals[0]


def _hf_tokenizer(base: Path) -> bytes:
    """Another library's tokenizer as an import keeps it: here our own, called a stranger's."""
    settings = json.loads((base / "tokenizer" / "tokenizer.json").read_bytes())
    special = {"sos": 0, "pad": 1, "eos": 2, "mask": 3, "unknown": None}
    return json.dumps({"special": special, "tokenizer": settings}, ensure_ascii=False).encode()


def _toml(path: Path) -> None:
    for kind in (PretrainConfig, FinetuneConfig):
        merge_config(kind, read_toml(path, kind))


def _run_of(folder: Path) -> None:
    """A run.json that belongs to config.json as it is now."""
    facts = {"format": FORMAT, "kind": "pretrain", "inputs": {}, "config": sha256_of(folder / "config.json")}
    (folder / "run.json").write_text(json.dumps(facts))


def _config(folder: Path) -> None:
    content = read_json(folder / "config.json")
    run = RunFolder.open(folder, kind="pretrain")
    assert isinstance(content, dict) or not run.settings
    merge_config(PretrainConfig, run.settings)


def _shards(folder: Path) -> None:
    shards = Shards.open(folder)
    for share in (0.1, 1e-12, 1 - 1e-12):
        shards.split(share, 0)
    assert all(len(shards.ids(number)) >= 0 for number in range(min(shards.num_documents, 50)))


def _tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.decode(tokenizer.encode("un roman drôle, 42 €")[:100])


def _without_seal(path: Path) -> bytes:
    content = read_json(path)
    content.pop("seal", None)
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _parquet(compression: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    if compression == "none":  # as data frames with categories write theirs
        table = table.set_column(1, "label", table["label"].dictionary_encode())
    pq.write_table(table, sink, compression=compression, row_group_size=3)
    return sink.getvalue()


def sentencepiece_model() -> tuple[bytes, bytes]:
    """A small model, and a dictionary that numbers its pieces."""
    import sentencepiece

    sink = io.BytesIO()
    words = ("un livre une page le roman la suite des mots qui vont et viennent sans fin drôle " * 2).split(" ")
    lines = [" ".join(words[target_folder : target_folder + 5]) for target_folder in range(len(words) - 5)] * 4
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=sink, vocab_size=45, model_type="bpe", minloglevel=2
    )
    engine = sentencepiece.SentencePieceProcessor(model_proto=sink.getvalue())
    pieces = [engine.id_to_piece(id) for id in range(3, len(engine))]
    return sink.getvalue(), "".join(f"{piece} {9}\n" for piece in pieces).encode()


_changed: dict[Path, str] = {}
"""The file that is not as it was, by place."""


def fresh(reader: Reader, target_folder: Path, file: str, content: bytes) -> Path:
    """The reader's folder at another place, with other content in one of its files."""
    if not target_folder.exists():
        shutil.copytree(reader.folder, target_folder)
        _changed.pop(target_folder, None)
    for name in {_changed.get(target_folder, file), *((MANIFEST,) if (reader.folder / MANIFEST).exists() else ())} - {
        file
    }:
        shutil.copyfile(reader.folder / name, target_folder / name)
    (target_folder / file).write_bytes(content)
    _changed[target_folder] = file
    reader.ready(target_folder)
    return target_folder
