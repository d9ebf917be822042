"""Every setting, in frozen pydantic sections. No torch.

The command line, TOML files and Python share them: a setting has one name, one default, one range and one docstring. The
docstring is the help text of the option: `--help` shows its first sentence, `--help-all` all of it.
"""

import codecs
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """A group of settings: frozen; unknown names, infinity and NaN are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


MIN_LR, MAX_LR = 1e-30, 1e30
"""Range of learning rates: a smaller one has no effect, a larger one overflows fp32."""
MAX_MINUTES = 1e6
"""Upper bound of time limits, almost two years."""
MAX_THREADS = 1024
MAX_COUNT = 10**12
"""Upper bound of steps, epochs and rows, so that their products and their time are finite numbers."""


def _check_encoding(name: str | None, setting: str) -> None:
    """Raise ValueError unless `name` is a text encoding."""
    try:
        known = name is None or codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):  # a NUL in the name
        known = False
    if not known or name in ("undefined", "idna", "punycode"):
        raise ValueError(f"{setting} must be a text encoding such as cp1252, cp932 or utf-16, got {name!r}")


class LabelledConfig(Section):
    """Reading of labelled files: columns, task, encoding."""

    text_column: str | None = None
    """Column or key of the text. By default, a common name such as text, review or sentence is looked for."""
    label_column: str | None = None
    """Column or key of the label. By default, a common name such as label, class or category is looked for."""
    second_column: str | None = None
    """Second text column, for pairs such as premise and hypothesis. The model reads both as one sequence."""
    task: Literal["auto", "classes", "labels", "rating"] = "auto"
    """classes: one label per text; labels: any number of labels; rating: a number. auto: labels if the file has lists
    of labels, otherwise classes.
    """
    separator: str | None = Field(None, min_length=1)
    """Separator between several labels in one cell, such as ; in "sports;politics". Lists in JSON and parquet files
    need none.
    """
    lowest: float | None = None
    """rating only: the lowest possible rating; lower numbers in a file are errors. By default, the lowest in the
    training file.
    """
    highest: float | None = None
    """rating only: the highest possible rating; higher numbers in a file are errors. By default, the highest in the
    training file.
    """
    encoding: str | None = None
    """Encoding of files that are not UTF-8, such as cp1252. Output is always UTF-8."""
    skip_empty: bool = False
    """Skip rows without a text or a label and report how many. Otherwise the first such row is an error."""
    valid_fraction: float = Field(0.2, gt=0, lt=1)
    """Fraction of the training rows held out for validation, stratified by label, if no validation file is given."""
    long_texts: Literal["truncate", "windows"] = "truncate"
    """Handling of texts longer than the context. truncate: cut them and report how many; windows: average the logits
    over windows.
    """

    @model_validator(mode="after")
    def _settings_fit_the_task(self) -> Self:
        _check_encoding(self.encoding, "labelled.encoding")
        if self.separator is not None and self.task not in ("auto", "labels"):
            raise ValueError(f"labelled.separator is for texts with several labels, but labelled.task is {self.task}")
        if self.task != "rating":
            for name in ("lowest", "highest"):
                if getattr(self, name) is not None:
                    raise ValueError(f"labelled.{name} is for ratings and needs labelled.task rating, got {self.task}")
        if self.lowest is not None and self.highest is not None and self.lowest >= self.highest:
            raise ValueError(
                f"labelled.lowest must be below labelled.highest, got {self.lowest:g} and {self.highest:g}"
            )
        if self.second_column is not None and self.long_texts == "windows":
            raise ValueError(
                "labelled.long_texts windows cannot be used with labelled.second_column: a window would split the pair"
            )
        return self


Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


class GenericConfig(Section):
    """The layers, positions and heads of an imported architecture, read from the model."""

    family: Literal["bert", "distilbert", "roberta", "camembert", "xlm-roberta", "modernbert", "gpt2", "opt"]
    """The architecture of transformers that the model was imported from and can be exported to."""
    norm_first: bool
    """True for pre-norm layers, false for post-norm layers."""
    norm_bias: bool = True
    """True if the norms have a bias."""
    bias: bool = True
    """True if the linear layers have a bias."""
    activation: Activation = "gelu"
    """The activation of the feed-forward part."""
    gated: bool = False
    """True if the feed-forward part is gated (GLU): the activation is multiplied with a second projection."""
    positions: int = Field(0, ge=0, le=2**31)
    """The number of learned positions, which limits the text length; 0 for rotary positions."""
    embedding_norm: bool = False
    """True if embeddings are normalized; with norm_first, the first layer then has no norm before attention."""
    final_norm: bool = False
    """True if the output of the last layer is normalized."""
    window: int = Field(0, ge=0)
    """The attention window of a local layer, in tokens on each side."""
    local_layers: tuple[int, ...] = ()
    """Indices of the layers with sliding-window attention, from 0."""
    local_base: float = Field(10000.0, gt=0)
    """The rotary base of the local layers."""
    transform: bool = False
    """True if the language head begins with a transform: linear, activation, norm."""
    transform_activation: Activation = "gelu"
    """The activation of the transform."""
    transform_bias: bool = True
    """True if the linear layer of the transform has a bias."""
    head_bias: bool = False
    """True if the language head has a bias per vocabulary entry."""
    pooling: Literal["first", "mean"] = "mean"
    """The pooling of a bidirectional classifier: the first token, or the mean over all tokens."""
    classifier: Literal["tanh", "relu", "transform"] = "tanh"
    """The classifier before its last layer: linear and tanh or ReLU, or the transform of the language head."""


class ModelConfig(Section):
    """Architecture of the backbone."""

    block: Literal["classic", "modern", "generic"] = "classic"
    """Type of the Transformer blocks. classic: post-norm, sinusoidal positions, ReLU, biases, untied embeddings;
    modern: pre-norm RMSNorm, rotary positions, SwiGLU, no biases, tied embeddings; generic: imported models.
    """
    width: int = Field(200, ge=1, le=2**20)
    """Size of the hidden states."""
    depth: int = Field(4, ge=1, le=10_000)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Number of attention heads per layer; it must divide the width."""
    feedforward: int = Field(200, ge=1, le=2**24)
    """Size of the hidden layer of the MLP."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability."""
    context: int = Field(512, ge=2, le=2**24)
    """Maximum sequence length in tokens, including the start token. Pretraining rows have this length; longer texts are
    truncated.
    """
    rotary_base: float = Field(10000.0, gt=0)
    """modern only: base of the rotary position embedding."""
    norm_epsilon: float = Field(1e-5, gt=0)
    """modern only: epsilon of the normalization layers."""
    tied: bool = True
    """modern only: tie the weights of the language head to the embedding."""
    generic: GenericConfig | None = None
    """generic only: the architecture of an imported model."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if (self.block == "generic") != (self.generic is not None):
            raise ValueError("model.block generic is for imported models only; load one with --from hf:FOLDER")
        if self.generic and self.generic.positions and self.context > self.generic.positions:
            raise ValueError(
                f"model.context must be at most {self.generic.positions}, the number of learned positions, got {self.context}"
            )
        if self.width % self.heads:
            raise ValueError(f"model.width must be a multiple of model.heads, got {self.width} and {self.heads}")
        if self.block == "classic" and self.width % 2:
            raise ValueError(f"model.width must be even for sinusoidal positions, got {self.width}")
        rotary = self.block == "modern" or (self.generic is not None and not self.generic.positions)
        if rotary and self.width // self.heads % 2:
            raise ValueError(
                f"model.width / model.heads must be even for rotary positions, got {self.width} / {self.heads}"
            )
        return self


PADDING_SEGMENT = -1
"""The segment id of padding positions."""
IGNORE_INDEX = -100
"""The target of a position that the loss ignores."""

AttentionDirection = Literal["causal", "bidirectional"]
"""causal: a token attends to earlier tokens. bidirectional: to all tokens."""


class TokenizerConfig(Section):
    """Training of a byte-level BPE tokenizer, if none is given."""

    vocab_size: int = Field(16384, ge=260, le=1_000_000)
    """Vocabulary size. It includes the 256 bytes and the special tokens."""
    megabytes: float = Field(100.0, gt=0, le=1e9)
    """Maximum amount of text to train the tokenizer on, in megabytes. The first documents are used."""


class CorpusConfig(Section):
    """Reading of unlabelled text."""

    text_column: str | None = None
    """Column or key of the text. By default, a common name such as text, review or sentence is looked for."""
    encoding: str | None = None
    """Encoding of files that are not UTF-8, such as cp1252."""
    documents: Literal["line", "file"] = "line"
    """Unit of a document in .txt files: each line, or the whole file."""
    exclude: str | None = None
    """Files whose texts are removed from training, such as a test file. Near-duplicates are removed, too; several files are
    separated by commas.
    """
    held_out: float = Field(0.01, gt=0, lt=1)
    """Fraction of the documents held out to evaluate the language model."""
    layout: Literal["packed", "documents"] = "packed"
    """Layout of the training rows. packed: documents are concatenated into full rows, without attention between them;
    documents: one document per row, truncated to the context.
    """

    @model_validator(mode="after")
    def _encoding_is_known(self) -> Self:
        _check_encoding(self.encoding, "corpus.encoding")
        return self


class MaskingConfig(Section):
    """Token masking of the objectives masked and hybrid."""

    rate: float = Field(0.3, gt=0, lt=1)
    """Fraction of the tokens to predict."""
    masked: float = Field(0.8, ge=0, le=1)
    """Fraction of the predicted tokens that are replaced with the mask token."""
    random: float = Field(0.1, ge=0, le=1)
    """Fraction of the predicted tokens that are replaced with a random token. The rest are left unchanged."""
    causal: float = Field(0.25, ge=0, le=1)
    """hybrid only: fraction of the batches that are trained with the causal objective."""

    @model_validator(mode="after")
    def _fractions_fit(self) -> Self:
        if self.masked + self.random > 1:
            raise ValueError(
                f"masking.masked and masking.random must add up to at most 1, got {self.masked} and {self.random}"
            )
        return self


class NextSentenceConfig(Section):
    """Next-sentence prediction, a second loss of the objectives masked and hybrid."""

    weight: float = Field(0.0, ge=0)
    """Weight of the next-sentence loss; 0 disables it. Otherwise rows are `<sos> A <eos> B`, and in half of them B is
    from another document.
    """


class StageConfig(Section):
    """A stage of pretraining, with its own text and row length."""

    texts: list[str] = Field(min_length=1)
    """Text files, folders, glob patterns or URLs, or one prepared folder."""
    fraction: float = Field(1.0, gt=0, le=1e9)
    """Fraction of the steps, relative to the other stages: 3 and 1 are 0.75 and 0.25."""
    context: int | None = Field(None, ge=2, le=2**24)
    """Tokens per row, at most model.context. Shorter rows give larger batches, so that the tokens per step stay the
    same.
    """

    @field_validator("texts", mode="before")
    @classmethod
    def _one_text_needs_no_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class OptimConfig(Section):
    """Optimizer and learning rate schedule."""

    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Optimizer. adamw: Adam with decoupled weight decay; muon: Muon for the weight matrices of the layers and AdamW
    for all other parameters.
    """
    lr: float = Field(3e-4, ge=MIN_LR, le=MAX_LR)
    """Peak learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of matrices (adamw and muon). Biases and normalization weights are not decayed."""
    beta2: float = Field(0.999, gt=0, lt=1)
    """Adam's beta2, the decay rate of the running average of the squared gradient."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Warmup fraction: the fraction of the steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning rate schedule after the warmup. wsd (warmup, stable, decay): constant, then decreasing to 0 over the
    last steps.
    """
    cooldown: float = Field(0.4, gt=0, le=1)
    """wsd only: fraction of the steps over which the learning rate decreases."""
    clip: float = Field(0.5, ge=0)
    """Gradient clipping norm; 0 disables clipping."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average (EMA) of the weights, which is evaluated and saved instead of the weights;
    0 disables it.
    """

    @model_validator(mode="after")
    def _decay_needs_adamw(self) -> Self:
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(f"optim.weight_decay needs optim.optimizer adamw or muon, got {self.optimizer}")
        return self


