"""Tables that nobody wants to be given, through the commands: each is used or refused in one line, and says little."""

import json
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from faults.edges import MAX_BYTES, forked

MAX_LINE = 2000
"""Characters of a line that a command may print: nobody reads a longer one."""
_HARMFUL = ("\0", "\x1b", "\u202e", "\u2066")
_WORDS = {"good": ("lovely", "moving", "bright", "clever"), "bad": ("awful", "dull", "weak", "slow")}
ROWS = [
    (f"the {_WORDS[label][number % 4]} film number {number}", label)
    for number in range(20)
    for label in ("good", "bad")
]


def _csv(rows: list[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> bytes:
    cells = ([cell.replace('"', '""') for cell in row] for row in (header, *rows))
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in cells).encode("utf-8", "surrogatepass")


def _jsonl(label: Callable[[int, str], Any], text: Callable[[str], Any] = str) -> bytes:
    rows = ({"text": text(text_), "label": label(number, name)} for number, (text_, name) in enumerate(ROWS))
    return "\n".join(json.dumps(row) for row in rows).encode()


def _labels(change: Callable[[int, str], str]) -> bytes:
    return _csv([(text, change(number, label)) for number, (text, label) in enumerate(ROWS)])


def _parquet(columns: list[tuple[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = BytesIO()
    names, values = zip(*columns, strict=True)
    pq.write_table(pa.table(list(map(pa.array, values)), names=names), sink)
    return sink.getvalue()


def _tables() -> dict[str, tuple[str, bytes]]:
    """File name and content by what is odd about them; the first is a control."""
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    letters, digits = "abcdefgh" * 100_000, "9" * 5000
    return {
        "nothing odd": ("t.csv", _csv(ROWS)),
        "steering labels": ("t.csv", _labels(lambda _, label: f"{label}\x1b[2J\x07\u202e\u2066")),
        "labels of two lines": ("t.csv", _labels(lambda _, label: f"{label}\nand\r\nmore")),
        "long labels": ("t.csv", _labels(lambda _, label: label * 100)),
        "labels longer than texts": ("t.csv", _labels(lambda _, label: label * 50_000)),
        "a label for each row": ("t.csv", _labels(lambda number, _: f"l{number}")),
        "a label for two rows each": ("t.csv", _labels(lambda number, _: f"l{number // 2}")),
        "one label": ("t.csv", _labels(lambda *_: "a")),
        "no label": ("t.csv", _labels(lambda *_: "")),
        "labels that are markup": ("t.csv", _labels(lambda number, _: f"<script>{number % 2}</script>{{{{7*7}}}}")),
        "labels that are paths": ("t.csv", _labels(lambda number, _: ("../../x", "/dev/zero")[number % 2])),
        "labels that are lists": ("t.jsonl", _jsonl(lambda _, label: [label, "x"])),
        "labels that are objects": ("t.jsonl", _jsonl(lambda _, label: {"a": label})),
        "labels of every type": ("t.jsonl", _jsonl(lambda number, _: (1, True, None, 1.5, "1")[number % 5])),
        "texts that are objects": ("t.jsonl", _jsonl(lambda _, label: label, lambda text: {"a": text})),
        "unpaired surrogates": ("t.jsonl", _jsonl(lambda _, label: label, lambda text: f"{text}\ud800")),
        "a number of 5,000 digits": ("t.jsonl", f'{{"text": "a", "label": {digits}}}\n'.encode() * 3),
        "deep nesting": ("t.jsonl", b'{"text": "a", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
        "a long text": ("t.csv", _csv([*ROWS, (letters, "good")])),
        "a text of one word": ("t.csv", _csv([*ROWS, ("x" * 800_000, "bad")])),
        "the same text": ("t.csv", _csv([("same", label) for _, label in ROWS])),
        "texts that are labels": ("t.csv", _csv([(label, label) for _, label in ROWS])),
        "four rows": ("t.csv", _csv(ROWS[:4])),
        "one row": ("t.csv", _csv(ROWS[:1])),
        "no rows": ("t.csv", _csv([])),
        "two columns of one name": ("t.csv", _csv([(*row, row[0]) for row in ROWS], ("text", "label", "text"))),
        "columns without a name": ("t.csv", _csv([(*row, "", "") for row in ROWS], ("text", "label", "", ""))),
        "many columns": (
            "t.csv",
            _csv([(*row, *"x" * 3000) for row in ROWS], ("text", "label", *map(str, range(3000)))),
        ),
        "two byte order marks": ("t.csv", b"\xef\xbb\xbf" * 2 + _csv(ROWS)),
        "parquet, two columns of one name": (
            "t.parquet",
            _parquet([("text", texts), ("label", labels), ("text", texts)]),
        ),
        "parquet, a column without a name": ("t.parquet", _parquet([("", texts), ("label", labels)])),
        "parquet, labels that are lists": (
            "t.parquet",
            _parquet([("text", texts), ("label", [[name] for name in labels])]),
        ),
        "parquet, texts that are bytes": (
            "t.parquet",
            _parquet([("text", [b"\xff" + text.encode() for text in texts]), ("label", labels)]),
        ),
        "a name of two lines": ("t\n\x1b[2J.csv", _csv(ROWS)),
        "a name that is not UTF-8": ("caf\udce9.csv", _csv(ROWS)),
    }


def torture(work: Path, count: int) -> Iterator[dict[str, Any]]:
    """Give tables to `inspect` and to `auto`, each in a child of its own."""
    for name, (file, content) in list(_tables().items())[:count]:
        folder = work / "table"
        folder.mkdir(parents=True)
        try:
            (folder / file).write_bytes(content)
        except OSError:  # this file system has no such names
            shutil.rmtree(folder)
            continue
        row: dict[str, Any] = {"name": name, "codes": {}, "faults": [], "hung": []}
        auto = ["auto", file, "--from", "none", "--minutes", "1", "--runtime.threads", "1", "--out", "out"]
        for words in (["inspect", file], auto):
            code, output, taken = forked(words, folder, work / "said.txt")
            row["codes"][words[0]] = code
            if code == 99:
                row["hung"].append(words[0])
            row["faults"] += [f"{words[0]}: {fault}" for fault in _faults(code, output, taken)]
        if row["codes"]["auto"] and (folder / "out").exists():
            row["faults"].append("auto: left a folder behind")
        shutil.rmtree(folder)
        yield row


def _faults(code: int, output: str, taken: int) -> Iterator[str]:
    if code not in (0, 2, 99) or "unexpected" in output or "Traceback" in output:
        yield f"{code}, {output[-300:]}"
    if code == 2 and output.count("headstart: ") != 1:
        yield f"not one line: {output[-300:]}"
    if harm := [character for character in _HARMFUL if character in output]:
        yield f"printed {harm!r}"
    if (longest := max(map(len, output.split("\n")))) > MAX_LINE:
        yield f"printed a line of {longest:,} characters"
    if taken > MAX_BYTES:
        yield f"took {taken >> 20} MiB"
