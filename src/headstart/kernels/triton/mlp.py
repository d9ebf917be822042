"""Matrix products with an activation inside, for GPUs with a unit that loads and stores tiles.

A pass over the output of a product is memory-bound; inside the product it costs next to nothing as long as it takes few
instructions. The forward product computes both the activation and its derivative, which share most of their work, so that the
backward product has only one multiplication left.

N rows, D columns of the input, F columns of the output.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from headstart.kernels.triton.elementwise import sum_rows


class MatmulTile(NamedTuple):
    """The tile of a product that a program computes at a time, and how."""

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64  # a step of the product's inner loop
    warps: int = 8
    stages: int = 4
    group: int = 64  # tiles of rows that take turns on the same columns

    @property
    def shared_memory(self) -> int:
        """Bytes of a persistent program: what it prefetches, half a tile on its way out, and barriers between them."""
        prefetched = self.stages * self.block_k * (self.block_m + self.block_n)
        return 2 * (prefetched + self.block_m * self.block_n // 2) + 2048


# the fastest of some dozens on an H200, for 32,768 rows of 768 columns and 3,072 columns of output
_FORWARD_TILE = MatmulTile(group=8)
_BACKWARD_TILE = MatmulTile(128, 128, 64, 4, 3, group=8)
_HOPPER = 9


@cache
def fits(device: torch.device) -> bool:
    """Return whether this is a large Hopper GPU; for the next generation triton needs more shared memory than it has."""
    properties = torch.cuda.get_device_properties(device)
    shared_memory: int = getattr(properties, "shared_memory_per_block_optin", 0)
    return properties.major == _HOPPER and shared_memory >= MatmulTile().shared_memory


@cache
def num_programs(device: torch.device) -> int:
    """Return the number of programs that run at once: each computes tiles until none is left, and prefetches the next.

    Triton's interpreter has no device to ask.
    """
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def tile_index(number, num_rows, TILES: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute the row and column of a tile; tiles computed together share rows and columns, which the cache holds."""
    turn = number // (GROUP * TILES)
    within = number % (GROUP * TILES)
    group_rows = tl.minimum(tl.cdiv(num_rows, BLOCK_M) - turn * GROUP, GROUP)
    return turn * GROUP + within % group_rows, within // group_rows


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def split_halves(x, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Split a tile into its left and right half: shared memory to store it at once would be taken from prefetching."""
    return tl.split(tl.permute(tl.reshape(x, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gelu(x):  # type: ignore[no-untyped-def]
    """Compute x · sigmoid(2u), where u is the argument of the tanh, and its derivative."""
    square = x * x
    root = tl.rsqrt(1.0 + tl.exp2(x * (-2.302208198 - 0.1029432397 * square)))  # a division takes more than its square
    cdf = root * root
    activated = x * cdf
    return activated, cdf + (activated - activated * cdf) * (1.5957691216 + 0.2140644488 * square)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _linear_gelu_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    activated,
    derivative,
    num_rows,
    IN_COLUMNS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute tiles of the activation and of its derivative."""
    TILES: tl.constexpr = (OUT_COLUMNS + BLOCK_N - 1) // BLOCK_N
    HALF: tl.constexpr = BLOCK_N // 2
    for number in tl.range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M) * TILES, PROGRAMS, flatten=True):
        tile_row, tile_column = tile_index(number, num_rows, TILES, GROUP, BLOCK_M)
        row, column = tile_row * BLOCK_M, tile_column * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, IN_COLUMNS, BLOCK_K):  # elements outside are read as 0, and not written
            total = tl.dot(x.load([row, k]), weight.load([column, k]).T, total)
        if HAS_BIAS:
            columns = column + tl.arange(0, BLOCK_N)
            total += tl.load(bias + columns, mask=columns < OUT_COLUMNS, other=0.0).to(tl.float32)[None, :]
        left, right = split_halves(total, BLOCK_M, BLOCK_N)
        y, dy = _gelu(left)
        activated.store([row, column], y.to(activated.dtype))
        derivative.store([row, column], dy.to(derivative.dtype))
        y, dy = _gelu(right)
        activated.store([row, column + HALF], y.to(activated.dtype))
        derivative.store([row, column + HALF], dy.to(derivative.dtype))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _linear_gelu_backward_kernel(  # type: ignore[no-untyped-def]
    grad,
    weight,
    derivative,
    out,
    partial_sums,
    num_rows,
    IN_COLUMNS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Compute a tile of the gradient before an activation, and the sum of each of its columns."""
    TILES: tl.constexpr = (OUT_COLUMNS + BLOCK_N - 1) // BLOCK_N
    tile_row, tile_column = tile_index(tl.program_id(0), num_rows, TILES, GROUP, BLOCK_M)
    row, column = tile_row * BLOCK_M, tile_column * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, IN_COLUMNS, BLOCK_K):
        total = tl.dot(grad.load([row, k]), weight.load([k, column]), total)
    total *= derivative.load([row, column]).to(tl.float32)
    out.store([row, column], total.to(out.dtype))
    columns = column + tl.arange(0, BLOCK_N)
    tl.store(partial_sums + tile_row * OUT_COLUMNS + columns, tl.sum(total, axis=0), mask=columns < OUT_COLUMNS)


def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, tile: MatmulTile = _FORWARD_TILE
) -> tuple[Tensor, Tensor]:
    """Return the activation (N, F) of a product, and its derivative."""
    (num_rows, in_columns), out_columns = x.shape, len(weight)
    activated, derivative = (x.new_empty(num_rows, out_columns) for _ in range(2))
    programs = num_programs(x.device)
    tiles = triton.cdiv(num_rows, tile.block_m) * triton.cdiv(out_columns, tile.block_n)
    launch: Any = _linear_gelu_kernel[(min(programs, tiles),)]
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # triton launches on the current device
        launch(
            tensor_descriptor(x, tile.block_m, tile.block_k),
            tensor_descriptor(weight, tile.block_n, tile.block_k),
            x if bias is None else bias,
            tensor_descriptor(activated, tile.block_m, tile.block_n // 2),
            tensor_descriptor(derivative, tile.block_m, tile.block_n // 2),
            num_rows,
            IN_COLUMNS=in_columns,
            OUT_COLUMNS=out_columns,
            HAS_BIAS=bias is not None,
            PROGRAMS=programs,
            **launch_options(tile),
        )
    return activated, derivative


def linear_gelu_backward(
    grad: Tensor, weight: Tensor, derivative: Tensor, *, tile: MatmulTile = _BACKWARD_TILE
) -> tuple[Tensor, Tensor]:
    """Return the gradient (N, F) before an activation, and its column sums (F).

    Args:
        grad: the gradient (N, D) behind the product with `weight` (D, F) that follows the activation.
    """
    (num_rows, in_columns), out_columns = grad.shape, weight.shape[1]
    out, tile_rows = torch.empty_like(derivative), triton.cdiv(num_rows, tile.block_m)
    partial_sums = torch.empty(tile_rows, out_columns, dtype=torch.float32, device=grad.device)
    launch: Any = _linear_gelu_backward_kernel[(tile_rows * triton.cdiv(out_columns, tile.block_n),)]
    with torch.cuda.device_of(grad):  # type: ignore[no-untyped-call]
        launch(
            tensor_descriptor(grad, tile.block_m, tile.block_k),
            tensor_descriptor(weight, tile.block_k, tile.block_n),
            tensor_descriptor(derivative, tile.block_m, tile.block_n),
            tensor_descriptor(out, tile.block_m, tile.block_n),
            partial_sums,
            num_rows,
            IN_COLUMNS=in_columns,
            OUT_COLUMNS=out_columns,
            **launch_options(tile),
        )
    return out, sum_rows(partial_sums)


def tensor_descriptor(tensor: Tensor, block_rows: int, block_columns: int) -> Any:
    """Describe a matrix to the unit that loads and stores tiles of it."""
    return TensorDescriptor.from_tensor(tensor, [block_rows, block_columns])


def launch_options(tile: MatmulTile) -> dict[str, int]:
    """Return the keyword arguments with which a kernel takes its tile."""
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP": tile.group}
    return blocks | {"num_warps": tile.warps, "num_stages": tile.stages}
