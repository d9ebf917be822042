"""The parts of a GPU step in isolation: attention kernels and the loss, at the shapes of benchmarks/gpu.py."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from headstart.kernels.attention import cudnn_attention
from headstart.kernels.cross_entropy import (
    _add_product,
    chunk_rows,
    chunked_loss_cuda,
    from_logits,
    logits_to_grad_reference,
)

ATTENTION = {  # rows, heads, tokens, width of a head, causal
    "classic": (128, 2, 256, 100, True),
    "gpt2": (32, 12, 1024, 64, True),
    "modern": (128, 8, 512, 64, False),
}
LOSS = {  # rows scored, width, vocabulary, bias
    "classic": (32768, 200, 50001, True),
    "gpt2": (32768, 768, 50257, False),
    "modern": (19660, 512, 16384, False),
}
CHUNKS = (256, 1024, 2048, 4096, 8192, 8448, 16384, 16896, 32768)
KERNELS = ((8192, 16), (8192, 32), (16384, 32), (4096, 16), (4096, 8), (2048, 8))
"""Logits per program of the kernel, and its warps."""
TILES = (  # rows, places, columns, warps, stages, group
    (128, 256, 64, 8, 4, 64),
    (128, 256, 64, 8, 4, 8),
    (128, 256, 64, 8, 3, 64),
    (128, 256, 32, 8, 6, 64),
    (256, 128, 64, 8, 3, 64),
    (128, 128, 64, 4, 3, 64),
    (128, 128, 64, 8, 3, 64),
)
"""The tile of a program of the product that writes exponentials (`kernels.triton.mlp.MatmulTile`)."""
TINY_ATTENTION = {"tiny": (2, 2, 16, 12, True)}
TINY_LOSS = {"tiny": (300, 12, 101, True)}


def milliseconds(work: Callable[[], object], device: str, *, times: int = 12, warm: int = 3) -> float:
    """Return the median of a few runs, by the clock of the device if it has one."""
    for _ in range(warm):
        work()
    if device != "cuda":
        taken = []
        for _ in range(times):
            before = time.perf_counter()
            work()
            taken.append(1000 * (time.perf_counter() - before))
        return statistics.median(taken)
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    for begin, end in marks:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def matmul_peak(device: str, size: int = 8192) -> float:
    """Return the TFLOP/s of one large product in bf16, the reference of the other rates."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2e-9 * size**3 / milliseconds(lambda: a @ b, device, times=20, warm=5)


def _ways(shape: tuple, device: str) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    batch, _, length, head, causal = shape

    def chosen(*backends: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(list(backends)):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return way

    def widened(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        missing = -head % 64
        q, k, v = (F.pad(part, (0, missing)) for part in (q, k, v))
        mixed = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=head**-0.5
        )
        return mixed[0][..., :head]

    cu_seqlens = torch.arange(batch + 1, dtype=torch.int32, device=device) * length

    def between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in (q, k, v))
        missing = -head % 8
        if missing:
            q, k, v = (F.pad(part, (0, missing)) for part in (q, k, v))
        window = (-1, 0) if causal else (-1, -1)
        mixed = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, length, length, scale=head**-0.5, window_size=window)
        return mixed[..., :head].unflatten(0, (batch, length)).transpose(1, 2)

    ways = {"torch's choice": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)}
    if device != "cuda":
        return ways
    return ways | {
        "flash": chosen(SDPBackend.FLASH_ATTENTION),
        "efficient": chosen(SDPBackend.EFFICIENT_ATTENTION),
        "cudnn": chosen(SDPBackend.CUDNN_ATTENTION),
        "headstart's attend": lambda q, k, v: cudnn_attention(q, k, v, causal=causal),
        "cudnn, heads to 64s": widened,
        "varlen": between,
    }


def attention_rows(device: str, *, tiny: bool) -> Iterator[dict]:
    """Measure forward and backward of each kernel, on queries, keys and values that are adjacent in memory, as in a layer."""
    for name, shape in (TINY_ATTENTION if tiny else ATTENTION).items():
        batch, heads, length, head, causal = shape
        made = torch.randn(batch, length, 3 * heads * head, device=device, dtype=torch.bfloat16, requires_grad=True)
        grad_output = torch.randn(batch, length, heads * head, device=device, dtype=torch.bfloat16)
        operations = 14 * batch * heads * length**2 * head * (0.5 if causal else 1.0)
        for way_name, way in _ways(shape, device).items():

            def both(
                way: Callable = way, made: Tensor = made, grad_output: Tensor = grad_output, heads: int = heads
            ) -> None:
                parts = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in made.chunk(3, dim=-1))
                way(*parts).transpose(1, 2).flatten(-2).backward(grad_output)
                made.grad = None

            row: dict = {"shape": name, "way": way_name}
            try:
                ms = milliseconds(both, device, times=8 if tiny else 12)
                row |= {"ms": ms, "tflops": 1e-9 * operations / ms}
            except (RuntimeError, ValueError, TypeError) as error:
                row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            yield row


