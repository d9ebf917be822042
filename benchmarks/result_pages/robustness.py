"""robustness.md: killed processes, failing disks, damaged files, mutated input and hostile clients."""

from .markdown import commands, load, table

RUNS = {
    "causal": "pretraining, causal",
    "masked": "pretraining, masked",
    "hybrid": "pretraining, hybrid",
    "pairs": "pretraining, masked with sentence pairs",
    "stages": "pretraining in stages",
    "ema_decay": "pretraining with EMA of the weights",
    "average": "pretraining with EMA of the weights",
    "accumulate": "pretraining with gradient accumulation",
    "muon": "pretraining, modern block, Muon",
    "finetune": "fine-tuning from a pretrained model, EMA of the weights",
    "compare": "comparison of three arms",
    "auto": "`headstart auto`: linear model, network and blend",
}
WORKERS = {
    "busy": "while it runs a job",
    "idle": "after its job, while another worker is busy",
    "starting": "within half a second of its start",
    "stopping": "just before or after its parent receives SIGTERM or Ctrl-C",
    "compare": "of `compare --jobs 2`, resumed until it completes",
}
ENDINGS = {
    "vanished": "the folder is deleted during the run",
    "in use": "a second process uses the same folder",
    "full": "the disk is full during the run",
    "read-only": "the disk becomes read-only",
    "twice": "a second Ctrl-C while the state of the first one is saved",
    "time limit": "the time limit is reached during preparation",
}
REASONS = {
    "about a disk that fails (each operation fails in turn above)": "handle a failing disk (tested separately above)",
    "about a missing file, a folder, a pattern or an address, not about bytes": "handle a missing file, a folder, a glob pattern or a URL, not the content of a file",
    "about files of more than 64 MiB": "handle files of more than 64 MiB",
    "about other requests at the same time, a slow client, a server that stops, its start": "handle concurrent requests, a slow client, or the start and stop of the server",
    "about what a caller asks for, such as another kind of model, or about writing": "depend on the arguments of the caller, such as another kind of model, or write files",
}
"""The reasons of tests/faults/unreached.py, as the page words them."""
CONNECTIONS = {
    "half a head": "half of a request header",
    "nothing": "nothing",
    "a head after an answer": "half of a second header after a response",
}
PARTS = {
    "newest checkpoint, an older one beside it": "newest checkpoint, with an older one",
    "cell of a comparison": "run record of a comparison",
    "cell without a seal": "run record without checksum",
    "cell": "run record",
    "tokenizer from elsewhere": "imported tokenizer",
}
"""Names of the record, and those of the page."""
OUTCOMES = {
    "goes on, same weights": "resumes with the same weights",
    "goes on, other weights": "resumes with different weights",
    "stops": "fails",
}


def totals() -> dict[str, int]:
    """Return the counts of the page of headlines."""
    record = load("torture.json")
    rows = [*record["kills"]["rows"], *record["operations"]["rows"]]
    mutated = record["bytes"]["rows"]
    return {
        "kills": sum(row["kills"] for row in rows),
        "lost": sum(len(row["lost"]) for row in rows),
        "different": sum(len(row["different"]) for row in rows),
        "mutations": sum(row["cases"] for row in mutated),
        "faults": sum(len(row["faults"]) for row in mutated),
        "damaged": sum(row["damaged"] for row in record["damage"]["rows"]),
        "refused": sum(row["refused"] for row in record["damage"]["rows"]),
    }


def kills() -> list[str]:
    """Runs that were killed and resumed, and worker processes that were killed."""
    record = load("torture.json")
    at_random, at_operations = record["kills"]["rows"], record["operations"]["rows"]
    lost, torn, different = (
        sum(len(row[name]) for row in [*at_random, *at_operations]) for name in ("lost", "torn", "different")
    )
    return [
        "## Killed runs",
        "",
        f"Tiny runs in real processes were killed with `kill -9` and resumed until they completed: {sum(row['kills'] for row in at_random):,} times at random moments, and "
        f"{sum(row['kills'] for row in at_operations):,} times at a disk operation (before it, during a write, after it).",
        "",
        f"- Runs lost: {lost}.",
        f"- Incomplete states accepted as complete: {torn}.",
        f"- Runs whose final files (weights, metrics, result) differ in any byte from those of an uninterrupted run: {different}.",
        "",
        *table(
            [
                "run",
                "kills",
                "during start or preparation",
                "during training",
                "during writing",
                "at the end",
                "runs completed with identical bytes",
            ],
            [
                *(_kill_row(row, "") for row in at_random),
                *(_kill_row(row, f", at every {_ordinal(row['every'])}disk operation") for row in at_operations),
            ],
        ),
        *_workers(record),
    ]


