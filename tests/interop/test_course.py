"""Weights with the course's tensor names give the course's logits; anything else is refused."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from torch import nn

from fixtures.recipes import finetune_run
from headstart.cli.main import run
from headstart.config.merge import merge_config, nest
from headstart.config.schema import FinetuneConfig
from headstart.errors import StoreError, TransferError, UsageError
from headstart.interop.course import import_course
from headstart.model.heads import lm_logits
from headstart.predict.generate import Sampling, run_generate
from headstart.store.bundle import load_bundle
from headstart.tokenization.tokenizer import load_tokenizer

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "course.md"
WIDTH, FEEDFORWARD, DEPTH, HEADS = 16, 24, 3, 2
TEXTS = ["le chat a lu ce livre et il a aimé", "le chien n'a pas lu ce livre: il a été déçu", "un livre, deux livres"]


class Positions(nn.Module):
    """A fixed table, kept with the weights as the course keeps it."""

    def __init__(self, width, length=60):
        super().__init__()
        table = torch.zeros(length, 1, width)
        for position in range(length):
            for pair in range(width // 2):
                angle = position / 10000 ** (2 * pair / width)
                table[position, 0, 2 * pair], table[position, 0, 2 * pair + 1] = math.sin(angle), math.cos(angle)
        self.register_buffer("pe", table)


class Base(nn.Module):
    """The course's network from torch's parts, tokens first and batch second."""

    def __init__(self, vocabulary):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, WIDTH)
        self.pos_encoder = Positions(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FEEDFORWARD, dropout=0.0)
        self.transformer_encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)

    def forward(self, ids_TB):
        embedded = self.encoder(ids_TB) * math.sqrt(WIDTH) + self.pos_encoder.pe[: len(ids_TB)]
        mask = torch.full((len(ids_TB), len(ids_TB)), float("-inf")).triu(1)
        return self.transformer_encoder(embedded, mask)


class Head(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.decoder = nn.Linear(WIDTH, vocabulary)


class Course(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.base, self.classifier = Base(vocabulary), Head(vocabulary)

    def forward(self, ids_TB):
        return self.classifier.decoder(self.base(ids_TB))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A folder with a tiny SentencePiece model and the dict.txt that numbers its pieces."""
    folder = tmp_path_factory.mktemp("vocabulary")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_prefix=str(folder / "french"),
        model_type="bpe",
        vocab_size=60,
        normalization_rule_name="identity",
        minloglevel=3,
    )
    engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / "french.model"))
    pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size())]
    (folder / "dict.txt").write_text("".join(f"{piece} 9\n" for piece in reversed(pieces)), encoding="utf-8")
    return folder / "french.model"


@pytest.fixture
def course(vocabulary):
    torch.manual_seed(0)
    model = Course(load_tokenizer(vocabulary).vocab_size).eval()
    for parameter in model.parameters():  # norms and biases away from one and zero, or half the test is blind
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def saved(tensors, path):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def without_base(name):
    return name.removeprefix("base.")


def wrapped(name):
    return f"module.{name}"


@pytest.mark.parametrize("rename", [str, without_base, wrapped], ids=["as saved", "without base.", "with module."])
def test_the_courses_weights_give_the_courses_scores(course, vocabulary, tmp_path, rename):
    path = saved({rename(name): tensor for name, tensor in course.state_dict().items()}, tmp_path / "lab.safetensors")
    assert import_course(path, vocabulary, tmp_path / "out") == tmp_path / "out"
    bundle = load_bundle(tmp_path / "out", head_type="language")
    ids = torch.randint(4, bundle.tokenizer.vocab_size, (2, 40))
    with torch.no_grad():
        theirs = course(ids.T).transpose(0, 1)
        ours = lm_logits(bundle.model, bundle.model.backbone(ids))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    shape = bundle.config
    assert (shape.block, shape.width, shape.depth, shape.heads) == ("classic", WIDTH, DEPTH, HEADS)
    assert (shape.feedforward, shape.dropout, shape.context) == (FEEDFORWARD, 0.0, 512)


def test_heads_cannot_be_read_off_the_tensors_and_change_the_scores(course, vocabulary, tmp_path):
    path = saved(course.state_dict(), tmp_path / "lab.safetensors")
    import_course(path, vocabulary, tmp_path / "out", heads=4)
    bundle = load_bundle(tmp_path / "out")
    ids = torch.randint(4, bundle.tokenizer.vocab_size, (1, 20))
    with torch.no_grad():
        ours = lm_logits(bundle.model, bundle.model.backbone(ids))
        assert not torch.allclose(ours, course(ids.T).transpose(0, 1), atol=1e-3)


