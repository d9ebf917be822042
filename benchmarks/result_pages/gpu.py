"""gpu.md: pretraining and fine-tuning steps on one GPU, compared with other code."""

import json
import statistics

from .markdown import exists, load, measured_by, percent, table, times

ROWS = {
    "classic": ("the course's language model", "transformers"),
    "gpt2": ("GPT-2 small", "transformers"),
    "modern": ("`modern`, masked, one document per row", "plain script"),
    "packed": ("`modern`, masked, packed documents", None),
}
SIDES = {
    "headstart": "Headstart",
    "headstart, torch's attention": "Headstart without cuDNN attention",
    "transformers": "transformers' GPT-2, compiled",
    "transformers, filled up": "transformers' GPT-2, compiled, matrices padded",
    "transformers, not filled up": "transformers' GPT-2, compiled, matrices not padded",
    "course, bf16": "the course's code, bf16",
    "course, fp32": "the course's code, fp32",
    "plain script": "plain script, compiled",
}


def _measured() -> dict[str, dict]:
    record = load("gpu.json") if exists("gpu.json") else {}
    return {name: record[name] for name in ROWS if name in record}


def speed_up(name: str) -> tuple[float, float, float]:
    """Return Headstart's rate over its peer's, and the memory of both in GiB."""
    sides = load("gpu.json")[name]["sides"]
    ours, theirs = sides["headstart"], sides[ROWS[name][1]]
    return ours["tokens_per_second"] / theirs["tokens_per_second"], ours["gib"], theirs["gib"]


def pretraining_step() -> list[str]:
    """A pretraining step, compared with other code; nothing if it was not measured."""
    rows = _measured()
    if not rows:
        return []
    machine = next(iter(rows.values()))["machine"]
    shapes = "; ".join(f"{ROWS[name][0]} {_shape(row)}" for name, row in rows.items())
    lines = [
        "## Pretraining step",
        "",
        f"One pretraining step (forward, backward, clipping, optimizer) on random tokens in bf16 without dropout. The sides of a row run in turn in one process ({machine['device']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}); figures are medians over rounds. Headstart runs its own training loop, data loading included, with compiled layers; for the others the rows are already on the device.",
        "",
        "- transformers: GPT-2 of the same size, the whole model compiled, fused AdamW. By default the compiler decides by timing whether to pad matrices; two rows of the table force padding on and off.",
        "- Plain script: RMSNorm, rotary position embeddings, SwiGLU, torch's attention, the whole model compiled, torch's Muon and AdamW.",
        "- Fraction of peak: 6 operations per parameter and token plus 12 × layers × length × width for attention, the same for all sides, divided by the rate of a bf16 product of 8,192³ in the same run. The strict "
        "fraction counts the matrices of the layers, the vocabulary for predicted tokens only, and attention within documents only.",
        "- Memory: peak of allocated tensors.",
        "- Seconds to start: building, compiling, capturing and the first steps. The sides were built one after the other, so a later one can reuse entries of the compiler's cache.",
        "",
        *table(
            [
                "step",
                "code",
                "tokens per second",
                "time / Headstart's",
                "fraction of peak (strict)",
                "memory, GiB",
                "seconds to start",
            ],
            [line for name, row in rows.items() for line in _side_rows(ROWS[name][0], row)],
        ),
        "",
        f"Rows per step: {shapes}.",
    ]
    if "before" in rows.get("gpt2", {}):
        lines += ["", _two_runs(rows["gpt2"])]
    unpaired = [ROWS[name][0] for name, row in rows.items() if len(row["sides"]) == 1 and ROWS[name][1]]
    if unpaired:
        lines += ["", f"Not yet measured against other code: {', '.join(unpaired)}."]
    return [*lines, "", *measured_by(_step_commands(rows))]