def _ordinal(number: int) -> str:
    return {1: "", 2: "second ", 3: "third "}.get(number, f"{number}th ")


def _kill_row(row: dict, note: str) -> list[object]:
    phases = row["phases"]
    first = phases.get("beginning", 0) + phases.get("preparing", 0)
    others = (phases.get(name, 0) for name in ("training", "writing", "ending"))
    identical = row["runs"] - len(row["lost"]) - len(row["different"])
    return [f"{RUNS[row['name']]}{note}", row["kills"], first, *others, f"{identical} of {row['runs']}"]


def _workers(record: dict) -> list[str]:
    """Worker processes of a grid that were killed, if that was measured."""
    if "workers" not in record:
        return []
    rows = (
        [
            WORKERS[row["name"]],
            row["kills"],
            len(row["hung"]),
            len(row["lost"]),
            len(row["faults"]) + len(row.get("different", ())),
        ]
        for row in record["workers"]["rows"]
    )
    return [
        "",
        "One worker process of several (`--jobs`) was killed, with four busy loops running on the same machine:",
        "",
        *table(["worker killed", "kills", "hangs", "results or states of other workers lost", "other faults"], rows),
    ]


def files() -> list[str]:
    """Writes that fail, and files that are damaged."""
    record = load("torture.json")
    return [
        "## Failing disks and damaged files",
        "",
        "Each disk operation of a save fails in turn, once with a full disk and once with an I/O error. Expected: a complete state is left, and one line reports the error.",
        "",
        *table(
            ["saved", "operations", "failures", "complete state left and error reported"],
            (
                [PARTS.get(row["name"], row["name"]), row["operations"], row["failed"], row["kept"]]
                for row in record["writes"]["rows"]
            ),
        ),
        "",
        "Every file was truncated at up to 50 positions, and one bit was flipped at 200 positions. Expected: the damaged file is refused by name.",
        "",
        *table(
            ["folder or file", "files", "damaged", "refused by name"],
            (
                [PARTS.get(row["name"], row["name"]), row["files"], f"{row['damaged']:,}", f"{row['refused']:,}"]
                for row in record["damage"]["rows"]
            ),
        ),
        "",
        "If the newest checkpoint is damaged, a message names it and the run resumes from the previous one.",
    ]


def mutations() -> list[str]:
    """Mutated files and requests for every reader."""
    part = load("torture.json")["bytes"]
    rows = part["rows"]
    cases, faults = sum(row["cases"] for row in rows), sum(len(row["faults"]) for row in rows)
    return [
        "## Mutated files and requests",
        "",
        f"{cases:,} mutations of valid files and requests for {len(rows)} readers, in processes with limits on time and memory. Mutations are bit flips, truncations, splices, duplicated pieces and changed numbers; "
        f"and, within the format of the file, changed values, keys, lines and headers. Crashes, hangs, excessive memory and responses with status 500: {faults}. "
        '"Resealed" means that size and sha256 were updated to match the changed bytes, as an attacker would do.',
        "",
        *table(
            [
                "reader",
                "mutations",
                "read or answered",
                "refused in one line",
                "other",
                "lines reached in the functions entered",
            ],
            (
                [
                    PARTS.get(row["name"], row["name"]).replace("sealed again", "resealed"),
                    f"{row['cases']:,}",
                    f"{row['read']:,}",
                    f"{row['refused']:,}",
                    len(row["faults"]),
                    f"{row['lines_reached']} of {row['lines']}" if "lines" in row else "–",
                ]
                for row in rows
            ),
        ),
        "",
        *_line_coverage(part),
    ]


def _line_coverage(part: dict) -> list[str]:
    """Count the lines that all readers together reached, and the reasons for the others."""
    reached, missed = (_line_sets(part["rows"], key) for key in ("reached", "missed"))
    all_lines = {file: reached.get(file, set()) | missed.get(file, set()) for file in {*reached, *missed}}
    total, seen = sum(map(len, all_lines.values())), sum(map(len, reached.values()))
    reasons = {reason: lines for reason, lines in part["unreached"].items() if reason != "other"}
    unexplained = part["unreached"].get("other", [])
    lines = [
        "Readers share functions, so one reader alone does not reach all lines of the functions it enters. "
        f"All readers together reached {seen:,} of {total:,} lines. Of the other {total - seen} lines:",
        "",
        *(
            f"- {len(lines)} {REASONS.get(reason, reason)}"
            for reason, lines in sorted(reasons.items(), key=lambda item: -len(item[1]))
        ),
    ]
    if unexplained:
        lines.append(f"- {len(unexplained)} have no such reason ([list](#lines-not-reached-by-any-mutation))")
    return lines