def test_the_receipt_names_every_tensor_and_what_was_computed_instead(course, vocabulary, tmp_path):
    path = saved(course.state_dict(), tmp_path / "lab.safetensors")
    import_course(path, vocabulary, tmp_path / "out")
    receipt = json.loads((tmp_path / "out" / "receipt.json").read_text())
    assert sorted(receipt) == ["computed", "moved", "new", "sha256", "source", "tokenizer"]
    assert receipt["computed"] == ["base.pos_encoder.pe"]
    assert receipt["new"] == []
    assert sorted(line["course"] for line in receipt["moved"]) == sorted(
        name for name in course.state_dict() if name != "base.pos_encoder.pe"
    )
    assert {line["course"]: line["name"] for line in receipt["moved"]}[
        "base.transformer_encoder.layers.2.self_attn.in_proj_weight"
    ] == "backbone.layers.2.attention.qkv_proj.weight"
    assert receipt["tokenizer"] == load_tokenizer(vocabulary).digest


def test_an_imported_model_is_a_start_for_finetune_and_generate(course, vocabulary, tmp_path):
    import_course(saved(course.state_dict(), tmp_path / "lab.safetensors"), vocabulary, tmp_path / "base")
    rows = [(f"{text} {number}", "good" if number % 2 else "bad") for number, text in enumerate(TEXTS * 4)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
    config = merge_config(FinetuneConfig, nest({"loop.epochs": 1, "runtime.threads": 1}))
    finetune_run(str(tmp_path / "train.csv"), tmp_path / "clf", config, backbone=str(tmp_path / "base"))
    moved = json.loads((tmp_path / "clf" / "receipt.json").read_text())["moved"]
    imported = json.loads((tmp_path / "base" / "receipt.json").read_text())["moved"]
    assert {line["name"]: line["sha256"] for line in moved} == {
        line["name"]: line["sha256"] for line in imported if line["name"].startswith("backbone.")
    }
    (text,) = run_generate(tmp_path / "base", "le chat", sampling=Sampling(tokens=5))
    assert isinstance(text, str)


def refusal(path, vocabulary, out, error=TransferError, **options):
    with pytest.raises(error) as caught:
        import_course(path, vocabulary, out, **options)
    assert not out.exists()
    return str(caught.value)


def dropped(tensors, name):
    del tensors[name]


def renamed(tensors, old, new):
    tensors[new] = tensors.pop(old)


LAYER = "base.transformer_encoder.layers"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: dropped(t, "base.encoder.weight"), "encoder.weight is missing"),
        (
            lambda t: dropped(t, f"{LAYER}.1.linear2.bias"),
            "transformer_encoder.layers.1.linear2.bias is missing",
        ),
        (
            lambda t: [dropped(t, name) for name in list(t) if name.startswith("classifier")],
            "the head is missing: save the state dict of the whole Model, not of its base alone",
        ),
        (
            lambda t: t.update({"base.transformer_encoder.norm.weight": torch.ones(WIDTH)}),
            "base.transformer_encoder.norm.weight is not part of the model",
        ),
        (
            lambda t: [renamed(t, name, name.replace("layers.2.", "layers.7.")) for name in list(t)],
            "transformer_encoder.layers.2.self_attn.in_proj_weight is missing (and 23 more errors)",
        ),
        (
            lambda t: t.update({f"{LAYER}.0.norm1.bias": torch.ones(WIDTH + 1)}),
            f"{LAYER}.0.norm1.bias is ({WIDTH + 1},) for ({WIDTH},)",
        ),
        (
            lambda t: t.update(
                {"classifier.decoder.bias": torch.ones(2), "classifier.decoder.weight": torch.ones(2, 16)}
            ),
            "classifier.decoder.weight is (2, 16) for (61, 16) (and 1 more errors)",
        ),
        (
            lambda t: t.update({"base.encoder.weight": t["base.encoder.weight"].half()}),
            "base.encoder.weight is float16 for float32",
        ),
        (
            lambda t: t.update({"encoder.weight": t["base.encoder.weight"].clone()}),
            "encoder.weight and base.encoder.weight are two copies of the same tensor",
        ),
        (
            lambda t: t.update({"base.encoder.weight": torch.ones(5)}),
            "encoder.weight is (5,), not a matrix",
        ),
        (
            lambda t: t.update({"base.pos_encoder.pe": 2 * t["base.pos_encoder.pe"]}),
            "base.pos_encoder.pe is not the table of sinusoidal positions",
        ),
    ],
)
def test_what_is_missing_extra_or_of_another_shape_is_refused_whole(course, vocabulary, tmp_path, change, words):
    tensors = dict(course.state_dict())
    change(tensors)
    path = saved(tensors, tmp_path / "lab.safetensors")
    expected = f"{path} does not match the course's language model: {words}; nothing was imported"
    assert refusal(path, vocabulary, tmp_path / "out") == expected