def _side_rows(title: str, row: dict) -> list[list[str]]:
    """The sides of one step; a side that could not run has no figures."""
    ours = row["sides"]["headstart"]["tokens_per_second"]
    rows = []
    for name, side in row["sides"].items():
        if "tokens_per_second" not in side:
            continue
        fraction = percent(side["mfu"]) + (f" ({percent(side['strict_mfu'])})" if "strict_mfu" in side else "")
        ratio = times(ours / side["tokens_per_second"]) if name != "headstart" else "1"
        figures = [f"{side['tokens_per_second']:,.0f}", ratio, fraction, f"{side['gib']:.1f}", f"{side['ready_s']:.1f}"]
        rows.append([title, SIDES[name], *figures])
    return rows


def _shape(row: dict) -> str:
    shape = row["shape"]
    packed = f" in documents of {shape['mean']:.0f} on average" if shape.get("mean") else ""
    return f"{shape['batch']} × {shape['length']:,} tokens{packed}, {shape['vocabulary']:,} entries"


def _two_runs(row: dict) -> str:
    """Two runs of GPT-2 small, between which the peer's compiler decided differently."""
    before, machine = row["before"], row["before"]["machine"]

    def describe(sides: dict) -> str:
        ours, theirs = (statistics.median(sides[who]["ms"]) for who in ("headstart", "transformers"))
        return f"{theirs:.1f} ms per step for transformers, {ours:.1f} for Headstart, ratio {times(theirs / ours)}"

    return (
        "GPT-2 small was measured in two runs. The compiler of transformers' side decides by timing, once per run, whether to pad the matrix of 50,257 entries. In the run of the table it does "
        f"({describe(row['sides'])}), in an earlier run (commit {machine['commit']}, {machine['date']}) it does not ({describe(before['sides'])})."
    )


def _step_commands(rows: dict[str, dict]) -> list[tuple[str, dict]]:
    """The commands that reproduce the rows, and the machine of each; the rows of one run have one command."""
    runs: dict[str, list[str]] = {}
    for name, row in rows.items():
        runs.setdefault(json.dumps((row["machine"], row["rounds"], row["steps"])), []).append(name)
    made = []
    for names in runs.values():
        row = rows[names[0]]
        parts = " ".join(name for name in names if name != "packed" or "modern" not in names)
        flags = f"--rounds {row['rounds']} --steps {row['steps']}"
        flags += f" --warm {row['warm']}" if "warm" in row else ""
        flags += " --variants" * any("headstart, torch's attention" in rows[name]["sides"] for name in names)
        flags += " --profile" * any("profile" in rows[name] for name in names)
        made.append((f"python benchmarks/gpu.py {parts} {flags} --out docs/results/gpu.json", row["machine"]))
    return made


def by_size() -> list[str]:
    """Headstart's pretraining step by each size, the others constant; nothing if it was not measured."""
    record = load("gpu.json").get("curves") if exists("gpu.json") else None
    if record is None:
        return []
    shape, machine = record["shape"], record["machine"]
    measured = [(row, row.get("commit") or machine["commit"]) for row in record["rows"]]
    rows = [
        [
            row["what"],
            f"{row['value']:,}",
            f"{row['tokens_per_second']:,.0f}",
            percent(row["mfu"]),
            f"{row['gib']:.1f}",
            commit,
        ]
        for row, commit in measured
        if "tokens_per_second" in row
    ]
    made = []
    for commit in dict.fromkeys(commit for _, commit in measured):
        sizes = dict.fromkeys(row["what"] for row, other in measured if other == commit)
        command = f"python benchmarks/gpu.py curves {' '.join(f'--curve {what}' for what in sizes)} --out docs/results/gpu.json"
        made.append((command, machine if commit == machine["commit"] else {"commit": commit}))
    return [
        "## Pretraining step by size",
        "",
        f"Starting from {shape['batch']} rows of {shape['length']} tokens, causal, width {shape['width']}, {shape['depth']} layers and {shape['vocabulary']:,} entries, one size is changed at a time "
        "(with the length, the number of rows changes so that the tokens per step stay constant).",
        "",
        *table(["size", "value", "tokens per second", "fraction of peak", "memory, GiB", "commit"], rows),
        "",
        *measured_by(made),
    ]


