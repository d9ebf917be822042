"""Export a bundle by the name of a format: hf (transformers), onnx, or compact (a smaller bundle)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.data.decontamination import MEMBERSHIP_FILE, Membership
from headstart.errors import UsageError
from headstart.interop.hf_export import check_export_folder
from headstart.store.bundle import AnyClassifierBundle, load_bundle, load_classifier, save_bundle
from headstart.store.linear_bundle import classifier_kind
from headstart.store.tensors import Storage

EXPORT_FORMATS = ("hf", "onnx", "compact")
_NOT_FOR_HF = {
    "linear": "{folder} contains a linear classifier, and transformers has no architecture for it; use --to onnx",
    "blend": "{folder} contains a network and a linear classifier; transformers can represent the network only, "
    "whose predictions differ; use --to onnx",
}


def run_export(
    folder: Path,
    out: Path,
    to: str,
    check: str | None = None,
    weights: Storage | None = None,
    *,
    encoding: str | None = None,
) -> list[str]:
    """Write a model in another format; return a summary.

    Args:
        check: for onnx, a file of texts to compare the predictions on.
        encoding: the encoding of `check`, if it is not UTF-8.
        weights: for compact, their storage type; bf16 by default. A linear classifier is kept in fp16.
    """
    if to not in EXPORT_FORMATS:
        raise UsageError(f"--to must be one of {', '.join(EXPORT_FORMATS)}, got {to!r}")
    if check is not None and to != "onnx":
        raise UsageError(f"--check is for --to onnx, got --to {to}")
    if weights is not None and to != "compact":
        raise UsageError(f"--weights is for --to compact, got --to {to}")
    kind = classifier_kind(folder)
    if to == "compact":
        if kind == "linear":
            raise UsageError(f"{folder} contains a linear classifier, which has no smaller format")
        bundle = load_bundle(folder) if kind == "network" else load_classifier(folder)
        return [export_compact(bundle, out, weights or "bf16")]
    if to == "onnx":
        from headstart.interop.onnx_export import export_onnx

        return export_onnx(load_classifier(folder), out, check, encoding)
    if kind != "network":
        raise UsageError(_NOT_FOR_HF[kind].format(folder=folder))
    from headstart.interop.hf_export import export_hf

    architecture = export_hf(load_bundle(folder), out)
    return [f"{folder} as a stock {architecture} in {out}; its README.md explains how to load it"]


def export_compact(
    bundle: AnyClassifierBundle,
    out: Path,
    storage: Storage = "bf16",
    extra_about: dict[str, Any] | None = None,
    extra_membership: Membership | None = None,
) -> str:
    """Write a bundle with rounded weights; return a summary of the sizes.

    Args:
        extra_about: further facts about the model, for its card.
        extra_membership: documents that the model was trained on besides those that the bundle lists.
    """
    check_export_folder(out)
    recorded = Membership.load(bundle.path)
    membership = recorded if extra_membership is None else extra_membership  # an empty one is falsy
    if recorded is not None and extra_membership is not None:
        membership = recorded | extra_membership
    extended = replace(bundle, about=bundle.about | (extra_about or {}))
    extra = None if membership is None else {MEMBERSHIP_FILE: membership.to_bytes()}
    save_bundle(out, extended, storage=storage, extra=extra)
    return f"{_megabytes(bundle.path):.1f} MB in {bundle.name}, {_megabytes(out):.1f} MB in {out} ({storage})"


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
