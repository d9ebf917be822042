"""Refuse settings whose training needs more memory than is available, before the memory is allocated.

All estimates are lower bounds of the peak memory. A run that is not refused may still run out of memory.
"""

from dataclasses import dataclass

import numpy as np

from headstart.config.schema import FinetuneConfig, ModelConfig, PretrainConfig
from headstart.data.datasets import LabelledDataset
from headstart.errors import ConfigError
from headstart.model.parameter_count import count_parameters
from headstart.runtime import MemoryLimit, gpu_memory, machine_memory, rank_info

MIN_VOCABULARY = 260
"""Vocabulary size of the smallest tokenizer: the bytes and the special tokens."""
_WEIGHT, _GRADIENT, _MOMENT = 4, 4, 4
"""Bytes per parameter."""
_ID = 8
_MAX_ACTIVATION_BYTES = 150_000_000
"""The maximum of `_activation_bytes` in fp32 for a micro-batch of fine-tuning on a CPU. All of its activations have about three
times as many bytes."""


@dataclass(frozen=True)
class MemoryBound:
    """A lower bound of the memory of a training run, in bytes."""

    parameters: int
    state: int
    """Weights, gradients, optimizer state and averaged weights."""
    step: int
    """Weights, the batches of a step (token ids, segments, targets, a mask) and the activations of one of them. Gradients
    and optimizer state may be allocated after the activations are freed."""


def check_pretrain_memory(config: PretrainConfig, vocab_size: int = MIN_VOCABULARY, *, backbone: bool = False) -> None:
    """Refuse a pretraining that cannot fit into memory.

    Args:
        vocab_size: the size of the vocabulary; by default, the smallest possible one.
        backbone: the network is a pretrained one, whose shape cannot be set.
    """
    gpu = gpu_memory(config.runtime)
    bound = pretrain_bound(config, vocab_size, on_gpu=gpu is not None)
    sizes = {"loop.batch_size": config.loop.batch_size, "loop.accumulate": config.loop.accumulate}
    sizes |= {} if backbone else {"model.context": config.model.context}
    batch_settings = sorted(sizes, key=lambda name: -sizes[name])[:2]
    _check(bound, _limits(gpu), _network_settings(config.model, vocab_size, backbone=backbone), batch_settings)


def pretrain_bound(config: PretrainConfig, vocab_size: int, *, on_gpu: bool = False) -> MemoryBound:
    """Return a lower bound of the memory of pretraining in each process."""
    model, loop = config.model, config.loop
    context = max([stage.context or model.context for stage in config.stages], default=model.context)
    rows = loop.batch_size * model.context // context // rank_info().world_size
    packed = config.corpus.layout == "packed" and not config.next_sentence.weight
    tokens = rows * (context if packed else 2)  # other rows are as long as the documents
    # the batches of a step are built together; ids, segments and targets each
    batch = tokens * loop.accumulate * (3 if packed else 2) * _ID + tokens * _activation_bytes(config, on_gpu=on_gpu)
    if packed and not on_gpu:
        batch += tokens * context  # the attention mask
    parameters = count_parameters(model, vocab_size, None).total
    return MemoryBound(parameters, _state_bytes(config, parameters), _weight_bytes(config, parameters) + batch)


def check_finetune_memory(
    config: FinetuneConfig,
    vocab_size: int = MIN_VOCABULARY,
    rows: LabelledDataset | None = None,
    max_rows: int | None = None,
    *,
    backbone: bool = False,
    frozen: bool = False,
) -> None:
    """Refuse a fine-tuning that cannot fit into memory.

    Args:
        rows: the training rows, which limit the batch size; None if they are not known yet.
        max_rows: the maximum number of rows that are used for training.
        frozen: only the head is trained.
    """
    gpu = gpu_memory(config.runtime)
    bound = finetune_bound(config, vocab_size, rows, max_rows, on_gpu=gpu is not None, frozen=frozen)
    settings = _network_settings(config.model, vocab_size, backbone=backbone)
    _check(bound, _limits(gpu), settings, ["loop.batch_size", "transfer.context" if backbone else "model.context"])


