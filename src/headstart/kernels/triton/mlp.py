"""Products whose results are worked on before they are written, on GPUs with a unit that loads and stores tiles.

A pass over what a product has written is bounded by reading and writing it: inside the product it costs next to nothing, as
long as it needs few instructions. Hence an activation and its slope are made on the way there, where they share most of
their work, and on the way back there is but one multiplication left.

Needs triton, which comes with torch where there are CUDA devices. N rows, D columns, F places.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from headstart.kernels.triton.elementwise import sum_parts


class Tile(NamedTuple):
    """What a program of a product makes at a time, and how."""

    rows: int = 128
    places: int = 256
    columns: int = 64  # a step of the product's inner loop
    warps: int = 8
    stages: int = 4
    group: int = 64  # tiles of rows that take turns on the same places

    @property
    def room(self) -> int:
        """Bytes of a program that stays: what it loads ahead, half a tile on its way out, and barriers between them."""
        return 2 * (self.stages * self.columns * (self.rows + self.places) + self.rows * self.places // 2) + 2048


# the quickest of some dozens on an H200, for 32,768 rows of 768 columns and 3,072 places
_FORWARD_TILE = Tile(group=8)
_BACKWARD_TILE = Tile(128, 128, 64, 4, 3, group=8)
_HOPPER = 9


@cache
def fits(device: torch.device) -> bool:
    """Whether it is a large GPU of this generation: for the next one triton takes more memory than that has."""
    about = torch.cuda.get_device_properties(device)
    room: int = getattr(about, "shared_memory_per_block_optin", 0)
    return about.major == _HOPPER and room >= Tile().room


@cache
def programs(device: torch.device) -> int:
    """As many as run at once: each makes tiles until there are none left, and loads for the next while it writes one.

    Triton's interpreter has no device to ask.
    """
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def tile_index(number, count, TILES: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a tile lies, down and along: those made together share stretches of rows and places, which the cache holds."""
    turn = number // (GROUP * TILES)
    inside = number % (GROUP * TILES)
    tall = tl.minimum(tl.cdiv(count, ROWS) - turn * GROUP, GROUP)
    return turn * GROUP + inside % tall, inside // tall


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def split_halves(x, TALL: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile's left and right: memory to write it from at once would have to come from what is loaded ahead."""
    return tl.split(tl.permute(tl.reshape(x, (TALL, 2, WIDE // 2)), (0, 2, 1)))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gelu(x):  # type: ignore[no-untyped-def]
    """x · sigmoid(2u), where u is what the tanh would be taken of; and its slope."""
    square = x * x
    root = tl.rsqrt(1.0 + tl.exp2(x * (-2.302208198 - 0.1029432397 * square)))  # a division takes more than its square
    share = root * root
    after = x * share
    return after, share + (after - after * share) * (1.5957691216 + 0.2140644488 * square)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _linear_gelu_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    wide,
    steep,
    count,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Tiles of an activation and of its slopes."""
    TILES: tl.constexpr = (PLACES + WIDE - 1) // WIDE
    HALF: tl.constexpr = WIDE // 2
    for number in tl.range(tl.program_id(0), tl.cdiv(count, ROWS) * TILES, PROGRAMS, flatten=True):
        down, along = tile_index(number, count, TILES, GROUP, ROWS)
        row, place = down * ROWS, along * WIDE
        total = tl.zeros((ROWS, WIDE), tl.float32)
        for k in range(0, COLUMNS, DEEP):  # what lies outside is read as 0, and not written
            total = tl.dot(x.load([row, k]), weight.load([place, k]).T, total)
        if HAS_BIAS:
            places = place + tl.arange(0, WIDE)
            total += tl.load(bias + places, mask=places < PLACES, other=0.0).to(tl.float32)[None, :]
        left, right = split_halves(total, ROWS, WIDE)
        after, slope = _gelu(left)
        wide.store([row, place], after.to(wide.dtype))
        steep.store([row, place], slope.to(steep.dtype))
        after, slope = _gelu(right)
        wide.store([row, place + HALF], after.to(wide.dtype))
        steep.store([row, place + HALF], slope.to(steep.dtype))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _linear_gelu_backward_kernel(  # type: ignore[no-untyped-def]
    slopes,
    weight,
    steep,
    out,
    parts,
    count,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A tile of slopes before an activation, and the sum of each of its places."""
    TILES: tl.constexpr = (PLACES + WIDE - 1) // WIDE
    down, along = tile_index(tl.program_id(0), count, TILES, GROUP, ROWS)
    row, place = down * ROWS, along * WIDE
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for k in range(0, COLUMNS, DEEP):
        total = tl.dot(slopes.load([row, k]), weight.load([k, place]), total)
    total *= steep.load([row, place]).to(tl.float32)
    out.store([row, place], total.to(out.dtype))
    places = place + tl.arange(0, WIDE)
    tl.store(parts + down * PLACES + places, tl.sum(total, axis=0), mask=places < PLACES)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, *, tile: Tile = _FORWARD_TILE) -> tuple[Tensor, Tensor]:
    """The activation (NF) of a product, and its slopes."""
    (count, columns), places = x.shape, len(weight)
    wide, steep = (x.new_empty(count, places) for _ in range(2))
    at_once, tiles = programs(x.device), triton.cdiv(count, tile.rows) * triton.cdiv(places, tile.places)
    launch: Any = _linear_gelu_kernel[(min(at_once, tiles),)]
    sizes = {"COLUMNS": columns, "PLACES": places, "HAS_BIAS": bias is not None, "PROGRAMS": at_once}
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # triton launches where the process stands
        given = (
            tensor_descriptor(x, tile.rows, tile.columns),
            tensor_descriptor(weight, tile.places, tile.columns),
            x if bias is None else bias,
        )
        made = (tensor_descriptor(tensor, tile.rows, tile.places // 2) for tensor in (wide, steep))
        launch(*given, *made, count, **sizes, **launch_options(tile))
    return wide, steep


def linear_gelu_backward(
    slopes: Tensor, weight: Tensor, steep: Tensor, *, tile: Tile = _BACKWARD_TILE
) -> tuple[Tensor, Tensor]:
    """Slopes (NF) before an activation, from those (ND) behind the product (DF) that follows it; and their sums (F)."""
    (count, columns), places = slopes.shape, weight.shape[1]
    out, down = torch.empty_like(steep), triton.cdiv(count, tile.rows)
    parts = torch.empty(down, places, dtype=torch.float32, device=slopes.device)
    launch: Any = _linear_gelu_backward_kernel[(down * triton.cdiv(places, tile.places),)]
    with torch.cuda.device_of(slopes):  # type: ignore[no-untyped-call]
        given = tensor_descriptor(slopes, tile.rows, tile.columns), tensor_descriptor(weight, tile.columns, tile.places)
        made = (tensor_descriptor(tensor, tile.rows, tile.places) for tensor in (steep, out))
        launch(*given, *made, parts, count, COLUMNS=columns, PLACES=places, **launch_options(tile))
    return out, sum_parts(parts)


def tensor_descriptor(tensor: Tensor, tall: int, wide: int) -> Any:
    return TensorDescriptor.from_tensor(tensor, [tall, wide])


def launch_options(tile: Tile) -> dict[str, int]:
    sizes = {"ROWS": tile.rows, "WIDE": tile.places, "DEEP": tile.columns, "GROUP": tile.group}
    return sizes | {"num_warps": tile.warps, "num_stages": tile.stages}
