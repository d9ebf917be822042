"""distributed.md: speed and communication cost of several processes."""

from .markdown import commands, load, percent, table


def processes() -> list[str]:
    """One step by one, two and four processes, as copies and in shards."""
    record = load("ranks.json")
    rows = []
    for row in record["rows"]:
        unsynchronized = row["strategies"]["unsynchronized"]
        for name, strategy in row["strategies"].items():
            reference, single = name == "unsynchronized", row["processes"] == 1
            cost = "" if reference else percent(max(0.0, 1 - unsynchronized["processor_ms"] / strategy["processor_ms"]))
            rows.append(
                [
                    row["processes"],
                    "one process" if single else name,
                    f"{strategy['processor_ms']:.0f}",
                    cost,
                    f"{strategy['step_ms']:.0f}",
                    f"{1000 * record['tokens_per_step'] / strategy['step_ms']:,.0f}",
                    f"{strategy['megabytes']:.1f}",
                    # without gradient synchronization the loss is another one
                    f"{strategy['loss']:.6f}" if single or not reference else "",
                ]
            )
    return [
        "## Processes on one CPU",
        "",
        f"Pretraining of a language model with {record['parameters']:,} parameters in fp32; {record['tokens_per_step']:,} tokens per step, divided among the processes; one thread per process; gloo; {record['cores']} CPU cores "
        f"(load {record['load']:g}; under load, CPU time is more reliable than wall time). Medians of {record['steps']} steps. `unsynchronized` does not synchronize gradients; the communication fraction is the additional CPU time of a "
        "strategy compared with it. Memory per process is that of weights and optimizer state.",
        "",
        *table(
            [
                "processes",
                "strategy",
                "CPU ms per step, all processes",
                "communication fraction",
                "wall ms per step",
                "tokens per second",
                "MB per process",
                "loss, last step",
            ],
            rows,
        ),
        "",
        "DDP and FSDP have the loss of one process to all digits shown. Four processes on two cores are slower than two. Several GPUs and several machines were not measured.",
        "",
        f"torch {record['torch']}, {record['date']}:",
        "",
        *commands("python benchmarks/ranks.py"),
    ]


def communication(processes: int, strategy: str) -> str:
    """Return the communication fraction of a strategy, for the page of headlines."""
    strategies = next(row["strategies"] for row in load("ranks.json")["rows"] if row["processes"] == processes)
    return percent(1 - strategies["unsynchronized"]["processor_ms"] / strategies[strategy]["processor_ms"])
