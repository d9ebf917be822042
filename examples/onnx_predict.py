"""Predict texts with a model that `headstart export --to onnx` wrote, using onnxruntime, tokenizers and numpy only.

python onnx_predict.py FOLDER "a text" ["another text" ...]        (--int8 before FOLDER for the small graph)

A model for pairs of texts needs two texts per prediction. A linear classifier has a vocabulary.json in place of a
tokenizer.json; a blend of a network and a linear classifier has both.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def split(kind: str, text: str, pattern: str) -> list[str]:
    """Split a text into the words or the characters that the linear classifier counts."""
    text = text.replace("\u0130", "i").lower()
    if kind == "words":
        return re.findall(pattern, text)
    words = text.split()
    return list(f" {' '.join(words)} ") if words else []


def main(arguments: list[str]) -> None:
    name = "model.int8.onnx" if arguments[0] == "--int8" else "model.onnx"
    folder, *texts = arguments[1:] if name == "model.int8.onnx" else arguments
    facts = json.loads((Path(folder) / "headstart.json").read_text(encoding="utf-8"))
    labels, target = facts["labels"], facts["task"]
    session = onnxruntime.InferenceSession(str(Path(folder) / name))
    text_inputs = list(zip(texts[::2], texts[1::2], strict=True)) if target["pair"] else texts
    feed = {}
    if (Path(folder) / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        tokenizer.encode_special_tokens = True  # "<eos>" in a text is five characters like any other
        rows = tokenizer.encode_batch(text_inputs)  # cut at the context, padded, the start token in front
        feed["input_ids"] = np.array([row.ids for row in rows])
        feed["attention_mask"] = np.array([row.attention_mask for row in rows])
    if (Path(folder) / "vocabulary.json").exists():
        vocabulary = json.loads((Path(folder) / "vocabulary.json").read_text(encoding="utf-8"))
        for kind, view in vocabulary.items():
            ids = {token: number for number, token in enumerate(view["tokens"])}
            tokens = [split(kind, text, view.get("pattern", "")) for text in texts]
            feed[kind] = np.full((len(texts), max(map(len, tokens)) + 1), -1)  # -1: padding, and unknown tokens
            for row, text_tokens in enumerate(tokens):
                feed[kind][row, : len(text_tokens)] = [ids.get(token, -1) for token in text_tokens]
    (answers,) = session.run([facts["outputs"][1]], feed)
    for question, answer in zip(text_inputs, answers, strict=True):
        text = " | ".join(question) if target["pair"] else question
        if target["kind"] == "rating":
            print(f"{answer:.4f}\t{text}")
        elif target["kind"] == "labels":
            predicted = [
                label for label, share in zip(labels, answer, strict=True) if share >= target["thresholds"][label]
            ]
            print(f"{', '.join(predicted)}\t{text}")
        else:
            print(f"{labels[answer.argmax()]}\t{answer.max():.4f}\t{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
