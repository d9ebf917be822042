"""Regular expressions that explode, in the tokenizer of a model from elsewhere: refused, and if not, one line per text."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.asking import Desk, request
from fixtures.small_models import language
from headstart.errors import DataError, HeadstartError
from headstart.interop.hf_export import export_hf
from headstart.interop.hf_import import import_hf
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.tokenization.base import SpecialIds
from headstart.tokenization.hf import HFTokenizer
from headstart.tokenization.patterns import KNOWN_PATTERNS

HOSTILE = {
    "(a+)+$": "a" * 40 + "!",
    "(a|a)*$": "a" * 40 + "!",
    "((ab)+)+$": "ab" * 40 + "!",
    r"(\p{L}*\p{L}*)*\p{N}": "a" * 40 + " 1",
    r"(\w|\d)+$": "1" * 40 + "!",
    "a*a*a*!": "",
}
"""Each with a text on which the library panics; the last is slow rather than that, and its text is not tried."""
HARMLESS = [r"\s+$", r"(?:\r?\n)+", r"\s?[A-Za-z]+", r"\d+(?=(?:\d{3})*(?!\d))", sorted(KNOWN_PATTERNS)[-1]]


def torture(work: Path, patterns: int) -> Iterator[dict[str, Any]]:
    """Import, predict with and serve a model with each expression, as many as are wanted of each kind."""
    bundle = language(work / "ours", "modern", "causal")
    export = work / "export"
    export_hf(bundle, export)
    for pattern in list(HOSTILE)[:patterns]:
        faults = [*_imported(export, pattern, work), *_forced_in(bundle, pattern, work / "forced")]
        yield {"name": pattern, "refused": not faults, "faults": faults}
    for pattern in HARMLESS[:patterns]:  # control
        faults = [*_imported(export, pattern, work, refused=False)]
        yield {"name": pattern, "refused": bool(faults), "faults": faults}


def _settings(settings: dict[str, Any], pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return settings | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, settings["pre_tokenizer"]]}}


def _imported(export: Path, pattern: str, work: Path, *, refused: bool = True) -> Iterator[str]:
    """Yield what is wrong with the answer of an import."""
    folder, out = work / "model", work / "imported"
    shutil.copytree(export, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(_settings(json.loads(path.read_text()), pattern)))
    try:
        import_hf(f"hf:{folder}", out)
        if refused:
            yield "it was imported"
    except HeadstartError as error:
        expected = f"its regular expression {pattern} fails or takes too long on some texts"
        if not refused or expected not in str(error) or out.exists():
            yield f"the import ended with: {error}"
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(out, ignore_errors=True)


def _forced_in(bundle: Bundle, pattern: str, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a model that has the expression all the same, as one that was not imported may have."""
    text = HOSTILE[pattern]
    if not text:
        return
    settings = json.loads((bundle.path / "tokenizer" / "tokenizer.json").read_text())
    special = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)
    tokenizer = HFTokenizer.from_settings(_settings(settings, pattern), special, "imported.json")
    save_bundle(folder, replace(bundle, tokenizer=tokenizer))
    try:
        load_bundle(folder).tokenizer.encode(text)
        yield "the text was read"
    except DataError as error:
        if not str(error).startswith("the tokenizer fails on a text: "):
            yield f"predicting ended with: {error}"
    desk = Desk(folder)
    try:
        status, answer = desk.ask(request("next", json.dumps({"prompt": text}).encode()))
        if status != 422 or not answer["detail"].startswith("the tokenizer fails on a text: "):
            yield f"the server answered {status}: {answer}"
        status, answer = desk.ask(request("next", json.dumps({"prompt": "the film"}).encode()))
        if status != 200:
            yield f"the server answered another text with {status}: {answer}"
    finally:
        desk.service.stop()
        desk.loop.close()
        shutil.rmtree(folder)