def loss_rows(device: str, *, tiny: bool) -> Iterator[dict]:
    """Measure the loss and its gradients by chunk size, then its parts at the chosen size."""
    for name, (count, width, vocabulary, biased) in (TINY_LOSS if tiny else LOSS).items():
        hidden = torch.randn(count, width, device=device)
        weight = torch.randn(vocabulary, width, device=device) / width**0.5
        bias = torch.zeros(vocabulary, device=device) if biased else None
        targets = torch.randint(vocabulary, (count,), device=device)
        inputs = hidden, weight, bias, targets, torch.bfloat16
        taken = chunk_rows(count, -(-vocabulary // 64) * 64, 2)
        ways: dict[str, Callable[[], object]] = {f"as it is ({taken})": lambda a=inputs: chunked_loss_cuda(*a)}
        for rows in (128,) if tiny else CHUNKS:
            ways[f"chunks of {rows}"] = lambda a=inputs, rows=rows: chunked_loss_cuda(*a, rows=rows)
        if device == "cuda":
            from headstart.kernels.triton.cross_entropy import logits_to_grad

            old = from_logits(logits_to_grad)
            ways["by scores"] = lambda a=inputs, old=old: chunked_loss_cuda(*a, chunk_loss=old)
        ways["without triton"] = lambda a=inputs: chunked_loss_cuda(
            *a, chunk_loss=from_logits(logits_to_grad_reference)
        )
        ways["full scores"] = lambda a=inputs: _full_scores(*a)
        for way_name, way in (ways | _pieces(*inputs, rows=taken)).items():
            row: dict = {"shape": name, "way": way_name}
            try:
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                row["ms"] = milliseconds(way, device, times=5, warm=2)
                if device == "cuda":
                    row["gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
            except Exception as error:  # triton has errors of its own
                row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            yield row


def _full_scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, kind: torch.dtype) -> None:
    """The reference: all logits at once, under autocast."""
    parts = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]
    with torch.autocast(hidden.device.type, dtype=kind):
        F.cross_entropy(F.linear(*parts, bias).float(), targets, reduction="sum").backward()


def _pieces(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, kind: torch.dtype, *, rows: int
) -> dict[str, Callable[[], object]]:
    """Measure one chunk: three products and the operations between them; to be multiplied by the number of chunks."""
    rows = min(rows, len(hidden))
    positions, columns = -(-len(weight) // 64) * 64, -(-(hidden.shape[1] + 2 * (bias is not None)) // 8) * 8
    table = F.pad(weight.to(kind), (0, columns - weight.shape[1], 0, positions - len(weight)))
    exact = F.pad(hidden[:rows], (0, columns - hidden.shape[1]))
    low = exact.to(kind)
    scores = torch.empty(rows, positions, dtype=kind, device=hidden.device)
    bias_W = None if bias is None else F.pad(bias, (0, positions - len(weight)), value=-torch.inf)
    total = torch.zeros(positions, columns, device=hidden.device)
    out = torch.empty(rows, hidden.shape[1], dtype=kind, device=hidden.device)
    inputs = scores, len(weight), bias_W, targets[:rows]
    torch.mm(low, table.T, out=scores)
    pieces: dict[str, Callable[[], object]] = {
        "scores": lambda: torch.mm(low, table.T, out=scores),
        "gradients without triton": lambda: logits_to_grad_reference(*inputs),
        "by hidden": lambda: torch.mm(scores, table[:, : hidden.shape[1]], out=out),
        "by table": lambda: _add_product(total, scores.T, low, first=False),
        "by table, bf16": lambda: total.add_(scores.T @ low),
    }
    if hidden.is_cuda:
        from headstart.kernels.triton.cross_entropy import from_exp_logits, logits_to_grad
        from headstart.kernels.triton.mlp import MatmulTile

        pieces["gradients"] = lambda: logits_to_grad(*inputs)
        for most, warps in KERNELS:
            name = f"gradients, {most} by {warps} warps"
            pieces[name] = lambda most=most, warps=warps: logits_to_grad(*inputs, max_block=most, warps=warps)
        for sizes in TILES:
            tile = MatmulTile(*sizes)
            pieces[f"powers, {'x'.join(map(str, tile))}"] = lambda tile=tile: from_exp_logits(
                exact, table, *inputs[1:], scores, tile=tile
            )
    return {f"one chunk of {rows}: {name}": piece for name, piece in pieces.items()}
