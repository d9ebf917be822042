"""Load the model that `--from` names: a folder of Headstart's, a starter, or `hf:` and a model of transformers."""

import atexit
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from headstart.errors import UsageError
from headstart.store.bundle import Bundle, HeadType, load_bundle
from headstart.store.locate import HF_SCHEME

_HEAD_PHRASES = {"classify": "classifier", "language": "language model"}
_imported_cache: dict[tuple[object, ...], Path] = {}
"""Temporary bundles of imported models, by folder and file times; they are deleted when the process ends."""


def load_model_source(source: str, *, head_type: HeadType | None = None) -> Bundle:
    """Load a model, importing it first if it is one of transformers.

    Args:
        head_type: the type of head that the caller needs; a model of another type is refused.
    """
    if not source.startswith(HF_SCHEME):
        return load_bundle(Path(source), head_type=head_type)
    from headstart.interop.hf_import import import_model, open_hf_folder

    folder = open_hf_folder(source).resolve()
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
    key = (folder, *files)
    if key not in _imported_cache:
        home = Path(tempfile.mkdtemp(prefix="headstart-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        import_model(source, folder, home / "bundle")
        _imported_cache[key] = home / "bundle"
    bundle = load_bundle(_imported_cache[key])
    # the bundle has lost the folder of its source, which receipts name as it was typed
    bundle = replace(bundle, about=bundle.about | {"imported_from": source})
    if head_type is not None and bundle.head_type != head_type:
        raise UsageError(f"{source} is a {_HEAD_PHRASES[bundle.head_type]}; this needs a {_HEAD_PHRASES[head_type]}")
    return bundle