def _line_sets(rows: list[dict], key: str) -> dict[str, set[int]]:
    """The lines of each file in all rows: "3-5 9" is 3, 4, 5, 9."""
    lines: dict[str, set[int]] = {}
    for row in rows:
        for file, text in row.get(key, {}).items():
            for line_range in text.split():
                first, _, last = line_range.partition("-")
                lines.setdefault(file, set()).update(range(int(first), int(last or first) + 1))
    return lines


def endings() -> list[str]:
    """Signals and other ends of a run."""
    rows = load("torture.json")["ends"]["rows"]
    signals = [row for row in rows if "SIG" in row["name"]]
    late = "prepare and export, including torch's compiler" if any("compile" in row["name"] for row in rows) else ""
    auto = "auto, " if any(row["name"].startswith("auto") for row in rows) else ""
    phases = f"{auto}pretrain, finetune, compare, tokenizer{f', {late}' if late else ' and prepare'}"
    return [
        "## Signals and other interruptions",
        "",
        f"{len(signals)} signals (SIGINT and SIGTERM in each phase of {phases}) and other interruptions, in real processes. Each prints one line and leaves no incomplete file; runs that can be resumed "
        f"end with the same bytes. Faults: {sum(len(row['faults']) for row in rows)}.",
        "",
        *table(
            ["event", "exit code", "message"],
            ([ENDINGS[row["name"]], row["code"], f"`{row['said']}`"] for row in rows if row["name"] in ENDINGS),
        ),
    ]


def edges() -> list[str]:
    """Numbers at the edge of floating point, settings that no memory holds, and odd tables."""
    record = load("torture.json")
    if not {"floats", "memory", "tables"} <= set(record):
        return []
    floats, memory, tables = (record[part]["rows"] for part in ("floats", "memory", "tables"))
    cases, refused, worked = (sum(row[name] for row in floats) for name in ("cases", "refused", "worked"))
    faults = [sum(len(row["faults"]) + len(row["hung"]) for row in rows) for rows in (floats, memory, tables)]
    used = sum(row["codes"]["auto"] == 0 for row in tables)
    most = max(row["mebibytes"] for row in memory)
    return [
        "## Settings and tables at the limits",
        "",
        "Real commands; a fault is a crash, a hang, an unexpected error, more than one line of explanation or excessive memory.",
        "",
        *table(
            ["given", "cases", "refused in one line", "used", "faults"],
            [
                [
                    "inf, nan, 1e308, 5e-324, -0.0 and -inf in every option that takes a number",
                    cases,
                    refused,
                    worked,
                    faults[0],
                ],
                [
                    "settings and imported models that no memory holds",
                    len(memory),
                    sum(row["code"] == 2 for row in memory),
                    0,
                    faults[1],
                ],
                [
                    "odd tables (labels, columns, names, numbers, nesting) for `inspect` and `auto`",
                    len(tables),
                    len(tables) - used,
                    used,
                    faults[2],
                ],
            ],
        ),
        "",
        f"What no memory holds is refused before it is allocated: the commands took at most {most} MiB. Of the tables, the last columns count what `auto` did.",
    ]


