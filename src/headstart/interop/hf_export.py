"""A model of ours as a folder that plain transformers loads, without code from us: safetensors and JSON are all it takes.

config.json  model.safetensors  tokenizer.json  tokenizer_config.json  special_tokens_map.json  README.md  manifest.json
"""

from pathlib import Path
from typing import Any

from headstart.errors import StoreError, UsageError
from headstart.files import whole_folder, write_json
from headstart.interop.hf_stock_export import stock_class, stock_config, stock_tensors
from headstart.interop.hf_tokenizer import write_tokenizer
from headstart.interop.hf_weights import Tensors, modern, opt, opt_shape, shape_of
from headstart.kinds import Labels, Rating, Target
from headstart.model.heads import LanguageHead
from headstart.store.bundle import Bundle
from headstart.text.tokenizer import SentencePieceTokenizer
from headstart.version import __version__

_AUTO = {
    "CausalLM": "AutoModelForCausalLM",
    "MaskedLM": "AutoModelForMaskedLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
}


def export_hf(bundle: Bundle, out: Path) -> str:
    """Write the folder, and return the name of the stock class that its config.json asks for."""
    check_out(out)
    check_expressible(bundle)
    if bundle.config.stock:
        architecture, purpose = stock_class(bundle)
        config, tensors = _config(bundle, architecture, architecture), stock_tensors(bundle)
    else:
        family, purpose = _family(bundle)
        architecture = f"{family}For{purpose}"
        config = _config(bundle, family, architecture)
        tensors = opt(bundle.model) if family == "OPT" else modern(bundle.model)
    with whole_folder(out, kind="export", about={"to": "hf", "architecture": architecture}) as draft:
        write_json(draft / "config.json", config)
        _save(draft / "model.safetensors", tensors)
        typed_mask, pair = purpose == "MaskedLM", bundle.target.pair
        write_tokenizer(bundle.tokenizer, draft, bundle.config.context, typed_mask=typed_mask, pair=pair)
        (draft / "README.md").write_text(_readme(bundle, architecture, purpose), encoding="utf-8")
    return architecture