def finetuning() -> list[str]:
    """Fine-tuning steps with and without CUDA graphs; nothing if they were not measured."""
    if not exists("finetuning.json"):
        return []
    record = load("finetuning.json")
    names = [name for name in ("classic", "modern", "long") if name in record]
    rows = []
    for name in names:
        rates, ratios = record[name]["texts_per_second"], record[name]["ratios"]
        rows.append(
            [
                "modern" if name == "long" else name,
                record[name]["batch"],
                record[name]["tokens_per_text"],
                f"{rates['course']:,.0f}" if "course" in rates else "–",
                f"{rates['plain']:,.0f}",
                f"{rates['recorded']:,.0f}",
                times(ratios["recorded / course"]) if "course" in rates else "–",
                times(ratios["recorded / plain"]),
            ]
        )
    command = f"python benchmarks/finetuning.py {' '.join(names)} --rounds {record['rounds']} --out docs/results/finetuning.json"
    return [
        "## Fine-tuning",
        "",
        f"Wall time on the same GPU with everything included; medians of {record['rounds']} rounds, in turn in one process. Texts of random tokens with log-normal lengths, bf16; the course's code in fp32 as published.",
        "",
        *table(
            [
                "network",
                "texts per step",
                "mean tokens",
                "the course's code, texts/s",
                "Headstart without CUDA graphs, texts/s",
                "Headstart, texts/s",
                "rate / the course's code",
                "rate / without CUDA graphs",
            ],
            rows,
        ),
        "",
        *measured_by([(command, record)]),
    ]


def seeds() -> list[str]:
    """Several seeds at once on one GPU; nothing if that was not measured."""
    if not exists("seeds.json"):
        return []
    records = load("seeds.json")
    first = records[0]
    one, many = first["seconds"]
    command = f"python benchmarks/seeds.py --rows {first['rows']} --from {first['from']} --seeds {many} --out docs/results/seeds.json"
    parts = [
        f"{record['seconds'][many]:.0f} s with {many} seeds at once (`--jobs {many}`, {'with' if record['service'] else 'without'} NVIDIA's multi-process service; with {one} seed "
        f"{record['seconds'][one]:.0f} s), which is {times(record['ratio'])} times the wall time"
        for record in records
    ]
    commands = [
        line
        for record in records
        for line in [*([("nvidia-cuda-mps-control -d", {})] if record["service"] else []), (command, record)]
    ]
    return [
        "## Several seeds at once",
        "",
        f"`headstart compare --from {first['from']} --arms pretrained` on {first['rows']:,} generated labelled texts takes {', and '.join(parts)}; the start of the processes is included.",
        "",
        *measured_by(commands),
    ]


def kernel_table() -> str:
    """Where the time of a GPU step goes, for docs/performance.md: the longest kernels if they were recorded."""
    lines = []
    for name, row in _measured().items():
        title, other = ROWS[name]
        sides = row["sides"]
        measured = {who: sides[who] for who in ("headstart", other) if "tokens_per_second" in sides.get(who, {})}
        ours = measured.get("headstart")
        if len(measured) == 2:
            ratio = ours["tokens_per_second"] / measured[other]["tokens_per_second"]
            lines.append(
                f"- {title}: {times(ratio)} times the rate of {SIDES[other]}; {ours['gib']:.1f} GiB instead of {measured[other]['gib']:.1f}."
            )
        elif measured:
            lines.append(
                f"- {title}: {ours['tokens_per_second']:,.0f} tokens per second, {percent(ours['mfu'])} of the rate of a product of 8,192³."
            )
        kernels = row.get("profile", {}).get("headstart", [])
        if kernels:
            first = "; ".join(f"`{kernel['kernel'][:60]}` {kernel['ms']:.2f} ms" for kernel in kernels[:6])
            lines.append(f"  Longest kernels: {first}.")
    return "\n".join(lines or ["Not measured yet: `python benchmarks/gpu.py --profile --out docs/results/gpu.json`."])
