"""Counts of what a server did, as the text that Prometheus reads. Used on one thread only: the event loop's."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often a value fell into each range."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.total = edges, [0] * (len(edges) + 1), 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        """Each range with all below it, the sum, and the count."""
        below = 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{"+Inf" if edge == float("inf") else f"{edge:g}"}"}} {below}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {below}"


class Metrics:
    """All that is counted."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.events: Counter[str] = Counter()
        """texts, tokens, truncated, batches, expired: what was read, and what came too late to be."""
        self.seconds, self.batch_texts = Histogram(SECONDS), Histogram(TEXTS)
        self.gauges: dict[str, Callable[[], float]] = {}
        """Values that are asked for when they are read."""

    def text(self) -> str:
        """Everything, in the text format."""
        lines = ["# TYPE headstart_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'headstart_requests_total{{path="{path}",status="{status}"}} {count}')
        for name in ("texts", "tokens", "truncated", "batches", "expired"):
            lines += [f"# TYPE headstart_{name}_total counter", f"headstart_{name}_total {self.events[name]}"]
        for name, value in self.gauges.items():
            lines += [f"# TYPE headstart_{name} gauge", f"headstart_{name} {value():g}"]
        for name, histogram in (("request_seconds", self.seconds), ("batch_texts", self.batch_texts)):
            lines += [f"# TYPE headstart_{name} histogram", *histogram.lines(f"headstart_{name}")]
        return "\n".join(lines) + "\n"
