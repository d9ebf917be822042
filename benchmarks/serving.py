"""Speed of `headstart serve`, compared with plain servers of the same or a similar model.

python benchmarks/serving.py                  writes docs/results/serving.json; python benchmarks/results.py generates the page

The other servers are FastAPI with the same classifier, one request at a time, as in tutorials, and (if transformers is
installed) the same with a transformers pipeline and a network of the same width, depth and vocabulary. Weights are random,
because speed does not depend on them. Each model has one thread, so that the client has a core too. Rounds take turns, and
ratios are those of medians over rounds.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "serving.json"
CLIENTS = (1, 8, 32)
WORDS = 400
LABELS = ("negative", "positive")


def make_texts(count: int) -> list[str]:
    """Generate reviews of 5 to 120 words, most of them short."""
    chance = random.Random(1)
    words = ["".join(chance.choice("aeioulnrst") for _ in range(chance.randint(2, 8))) for _ in range(WORDS)]
    return [" ".join(chance.choices(words, k=min(120, 5 + int(chance.expovariate(1 / 35))))) for _ in range(count)]


def make_model(folder: Path) -> None:
    """Build a classifier of the default shape with random weights, and its tokenizer for transformers."""
    from headstart.config.schema import ModelConfig, TokenizerConfig
    from headstart.model.heads import Model, build_classifier_head
    from headstart.model.transformer import build_backbone
    from headstart.store.bundle import Bundle, save_bundle
    from headstart.tasks import SingleLabel
    from headstart.tokenization.bpe import train_tokenizer

    tokenizer = train_tokenizer(make_texts(3000), TokenizerConfig(vocab_size=4000))
    config = ModelConfig(context=256)
    model = Model(build_backbone(config, tokenizer.vocab_size, 0), build_classifier_head(config, len(LABELS), 0))
    save_bundle(folder, Bundle(model, tokenizer, SingleLabel(LABELS)))


def plain_server(folder: str, port: int) -> None:
    """The same classifier, one request at a time."""
    import uvicorn
    from fastapi import FastAPI

    from headstart.config.schema import RuntimeConfig
    from headstart.predict.predictor import Predictor

    app, predictor = FastAPI(), Predictor.load(Path(folder), RuntimeConfig(threads=1))

    @app.post("/predict")
    def predict(payload: dict) -> dict:
        return {"predictions": [vars(answer) for answer in predictor.predict(payload["texts"])]}

    uvicorn.run(app, port=port, log_level="error")


def pipeline_server(folder: str, port: int) -> None:
    """A transformers pipeline around a BERT of the same width, depth, heads and vocabulary, one request at a time."""
    import torch
    import uvicorn
    from fastapi import FastAPI
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

    from headstart.config.schema import ModelConfig, RuntimeConfig
    from headstart.runtime import setup_runtime

    setup_runtime(RuntimeConfig(threads=1))
    shape = ModelConfig(context=256)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(folder) / "tokenizer" / "tokenizer.json"), pad_token="<pad>", model_max_length=256
    )
    torch.manual_seed(0)
    network = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            intermediate_size=shape.feedforward,
            max_position_embeddings=256,
            num_labels=len(LABELS),
        )
    ).eval()
    app, answer = FastAPI(), pipeline("text-classification", model=network, tokenizer=tokenizer, device="cpu")

    @app.post("/predict")
    def predict(payload: dict) -> dict:
        with torch.inference_mode():
            return {"predictions": answer(payload["texts"], truncation=True, top_k=None)}

    uvicorn.run(app, port=port, log_level="error")


class Running:
    """One of the servers in a process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = ["-m", "headstart", "serve", str(folder), "--port", str(self.port), "--quiet", "--runtime.threads", "1"]
        if name != "headstart serve":
            words = [str(Path(__file__).resolve()), "--server", name, str(folder), str(self.port)]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen([sys.executable, *words], env=environment)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert self.process.poll() is None, f"{name} did not start"
                time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process over all of its threads, which does not depend on other load."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str, deadline_ms: int = 30_000) -> int:
    """Send one request on an open connection and return the status."""
    body = json.dumps({"texts": [text]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Deadline-Ms: {deadline_ms}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
    await reader.readexactly(int(length[1]))
    return int(answer.split()[1])


async def closed_loop(port: int, clients: int, seconds: float, texts: list[str]) -> tuple[float, list[float]]:
    """Measure with clients that send the next request after each response: responses per second, and the time of each."""
    end, took = time.perf_counter() + seconds, []

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        index = number
        while time.perf_counter() < end:
            started = time.perf_counter()
            assert await ask(reader, writer, texts[index % len(texts)]) == 200
            took.append(time.perf_counter() - started)
            index += clients
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return len(took) / (time.perf_counter() - started), took


async def open_loop(
    port: int, rate: float, seconds: float, texts: list[str], deadline_ms: int
) -> list[tuple[int, float]]:
    """Send requests at a fixed rate, independent of the responses; return the status and time of each."""
    seen: list[tuple[int, float]] = []
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(text: str) -> None:
        pair = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        started = time.perf_counter()
        status = await ask(*pair, text, deadline_ms)
        seen.append((status, time.perf_counter() - started))
        idle.append(pair)

    started, tasks = time.perf_counter(), []
    while (now := time.perf_counter() - started) < seconds:
        while len(tasks) < now * rate:
            tasks.append(asyncio.create_task(one(texts[len(tasks) % len(texts)])))
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    return seen


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(servers: list[Running], rounds: int, seconds: float, texts: list[str]) -> list[dict]:
    rates: dict[tuple[str, int], list[float]] = {}
    times: dict[tuple[str, int], list[float]] = {}
    cpu: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for clients in CLIENTS:
            for server in servers:
                before = cpu_seconds(server.process.pid)
                rate, took = asyncio.run(closed_loop(server.port, clients, seconds, texts))
                cpu.setdefault((server.name, clients), []).append(
                    1000 * (cpu_seconds(server.process.pid) - before) / len(took)
                )
                rates.setdefault((server.name, clients), []).append(rate)
                times.setdefault((server.name, clients), []).extend(took)
                print(
                    f"{server.name:>24}  {clients:>3} clients  {rate:8.1f} texts/s  p50 {1000 * quantile(took, 0.5):.1f} ms",
                    flush=True,
                )
    rows = []
    for (name, clients), result in rates.items():
        ours = statistics.median(rates[servers[0].name, clients])
        median = statistics.median(result)
        p50, p99 = (1000 * quantile(times[name, clients], share) for share in (0.5, 0.99))
        row = {
            "server": name,
            "clients": clients,
            "rates": [round(rate, 1) for rate in result],
            "rate": round(median, 1),
        }
        row["cpu_ms_per_text"] = round(statistics.median(cpu[name, clients]), 2)
        rows.append(
            row | {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "headstart_ratio": round(ours / median, 2)}
        )
        print(
            f"{name:>24}  {clients:>3} clients  {median:8.1f} texts/s, {row['cpu_ms_per_text']} ms of CPU a text, headstart serve has {ours / median:.2f} times that"
        )
    return rows


def overload(server: Running, sustainable: float, seconds: float, texts: list[str], deadline_ms: int = 1000) -> dict:
    """Send twice the load that the server can process; measure the rejected requests and the waiting time of the others."""
    seen = asyncio.run(open_loop(server.port, 2 * sustainable, seconds, texts, deadline_ms))
    good = [took for status, took in seen if status == 200]
    counts = {str(code): sum(status == code for status, _ in seen) for code in sorted({status for status, _ in seen})}
    result = {
        "requests_per_second": round(2 * sustainable, 1),
        "seconds": seconds,
        "deadline_ms": deadline_ms,
        "statuses": counts,
    }
    result |= {
        "accepted_p50_ms": round(1000 * quantile(good, 0.5), 1),
        "accepted_p99_ms": round(1000 * quantile(good, 0.99), 1),
    }
    print(f"at twice the rate: {counts}, accepted p99 {result['accepted_p99_ms']} ms")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", nargs=3, metavar=("NAME", "FOLDER", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.server:
        name, folder, port = options.server
        (plain_server if name == "plain FastAPI" else pipeline_server)(folder, int(port))
        return
    names = ["headstart serve", "plain FastAPI"]
    names += ["transformers pipeline"] if importlib.util.find_spec("transformers") else []
    texts = make_texts(2000)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        make_model(bundle)
        servers = [Running(name, bundle) for name in names]
        try:
            for server in servers:  # warm
                asyncio.run(closed_loop(server.port, 4, 1.0, texts))
            rows = measure(servers, options.rounds, options.seconds, texts)
            best = max(row["rate"] for row in rows if row["server"] == names[0])
            shed = overload(servers[0], best, 3 * options.seconds, texts)
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait()
    record = {
        "format": 1,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    record |= {"versions": versions(names), "rows": rows, "overload": shed}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.out}")


def versions(names: list[str]) -> dict[str, str]:
    from importlib.metadata import version

    wanted = ["torch", "fastapi", "uvicorn"] + (["transformers"] if "transformers pipeline" in names else [])
    return {name: version(name) for name in wanted}


if __name__ == "__main__":
    main()
