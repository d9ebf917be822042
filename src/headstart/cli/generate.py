"""`headstart generate`: generate text with a language model."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME_OPTIONS, ConfigFile, Flags, InferenceSettings, ModelOrStarter, Options, Quiet
from headstart.errors import ConfigError, UsageError

OPTIONS = Options(InferenceSettings, names=RUNTIME_OPTIONS)


@OPTIONS.on
def generate(
    model: ModelOrStarter,
    prompt: Annotated[str, Parameter(name="PROMPT", help="Text to continue; may be empty.")],
    /,
    *,
    tokens: Annotated[int, Parameter(metavar="INT", help="Maximum number of tokens to generate.")] = 50,
    temperature: Annotated[
        float, Parameter(metavar="FLOAT", help="Sampling temperature; 0 always selects the most probable token.")
    ] = 0.0,
    top_k: Annotated[
        int | None, Parameter(metavar="INT", help="Sample only from this many most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        Parameter(
            metavar="FLOAT", help="Sample only from the most probable tokens whose probabilities add up to this."
        ),
    ] = None,
    samples: Annotated[int, Parameter(metavar="INT", help="Number of continuations.")] = 1,
    seed: Annotated[int, Parameter(metavar="INT", help="Random seed.")] = 0,
    no_cache: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Disable the key-value cache: the same text, slower."),
    ] = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Generate text with a pretrained language model; print the prompt before each continuation."""
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
