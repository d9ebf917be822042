"""What may be asked and what is answered, as the OpenAPI document says it."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _valid_unicode(text: str) -> str:
    """JSON can write half of a character (a lone surrogate), which is no text."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("holds half a character (a lone surrogate)")
    return text


Text = Annotated[str, AfterValidator(_valid_unicode)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class _Response(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class PredictRequest(_Request):
    """One text or several; of a model that reads pairs, the second text of each beside it."""

    text: Text | None = None
    """One text; or give `texts`."""
    pair: Text | None = None
    """The second text that belongs to `text`."""
    texts: list[Text] | None = Field(None, min_length=1)
    """Several texts; answers come in their order."""
    pairs: list[Text] | None = Field(None, min_length=1)
    """The second texts that belong to `texts`, as many."""
    abstain: float | None = Field(None, gt=0, lt=1)
    """The share of answers that should be right, such as 0.95; what is not sure enough for it is `abstain`."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        if (self.pair is not None and self.text is None) or (self.pairs is not None and self.texts is None):
            raise ValueError("pair goes with text, and pairs with texts")
        if self.texts is not None and self.pairs is not None and len(self.texts) != len(self.pairs):
            raise ValueError(f"texts has {len(self.texts)} and pairs {len(self.pairs)}; expected as many")
        return self

    def all(self) -> list[str | tuple[str, str]]:
        """The texts, or pairs of them, however they were given."""
        texts = [self.text] if self.text is not None else list(self.texts or ())
        seconds = [self.pair] if self.pair is not None else self.pairs
        return list(texts) if seconds is None else list(zip(texts, seconds, strict=True))


class SingleLabelAnswer(_Response):
    """The answer to one text."""

    label: str
    """The likeliest, or `abstain`."""
    probability: float
    """Of the likeliest."""
    probabilities: dict[str, float]
    """Of every label, in label order; calibrated on validation."""
    truncated: bool
    """True when the text was longer than the model reads, and its end was not read."""
    abstained: bool


class MultiLabelAnswer(_Response):
    """The answer to one text of a model that gives any number of labels."""

    labels: list[str]
    """Those whose probability reaches their threshold."""
    probabilities: dict[str, float]
    """Of every label by itself, in label order; calibrated on validation."""
    truncated: bool


class RegressionAnswer(_Response):
    """The answer to one text of a model that gives a number."""

    value: float
    """Within the bounds that `/about` names."""
    truncated: bool


class PredictAnswer(_Response):
    """The answers in the order of the texts; `/about` says of which kind."""

    labels: list[str]
    predictions: list[SingleLabelAnswer] | list[MultiLabelAnswer] | list[RegressionAnswer]


ANSWER_TYPES: dict[str, type[SingleLabelAnswer | MultiLabelAnswer | RegressionAnswer]] = {
    "classes": SingleLabelAnswer,
    "labels": MultiLabelAnswer,
    "rating": RegressionAnswer,
}


class ExplainRequest(_Request):
    """A text, and the label that is to be explained: the classifier's own answer, if none is named."""

    text: Text
    pair: Text | None = None
    """The second text, of a model that reads pairs."""
    label: Text | None = None


class Weight(_Response):
    """A word, and how much it spoke for the label: below 0, against it."""

    text: str
    weight: float


class ExplainAnswer(_Response):
    """The words that were read, in order; their weights add up to margin - baseline, but for the error."""

    label: str
    words: list[Weight]
    margin: float
    baseline: float
    error: float
    truncated: bool


class GenerateRequest(_Request):
    """A prompt, and how the next token is chosen."""

    prompt: Text = ""
    tokens: int = Field(50, ge=1)
    """At most so many tokens."""
    temperature: float = Field(0.0, ge=0, le=100)
    """0 always takes the likeliest token."""
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(0, ge=0, lt=2**31)
    stream: bool = True
    """Server-sent events as the text grows: `{"text": piece}`, at last `{"done": reason}`; false waits for the whole."""


class GenerateAnswer(_Response):
    """A continuation, without the prompt."""

    text: str
    done: str
    """Why it ended: `end` of the text, `length`, or `deadline`."""


class NextRequest(_Request):
    """A text, and how many ways to go on are wanted."""

    prompt: Text
    count: int = Field(5, ge=1, le=50)


class NextAnswer(_Response):
    """The likeliest pieces of text that come next, with their probabilities as weights; an empty one is the end."""

    pieces: list[Weight]


class ErrorBody(_Response):
    """Why there is no answer."""

    error: str
    """A word for programs."""
    detail: str
    """A sentence for people."""
