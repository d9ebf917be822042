"""The commands as Python functions.

Settings have the same names as on the command line and in TOML, in a mapping with dotted or nested names
({"model": {"depth": 2}}):

    run = headstart.pretrain("reviews.txt", out="runs/base", settings={"model.depth": 2, "loop.epochs": 3})
    headstart.finetune("train.csv", out="runs/clf", backbone="runs/base")
    headstart.load("runs/clf").predict(["un livre magnifique"])
"""

import time
from collections.abc import Sequence
from pathlib import Path

from headstart.config.merge import Settings, merge_config, nest_settings, refuse_model_settings, resolve_settings
from headstart.config.schema import (
    CorpusConfig,
    FinetuneConfig,
    LabelledConfig,
    PretrainConfig,
    Section,
    TokenizerConfig,
)
from headstart.data.shards import Shards
from headstart.errors import ConfigError
from headstart.interop.export import run_export
from headstart.predict.bundle_predictor import AnyPredictor, load_predictor
from headstart.predict.error_analysis import ErrorAnalysis
from headstart.predict.explain import Explanation, explain_prediction
from headstart.predict.generate import Sampling, run_generate
from headstart.progress import Progress, SilentProgress
from headstart.recipes.auto.finish import AutoResult
from headstart.recipes.auto.run import AutoRequest, default_out, run_auto
from headstart.recipes.bench import Bench, run_bench
from headstart.recipes.compare.arms import DEFAULT_ARMS
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.evaluate import EvaluateRequest, run_error_analysis, run_evaluate
from headstart.recipes.executors import Executor
from headstart.recipes.finetune.backbone_preset import default_preset
from headstart.recipes.finetune.run import FinetuneRequest, run_finetune
from headstart.recipes.inspect import Inspection, InspectRequest, run_inspect
from headstart.recipes.prepare import PrepareRequest, run_merge, run_prepare, run_tokenizer
from headstart.recipes.pretrain.continued import continued_settings
from headstart.recipes.pretrain.preset_search import AUTO_PRESET, choose_preset
from headstart.recipes.pretrain.run import PretrainRequest, run_pretrain
from headstart.recipes.starter_choice import corpus_texts, resolve_starter, table_texts
from headstart.recipes.tune import SEARCH_SPACE, TuneRequest, TuneResult, run_tune
from headstart.serve.config import ServeCommandConfig
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import Storage
from headstart.tasks import AnyEvaluation, TextInput
from headstart.tokenization.tokenizer import TokenizerReport

Paths = str | Path | Sequence[str | Path]
Budgets = int | str | None | Sequence[int | str | None]


class _CorpusSettings(Section):
    """The settings of `train_tokenizer` and `prepare`."""

    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()


class _InspectSettings(Section):
    """The settings of `inspect`."""

    labelled: LabelledConfig = LabelledConfig()
    corpus: CorpusConfig = CorpusConfig()


