"""Answer texts with a model that `headstart export --to onnx` wrote: onnxruntime, tokenizers and numpy, nothing else.

python onnx_predict.py FOLDER "a text" ["another text" ...]        (--int8 before FOLDER for the small graph)

A model that reads pairs takes two texts for each answer.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def main(arguments: list[str]) -> None:
    name = "model.int8.onnx" if arguments[0] == "--int8" else "model.onnx"
    folder, *texts = arguments[1:] if name == "model.int8.onnx" else arguments
    facts = json.loads((Path(folder) / "headstart.json").read_text(encoding="utf-8"))
    labels, target = facts["labels"], facts["task"]
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # "<eos>" in a text is five characters like any other
    session = onnxruntime.InferenceSession(str(Path(folder) / name))
    text_inputs = list(zip(texts[::2], texts[1::2], strict=True)) if target["pair"] else texts
    rows = tokenizer.encode_batch(text_inputs)  # cut at the context, padded, the start token in front
    feed = {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    }
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
