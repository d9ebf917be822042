"""Whatever --from may name: a folder of ours, a starter, or `hf:` and a model of transformers, brought in on the way."""

import atexit
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from headstart.errors import UsageError
from headstart.store.bundle import Bundle, HeadType, load_bundle

HF_SCHEME = "hf:"
_imported_cache: dict[tuple[object, ...], Path] = {}
"""The bundles that this process has made of models from elsewhere; they go when it ends."""


def load_model_source(source: str, *, head_type: HeadType | None = None) -> Bundle:
    """The model that `source` names."""
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
    # a bundle names no folder, and a receipt names what was typed
    bundle = replace(bundle, about=bundle.about | {"imported_from": source})
    if head_type is not None and bundle.head_type != head_type:
        raise UsageError(
            f"{source} is a {'classifier' if bundle.labels else 'language model'}; this needs a "
            f"{'language model' if bundle.labels else 'classifier'}"
        )
    return bundle