class PretrainLoop(Section):
    """Training length, batch size, evaluation and checkpoints."""

    epochs: float = Field(1.0, gt=0, le=1e9)
    """Number of passes over the training text. Ignored if steps is set."""
    steps: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Number of optimizer steps, instead of epochs."""
    minutes: float | None = Field(None, gt=0, le=MAX_MINUTES)
    """Total time of the command in minutes, instead of epochs or steps: as many steps are trained as fit. The plan is
    revised during training.
    """
    batch_size: int = Field(16, ge=1, le=MAX_COUNT)
    """Batch size in rows."""
    accumulate: int = Field(1, ge=1, le=MAX_COUNT)
    """Number of forward passes per optimizer step (gradient accumulation)."""
    evaluate_every: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Steps between evaluations on the held-out text. By default, about ten evaluations per run, fewer in a short run."""
    evaluate_tokens: int = Field(50_000, ge=1, le=MAX_COUNT)
    """Number of held-out tokens per evaluation. The final evaluation uses all of them, or fewer after a short run."""
    patience: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Stop after this many evaluations without a lower held-out loss and keep the best weights. By default, training
    does not stop early; with --from, the patience is 3.
    """
    save_every: int = Field(200, ge=1, le=MAX_COUNT)
    """Steps between checkpoints. An interrupted run also saves one."""
    keep: int = Field(2, ge=1, le=MAX_COUNT)
    """Number of checkpoints to keep."""
    prompt: str = ""
    """Prompt for the sample that is generated at each evaluation. By default, the beginning of a held-out text."""


class FinetuneLoop(Section):
    """Training length, batch size, model selection and checkpoints."""

    epochs: int = Field(15, ge=1, le=MAX_COUNT)
    """Number of passes over the training rows."""
    min_steps: int = Field(0, ge=0, le=MAX_COUNT)
    """Minimum number of optimizer steps: a small training file is repeated within an epoch."""
    min_steps_per_label: int = Field(0, ge=0, le=MAX_COUNT)
    """Minimum number of optimizer steps per label; the larger of the two minimums applies."""
    max_steps: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Maximum number of optimizer steps: a large training file is trained for fewer epochs, at least one. By default,
    there is no maximum.
    """
    batch_size: int = Field(8, ge=1, le=MAX_COUNT)
    """Batch size in texts."""
    accumulate: int = Field(1, ge=1, le=MAX_COUNT)
    """Number of forward passes per optimizer step (gradient accumulation)."""
    patience: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Stop after this many epochs without a better validation result. By default, all epochs are trained."""
    select: Literal["best", "last"] = "best"
    """Weights to keep. best: those of the epoch with the best validation result; last: those of the last epoch, for use
    with a decreasing learning rate.
    """
    minutes: float | None = Field(None, gt=0, le=MAX_MINUTES)
    """Maximum total time of the command in minutes; fewer epochs are trained if necessary. By default, there is no
    limit.
    """
    save_every: int = Field(500, ge=1, le=MAX_COUNT)
    """Steps between checkpoints. The end of an epoch and an interruption also save one."""
    keep: int = Field(1, ge=1, le=MAX_COUNT)
    """Number of checkpoints to keep, in addition to the best weights."""
    watch_test: bool = False
    """Also evaluate on the test file after every epoch, as the published experiment did. The results are recorded and
    not used for selection.
    """

    @model_validator(mode="after")
    def _patience_needs_a_selection(self) -> Self:
        if self.select == "last" and self.patience is not None:
            raise ValueError(
                "loop.patience needs loop.select best, got last: without a best epoch there is no early stopping"
            )
        return self


class TransferConfig(Section):
    """How the pretrained backbone is fine-tuned."""

    freeze: bool = False
    """Freeze the backbone and train only the head."""
    unfreeze_every: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Gradual unfreezing: train only the head first, then unfreeze one more layer from the top every so many epochs. By
    default, all layers are trained from the start.
    """
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Layer-wise learning rate decay: the learning rate of a layer, as a fraction of that of the layer above. 1
    disables it.
    """
    head_lr_multiplier: float = Field(1.0, gt=0)
    """Learning rate of the head, as a multiple of optim.lr."""
    context: int | None = Field(None, ge=3, le=2**24)
    """Maximum sequence length in tokens. By default, that of the pretrained model; learned positions limit it."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout probability. By default, that of the pretrained model."""
    attention: Literal["auto", "causal", "bidirectional"] = "auto"
    """Attention direction of the classifier. auto: that of the pretraining objective."""
    class_weights: dict[str, float] | Literal["balanced"] | None = None
    """Class weights in the loss, as LABEL=WEIGHT pairs, or balanced for weights inversely proportional to class
    frequencies. By default, all are 1.
    """

    @model_validator(mode="after")
    def _freezing_settings_exclude_each_other(self) -> Self:
        if self.freeze and self.unfreeze_every:
            raise ValueError("transfer.freeze and transfer.unfreeze_every cannot be combined; set one of them")
        if isinstance(self.class_weights, dict) and any(not weight > 0 for weight in self.class_weights.values()):
            raise ValueError(f"transfer.class_weights must all be greater than 0, got {self.class_weights}")
        return self


