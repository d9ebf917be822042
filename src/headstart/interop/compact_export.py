"""A bundle again, in fewer bytes: weights rounded, files named without their folders, as a thing to hand on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.data.membership import FILE, Membership
from headstart.interop.hf_export import check_out
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.compact import Storage


def export_compact(
    bundle: Bundle,
    out: Path,
    storage: Storage = "bf16",
    more: dict[str, Any] | None = None,
    also: Membership | None = None,
) -> str:
    """Write the folder; returns what it weighs, in words.

    Args:
        more: further facts about the model, for its card.
        also: documents that it has seen beside those the bundle knows of.
    """
    check_out(out)
    known = Membership.read(bundle.path)
    seen = known if also is None else also if known is None else known | also
    told = replace(bundle, about=bundle.about | (more or {}))
    save_bundle(out, told, storage=storage, extra=None if seen is None else {FILE: seen.to_bytes()})
    return f"{_megabytes(bundle.path):.1f} MB in {bundle.name}, {_megabytes(out):.1f} MB in {out} ({storage})"


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
