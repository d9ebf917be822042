"""corpus.md: from text to token shards, compared with datasets, and the encoders on their own."""

import statistics

from .markdown import commands, load, megabytes, percent, table, times

SIDES = {
    "fast": "`headstart prepare`, extra `fast`",
    "plain": "`headstart prepare`",
    "datasets": "datasets + tokenizers",
}
ENCODERS = {
    "tokenizers": "tokenizers (reference)",
    "tokenizers, unbounded": "tokenizers without the limit on word length",
    "headstart, fast": "Headstart, extra `fast`",
    "headstart": "Headstart",
    "gigatoken": "gigatoken without Headstart's check",
    "kitoken": "kitoken",
}
KINDS = {
    "sentences of the files": "sentences of the files",
    "control characters": "control characters",
    "long runs": "long runs of one character",
    "contractions": "contractions",
    "blanks of all kinds, trailing ones too": "whitespace of all kinds, also trailing",
    "characters of every category": "characters of every Unicode category",
    "every code point, at every kind of border": "every code point, at every kind of word boundary",
}
HEADER = [
    "text",
    "code",
    "seconds",
    "MB per second",
    "CPU seconds",
    "MB per CPU second",
    "peak memory of a process, MB",
    "CPU used by other processes",
    "wall time of datasets / this row's",
    "CPU time of datasets / this row's",
]
NARROW = (0, 1, 2, 6, 8, 9)
"""The columns that docs/scaling.md shows."""


def _rows(text: str, row: dict) -> list[list[str]]:
    """One corpus, prepared by each side: medians over turns, and the ratio to datasets."""
    rows = []
    for side, turns in row["sides"].items():
        seconds, spent = (statistics.median(turn[what] for turn in turns) for what in ("seconds", "cpu"))
        compared = side in row.get("times", {})
        rows.append(
            [
                text,
                SIDES[side],
                f"{seconds:.1f}",
                f"{row['bytes'] / 1e6 / seconds:.1f}",
                f"{spent:.1f}",
                f"{row['bytes'] / 1e6 / spent:.1f}",
                f"{max(turn['peak'] for turn in turns) / 1e6:.0f}",
                f"{100 * statistics.median(turn['others'] for turn in turns):.0f} %",
                *(_ratio(row["times"][side], what) if compared else "–" for what in ("seconds", "cpu")),
            ]
        )
    return rows


def _ratio(ratios: dict, what: str) -> str:
    """A ratio, and its smallest and largest turn if there were several."""
    several = ratios[f"{what}_min"] < ratios[f"{what}_max"]
    return times(ratios[what]) + (f" ({ratio_range(ratios, what)})" if several else "")


def ratio_range(ratios: dict, what: str) -> str:
    """Return the smallest and the largest ratio over turns."""
    return f"{times(ratios[f'{what}_min'])} to {times(ratios[f'{what}_max'])}"


def _all_rows() -> list[list[str]]:
    record = load("corpus.json")
    rows = _rows(f"{megabytes(record['speed']['bytes'])}, reviews", record["speed"])
    for row in record["sizes"]["rows"]:
        rows += _rows(f"{megabytes(row['bytes'])}, generated", row)
    return rows


def _made(record: dict) -> str:
    return (
        f"commit {record['commit']}, {record['date']}, Python {record['python']}, load {record['load']:g} at the start"
    )


def prepare() -> list[str]:
    """`headstart prepare` and datasets on the same files."""
    record = load("corpus.json")
    speed, sizes = record["speed"], record["sizes"]
    versions, jobs = speed["versions"], speed["jobs"]
    assert all(row["same_ids"] for row in (speed, *sizes["rows"]) if "datasets" in row["sides"])
    return [
        "## Preparing a corpus",
        "",
        "From text files to token ids on disk: reading, encoding and writing. Three commands are run in turn, in rotating order, each "
        f"with {jobs} processes on {speed['cores']} CPU cores ({speed['machine']}), and timed from start to end: `headstart prepare --jobs {jobs}` with the extra `fast` (gigatoken {versions['gigatoken']}); the same without gigatoken; "
        f"and datasets {versions['datasets']} (`load_dataset`, `map` in batches, `save_to_disk`, all with {jobs} processes) with the same tokenizer.json in tokenizers {versions['tokenizers']}.",
        "",
        f"The reviews are {len(speed['files'])} files of JSON lines (English film reviews; French reviews of films, books and music; {speed['tokens']:,} tokens), {speed['turns']} turns; the table shows medians, with the lowest and the highest turn in brackets. "
        f"The generated text has {sizes['files']} files at each size, 200,000 distinct words with a natural frequency distribution, and one turn; datasets was not run on the largest size. Wherever datasets was run, the "
        "output of all sides was read back and compared: all have the same ids in the same documents. Other processes used the machine, as the table shows, so CPU time (of all processes) is more reliable than wall time. "
        "1 MB is 10⁶ bytes of the files.",
        "",
        *table(HEADER, _all_rows()),
        "",
        *_findings(speed, sizes),
        "",
        f"Reviews: {_made(speed)}. Generated text: {_made(sizes)}.",
        "",
        *commands(
            f"python benchmarks/corpus.py speed {' '.join(f'DATA/{file}' for file in speed['files'])} --turns {speed['turns']} --out docs/results/corpus.json",
            "python benchmarks/corpus.py sizes --out docs/results/corpus.json",
        ),
    ]


