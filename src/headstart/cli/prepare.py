"""`headstart prepare`: encode text, labelled or not, into token shards."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import ConfigFile, Flags, Options, Out, Quiet, Tokenizer
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
        "corpus.text_column": "--corpus.text-column",
        "corpus.documents": "--corpus.documents",
        "corpus.exclude": "--corpus.exclude",
        "labelled.text_column": "--labelled.text-column",
        "labelled.label_column": "--labelled.label-column",
        "labelled.skip_empty": "--labelled.skip-empty",
        "tokenizer.vocab_size": "--tokenizer.vocab-size",
        "tokenizer.megabytes": "--tokenizer.megabytes",
    },
)


Jobs = Annotated[
    int,
    Parameter(metavar="INT", help="Files at the same time, each in a process of its own; the shards are the same."),
]


@OPTIONS.on
def prepare(
    *texts: Annotated[str, Parameter(name="TEXTS", required=True, help="Text files, folders, patterns or URLs.")],
    out: Out,
    tokenizer: Tokenizer = None,
    labelled: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep the labels too: for finetune and compare.")
    ] = False,
    jobs: Jobs = 1,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Encode text into shards."""
    settings = OPTIONS.settings(flags, path=config)
    if labelled and tokenizer is None:
        raise UsageError("prepare --labelled needs --tokenizer: that of the model which will read the shards")
    if labelled and settings.corpus.exclude:
        raise UsageError("prepare --labelled keeps every row; --exclude is for the text that a model is pretrained on")
    if labelled and len(texts) > 1:
        raise UsageError(f"prepare --labelled takes one file, so that its labels have one order; got {len(texts)}")
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}")
    if labelled and jobs > 1:
        raise UsageError("prepare --labelled reads one file in one process; --jobs is for files of text")
    from headstart.recipes.prepare import PrepareRequest, run_prepare, run_prepare_labelled

    console = Console(quiet=quiet)
    if labelled:
        assert tokenizer is not None
        shards = run_prepare_labelled(texts[0], out, settings.labelled, tokenizer=tokenizer, progress=console)
    else:
        request = PrepareRequest(texts, out, settings.corpus, settings.tokenizer, tokenizer, jobs)
        shards = run_prepare(request, console)
    labels = f", {pluralize(len(shards.labels), 'label')}" if shards.labels else ""
    console.result(
        f"{out}: {pluralize(shards.num_documents, 'document')}, {pluralize(shards.num_tokens, 'token')}{labels}"
    )
