"""Whatever --from may name: a folder of ours, a starter, or `hf:` and a model of transformers, brought in on the way."""

import atexit
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from headstart.errors import UsageError
from headstart.store.bundle import Bundle, Task, load_bundle

SCHEME = "hf:"
_brought: dict[tuple[object, ...], Path] = {}
"""The bundles that this process has made of models from elsewhere; they go when it ends."""


def load_from(source: str, *, task: Task | None = None) -> Bundle:
    """The model that `source` names."""
    if not source.startswith(SCHEME):
        return load_bundle(Path(source), task=task)
    from headstart.interop.hf_folder import find_model
    from headstart.interop.hf_import import bring_in

    folder = find_model(source).resolve()
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
    key = (folder, *files)
    if key not in _brought:
        home = Path(tempfile.mkdtemp(prefix="headstart-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        bring_in(source, folder, home / "bundle")
        _brought[key] = home / "bundle"
    bundle = load_bundle(_brought[key])
    # a bundle names no folder, and a receipt names what was typed
    bundle = replace(bundle, about=bundle.about | {"imported_from": source})
    if task is not None and bundle.task != task:
        raise UsageError(
            f"{source} is a {'classifier' if bundle.labels else 'language model'}; this needs a "
            f"{'language model' if bundle.labels else 'classifier'}"
        )
    return bundle