def test_another_vocabulary_is_refused(course, vocabulary, tmp_path):
    path = saved(course.state_dict(), tmp_path / "lab.safetensors")
    (tmp_path / "french.model").write_bytes(vocabulary.read_bytes())
    lines = vocabulary.with_name("dict.txt").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "dict.txt").write_text("".join(lines[1:]), encoding="utf-8")
    assert refusal(path, tmp_path / "french.model", tmp_path / "out") == (
        f"{path} has a vocabulary of 61, {tmp_path / 'french.model'} has 60 entries; nothing was imported"
    )


@pytest.mark.parametrize("heads", [0, 3])
def test_heads_that_do_not_divide_the_width_are_refused(course, vocabulary, tmp_path, heads):
    path = saved(course.state_dict(), tmp_path / "lab.safetensors")
    expected = f"--heads must divide the width of {path}, which is 16, got {heads}"
    assert refusal(path, vocabulary, tmp_path / "out", UsageError, heads=heads) == expected


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin"])
def test_a_pickled_file_is_not_opened_and_the_line_says_how_to_convert_it(vocabulary, tmp_path, suffix):
    path = tmp_path / f"lab.{suffix}"
    path.write_bytes(b"not opened, so anything")
    assert refusal(path, vocabulary, tmp_path / "out", UsageError) == (
        f"{path} is a pickle, which may run code when it is opened; Headstart does not open pickles. If you "
        f"trust it, convert it once: "
        'python -c "import torch, safetensors.torch as s; '
        f"d = torch.load('lab.{suffix}', map_location='cpu', weights_only=True); "
        "s.save_file({k: v.contiguous() for k, v in d.get('model_state_dict', d).items()}, 'lab.safetensors')\", "
        "then see headstart import --help"
    )


@pytest.mark.parametrize(
    ("inside", "source"),
    [
        ("model_state_dict", "documentation"),
        *(
            pytest.param(inside, source, marks=pytest.mark.slow)
            for inside, source in (("model_state_dict", "message"), (None, "message"), (None, "documentation"))
        ),
    ],
)
def test_the_lines_that_convert_do_convert(course, vocabulary, tmp_path, inside, source):
    state = course.state_dict()
    torch.save({inside: state, "epoch": 3} if inside else state, tmp_path / "model.pt")
    if source == "message":
        line = refusal(tmp_path / "model.pt", vocabulary, tmp_path / "out", UsageError)
        code = line.partition('python -c "')[2].partition('", then')[0]
    else:
        code = DOCUMENTATION.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
        assert len([line for line in code.splitlines() if line]) == 5
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    import_course(tmp_path / "model.safetensors", vocabulary, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lab.npz", "{path} is not a .safetensors file; the weights of the course can be imported in this format only"),
        ("lab.safetensors", "no such file: {path}"),
    ],
)
def test_a_file_of_another_type_or_a_missing_file_is_refused(vocabulary, tmp_path, name, message):
    path = tmp_path / name
    assert refusal(path, vocabulary, tmp_path / "out", UsageError) == message.format(path=path)


def test_a_torn_file_is_refused(course, vocabulary, tmp_path):
    path = saved(course.state_dict(), tmp_path / "lab.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(path, vocabulary, tmp_path / "out", StoreError).startswith(f"{path} cannot be read as safetensors: ")


def test_the_command_imports_and_says_what_it_did(course, vocabulary, tmp_path, monkeypatch, capsys):
    saved(course.state_dict(), tmp_path / "lab.safetensors")
    monkeypatch.chdir(tmp_path)
    assert run(["import", "lab.safetensors", "--tokenizer", str(vocabulary), "--out", "base", "--heads", "2"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert shown == (
        "import receipt: 39 tensors (7,893 parameters) from lab.safetensors; computed, not loaded: base.pos_encoder.pe; "
        "model in base"
    )
    assert run(["import", "lab.pt", "--tokenizer", str(vocabulary), "--out", "again"]) == 2
    assert capsys.readouterr().err.startswith("headstart: lab.pt is a pickle, ")
