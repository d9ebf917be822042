"""`headstart prepare`: encode text files, labelled or unlabelled, into token shards."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import ConfigFile, Flags, Options, Out, Quiet, Tokenizer, option_flag
from headstart.config.merge import Settings
from headstart.config.schema import CorpusConfig, LabelledConfig, Section, TokenizerConfig
from headstart.errors import UsageError
from headstart.progress import pluralize


class PrepareSettings(Section):
    """The settings of this command."""

    corpus: CorpusConfig = CorpusConfig()
    labelled: LabelledConfig = LabelledConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()


OPTIONS = Options(
    PrepareSettings,
    names={
        name: option_flag(name)
        for name in (
            "corpus.text_column",
            "corpus.documents",
            "corpus.encoding",
            "corpus.exclude",
            "labelled.label_column",
            "labelled.skip_empty",
            "tokenizer.vocab_size",
            "tokenizer.megabytes",
        )
    },
)


Jobs = Annotated[
    int,
    Parameter(metavar="INT", help="Number of worker processes; each encodes one file at a time."),
]


@OPTIONS.on
def prepare(
    *texts: Annotated[str, Parameter(name="TEXTS", required=True, help="Text files, folders, glob patterns or URLs.")],
    out: Out,
    tokenizer: Tokenizer = None,
    labelled: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Also store the labels, for finetune and compare.")
    ] = False,
    jobs: Jobs = 1,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Encode text files into token shards."""
    settings = OPTIONS.settings(flags, path=config)
    if labelled and tokenizer is None:
        raise UsageError("prepare --labelled needs --tokenizer, the tokenizer of the model that will use the shards")
    if labelled and settings.corpus.exclude:
        raise UsageError("--exclude cannot be used with --labelled; it is for pretraining text")
    if labelled and len(texts) > 1:
        raise UsageError(f"prepare --labelled needs exactly one file, got {len(texts)}")
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")
    if labelled and jobs > 1:
        raise UsageError("--jobs cannot be used with --labelled, which reads a single file")
    from headstart.recipes.prepare import PrepareRequest, run_prepare, run_prepare_labelled

    console = Console(quiet=quiet)
    if labelled:
        assert tokenizer is not None
        config_labelled = _labelled_config(settings, OPTIONS.typed(flags))
        shards = run_prepare_labelled(texts[0], out, config_labelled, tokenizer=tokenizer, progress=console)
    else:
        request = PrepareRequest(texts, out, settings.corpus, settings.tokenizer, tokenizer, jobs)
        shards = run_prepare(request, console)
    labels = f", {pluralize(len(shards.labels), 'label')}" if shards.labels else ""
    console.result(
        f"{out}: {pluralize(shards.num_documents, 'document')}, {pluralize(shards.num_tokens, 'token')}{labels}"
    )


def _labelled_config(settings: PrepareSettings, typed: Settings) -> LabelledConfig:
    """Return the settings of labelled text: --text-column and --encoding also apply to it."""
    values = {name: typed[f"corpus.{name}"] for name in ("text_column", "encoding") if f"corpus.{name}" in typed}
    if "encoding" not in values:
        values["encoding"] = settings.labelled.encoding or settings.corpus.encoding
    return settings.labelled.model_copy(update=values)
