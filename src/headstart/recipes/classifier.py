"""What a fine-tuning starts with: the network, how it reads, and the weight of each class."""

import numpy as np
import torch
from torch import Tensor

from headstart.config import FinetuneConfig, ModelConfig, TransferConfig, Visibility
from headstart.errors import ConfigError
from headstart.kinds import Target
from headstart.model.backbone import build_backbone
from headstart.model.heads import ClassifierHead, Model, build_classifier_head
from headstart.recipes.labelled_data import LabelledData, Part
from headstart.store.bundle import Bundle
from headstart.store.receipt import TransferReceipt, transfer


def build_classifier(
    shape: ModelConfig, data: LabelledData, source: Bundle | None, name: str, seed: int, reading: Visibility
) -> tuple[Model[ClassifierHead], TransferReceipt | None]:
    """A classifier of this shape, from a pretrained folder or from random weights; the head is the same in both."""
    model: Model[ClassifierHead] = Model(
        build_backbone(shape, source.model.backbone.vocab_size if source else data.tokenizer.vocab_size, seed),
        build_classifier_head(shape, data.target.outputs, seed, reading, bias=data.target.kind == "rating"),
    )
    return model, transfer(name, model, data.tokenizer, source) if source else None


def shape_of(source: Bundle, transfer: TransferConfig) -> ModelConfig:
    """The shape of a pretrained network, with the context and dropout that are wanted in place of its own."""
    positions = source.config.stock.positions if source.config.stock else 0
    if transfer.context is not None and positions and transfer.context > positions:
        raise ConfigError(
            f"transfer.context must be at most {positions}, the positions that {source.name} has learnt, "
            f"got {transfer.context}"
        )
    wanted = {"context": transfer.context, "dropout": transfer.dropout}
    return source.config.model_copy(update={name: value for name, value in wanted.items() if value is not None})


def reading_of(config: FinetuneConfig, source: Bundle | None) -> Visibility:
    """How the classifier reads: as asked, as the source learnt to, or as its kind of network does best from scratch."""
    if config.transfer.reading != "auto":
        return config.transfer.reading
    if source is not None:
        return source.visibility
    return "causal" if config.model.block == "classic" else "both"


def class_weights(config: FinetuneConfig, target: Target, train: Part) -> Tensor | None:
    """Weights in the order of the labels, from names or from the balance of the training rows; None without.

    Of several labels a text, a weight is that of the rows that have the label beside those that have not.
    """
    wanted = config.transfer.class_weights
    if wanted is None:
        return None
    labels = target.labels
    if target.kind == "rating":
        raise ConfigError("transfer.class_weights is for labels, and a rating has none; leave it out")
    if wanted == "balanced":
        if target.kind == "labels":
            has = np.maximum(train.gold.sum(axis=0), 1)
            return torch.tensor(np.maximum(len(train) - has, 1) / has, dtype=torch.float32)
        counts = np.bincount(train.gold, minlength=len(labels))
        return torch.tensor(len(train) / (len(labels) * np.maximum(counts, 1)), dtype=torch.float32)
    for name in wanted:
        if name not in labels:
            raise ConfigError(
                f"transfer.class_weights names {name!r}, which is not a label; labels: {', '.join(labels)}"
            )
    return torch.tensor([wanted.get(label, 1.0) for label in labels], dtype=torch.float32)
