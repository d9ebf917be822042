"""serving.md: throughput and latency of the server, compared with other servers."""

from .markdown import commands, load, table


def throughput() -> list[str]:
    """Requests per second of three servers, and the answers under overload."""
    record = load("serving.json")
    overload = record["overload"]
    rows = [
        [
            row["clients"],
            row["server"],
            f"{row['rate']:.0f} ({', '.join(f'{rate:.0f}' for rate in row['rates'])})",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['cpu_ms_per_text']:.2f}",
            f"{row['headstart_ratio']:.2f}",
        ]
        for row in sorted(record["rows"], key=lambda row: row["clients"])
    ]
    statuses = ", ".join(f"{count:,} × {status}" for status, count in overload["statuses"].items())
    return [
        "## Throughput and latency",
        "",
        f"A classifier of the default shape (width 200, 4 layers, random weights) and generated texts of 5 to 120 words, one text per request. {record['cores']} {record['machine']} cores, shared with "
        f"the client and other processes; one thread per model. The servers were measured in turn, {record['rounds']} rounds of {record['seconds']:g} s each; rates are medians over rounds. CPU time per text is that of the server "
        "process and depends least on the load of the machine.",
        "",
        *table(
            [
                "clients",
                "server",
                "texts per second, median (rounds)",
                "p50, ms",
                "p99, ms",
                "CPU ms per text",
                "rate of `headstart serve` / rate of this server",
            ],
            rows,
        ),
        "",
        "With one client `headstart serve` is not faster than plain FastAPI; its batching helps with concurrent clients.",
        "",
        "## Overload",
        "",
        f"At twice the highest rate ({overload['requests_per_second']:.0f} texts per second, deadline {overload['deadline_ms']:,} ms) the responses by HTTP status were {statuses}. The latency of accepted requests, "
        f"measured by the client, was {overload['accepted_p50_ms']:.0f} ms (p50) and {overload['accepted_p99_ms']:.0f} ms (p99).",
        "",
        f"{', '.join(f'{name} {version}' for name, version in record['versions'].items())}:",
        "",
        *commands("python benchmarks/serving.py"),
    ]
