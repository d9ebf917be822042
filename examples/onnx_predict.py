"""Classify texts with a model that `headstart export --to onnx` wrote: onnxruntime, tokenizers and numpy, nothing else.

python onnx_predict.py FOLDER "a text" ["another text" ...]        (--int8 before FOLDER for the small graph)
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
    labels = json.loads((Path(folder) / "headstart.json").read_text(encoding="utf-8"))["labels"]
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # "<eos>" in a text is five characters like any other
    session = onnxruntime.InferenceSession(str(Path(folder) / name))
    rows = tokenizer.encode_batch(texts)  # cut at the context, padded, the start token in front
    feed = {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    }
    (shares,) = session.run(["probabilities"], feed)
    for text, share in zip(texts, shares, strict=True):
        print(f"{labels[share.argmax()]}\t{share.max():.4f}\t{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
