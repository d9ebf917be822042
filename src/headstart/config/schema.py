"""Every setting, in frozen pydantic sections. No torch.

Command line, TOML file and Python share them: a setting has one name, default, bound and docstring, and the docstring
is its text in `--help`.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """A group of settings: frozen, and refusing unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class LabelledConfig(Section):
    """How labelled text is read."""

    text_column: str | None = None
    """The column or key that holds the text; without it, the usual names are tried."""
    label_column: str | None = None
    """The column or key that holds the label; without it, the usual names are tried."""
    second_column: str | None = None
    """The column of a second text: a row is then a pair, such as a premise and a hypothesis, and is read as one."""
    task: Literal["auto", "classes", "labels", "rating"] = "auto"
    """classes: one label a text. labels: any number or none. rating: a number. auto: labels for lists, else classes."""
    separator: str | None = Field(None, min_length=1)
    """What stands between the labels of a cell that holds several, such as ; (lists in JSON and parquet need none)."""
    lowest: float | None = Field(None, allow_inf_nan=False)
    """rating only: a smaller number is refused, and none is answered; without it, the smallest of train."""
    highest: float | None = Field(None, allow_inf_nan=False)
    """rating only: a larger number is refused, and none is answered; without it, the largest of train."""
    skip_empty: bool = False
    """Leave out rows without a text or without a label, and say how many; without it, the first one stops training."""
    valid_fraction: float = Field(0.2, gt=0, lt=1)
    """Without a validation file, this stratified fraction of train is held out to choose on."""
    long_texts: Literal["truncate", "windows"] = "truncate"
    """Texts beyond the context: truncate counts and reports them; windows reads all of it and averages the logits."""

    @model_validator(mode="after")
    def _settings_fit_the_task(self) -> Self:
        if self.separator is not None and self.task not in ("auto", "labels"):
            raise ValueError(f"labelled.separator is for several labels a text, got labelled.task {self.task}")
        if self.task != "rating":
            for name in ("lowest", "highest"):
                if getattr(self, name) is not None:
                    raise ValueError(f"labelled.{name} is for numbers; add labelled.task rating, got {self.task}")
        if self.lowest is not None and self.highest is not None and self.lowest >= self.highest:
            raise ValueError(
                f"labelled.lowest must be below labelled.highest, got {self.lowest:g} and {self.highest:g}"
            )
        if self.second_column is not None and self.long_texts == "windows":
            raise ValueError(
                "labelled.long_texts windows does not go with labelled.second_column: a window would hold one text of a pair"
            )
        return self


Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


