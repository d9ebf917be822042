"""The table of commands: what each does, its usage, its main options and examples, as `--help` shows them."""

import keyword
from typing import NamedTuple

SUMMARY = (
    "Pretrain a small Transformer on your own text, fine-tune a text classifier, and measure the gain from pretraining."
)
EXIT_STATUS = "Exit status: 0 success, 1 the command failed, 2 invalid usage."
EXAMPLES = (
    "headstart auto mails.csv --minutes 10",
    "headstart finetune train.csv --from starter:en --out runs/clf",
    'headstart predict runs/clf "a wonderful film"',
)
"""The examples of `headstart --help`."""


class Command(NamedTuple):
    """A command as `--help` presents it."""

    name: str
    usage: str
    """The arguments and required options."""
    summary: str
    examples: tuple[str, ...]
    options: str
    """The names of the options on the page of `--help`, in order; `--help-all` shows all of them."""

    @property
    def python_name(self) -> str:
        """The name of the module and the function: `import_` for `import`."""
        return f"{self.name}_" if keyword.iskeyword(self.name) else self.name


GROUPS = {
    "Classify text": (
        Command(
            "auto",
            "TABLE [OPTIONS]",
            "Find the best classifier for a table by cross-validation.",
            (
                "headstart auto mails.csv",
                "headstart auto mails.csv --text-column body --label-column folder --minutes 30",
                'headstart predict runs/auto-mails "please send the invoice again"',
            ),
            "--text-column --label-column --minutes --test --texts --from --out --encoding --seed --device --resume --quiet",
        ),
        Command(
            "finetune",
            "TRAIN --from MODEL|scratch --out FOLDER [OPTIONS]",
            "Train a classifier from a pretrained model or from scratch.",
            (
                "headstart finetune train.csv --from starter:en --out runs/clf",
                "headstart finetune train.csv --from runs/base --label-column kind --out clf",
                "headstart finetune --resume --out runs/clf",
            ),
            "--from --out --valid --test --text-column --label-column --task --encoding --skip-empty --epochs --minutes "
            "--lr --batch-size --preset --config --seed --device --resume --quiet",
        ),
        Command(
            "predict",
            "MODEL [TEXTS...] [OPTIONS]",
            "Classify texts from arguments, standard input or a file.",
            (
                'headstart predict runs/clf "a wonderful film"',
                "headstart predict runs/clf --input reviews.csv --out labelled.csv",
            ),
            "--input --out --text-column --label-column --only-unlabelled --encoding --abstain --explain --json --device "
            "--quiet",
        ),
        Command(
            "evaluate",
            "MODEL FILE [OPTIONS]",
            "Evaluate a classifier on a labelled file.",
            (
                "headstart evaluate runs/clf test.csv",
                "headstart evaluate runs/clf test.csv --errors --slice country",
            ),
            "--text-column --label-column --encoding --skip-empty --errors --slice --mistakes --json --device --quiet",
        ),
    ),
    "Compare and inspect": (
        Command(
            "compare",
            "TRAIN --test FILE --from MODEL --out FOLDER [OPTIONS]",
            "Measure the gain from pretraining, with baselines and a report.",
            (
                "headstart compare train.csv --test test.csv --from runs/base --out cmp",
                "headstart compare train.csv --test test.csv --from starter:en --labels 50,all --out cmp",
            ),
            "--test --from --out --valid --labels --seeds --arms --jobs --text-column --label-column --encoding --skip-empty "
            "--no-texts --preset --config --device --resume --quiet",
        ),
        Command(
            "report",
            "FOLDER [OPTIONS]",
            "Rebuild the report of a comparison from its folder.",
            ("headstart report runs/cmp", "headstart report runs/cmp --json"),
            "--out --json --no-texts --quiet",
        ),
        Command(
            "inspect",
            "TRAIN [OPTIONS]",
            "Check labelled files for duplicates, leaks and invalid rows.",
            (
                "headstart inspect train.csv --test test.csv",
                "headstart inspect train.csv --test test.csv --texts reviews.txt --from starter:en",
            ),
            "--valid --test --texts --from --tokenizer --context --text-column --label-column --task --encoding --json --quiet",
        ),
        Command(
            "tune",
            "TRAIN --from MODEL|scratch --out FOLDER [OPTIONS]",
            "Search for the best fine-tuning settings on validation data.",
            (
                "headstart tune train.csv --from runs/base --minutes 30 --out runs/tuned",
                "headstart tune train.csv --from starter:en --trials 20 --out runs/tuned",
            ),
            "--from --out --valid --minutes --trials --search --jobs --text-column --label-column --encoding --skip-empty "
            "--preset --config --seed --device --resume --quiet",
        ),
        Command(
            "demo",
            "[OPTIONS]",
            "Run the whole workflow on example data in a few minutes.",
            ("headstart demo", "headstart demo --data reviews --out runs/demo"),
            "--out --data --from --pretrain --encoding --quiet",
        ),
    ),
    "Pretrain a language model": (
        Command(
            "pretrain",
            "[TEXTS...] --out FOLDER [OPTIONS]",
            "Pretrain a language model on unlabelled text.",
            (
                "headstart pretrain reviews.txt --out runs/base",
                "headstart pretrain reviews.txt --minutes 60 --out runs/base",
                "headstart pretrain reviews.csv --from starter:en --text-column body --out base",
            ),
            "--out --from --preset --minutes --epochs --objective --text-column --encoding --exclude --tokenizer --vocab-size "
            "--batch-size --lr --config --seed --device --resume --quiet",
        ),
        Command(
            "tokenizer",
            "TEXTS... --out FOLDER [OPTIONS]",
            "Train a tokenizer and report how well it fits the text.",
            ("headstart tokenizer reviews.txt --vocab-size 16384 --out tok",),
            "--out --vocab-size --megabytes --text-column --encoding --documents --exclude --config --quiet",
        ),
        Command(
            "prepare",
            "TEXTS... --out FOLDER [OPTIONS]",
            "Encode text files into token shards, once for many runs.",
            (
                "headstart prepare 'reviews/*.parquet' --tokenizer tok --out tokens",
                "headstart prepare train.csv --labelled --tokenizer runs/base --out train-tokens",
            ),
            "--out --tokenizer --vocab-size --labelled --text-column --label-column --encoding --exclude --skip-empty --jobs "
            "--config --quiet",
        ),
        Command(
            "merge",
            "FOLDERS... --out FOLDER",
            "Merge token shards that were prepared separately.",
            ("headstart merge tokens-1 tokens-2 --out tokens",),
            "--out --quiet",
        ),
        Command(
            "generate",
            "MODEL PROMPT [OPTIONS]",
            "Generate text with a pretrained language model.",
            (
                'headstart generate starter:en "The film was"',
                'headstart generate runs/base "Bonjour les" --temperature 0.8 --samples 3',
            ),
            "--tokens --temperature --top-k --top-p --samples --seed --device --quiet",
        ),
    ),
    "Deploy and exchange models": (
        Command(
            "serve",
            "MODEL [OPTIONS]",
            "Serve a model over HTTP, with a web page to try it.",
            ("headstart serve runs/clf --port 8000", "headstart serve runs/clf --host 0.0.0.0 --api-key-file key.txt"),
            "--host --port --api-key-file --allow-hosts --serve.batch-tokens --serve.wait --serve.log --device --config "
            "--quiet",
        ),
        Command(
            "export",
            "MODEL --to hf|onnx|compact --out FOLDER [OPTIONS]",
            "Export a model to transformers or ONNX, or compress it.",
            (
                "headstart export runs/clf --to hf --out clf-hf",
                "headstart export runs/clf --to onnx --check test.csv --out clf-onnx",
            ),
            "--to --out --check --encoding --weights --quiet",
        ),
        Command(
            "import",
            "FILE|hf:NAME --out FOLDER [OPTIONS]",
            "Import a transformers model or the weights of the course.",
            (
                "headstart import hf:distilbert --out runs/distilbert",
                "headstart import course.safetensors --tokenizer sentencepiece.french.model --out runs/course",
            ),
            "--out --tokenizer --heads --quiet",
        ),
    ),
    "Model size and speed": (
        Command(
            "params",
            "[OPTIONS]",
            "Count the parameters of a model, or forecast its training cost.",
            (
                "headstart params --preset classic --vocab-size 50001",
                "headstart params --preset modern --forecast --machine h200 --tokens 1e9",
            ),
            "--preset --from --vocab-size --classes --convention --forecast --machine --gpus --tokens --json --quiet",
        ),
        Command(
            "bench",
            "[OPTIONS]",
            "Time training and prediction on this machine.",
            ("headstart bench --preset modern-nano",),
            "--preset --json --device --threads --quiet",
        ),
    ),
}
"""The commands by task, the most used first."""
COMMANDS = tuple(command for group in GROUPS.values() for command in group)