def check_out(out: Path) -> None:
    """Nothing that is there already is written over."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already and not empty; choose another --out")


def check_expressible(bundle: Bundle) -> None:
    """Refuse what lies outside of the network itself."""
    if bundle.windows:
        raise UsageError(
            f"{bundle.path} reads long texts in windows (labelled.long_texts), which no stock architecture can express; "
            "fine-tune with truncate to export"
        )


def _family(bundle: Bundle) -> tuple[str, str]:
    """The stock architecture that computes the same, and what it is for."""
    language = isinstance(bundle.model.head, LanguageHead)
    both = bundle.visibility == "both"
    if bundle.config.block == "modern":
        if bundle.target.kind == "rating" and not both:
            raise UsageError(
                f"{bundle.path} gives a rating by a head with a bias, which the head of a stock Llama lacks; "
                "fine-tune with --transfer.reading both to export, or use --to onnx"
            )
        if language:
            return ("EuroBert", "MaskedLM") if both else ("Llama", "CausalLM")
        return ("EuroBert" if both else "Llama"), "SequenceClassification"
    if both:
        raise UsageError(
            f"{bundle.path} is a classic network that reads both ways, which no stock architecture can express; "
            "modern presets can be exported, and classic ones that read causally"
        )
    return "OPT", "CausalLM" if language else "SequenceClassification"


def _config(bundle: Bundle, family: str, architecture: str) -> dict[str, Any]:
    special, backbone = bundle.tokenizer.special, bundle.model.backbone
    shape = stock_config(bundle) if bundle.config.stock else {"model_type": family.lower()}
    if not bundle.config.stock:
        shape |= opt_shape(backbone) if family == "OPT" else shape_of(backbone)
    config: dict[str, Any] = {
        "architectures": [architecture],
        **shape,
        "bos_token_id": special.sos,
        "pad_token_id": special.pad,
        "eos_token_id": special.eos,
        "dtype": "float32",
        "use_cache": True,
    }
    if family == "EuroBert":
        config |= {"classifier_pooling": "mean", "mask_token_id": special.mask if special.mask is not None else 3}
    if bundle.task == "classify":
        names = bundle.labels or ("rating",)
        config["id2label"] = {str(index): label for index, label in enumerate(names)}
        config["label2id"] = {label: index for index, label in enumerate(names)}
        config["problem_type"] = _PROBLEMS[bundle.target.kind]
        if bundle.target.kind != "classes" or bundle.target.pair:
            config["headstart"] = bundle.target.facts()  # thresholds or bounds, for whoever wants them
    return config


_PROBLEMS = {"classes": "single_label_classification", "labels": "multi_label_classification", "rating": "regression"}


def _save(path: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        # a copy each: parts of one matrix share their memory, which the format refuses
        whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        save_file(whole, path, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise StoreError(f"cannot write {path}: {error}") from error


_ASKED = {"classes": "", "labels": ', top_k=None, function_to_apply="sigmoid"', "rating": ', function_to_apply="none"'}


def _meaning(target: Target) -> str:
    """What the numbers of an exported classifier mean."""
    if isinstance(target, Rating):
        return (
            f"Its one output is the rating; the scale stands in the last layer. `headstart predict` answers nothing below "
            f"{target.lowest:g} or above {target.highest:g}: cut the output there to do the same."
        )
    if isinstance(target, Labels):
        least = ", ".join(f"{label} {share:.6g}" for label, share in target.facts()["thresholds"].items())
        return (
            "Probabilities are calibrated, each label by itself: the temperature stands in the last layer. A label is given "
            f"from its threshold on (`headstart.thresholds` in config.json): {least}."
        )
    return (
        "Probabilities are calibrated: the temperature stands in the last layer. Answers withheld below a threshold "
        "(`headstart predict --abstain`) are not part of it."
    )


def _readme(bundle: Bundle, architecture: str, purpose: str) -> str:
    answers = bundle.task == "classify"
    lines = [
        f"Exported by Headstart {__version__} as a stock {architecture}: weights, shape and tokenizer, no code.",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {_AUTO[purpose]}{', pipeline' if answers else ''}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("THIS FOLDER")',
        f'model = {_AUTO[purpose]}.from_pretrained("THIS FOLDER")',
    ]
    if answers:
        text = (
            '{"text": "the first text", "text_pair": "the second"}'
            if bundle.target.pair
            else '"a text you wonder about"'
        )
        lines += [
            'classify = pipeline("text-classification", model=model, tokenizer=tokenizer, truncation=True)',
            f"print(classify({text}{_ASKED[bundle.target.kind]}))",
        ]
    lines += [
        "```",
        "",
        f"It reads {bundle.config.context} tokens, the start token included; longer texts are cut there with "
        "`truncation=True`, as `headstart predict` cuts them.",
    ]
    if answers:
        lines.append(_meaning(bundle.target))
    if purpose == "MaskedLM":
        lines.append("`<mask>` in a text is the mask; write no other special token into one.")
    if bundle.objective == "hybrid":
        lines.append(
            "It learnt by the hybrid objective: **the scores at a place are for the token after it**, so a masked token "
            "is read off the place before the mask (`logits[:, i - 1]`), and `pipeline('fill-mask')`, which reads the "
            "mask's own place, does not apply. With `model_type` `llama` and architecture `LlamaForCausalLM` in "
            "config.json the same weights read left to right and continue text."
        )
    if isinstance(bundle.tokenizer, SentencePieceTokenizer):
        lines.append(
            "Its tokenizer was converted from SentencePiece and reads every piece of the vocabulary as the original does; "
            "only letters that carry several combining marks in an unusual order may be split otherwise."
        )
    if architecture.startswith("OPT") and not bundle.config.stock:
        lines.append(
            "OPT has no bias in its head and no sinusoids: every channel stands twice, which leaves the norms as they "
            "were, one channel is 1 for the bias, and the position table holds the sinusoids. It computes the same "
            "numbers, at twice the width."
        )
    return "\n".join(lines) + "\n"