class GenericConfig(Section):
    """The layers, positions and heads of an imported architecture; read from the model, never typed."""

    family: Literal["bert", "distilbert", "roberta", "camembert", "xlm-roberta", "modernbert", "gpt2", "opt"]
    """The architecture it was imported from, and can be exported to."""
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
    positions: int = Field(0, ge=0)
    """The number of learned positions, which bounds the text length; 0 with rotary positions."""
    embedding_norm: bool = False
    """True if embeddings are normed; with norm_first, the first layer then has no norm before attention."""
    final_norm: bool = False
    """True if the output of the last layer is normed."""
    window: int = Field(0, ge=0)
    """The sliding window of a local layer, in tokens to each side."""
    local_layers: tuple[int, ...] = ()
    """The layers with sliding-window attention, counted from 0."""
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
    """The shape of a backbone: all that is needed to rebuild it besides the vocabulary size."""

    block: Literal["classic", "modern", "generic"] = "classic"
    """classic: post-norm, sinusoids, ReLU, biases, untied. modern: pre-norm RMSNorm, rotary, SwiGLU, no biases, tied."""
    width: int = Field(200, ge=1)
    """Width of the hidden states."""
    depth: int = Field(4, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Attention heads per layer; the width must be a multiple."""
    feedforward: int = Field(200, ge=1)
    """Width between the two matrices of the feed-forward part."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Fraction of activations dropped in training."""
    context: int = Field(512, ge=2)
    """Longest sequence in tokens, the start token included: rows of pretraining, and the cut of longer texts."""
    rotary_base: float = Field(10000.0, gt=0)
    """modern only: the base of the rotary angles; imported models bring their own."""
    norm_epsilon: float = Field(1e-5, gt=0)
    """modern only: the epsilon of the norms; imported models bring their own."""
    tied: bool = True
    """modern only: the language head has the weights of the embedding."""
    generic: GenericConfig | None = None
    """generic only: the architecture of an imported model."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if (self.block == "generic") != (self.generic is not None):
            raise ValueError("model.block generic is the kind of imported models: bring one with --from hf:FOLDER")
        if self.generic and self.generic.positions and self.context > self.generic.positions:
            raise ValueError(
                f"model.context must be at most the {self.generic.positions} positions it has learnt, got {self.context}"
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
"""The segment of a padding position: it belongs to no document."""
IGNORE_INDEX = -100
"""The target of a position that the loss ignores."""

AttentionDirection = Literal["causal", "bidirectional"]
"""The tokens that attention may see: the earlier ones, or those on both sides."""


class TokenizerConfig(Section):
    """How a byte-level BPE is trained in the flow when no tokenizer is given."""

    vocab_size: int = Field(16384, ge=260, le=1_000_000)
    """Entries of the vocabulary, the 256 bytes and the special tokens included."""
    megabytes: float = Field(100.0, gt=0)
    """At most this much text is read to learn the merges; the first documents in order are taken."""


class CorpusConfig(Section):
    """How unlabelled text is read and laid out in rows."""

    text_column: str | None = None
    """The column or key that holds the text; without it, the usual names are tried."""
    documents: Literal["line", "file"] = "line"
    """In .txt files, what one document is: a line, or the whole file."""
    exclude: str | None = None
    """Files, separated by commas, whose texts (such as test rows) and near-duplicates of them are not learnt from."""
    held_out: float = Field(0.01, gt=0, lt=1)
    """Fraction of the documents kept from training and used to measure the language model."""
    layout: Literal["packed", "documents"] = "packed"
    """packed: documents end to end in full rows, unseen by each other; documents: one a row, cut at the context."""


class MaskingConfig(Section):
    """Which tokens the masked and hybrid objectives mask."""

    rate: float = Field(0.3, gt=0, lt=1)
    """Fraction of the tokens that are to be predicted."""
    masked: float = Field(0.8, ge=0, le=1)
    """Of those, the fraction replaced by the mask token."""
    random: float = Field(0.1, ge=0, le=1)
    """Of those, the fraction replaced by any token; the rest stay as they are."""
    causal: float = Field(0.25, ge=0, le=1)
    """hybrid only: the fraction of batches that are read left to right, every next token predicted."""

    @model_validator(mode="after")
    def _fractions_fit(self) -> Self:
        if self.masked + self.random > 1:
            raise ValueError(
                f"masking.masked and masking.random must not exceed 1 together, got {self.masked} and {self.random}"
            )
        return self


class NextSentenceConfig(Section):
    """A second objective beside the masked tokens: do two pieces of text follow each other? (masked and hybrid)"""

    weight: float = Field(0.0, ge=0)
    """Weight of that objective in the loss; above 0 rows are `<sos> A <eos> B`, half of them with B of another document."""


class StageConfig(Section):
    """A part of pretraining with its own text and, if wanted, shorter rows."""

    texts: list[str] = Field(min_length=1)
    """Text files, folders, patterns or URLs, or one prepared folder, as without stages."""
    fraction: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Fraction of all steps, relative to the other stages: 3 and 1 is 0.75 and 0.25, and thirds need no decimals."""
    context: int | None = Field(None, ge=2)
    """Tokens per row, at most model.context; a batch has more of shorter rows: tokens per step stay the same."""

    @field_validator("texts", mode="before")
    @classmethod
    def _one_text_needs_no_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class OptimConfig(Section):
    """How the weights are optimized."""

    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """adam: what the classic experiment used. adamw: with weight decay. muon: Muon for the layers' matrices, else adamw."""
    lr: float = Field(3e-4, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Decay of matrices (adamw and muon); biases and norms never decay."""
    beta2: float = Field(0.999, gt=0, lt=1)
    """Memory of the squared gradient."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Fraction of the steps over which the rate rises from zero."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """What the rate does after the warm-up; wsd holds it, then lets it fall to zero over the last steps."""
    cooldown: float = Field(0.4, gt=0, le=1)
    """wsd only: the fraction of the steps over which the rate falls."""
    clip: float = Field(0.5, ge=0)
    """Gradients are scaled down to this norm; 0 turns clipping off."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Above 0, an exponential moving average (EMA) of the weights with this decay is measured and saved in place of them."""

    @model_validator(mode="after")
    def _decay_needs_adamw(self) -> Self:
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(f"optim.weight_decay needs optim.optimizer adamw or muon, got {self.optimizer}")
        return self


class PretrainLoop(Section):
    """How long pretraining lasts, in what batches, and how often it is measured and saved."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the training text; ignored when steps is given."""
    steps: int | None = Field(None, ge=1)
    """Optimizer steps, in place of epochs."""
    minutes: float | None = Field(None, gt=0)
    """In place of both: as many steps as this machine does in so many minutes, timed at the start and then kept."""
    batch_size: int = Field(16, ge=1)
    """Rows per forward pass."""
    accumulate: int = Field(1, ge=1)
    """Forward passes per optimizer step: the same gradient as one batch this many times larger."""
    evaluate_every: int = Field(200, ge=1)
    """Steps between measurements on held-out text."""
    evaluate_tokens: int = Field(50_000, ge=1)
    """Held-out tokens measured each time; the end of the run measures all of them."""
    save_every: int = Field(200, ge=1)
    """Steps between checkpoints; an interruption saves one too."""
    keep: int = Field(2, ge=1)
    """Checkpoints kept."""
    prompt: str = ""
    """Continued at each evaluation, so that a person can read how it is doing; empty takes the start of a held-out text."""


class FinetuneLoop(Section):
    """How long fine-tuning lasts, and in what batches."""

    epochs: int = Field(15, ge=1)
    """Passes over the labelled rows; validation chooses among them."""
    min_steps: int = Field(0, ge=0)
    """Few rows are read several times per epoch, until the run has at least this many steps."""
    max_steps: int | None = Field(None, ge=1)
    """Many rows are read in fewer epochs, full ones and at least one, so that the run has no more steps than this."""
    batch_size: int = Field(8, ge=1)
    """Texts per forward pass."""
    accumulate: int = Field(1, ge=1)
    """Forward passes per optimizer step."""
    patience: int | None = Field(None, ge=1)
    """Stop after this many epochs without a better validation result; unset runs every epoch."""
    select: Literal["best", "last"] = "best"
    """The weights that are kept: best is the epoch with the best validation accuracy; last needs a schedule that falls."""
    minutes: float | None = Field(None, gt=0)
    """At most this long for a run: as many epochs as this machine does in so many minutes, timed at the start, then kept."""
    save_every: int = Field(500, ge=1)
    """Steps between checkpoints; the end of an epoch and an interruption save one too."""
    keep: int = Field(1, ge=1)
    """Checkpoints kept besides the best epoch's weights."""
    watch_test: bool = False
    """Also measure the test file after every epoch, as the published experiment did; recorded, never used to choose."""

    @model_validator(mode="after")
    def _patience_needs_a_selection(self) -> Self:
        if self.select == "last" and self.patience is not None:
            raise ValueError("loop.patience waits for a better epoch, which loop.select last does not look for")
        return self


class TransferConfig(Section):
    """What of the backbone is trained with the new head."""

    freeze: bool = False
    """Train the head alone."""
    unfreeze_every: int | None = Field(None, ge=1)
    """Gradual unfreezing: the head first, then one more layer from the top every so many epochs, the embedding last."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Each layer further down learns at this fraction of the rate of the one above; 1 is the same rate everywhere."""
    context: int | None = Field(None, ge=3)
    """Tokens of a text that are read, in place of what the pretrained network brings; learned positions bound it."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Fraction of activations dropped in training, in place of what the pretrained network brings."""
    attention: Literal["auto", "causal", "bidirectional"] = "auto"
    """What a token of the classifier sees: auto is what the pretrained network learnt with (from scratch: by its kind)."""
    class_weights: dict[str, float] | Literal["balanced"] | None = None
    """Weight of each class in the loss by label name, or balanced."""

    @model_validator(mode="after")
    def _freezing_settings_exclude_each_other(self) -> Self:
        if self.freeze and self.unfreeze_every:
            raise ValueError("transfer.freeze and transfer.unfreeze_every exclude each other: choose one")
        if isinstance(self.class_weights, dict) and any(not weight > 0 for weight in self.class_weights.values()):
            raise ValueError(f"transfer.class_weights must all be above 0, got {self.class_weights}")
        return self


class RuntimeConfig(Section):
    """Where and how the arithmetic runs."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Every random choice follows from it."""
    device: str = "auto"
    """auto takes CUDA, then Apple's MPS, then the CPU; or name one, such as cuda:1."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto is bf16 matrix products on CUDA and fp32 elsewhere; weights are always kept in fp32."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; unset takes the cores free at the start. Recorded and restored on resume: other threads, other bits."""
    deterministic: bool = False
    """On a GPU, the same bits every time, resumed or not: kernels that add in a fixed order, slower. A CPU has no others."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Where torchrun starts several processes. ddp: each has the full model. fsdp: each has a shard of model and optimizer."""
    recompute: bool = False
    """Activation checkpointing: layers are recomputed in the backward pass; less memory, slower, the same numbers."""
    compile: bool | None = None
    """Let torch compile the network: slower to start, faster on a GPU, other bits. Unset, long pretraining on a GPU does so."""
    time_limit: float | None = Field(None, gt=0)
    """Minutes from the start of the command after which the run saves and stops, so that a scheduler need not kill it."""


class PretrainConfig(Section):
    """Everything a pretraining run depends on besides its text."""

    objective: Literal["causal", "masked", "hybrid"] = "causal"
    """causal: every next token from those before it. masked: masked tokens from both sides. hybrid: both, in turns."""
    stages: list[StageConfig] = Field([])
    """In place of TEXTS, parts learnt one after the other: general text first, one's own last; shorter rows first."""
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
            raise ValueError(f"loop.steps must be at least one per stage, got {self.loop.steps} for {len(self.stages)}")
        return self

    @model_validator(mode="after")
    def _next_sentence_needs_bidirectional_attention(self) -> Self:
        if self.next_sentence.weight and self.objective == "causal":
            raise ValueError(
                "next_sentence.weight needs objective masked or hybrid, got causal: a start token that sees nothing cannot "
                "tell whether two pieces follow each other"
            )
        return self


class FinetuneConfig(Section):
    """Everything a fine-tuning run depends on besides its texts and where its backbone comes from."""

    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    labelled: LabelledConfig = LabelledConfig()
    optim: OptimConfig = OptimConfig(lr=1e-4)
    loop: FinetuneLoop = FinetuneLoop()
    transfer: TransferConfig = TransferConfig()
    runtime: RuntimeConfig = RuntimeConfig()
