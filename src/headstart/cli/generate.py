"""`headstart generate`: continue a prompt with a language model."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME_OPTIONS, ConfigFile, Flags, InferenceSettings, Model, Options, Quiet
from headstart.errors import ConfigError, UsageError

OPTIONS = Options(InferenceSettings, names=RUNTIME_OPTIONS)


@OPTIONS.on
def generate(
    model: Model,
    prompt: Annotated[str, Parameter(name="PROMPT", help="The text to go on from; it may be empty.")],
    /,
    *,
    tokens: Annotated[int, Parameter(metavar="INT", help="At most so many tokens.")] = 50,
    temperature: Annotated[
        float, Parameter(metavar="FLOAT", help="0 always takes the likeliest token; 1 draws as the model believes.")
    ] = 0.0,
    top_k: Annotated[int | None, Parameter(metavar="INT", help="Draw among so many likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None,
        Parameter(metavar="FLOAT", help="Draw among the likeliest tokens that reach this probability together."),
    ] = None,
    samples: Annotated[int, Parameter(metavar="INT", help="Continuations to draw.")] = 1,
    seed: Annotated[int, Parameter(metavar="INT", help="Draws follow from it.")] = 0,
    no_cache: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Read all tokens again for each new one: the same text, slower."
        ),
    ] = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Print one continuation or several, with the prompt before each."""
    if samples < 1:
        raise UsageError(f"--samples must be at least 1, got {samples}")
    runtime = OPTIONS.settings(flags, path=config).runtime
    from headstart.predict.generate import Sampling, run_generate

    try:
        sampling = Sampling(tokens, temperature, top_k, top_p, seed)
    except ConfigError as error:
        raise UsageError(f"--{error}") from None
    console = Console(quiet=quiet)
    texts = run_generate(model, prompt, sampling=sampling, samples=samples, cache=not no_cache, runtime=runtime)
    for number, text in enumerate(texts):
        if number:
            console.result("---")
        console.result(prompt + text)