def finetune_bound(
    config: FinetuneConfig,
    vocab_size: int,
    rows: LabelledDataset | None = None,
    max_rows: int | None = None,
    *,
    on_gpu: bool = False,
    frozen: bool = False,
) -> MemoryBound:
    """Return a lower bound of the memory of fine-tuning in each process."""
    # layers that are unfrozen later may never be
    trained = not (frozen or config.transfer.freeze or config.transfer.unfreeze_every)
    parameters = count_parameters(config.model, vocab_size, 2).total
    weights = _weight_bytes(config, parameters)
    state = _state_bytes(config, parameters) if trained else weights
    batch = 0
    if rows is not None and len(rows):
        lengths = np.sort(np.minimum(rows.lengths, config.model.context))[:max_rows]
        # some batch has as many tokens as the average one
        tokens = int(lengths.mean() * min(len(lengths), config.loop.batch_size)) // rank_info().world_size
        largest = tokens
        if not on_gpu and rank_info().world_size == 1:  # one of the micro-batches has as many tokens as the average one
            largest //= max(1, -(-tokens // max_micro_batch_tokens(config.model)))
        batch = tokens * _ID + (largest * _activation_bytes(config, on_gpu=on_gpu) if trained else 0)
    return MemoryBound(parameters, state, weights + batch)


def _weight_bytes(config: PretrainConfig | FinetuneConfig, parameters: int) -> int:
    shards = rank_info().world_size if config.runtime.parallel == "fsdp" else 1
    return _WEIGHT * parameters // shards


def _state_bytes(config: PretrainConfig | FinetuneConfig, parameters: int) -> int:
    optim = config.optim
    per_parameter = _WEIGHT + _GRADIENT + (_MOMENT if optim.optimizer == "muon" else 2 * _MOMENT)
    per_parameter += _WEIGHT if optim.ema_decay else 0
    return per_parameter // _WEIGHT * _weight_bytes(config, parameters)


def _activation_bytes(config: PretrainConfig | FinetuneConfig, *, on_gpu: bool) -> int:
    """Return the bytes per token that the layers keep for the backward pass.

    Of a layer that is recomputed, its input; of any other at least queries, keys, values, and the inputs of the attention's
    and of the MLP's last product.
    """
    model = config.model
    per_layer = model.width if config.runtime.recompute else _activations_per_token(model)
    half = config.runtime.precision == "bf16" or (config.runtime.precision == "auto" and on_gpu)
    return model.depth * per_layer * (2 if half else 4)


def _activations_per_token(model: ModelConfig) -> int:
    """Return the number of activations that a layer keeps per token."""
    return 4 * model.width + model.feedforward


def max_micro_batch_tokens(model: ModelConfig) -> int:
    """Return the maximum number of tokens of a micro-batch in fine-tuning on a CPU."""
    return max(1, _MAX_ACTIVATION_BYTES // (_WEIGHT * model.depth * _activations_per_token(model)))


def _limits(gpu: MemoryLimit | None) -> list[tuple[MemoryLimit, bool]]:
    """Return the memory that must hold the training; True where it must hold the weights alone.

    A network is built in the memory of the machine, also where it is then trained on a GPU.
    """
    limits = [(machine_memory(), gpu is not None), (gpu, False)]
    return [(limit, weights_alone) for limit, weights_alone in limits if limit is not None]


def _check(
    bound: MemoryBound,
    limits: list[tuple[MemoryLimit, bool]],
    network_settings: list[str],
    batch_settings: list[str],
) -> None:
    for limit, weights_alone in limits:
        if weights_alone:
            needed, what, settings = _WEIGHT * bound.parameters, "its weights", network_settings
        elif bound.state > limit.bytes:
            needed, what, settings = bound.state, "its weights, gradients and optimizer state", network_settings
        else:
            needed, what, settings = bound.step, "its weights and the batches of a step", batch_settings
        if needed > limit.bytes:
            remedy = f"reduce {' or '.join(settings)}" if settings else "choose a smaller model"
            raise ConfigError(
                f"training this network of {bound.parameters:,} parameters needs at least {format_bytes(needed)} of memory "
                f"for {what}, and {limit.owner} {format_bytes(limit.bytes)}; {remedy}"
            )


def _network_settings(model: ModelConfig, vocab_size: int, *, backbone: bool) -> list[str]:
    """Return the settings that make most of the parameters."""
    if backbone:
        return []
    layers = 4 * model.width * model.width + 2 * model.width * model.feedforward
    if model.width * vocab_size > model.depth * layers:
        return ["tokenizer.vocab_size", "model.width"]
    return (
        ["model.width", "model.depth"] if model.feedforward <= 4 * model.width else ["model.feedforward", "model.depth"]
    )


def format_bytes(size: int) -> str:
    """Format bytes in GiB.

    >>> format_bytes(25_200_000_000), format_bytes(12_288 * 2**40), format_bytes(2**20)
    ('23.5 GiB', '12,582,912 GiB', '0.001 GiB')
    """
    gibibytes = size / 2**30
    digits = 3 if gibibytes < 0.1 else 1 if gibibytes < 1e4 else 0
    return f"{gibibytes:,.{digits}f} GiB"