class RuntimeConfig(Section):
    """Device, precision, seed and parallel execution."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Random seed."""
    device: str = "auto"
    """Device, such as cpu, cuda:1 or mps. auto: CUDA if available, then MPS, then the CPU."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products. auto: bf16 on CUDA, and on CPUs with native bf16 for networks of width 128 or more; fp32
    elsewhere. Weights are stored in fp32. On a CPU, auto predicts close decisions again in fp32."""
    threads: int | None = Field(None, ge=1, le=MAX_THREADS)
    """Number of CPU threads. By default, the number of idle cores at the start. A resumed run uses the recorded number,
    because results depend on it in the last digits.
    """
    deterministic: bool = False
    """Use deterministic kernels on a GPU: bit-identical results in every run, but slower. CPU runs are always
    deterministic.
    """
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Parallelism of several processes started by torchrun. ddp: each process has the full model; fsdp: model and
    optimizer state are sharded.
    """
    recompute: bool = False
    """Activation checkpointing: recompute activations in the backward pass, which saves memory and is slower."""
    compile: bool | None = None
    """Compile the network with torch.compile: slower start, faster steps on a GPU. By default, only long pretraining
    runs on a GPU are compiled.
    """
    time_limit: float | None = Field(None, gt=0, le=MAX_MINUTES)
    """Minutes after which the run saves a checkpoint and stops with exit status 75, for job schedulers. By default,
    there is no limit.
    """


class PretrainConfig(Section):
    """The settings of pretraining."""

    objective: Literal["causal", "masked", "hybrid"] = "causal"
    """Training objective: causal, masked or hybrid. causal: predict the next token; masked: predict masked tokens; hybrid:
    alternate between both.
    """
    stages: list[StageConfig] = Field([])
    """Stages of pretraining, trained one after the other, instead of TEXTS."""
    masking: MaskingConfig = MaskingConfig()
    next_sentence: NextSentenceConfig = NextSentenceConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    corpus: CorpusConfig = CorpusConfig()
    optim: OptimConfig = OptimConfig()
    loop: PretrainLoop = PretrainLoop()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _rows_fit_the_model(self) -> Self:
        for number, stage in enumerate(self.stages, start=1):
            if stage.context is not None and stage.context > self.model.context:
                raise ValueError(
                    f"stages.{number}.context must be at most model.context, got {stage.context} and {self.model.context}"
                )
        if self.loop.minutes is None and self.loop.steps is not None and self.loop.steps < len(self.stages):
            raise ValueError(
                f"loop.steps must be at least the number of stages, got {self.loop.steps} for {len(self.stages)} stages"
            )
        return self

    @model_validator(mode="after")
    def _next_sentence_needs_bidirectional_attention(self) -> Self:
        if self.next_sentence.weight and self.objective == "causal":
            raise ValueError(
                "next_sentence.weight needs objective masked or hybrid, got causal: with causal attention the start token "
                "cannot attend to the two texts"
            )
        return self


class FinetuneConfig(Section):
    """The settings of fine-tuning."""

    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    labelled: LabelledConfig = LabelledConfig()
    optim: OptimConfig = OptimConfig(lr=1e-4)
    loop: FinetuneLoop = FinetuneLoop()
    transfer: TransferConfig = TransferConfig()
    runtime: RuntimeConfig = RuntimeConfig()