def _findings(speed: dict, sizes: dict) -> list[str]:
    unsaved, ours = (
        statistics.median(turn["seconds"] - turn.get("parts", {}).get("save", 0) for turn in speed["sides"][side])
        for side in ("datasets", "fast")
    )
    smallest, largest = megabytes(sizes["rows"][0]["bytes"]), megabytes(sizes["rows"][-1]["bytes"])
    merge = sizes["rows"][0]["merge"]
    assert merge["identical"], "what the sentence below claims"
    lines = [
        f"- The memory of a process is almost the same for {largest} as for {smallest}.",
        f"- Without `save_to_disk` (`map` leaves its own file in a cache), datasets still takes {times(unsaved / ours)} times the wall time of `prepare` with `fast` on the reviews.",
        f"- Two halves of the {smallest}, prepared separately and joined by `headstart merge`, give the same bytes as one run ({merge['peak'] / 1e6:.0f} MB of memory).",
    ]
    if speed.get("earlier"):
        earlier = "; ".join(
            f"{run['turns']} turns, {times(run['times']['fast']['seconds'])} (wall) and {times(run['times']['fast']['cpu'])} (CPU) with `fast`, "
            f"{times(run['times']['plain']['seconds'])} and {times(run['times']['plain']['cpu'])} without"
            for run in speed["earlier"]
        )
        lines.append(
            f"- Earlier measurements on the reviews, with earlier code or a higher load, gave these ratios to datasets: {earlier}."
        )
    return lines


def encoders() -> list[str]:
    """Whether other encoders give the ids of tokenizers, and how fast they are on one core."""
    record = load("encoders.json")
    return [*_parity(record), "", *_speed(record)]


def _parity(record: dict) -> list[str]:
    parity, versions = record["parity"], record["versions"]
    sides = [side for side in ENCODERS if side in parity[0]["differ"]]
    strings = sum(row["strings"] for row in parity)
    wrong = {side: sum(row["differ"][side] for row in parity) for side in sides}
    rows = [
        [
            KINDS.get(row["kind"], row["kind"]),
            f"{row['strings']:,}",
            percent(row["to_gigatoken"] / row["strings"]),
            *(f"{row['differ'][side]:,}" for side in sides),
        ]
        for row in parity
    ]
    everything = percent(sum(row["to_gigatoken"] for row in parity) / strings)
    rows.append(["all", f"{strings:,}", everything, *(f"{wrong[side]:,}" for side in sides)])
    return [
        "## Encoders: equality of token ids",
        "",
        f"{strings:,} strings were encoded by every encoder with one vocabulary of {record['vocabulary']:,} entries, and the ids were compared with those of tokenizers {versions['tokenizers']}: {parity[0]['strings']:,} real sentences, generated edge "
        f"cases, and one string for every Unicode code point. With the extra `fast`, Headstart passes a string to gigatoken {versions['gigatoken']} only if a check guarantees the ids of tokenizers. "
        f"Strings with different ids: {wrong['headstart, fast']} with the extra, {wrong['headstart']} without it.",
        "",
        *table(
            ["strings", "count", "passed to gigatoken", *(f"different ids: {ENCODERS[side]}" for side in sides)], rows
        ),
    ]


def _speed(record: dict) -> list[str]:
    speed, versions = record["speed"], record["versions"]
    rows = []
    for side, words in ENCODERS.items():
        if side in speed["median"]:
            turns = speed["mb_per_second"][side]["cpu"]
            ratio = "1" if side == "tokenizers" else times(speed["times"][side])
            rows.append([words, f"{speed['median'][side]['cpu']:.1f} ({min(turns):.1f} to {max(turns):.1f})", ratio])
    lines = [
        "## Encoders: speed on one core",
        "",
        f"{speed['texts']:,} complete reviews ({megabytes(speed['bytes'])}) in memory, in batches of 1,000, in one thread pinned to one core. Medians of {speed['turns']} turns; every encoder is created again for each turn, so its cache is empty. "
        "Headstart's encoder returns arrays with two bytes per id, tokenizers and kitoken return lists.",
        "",
        *table(["encoder", "MB per CPU second (range over turns)", "rate / rate of tokenizers"], rows),
    ]
    if versions.get("kitoken"):
        lines += [
            "",
            f"kitoken {versions['kitoken']} does not support the limit of 64 bytes per word (`FixedLength`) and refuses the original file. It was given the file without the limit, so its ids differ for long runs, and also for some whitespace and rare characters.",
        ]
    files = " ".join(f"DATA/{file}" for file in record["files"])
    command = f"python benchmarks/encoders.py {files} --out docs/results/encoders.json"
    return [
        *lines,
        "",
        f"C{_made(record)[1:]}. The second command measured the speeds shown:",
        "",
        *commands(command, f"{command} --only speed --turns {speed['turns']}"),
    ]


def scaling_table() -> str:
    """The table of docs/scaling.md."""
    speed = load("corpus.json")["speed"]
    rows = ([row[column] for column in NARROW] for row in _all_rows())
    return "\n".join(
        [
            f"Measured with `--jobs {speed['jobs']}` on {speed['cores']} cores, compared with datasets {speed['versions']['datasets']} and tokenizers {speed['versions']['tokenizers']} with the same number of processes; all write the same ids "
            "([protocol and commands](results/corpus.md), [every turn](results/corpus.json)):",
            "",
            *table([HEADER[column] for column in NARROW], rows),
        ]
    )


def terabyte() -> str:
    """What docs/scaling.md extrapolates from the speed on real text."""
    speed = load("corpus.json")["speed"]
    seconds = statistics.median(turn["cpu"] for turn in speed["sides"]["fast"]) / speed["bytes"] * 1e9
    return (
        f"At the measured CPU time, preparing it takes {1000 * seconds / 3600:.0f} core hours with the extra `fast` ({seconds:.0f} s per gigabyte of real text), "
        "which can be divided among any number of machines."
    )
