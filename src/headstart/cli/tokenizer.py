"""`headstart tokenizer`: train a byte-level BPE tokenizer and report how well it fits the text."""

from typing import Annotated

from cyclopts import Parameter

from headstart.cli.console import Console
from headstart.cli.options import ConfigFile, Flags, Options, Out, Quiet
from headstart.config.schema import CorpusConfig, Section, TokenizerConfig


class TokenizerSettings(Section):
    """The settings of this command."""

    tokenizer: TokenizerConfig = TokenizerConfig()
    corpus: CorpusConfig = CorpusConfig()


OPTIONS = Options(
    TokenizerSettings,
    names={
        "tokenizer.vocab_size": "--vocab-size",
        "tokenizer.megabytes": "--megabytes",
        "corpus.text_column": "--text-column",
        "corpus.documents": "--documents",
        "corpus.encoding": "--encoding",
        "corpus.exclude": "--exclude",
    },
)


@OPTIONS.on
def tokenizer(
    *texts: Annotated[str, Parameter(name="TEXTS", required=True, help="Text files, folders, glob patterns or URLs.")],
    out: Out,
    flags: Flags | None = None,
    config: ConfigFile = None,
    quiet: Quiet = False,
) -> None:
    """Train a tokenizer and report how well it fits the text."""
    settings = OPTIONS.settings(flags, path=config)
    from headstart.files import read_manifest
    from headstart.recipes.prepare import run_tokenizer

    console = Console(quiet=quiet)
    report = run_tokenizer(texts, out, settings.tokenizer, settings.corpus, console)
    entries, requested = read_manifest(out, kind="tokenizer")["vocab_size"], settings.tokenizer.vocab_size
    rows = [
        ("entries", f"{entries:,}" if entries == requested else f"{entries:,} of {requested:,} requested"),
        ("measured on the first", "1 document" if report.documents == 1 else f"{report.documents:,} documents"),
        ("bytes", f"{report.bytes:,}"),
        ("words", f"{report.words:,}"),
        ("tokens", f"{report.tokens:,}"),
        ("bytes per token", f"{report.bytes_per_token:.2f}"),
        ("tokens per word", f"{report.tokens_per_word:.2f}"),
        ("unknown tokens", f"{report.unknown_rate:.2%}"),
        ("vocabulary used", f"{report.vocab_used:.1%}"),
    ]
    console.table(["tokenizer", str(out)], rows)
