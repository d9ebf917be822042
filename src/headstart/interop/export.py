"""The ways out, by name."""

from pathlib import Path

from headstart.errors import UsageError
from headstart.store.bundle import load_bundle
from headstart.store.compact import Storage

WAYS = ("hf", "onnx", "compact")


def run_export(folder: Path, out: Path, to: str, check: str | None = None, weights: Storage | None = None) -> list[str]:
    """Write a model in another format; returns what was written, in words.

    Args:
        check: for onnx, a file of texts to compare the answers on.
        weights: for compact, what they are kept in; bf16 unless told.
    """
    if to not in WAYS:
        raise UsageError(f"--to must be one of {', '.join(WAYS)}, got {to!r}")
    if check is not None and to != "onnx":
        raise UsageError(f"--check is for --to onnx, got --to {to}")
    if weights is not None and to != "compact":
        raise UsageError(f"--weights is for --to compact, got --to {to}")
    if to == "compact":
        from headstart.interop.compact_export import export_compact

        return [export_compact(load_bundle(folder), out, weights or "bf16")]
    if to == "onnx":
        from headstart.interop.onnx_export import export_onnx

        return export_onnx(load_bundle(folder, task="classify"), out, check)
    from headstart.interop.hf_export import export_hf

    architecture = export_hf(load_bundle(folder), out)
    return [f"{folder} as a stock {architecture} in {out}; README.md there says how to load it"]
