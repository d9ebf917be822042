"""Request and response bodies, as the OpenAPI document describes them."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _valid_unicode(text: str) -> str:
    """Reject lone surrogates, which JSON can encode although they are not text."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("contains an unpaired surrogate")
    return text


Text = Annotated[str, AfterValidator(_valid_unicode)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class _Response(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class PredictRequest(_Request):
    """One text or several; for a model of text pairs, also the second text of each."""

    text: Text | None = None
    """One text; or give `texts`."""
    pair: Text | None = None
    """The second text that belongs to `text`."""
    texts: list[Text] | None = Field(None, min_length=1)
    """Several texts; predictions are in the same order."""
    pairs: list[Text] | None = Field(None, min_length=1)
    """The second texts that belong to `texts`, of the same number."""
    abstain: float | None = Field(None, gt=0, lt=1)
    """Required precision, such as 0.95; the label of predictions below it is `abstain`."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("expected either text or texts")
        if (self.pair is not None and self.text is None) or (self.pairs is not None and self.texts is None):
            raise ValueError("pair needs text, and pairs needs texts")
        if self.texts is not None and self.pairs is not None and len(self.texts) != len(self.pairs):
            raise ValueError(f"texts has {len(self.texts)} and pairs {len(self.pairs)}; expected the same number")
        return self

    def text_inputs(self) -> list[str | tuple[str, str]]:
        """Return the texts or pairs of texts of the request."""
        texts = [self.text] if self.text is not None else list(self.texts or ())
        pairs = [self.pair] if self.pair is not None else self.pairs
        return list(texts) if pairs is None else list(zip(texts, pairs, strict=True))


class SingleLabelAnswer(_Response):
    """The prediction for one text."""

    label: str
    """The most probable label, or `abstain`."""
    probability: float
    """The probability of the most probable label."""
    probabilities: dict[str, float]
    """The probability of every label, in label order, calibrated on validation."""
    truncated: bool
    """True if the text was longer than the context of the model and was truncated."""
    abstained: bool


class MultiLabelAnswer(_Response):
    """The prediction of a multi-label classifier for one text."""

    labels: list[str]
    """The labels whose probability reaches their threshold."""
    probabilities: dict[str, float]
    """The independent probability of every label, in label order, calibrated on validation."""
    truncated: bool


class RegressionAnswer(_Response):
    """The prediction of a regression model for one text."""

    value: float
    """A number within the bounds of the task, which `/about` has."""
    truncated: bool


class BlankAnswer(_Response):
    """The error for a blank text among several, in place of a prediction."""

    error: str = "the text is empty"


class PredictAnswer(_Response):
    """The predictions in the order of the texts; `/about` has the task."""

    labels: list[str]
    predictions: (
        list[SingleLabelAnswer | BlankAnswer]
        | list[MultiLabelAnswer | BlankAnswer]
        | list[RegressionAnswer | BlankAnswer]
    )


ANSWER_TYPES: dict[str, type[SingleLabelAnswer | MultiLabelAnswer | RegressionAnswer]] = {
    "classes": SingleLabelAnswer,
    "labels": MultiLabelAnswer,
    "rating": RegressionAnswer,
}


class ExplainRequest(_Request):
    """A text, and the label to explain; by default the label that the classifier predicts."""

    text: Text
    pair: Text | None = None
    """The second text, for a model of text pairs."""
    label: Text | None = None


class Weight(_Response):
    """A word, and how much it contributed to the label; a negative weight is evidence against it."""

    text: str
    weight: float


class ExplainAnswer(_Response):
    """The words in order; their weights add up to margin - baseline, up to the error."""

    label: str
    words: list[Weight]
    margin: float
    baseline: float
    error: float
    truncated: bool


class GenerateRequest(_Request):
    """A prompt, and how the next token is sampled."""

    prompt: Text = ""
    tokens: int = Field(50, ge=1)
    """The maximum number of tokens."""
    temperature: float = Field(0.0, ge=0, le=100)
    """0 always selects the most probable token."""
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(0, ge=0, lt=2**31)
    stream: bool = True
    """Send server-sent events as the text grows: `{"text": piece}`, finally `{"done": reason}`; false sends one response."""


class GenerateAnswer(_Response):
    """A continuation, without the prompt."""

    text: str
    done: str
    """The reason for the end: `end` of the text, `length`, or `deadline`."""


class NextRequest(_Request):
    """A prompt, and how many candidates for the next token to return."""

    prompt: Text
    count: int = Field(5, ge=1, le=50)


class NextAnswer(_Response):
    """The most probable next pieces of text, with their probabilities as weights; an empty piece is the end."""

    pieces: list[Weight]


class ErrorBody(_Response):
    """An error."""

    error: str
    """An error code."""
    detail: str
    """A description of the error."""