def inspect(
    train: str | Path,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    texts: Paths = (),
    tokenizer: str | Path | None = None,
    backbone: str | Path | None = None,
    context: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Check labelled files for duplicates, leaks and invalid rows; return statistics and findings.

    Args:
        texts: pretraining text files that are searched for the rows.
        backbone: a model or starter whose tokenizer, context and digests of pretraining text are used.
        context: the context of the model in tokens; by default, that of `backbone`.
    """
    config = merge_config(_InspectSettings, nest_settings(_InspectSettings, settings))
    request = InspectRequest(
        train=str(train),
        valid=_text(valid),
        test=_text(test),
        texts=_paths(texts),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        backbone=_text(backbone),
        context=context,
    )
    return run_inspect(request, config.labelled, config.corpus, progress)


def train_tokenizer(
    texts: Paths, *, out: str | Path, settings: Settings | None = None, progress: Progress | None = None
) -> TokenizerReport:
    """Train a byte-level BPE tokenizer on text files and save it; return its report."""
    config = merge_config(_CorpusSettings, nest_settings(_CorpusSettings, settings))
    return run_tokenizer(_paths(texts), Path(out), config.tokenizer, config.corpus, progress or SilentProgress())


def prepare(
    texts: Paths,
    *,
    out: str | Path,
    tokenizer: str | Path | None = None,
    jobs: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Shards:
    """Encode text files into token shards, once for any number of runs.

    Args:
        tokenizer: the tokenizer to use; by default, one is trained on the text.
        jobs: the number of processes; each encodes one file at a time, and finished files are kept.
    """
    config = merge_config(_CorpusSettings, nest_settings(_CorpusSettings, settings))
    request = PrepareRequest(
        texts=_paths(texts),
        out=Path(out),
        corpus=config.corpus,
        tokenizer_config=config.tokenizer,
        tokenizer=None if tokenizer is None else Path(tokenizer),
        jobs=jobs,
    )
    return run_prepare(request, progress or SilentProgress())


def merge(folders: Sequence[str | Path], *, out: str | Path, progress: Progress | None = None) -> Shards:
    """Merge shards that were prepared separately with one tokenizer."""
    return run_merge([Path(folder) for folder in folders], Path(out), progress or SilentProgress())


def pretrain(
    texts: Paths = (),
    *,
    out: str | Path,
    backbone: str | Path | None = None,
    tokenizer: str | Path | None = None,
    teacher: str | Path | None = None,
    teacher_weight: float | None = None,
    preset: str | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> RunFolder:
    """Pretrain a language model on text files or shards, from random weights or from `backbone`; returns its run folder.

    Args:
        texts: not needed if the settings have stages, as in
            settings={"stages": [{"texts": ["novels.txt"], "fraction": 0.6, "context": 128}, {"texts": ["reviews.txt"]}]}
        backbone: a language model to continue: a folder, a starter such as "starter:en", or `hf:` and a folder.
        teacher: a larger language model with the same tokenizer, for knowledge distillation.
        teacher_weight: the weight of the distillation loss, from 0 to 1; 0.5 by default.
        preset: named settings; by default, those that fit `backbone`, or classic. auto chooses the largest size that
            fits settings["loop.minutes"] on this machine.
    """
    began = time.monotonic()
    refuse_model_settings(backbone, settings)
    if preset == AUTO_PRESET and not resume:
        preset = choose_preset(
            resolve_settings(PretrainConfig, "classic", "pretrain", settings), progress or SilentProgress()
        )
    source = _text(backbone)
    if not resume:
        source = resolve_starter(
            source,
            lambda: corpus_texts(list(_paths(texts)), resolve_settings(PretrainConfig, None, "pretrain", settings)),
            progress or SilentProgress(),
        )
    request = PretrainRequest(
        texts=tuple(_paths(texts)),
        out=Path(out),
        backbone=source,
        tokenizer=None if tokenizer is None else Path(tokenizer),
        teacher=_text(teacher),
        teacher_weight=teacher_weight,
        resume=resume,
        began=began,
    )
    config = resolve_settings(PretrainConfig, preset, "pretrain", settings, continued_settings(request.backbone))
    return run_pretrain(request, config, progress)


def finetune(
    train: str | Path,
    *,
    out: str | Path,
    backbone: str | Path,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    tokenizer: str | Path | None = None,
    preset: str | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> RunFolder:
    """Fine-tune a classifier; returns its run folder.

    Args:
        backbone: a pretrained folder, a starter such as "starter:en" ("starter:auto": by the language of `train`), `hf:` and
            a folder, or "scratch" for random weights.
        valid: a labelled validation file, which selects the epoch; by default, a fraction of `train` is held out.
        test: a labelled test file, evaluated once at the end.
        preset: named settings; by default, those that fit the backbone.
    """
    refuse_model_settings(backbone, settings)
    request = FinetuneRequest(
        train=str(train),
        out=Path(out),
        backbone=_table_backbone(str(backbone), train, settings, progress),
        valid=_text(valid),
        test=_text(test),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        resume=resume,
    )
    config = resolve_settings(FinetuneConfig, preset or default_preset(request.backbone), "finetune", settings)
    return run_finetune(request, config, progress)


def compare(
    train: str | Path,
    *,
    out: str | Path,
    test: str | Path,
    backbone: Paths | None = None,
    valid: str | Path | None = None,
    seeds: int = 5,
    label_budgets: Budgets = None,
    arms: tuple[str, ...] = DEFAULT_ARMS,
    choose: bool = False,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    quote_texts: bool = True,
    preset: str | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Compare a pretrained backbone with random weights and the linear baselines; returns the report's path.

    Args:
        backbone: the pretrained folder or starter, or several to be compared with each other.
        label_budgets: numbers of labelled rows to train on, one or several; None or "all" means all of them.
        choose: also train each network with 3 times its learning rate; the better one on validation is kept.
        jobs: the number of worker processes; a script then needs `if __name__ == "__main__":`.
        engine: "ray" executes the runs on the Ray cluster at `address`, or on a local one.
        quote_texts: quote the beginnings of a few misclassified texts in the report; otherwise no text is stored.
    """
    names = tuple(_paths(() if backbone is None else backbone))
    refuse_model_settings(next(iter(names), None), settings)
    backbones = tuple(_table_backbone(name, train, settings, progress) for name in names)
    request = CompareRequest(
        train=str(train),
        out=Path(out),
        backbones=backbones,
        valid=_text(valid),
        test=str(test),
        seeds=seeds,
        label_budgets=_budgets(label_budgets),
        arms=arms,
        choose=choose,
        executor=Executor(engine, jobs, address),
        quote_texts=quote_texts,
        resume=resume,
    )
    config = resolve_settings(
        FinetuneConfig, preset or default_preset(next(iter(backbones), None)), "finetune", settings
    )
    return run_compare(request, config, progress)


def auto(
    table: str | Path,
    *,
    out: str | Path | None = None,
    texts: Paths = (),
    test: str | Path | None = None,
    minutes: float = 10.0,
    backbone: str | Path | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> AutoResult:
    """Find the best classifier for a table: a linear model, a network, or the blend of both.

    Args:
        out: the folder to write; by default runs/auto-NAME, after the name of the table.
        texts: files with unlabelled text that is similar to the texts of the table.
        test: a labelled test file, evaluated once at the end; by default, rows of the table are held out.
        minutes: the total time in minutes.
        backbone: the network to start from, or "none" for linear classifiers only; by default, the starter for the language.
        settings: the columns and the runtime, as in {"labelled.label_column": "product", "runtime.threads": 2}.
    """
    request = AutoRequest(
        table=str(table),
        out=default_out(str(table)) if out is None else Path(out),
        texts=tuple(_paths(texts)),
        test=_text(test),
        minutes=minutes,
        backbone=_text(backbone),
        settings=nest_settings(FinetuneConfig, settings),
        resume=resume,
    )
    return run_auto(request, progress)


def tune(
    train: str | Path,
    *,
    out: str | Path,
    backbone: str | Path,
    valid: str | Path | None = None,
    tokenizer: str | Path | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    search: Sequence[str] = SEARCH_SPACE,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    preset: str | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> TuneResult:
    """Search for the best fine-tuning settings on validation data.

    Args:
        backbone: a pretrained folder, hf: and a model of transformers, or "scratch".
        minutes: the maximum total time; no trial is started that would end later. With `trials`, the first limit applies.
        search: the settings to search: lr, epochs, layer_decay, dropout, attention.
        jobs: the number of worker processes; a script then needs `if __name__ == "__main__":`.
        engine: "ray" executes the trials on the Ray cluster at `address`, or on a local one.
    """
    refuse_model_settings(backbone, settings)
    source = _table_backbone(str(backbone), train, settings, progress)
    preset = preset or default_preset(source)
    request = TuneRequest(
        train=str(train),
        out=Path(out),
        backbone=source,
        valid=_text(valid),
        tokenizer=None if tokenizer is None else Path(tokenizer),
        minutes=minutes,
        trials=trials,
        search=tuple(search),
        preset=preset,
        executor=Executor(engine, jobs, address),
        resume=resume,
    )
    config = None if resume else resolve_settings(FinetuneConfig, preset, "finetune", settings)
    return run_tune(request, config, progress)


def _table_backbone(backbone: str, train: str | Path, settings: Settings | None, progress: Progress | None) -> str:
    """Return the backbone, with `starter:auto` replaced by the starter for the language of a labelled file."""
    return resolve_starter(
        backbone,
        lambda: table_texts(str(train), resolve_settings(FinetuneConfig, None, "finetune", settings).labelled),
        progress or SilentProgress(),
    )


def load(folder: str | Path) -> AnyPredictor:
    """Load a classifier of any kind: `load("runs/clf").predict(texts)`."""
    return load_predictor(Path(folder))


def evaluate(
    folder: str | Path,
    file: str | Path,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    second_column: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    skip_empty: bool = False,
) -> AnyEvaluation:
    """Evaluate a model on a labelled file; columns that are not named are those of its training file.

    Args:
        second_column: the column of the second text, for a model of text pairs.
        separator: the separator of several labels in a cell.
        encoding: the encoding of a file that is not UTF-8.
        skip_empty: skip rows without a text or a label instead of raising an error.
    """
    columns = {
        "text_column": text_column,
        "label_column": label_column,
        "second_column": second_column,
        "separator": separator,
        "encoding": encoding,
    }
    labelled = merge_config(LabelledConfig, columns, {"skip_empty": skip_empty})
    return run_evaluate(EvaluateRequest(Path(folder), str(file), labelled))


def error_analysis(
    folder: str | Path,
    file: str | Path,
    *,
    columns: Sequence[str] = (),
    mistakes: int = 10,
    text_column: str | None = None,
    label_column: str | None = None,
    encoding: str | None = None,
    skip_empty: bool = False,
) -> ErrorAnalysis:
    """Analyse the errors of a classifier on a labelled file: confusions, the most confident errors, slices of the rows.

    Args:
        columns: columns of the file to slice the rows by, in addition to length and label.
        mistakes: the number of the most confident errors to show.
    """
    if isinstance(columns, str):
        raise ConfigError(f"columns must be a list of names, as in [{columns!r}], got {columns!r}")
    labelled = merge_config(
        LabelledConfig,
        {"text_column": text_column, "label_column": label_column, "encoding": encoding, "skip_empty": skip_empty},
    )
    request = EvaluateRequest(Path(folder), str(file), labelled, columns=columns, mistakes=mistakes)
    return run_error_analysis(request)


def explain(folder: str | Path, text: TextInput, *, label: str | None = None) -> Explanation:
    """Return how much each word of a text contributes to the classifier's prediction, or to another label."""
    return explain_prediction(load_predictor(Path(folder)), text, label)


def generate(folder: str | Path, prompt: str, *, samples: int = 1, sampling: Sampling | None = None) -> list[str]:
    """Continue a prompt with a pretrained language model."""
    return run_generate(Path(folder), prompt, sampling=sampling or Sampling(), samples=samples)


def export(
    folder: str | Path, *, out: str | Path, to: str, check: str | Path | None = None, weights: Storage | None = None
) -> list[str]:
    """Export a model to transformers (to="hf"), ONNX ("onnx") or with smaller weights ("compact"); return a summary."""
    return run_export(Path(folder), Path(out), to, _text(check), weights)


def bench(preset: str = "classic", *, settings: Settings | None = None, progress: Progress | None = None) -> Bench:
    """Time training steps, predictions of short and long texts, and the first prediction on this machine."""
    return run_bench(preset, settings, progress)


def serve(folder: str | Path, *, settings: Settings | None = None) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C; settings={"serve.port": 9000} as on the command line."""
    from headstart.serve.server import run_server

    config = merge_config(ServeCommandConfig, nest_settings(ServeCommandConfig, settings))
    run_server(Path(folder), config.serve, config.runtime)


def finetune_settings(preset: str, settings: Settings | None, backbone: str | Path | None = None) -> FinetuneConfig:
    """Return the settings that `finetune` would use, validated."""
    refuse_model_settings(backbone, settings)
    return resolve_settings(FinetuneConfig, preset, "finetune", settings)


def _budgets(budgets: Budgets) -> tuple[int | None, ...]:
    counts = [budgets] if budgets is None or isinstance(budgets, (int, str)) else list(budgets)
    for count in counts:
        if count not in (None, "all") and (isinstance(count, bool) or not isinstance(count, int)):
            raise ConfigError(f"label_budgets must be whole numbers or 'all', as in (50, 200, 'all'), got {count!r}")
    return tuple(dict.fromkeys(count if isinstance(count, int) else None for count in counts))


def _paths(texts: Paths) -> list[str]:
    return [str(texts)] if isinstance(texts, (str, Path)) else [str(path) for path in texts]


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