def hostile() -> list[str]:
    """Hostile text, slow connections and regular expressions with exponential run time."""
    record = load("torture.json")
    texts = record["text"]["rows"]
    longest = max((row for row in texts if "times_as_long" in row), key=lambda row: row["times_as_long"])
    size, faults = max(row["characters"] for row in texts), sum(len(row["faults"]) for row in texts)
    slow = [row for row in record["slow_heads"]["rows"] if row["connections"]]
    sent = [CONNECTIONS.get(row["name"], row["name"]) for row in slow]
    patterns = record["hostile_patterns"]["rows"]
    refused = [row for row in patterns if row["refused"]]
    other = sum(len(row["faults"]) for part in ("slow_heads", "hostile_patterns") for row in record[part]["rows"])
    return [
        "## Hostile text and clients",
        "",
        f"- Text: {size:,} characters without a space, control characters, NULs, right-to-left marks, emoji, combining marks and names of special tokens, through both tokenizers. Four times the text took at most "
        f"{longest['times_as_long']} times the CPU time ({longest['name']}). Byte-level BPE decodes every text to itself, and a lone surrogate is refused. Faults: {faults}.",
        f"- Connections: a server limited to {slow[0]['files']:,} open files, with {slow[0]['connections']:,} connections that send {', '.join(sent[:-1])} or {sent[-1]}, answered "
        f"{', '.join(str(row['answered']) for row in slow)} of 10 other requests, respectively, and closed the slow connections.",
        f"- Regular expressions: of {len(patterns)} expressions in the tokenizer of an imported model, the {len(refused)} with catastrophic backtracking were refused at import, and the {len(patterns) - len(refused)} "
        f"harmless ones were accepted. Faults of connections and expressions: {other}.",
    ]


def peer() -> list[str]:
    """The same cases for transformers' Trainer, and how everything was measured."""
    record, other = load("torture.json"), load("torture_peer.json")
    versions = other["versions"]
    outcomes: dict[str, list[str]] = {}
    for row in other["damage"]:
        outcomes.setdefault(row["found"].split(":")[0], []).append(f"{row['file']} {row['wound']}")
    rows = []
    for objective in ("causal", "masked"):
        for where in ("between epochs", "within an epoch"):
            resumed = {
                _outcome(row["found"])
                for row in other["resumed"]
                if (row["objective"], row["where"]) == (objective, where)
            }
            if resumed:
                rows.append(
                    [f"{objective}, resumed {where}", "; ".join(sorted(resumed)), "resumes with the same weights"]
                )
    rows += [
        [
            f"newest checkpoint damaged, an older one intact: {'; '.join(cases)}",
            _outcome(words),
            "resumes from the older checkpoint, with a message",
        ]
        for words, cases in sorted(outcomes.items())
    ]
    killed = "; ".join(f"{count} × {_outcome(words)}" for words, count in other["kills"].items())
    rows.append(
        [
            f"killed once at a random moment, then resumed, {sum(other['kills'].values())} times",
            killed,
            "all resume with the same weights",
        ]
    )
    return [
        "## Comparison with transformers' Trainer",
        "",
        f"transformers {versions['transformers']} with accelerate {versions['accelerate']}: `Trainer` on a tiny network with `resume_from_checkpoint=True`.",
        "",
        *table(["case", "transformers' Trainer", "Headstart"], rows),
        "",
        f"Python {record['machine']['python']}, torch {record['machine']['torch']}, one core; the second command needs transformers and accelerate. Killed runs, failed writes and damaged files were measured at commit ee34ed4 (failed "
        "operations: 06a272a); most mutations, the interruptions and the hostile text with earlier versions of the source and with other processes on the machine; the killed workers with a later version."
        + _line_counts(record["bytes"]["rows"]),
        "",
        *commands("make torture-full", "python benchmarks/torture_peer.py docs/results/torture_peer.json"),
    ]


def _outcome(words: str) -> str:
    outcome, separator, error = words.partition(": ")
    return f"{OUTCOMES[outcome]}{f' ({error})' if separator else ''}"


def _line_counts(rows: list[dict]) -> str:
    """How many mutations the line counts are based on, if that was a separate run."""
    cases = {row["cases_for_lines"] for row in rows if "cases_for_lines" in row}
    if not cases:
        return ""
    return (
        " `auto`, linear classifiers, blends, and settings and tables at the limits were measured with the newest version. "
        f"With that version, lines were counted on {max(cases):,} further mutations for each reader, none of which was a fault."
    )


def unreached() -> list[str]:
    """The source lines that no mutation reached, without a reason for it."""
    entries = load("torture.json")["bytes"]["unreached"].get("other", [])
    rows = []
    for entry in entries:
        location, _, line = entry.partition(": ")
        file, _, function = location.partition(", ")
        code = line.replace("|", "\\|")
        rows.append([f"`{file}`", f"`{function}`" if function.strip() else "–", f"`{code}`" if code.strip() else "–"])
    if not rows:
        return []
    return [
        "## Lines not reached by any mutation",
        "",
        f"The {len(rows)} lines for which no reason is known, as recorded at the time of the measurement:",
        "",
        *table(["file", "function", "line"], rows),
    ]
