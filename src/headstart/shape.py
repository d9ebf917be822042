"""The shape of a network: all that is needed to rebuild it besides the vocabulary size. No torch here."""

from typing import Literal, Self

from pydantic import Field, model_validator

from headstart.sections import Section

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


class StockConfig(Section):
    """The layers, positions and heads of a stock architecture beside its sizes: the model brings them, nobody types them."""

    family: Literal["bert", "distilbert", "roberta", "camembert", "xlm-roberta", "modernbert", "gpt2", "opt"]
    """The architecture it came as, and may go out as again."""
    norm_first: bool
    """Whether a layer norms what it reads (pre-norm), or what it has written (post-norm)."""
    norm_bias: bool = True
    """Whether norms have a bias."""
    bias: bool = True
    """Whether the matrices of a layer have one."""
    activation: Activation = "gelu"
    """Between the matrices of the feed-forward part."""
    gated: bool = False
    """Whether the feed-forward part multiplies what was activated with a second reading."""
    positions: int = Field(0, ge=0)
    """Learned positions, and so the longest text there can be; 0 where positions are angles."""
    embedding_norm: bool = False
    """Whether embeddings are normed; with norm_first, the first layer then does not do it again."""
    final_norm: bool = False
    """Whether the last layer's output is."""
    window: int = Field(0, ge=0)
    """How far a local layer sees to each side."""
    local_layers: tuple[int, ...] = ()
    """The layers that see no further than that, counted from 0."""
    local_base: float = Field(10000.0, gt=0)
    """The base of their rotary angles."""
    transform: bool = False
    """Whether the language head begins with a matrix, an activation and a norm."""
    transform_activation: Activation = "gelu"
    """The activation in it."""
    transform_bias: bool = True
    """Whether the matrix in it has a bias."""
    head_bias: bool = False
    """Whether each entry of the vocabulary has a bias."""
    pooling: Literal["first", "mean"] = "mean"
    """What a classifier that reads both ways takes of a text: its first token, or the mean over all."""
    classifier: Literal["tanh", "relu", "transform"] = "tanh"
    """What lies before its last layer: a matrix and tanh or ReLU, or what begins the language head."""


class ModelConfig(Section):
    """The shape of a backbone: all that is needed to rebuild it besides the vocabulary size."""

    block: Literal["classic", "modern", "stock"] = "classic"
    """classic: post-norm, sinusoids, ReLU, biases, untied. modern: pre-norm RMSNorm, rotary, SwiGLU, no biases, tied."""
    width: int = Field(200, ge=1)
    """Width of the hidden states."""
    depth: int = Field(4, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Attention heads a layer; the width must be a multiple."""
    feedforward: int = Field(200, ge=1)
    """Width between the two matrices of the feed-forward part."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of activations dropped in training."""
    context: int = Field(512, ge=2)
    """Longest sequence in tokens, the start token included: rows of pretraining, and the cut of longer texts."""
    rotary_base: float = Field(10000.0, gt=0)
    """modern only: the base of the rotary angles; models from elsewhere bring their own."""
    norm_epsilon: float = Field(1e-5, gt=0)
    """modern only: what keeps the norms from dividing by nothing; models from elsewhere bring their own."""
    tied: bool = True
    """modern only: whether the language head is the embedding again."""
    stock: StockConfig | None = None
    """stock only: what its layers are made of; only a model from elsewhere brings it."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if (self.block == "stock") != (self.stock is not None):
            raise ValueError("model.block stock is the kind of models from elsewhere: bring one with --from hf:FOLDER")
        if self.stock and self.stock.positions and self.context > self.stock.positions:
            raise ValueError(
                f"model.context must be at most the {self.stock.positions} positions it has learnt, got {self.context}"
            )
        if self.width % self.heads:
            raise ValueError(f"model.width must be a multiple of model.heads, got {self.width} and {self.heads}")
        if self.block == "classic" and self.width % 2:
            raise ValueError(f"model.width must be even for sinusoidal positions, got {self.width}")
        rotary = self.block == "modern" or (self.stock is not None and not self.stock.positions)
        if rotary and self.width // self.heads % 2:
            raise ValueError(
                f"model.width / model.heads must be even for rotary positions, got {self.width} / {self.heads}"
            )
        return self
