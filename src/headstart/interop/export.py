"""Export a bundle by the name of a format: hf, onnx, compact.

A bundle again, in fewer bytes: weights rounded, files named without their folders, as a thing to hand on.

The ways out, by name.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.data.decontamination import MEMBERSHIP_FILE, Membership
from headstart.errors import UsageError
from headstart.interop.hf_export import check_export_folder
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.tensors import Storage


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
    check_export_folder(out)
    known = Membership.load(bundle.path)
    seen = known if also is None else also if known is None else known | also
    told = replace(bundle, about=bundle.about | (more or {}))
    save_bundle(out, told, storage=storage, extra=None if seen is None else {MEMBERSHIP_FILE: seen.to_bytes()})
    return f"{_megabytes(bundle.path):.1f} MB in {bundle.name}, {_megabytes(out):.1f} MB in {out} ({storage})"


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


EXPORT_FORMATS = ("hf", "onnx", "compact")


def run_export(folder: Path, out: Path, to: str, check: str | None = None, weights: Storage | None = None) -> list[str]:
    """Write a model in another format; returns what was written, in words.

    Args:
        check: for onnx, a file of texts to compare the answers on.
        weights: for compact, what they are kept in; bf16 unless told.
    """
    if to not in EXPORT_FORMATS:
        raise UsageError(f"--to must be one of {', '.join(EXPORT_FORMATS)}, got {to!r}")
    if check is not None and to != "onnx":
        raise UsageError(f"--check is for --to onnx, got --to {to}")
    if weights is not None and to != "compact":
        raise UsageError(f"--weights is for --to compact, got --to {to}")
    if to == "compact":
        return [export_compact(load_bundle(folder), out, weights or "bf16")]
    if to == "onnx":
        from headstart.interop.onnx_export import export_onnx

        return export_onnx(load_bundle(folder, head_type="classify"), out, check)
    from headstart.interop.hf_export import export_hf

    architecture = export_hf(load_bundle(folder), out)
    return [f"{folder} as a stock {architecture} in {out}; README.md there says how to load it"]
