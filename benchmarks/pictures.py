"""Draws the pictures of docs/learn with functions of the package.

python benchmarks/pictures.py            writes docs/pictures/*.svg; a test compares them with the output of this script

The pictures support light and dark mode, and their text is stored as text.
"""

import ast
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import FancyBboxPatch, Rectangle

from headstart.config.schema import IGNORE_INDEX, PADDING_SEGMENT, MaskingConfig, ModelConfig, TokenizerConfig
from headstart.data.batch import Batch
from headstart.data.masking import mask_tokens
from headstart.kernels.attention import apply_rotary
from headstart.model.attention import build_attention_mask, rotary_cos_sin
from headstart.model.heads import Model, build_classifier_head, build_language_head
from headstart.model.parameter_count import count_parameters
from headstart.model.transformer import build_backbone, sinusoids
from headstart.report.figures import svg
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.transfer import TransferReceipt, transfer
from headstart.tokenization.base import SpecialIds
from headstart.tokenization.bpe import train_tokenizer

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
INK, FAINT, BLUE, ORANGE, GREEN, GREY = "#333333", "#d9d9d9", "#0072b2", "#d55e00", "#008060", "#9a9a9a"
DARK = {INK: "#e4e4e4", FAINT: "#4a4d57", BLUE: "#5fb4e8", ORANGE: "#ff9248", GREEN: "#3cc79f", GREY: "#8d919c"}
"""The colours in dark mode."""
PAPER = "#fffffe"
"""The colour of text on a coloured background in light mode; in dark mode the coloured backgrounds are light."""
NIGHT = "#16181d"
DIGITS = 4
"""Coordinates are rounded, so that the last digits of another processor do not change a picture."""
COURSE = ModelConfig()
COURSE_VOCABULARY = 50_001
SEED = 7
SPECIAL = SpecialIds(sos=0, pad=1, eos=2, mask=3, unknown=None)


def sheet(
    width: float, height: float, columns: int = 1, widths: list[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with a transparent background and axes without frames."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.06))
    figure.patch.set_alpha(0)
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=widths)[0]
    for each in axes:
        each.patch.set_alpha(0)
        each.spines[:].set_visible(False)
        each.tick_params(length=0, colors=INK, labelsize=9)
    return figure, list(axes)


def titled(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=10)


def mask() -> Figure:
    """Draw attention masks: one document, two documents packed into a row with padding, and bidirectional attention."""
    words = ["<sos>", "ce", "livre", "est", "beau"]
    packed = ["<sos>", "trop", "long", "<sos>", "très", "beau", "<pad>"]
    one = torch.zeros(1, len(words), dtype=torch.long)
    two = torch.tensor([[0, 0, 0, 1, 1, 1, PADDING_SEGMENT]])
    figure, axes = sheet(9.2, 3.6, 3, [5, 7, 5])
    parts = (
        ("causal", words, build_attention_mask(one, "causal")),
        ("causal, two packed documents and padding", packed, build_attention_mask(two, "causal")),
        ("bidirectional", words, build_attention_mask(one, "bidirectional")),
    )
    for ax, (title, names, seen) in zip(axes, parts, strict=True):
        titled(ax, title)
        for row, line in enumerate(seen[0, 0].tolist()):
            for column, sees in enumerate(line):
                colour = BLUE if sees else FAINT
                ax.add_patch(Rectangle((column + 0.05, row + 0.05), 0.9, 0.9, facecolor=colour, edgecolor="none"))
        count = len(names)
        ax.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
        ax.set_xticks(np.arange(count) + 0.5, names, rotation=60)
        ax.set_yticks(np.arange(count) + 0.5, names)
        ax.set_xlabel("key position", color=INK, fontsize=9)
    axes[0].set_ylabel("query position", color=INK, fontsize=9)
    return figure


def positions() -> Figure:
    """Draw sinusoids of some dimensions, and their products by distance."""
    width, length = 200, 100
    table = rounded(sinusoids(torch.arange(length), width))
    figure, (waves, products) = sheet(9.2, 3.3, 2)
    titled(waves, "position vectors: one sinusoid per dimension")
    for number, (dimension, colour) in enumerate(((0, BLUE), (40, ORANGE), (80, GREEN), (120, GREY))):
        level = -2.4 * number
        waves.plot(np.arange(length), level + table[:, dimension], color=colour, linewidth=1.6)
        waves.text(length + 1, level, f"{dimension}", color=colour, va="center", fontsize=9)
    waves.set(yticks=[], xlim=(0, length + 8))
    waves.set_xlabel("position", color=INK, fontsize=9)
    titled(products, "product of two position vectors by distance")
    far = 41
    for start, colour, thick in ((0, BLUE, 6.0), (25, ORANGE, 3.4), (50, GREEN, 1.2)):
        values = rounded(
            sinusoids(torch.arange(start, start + far), width) @ sinusoids(torch.tensor([start]), width)[0]
        )
        products.plot(np.arange(far), values, color=colour, linewidth=thick, label=f"from position {start}")
    products.set_xlabel("distance", color=INK, fontsize=9)
    products.legend(frameon=False, labelcolor=INK, fontsize=9)
    return figure


def rotary() -> Figure:
    """Draw one pair of numbers rotated by its position, and the products of rotated vectors."""
    figure, (pair, products) = sheet(9.2, 3.3, 2, [1, 1.7])
    titled(pair, "a pair rotated by its position")
    cos, sin = rotary_cos_sin(torch.arange(6), 2, base=1.0)
    turned = rounded(apply_rotary(torch.tensor([[1.0, 0.0]]).expand(6, 2), cos, sin))
    for ax, (x, y) in enumerate(turned):
        pair.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": BLUE, "linewidth": 1.6})
        pair.text(1.16 * x, 1.16 * y, str(ax), color=INK, ha="center", va="center", fontsize=9)
    pair.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    titled(products, "product of query and key by distance")
    width, far = 64, 41
    chance = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, width, generator=chance)
    for start, colour, thick in ((0, BLUE, 6.0), (100, ORANGE, 3.4), (1000, GREEN, 1.2)):
        rotated_query = apply_rotary(query, *rotary_cos_sin(torch.tensor([start + far]), width))
        rotated_key = apply_rotary(key.expand(far, width), *rotary_cos_sin(torch.arange(start + far, start, -1), width))
        values = rounded((rotated_key @ rotated_query[0]) / width**0.5, 2)
        products.plot(np.arange(far), values, color=colour, linewidth=thick, label=f"from position {start:,}")
    products.set_xlabel("distance", color=INK, fontsize=9)
    products.legend(frameon=False, labelcolor=INK, fontsize=9)
    return figure


def receipt() -> TransferReceipt:
    """Return a real receipt: a network of the course's depth is transferred from a bundle to a classifier."""
    shape = ModelConfig(width=16, feedforward=16, context=16)
    tokenizer = train_tokenizer(["un livre magnifique"], TokenizerConfig(vocab_size=270))
    language = Model(
        build_backbone(shape, tokenizer.vocab_size, 0), build_language_head(shape, tokenizer.vocab_size, 0)
    )
    classifier = Model(build_backbone(shape, tokenizer.vocab_size, 1), build_classifier_head(shape, 2, 1))
    with tempfile.TemporaryDirectory() as folder:
        save_bundle(Path(folder) / "base", Bundle(language, tokenizer, objective="causal"))
        return transfer(str(Path(folder) / "base"), classifier, tokenizer)


def head_swap() -> Figure:
    """Draw the two networks side by side, with their parameters by part and the tensors of a receipt."""
    proof = receipt()
    figure, (axes,) = sheet(9.2, 3.9)
    axes.set(xlim=(0, 100), ylim=(0, 62), xticks=[], yticks=[])
    for left, classes, name, rotated_query in (
        (4, None, "language model", "predicts the next token at every position"),
        (62, 2, "classifier", "predicts one label per text"),
    ):
        counts = {row.part: row.count for row in count_parameters(COURSE, COURSE_VOCABULARY, classes).rows}
        head = counts.pop("language head" if classes is None else "classifier head")
        embedding = counts.pop("embedding")
        axes.text(left + 17, 58.5, name, color=INK, ha="center", va="center", weight="bold", fontsize=10)
        head_words = f"head: {COURSE_VOCABULARY:,} logits" if classes is None else f"new head: {classes} logits"
        box(axes, left, 41, ORANGE if classes is None else GREEN, head_words, f"{head:,}")
        box(axes, left, 23, BLUE, f"{COURSE.depth} layers", f"{sum(counts.values()):,}")
        box(axes, left, 5, BLUE, "embedding", f"{embedding:,}")
        axes.text(left + 17, 1.5, rotated_query, color=INK, ha="center", va="center", fontsize=9)
    for height in (12, 30):
        axes.annotate("", (61, height), (39, height), arrowprops={"arrowstyle": "-|>", "color": BLUE, "linewidth": 2})
    axes.text(
        50,
        21,
        f"{len(proof.moved)} tensors transferred,\nsame sha256\nbefore and after",
        color=INK,
        ha="center",
        va="center",
        fontsize=9,
    )
    axes.text(
        50, 48, f"← not transferred\n{len(proof.new)} new tensors →", color=INK, ha="center", va="center", fontsize=9
    )
    return figure


def box(axes: Axes, left: float, low: float, colour: str, *words: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (left, low), 34, 14, boxstyle="round,pad=0,rounding_size=1.5", facecolor=colour, edgecolor="none"
        )
    )
    axes.text(left + 17, low + 7, "\n".join(words), color=PAPER, ha="center", va="center", fontsize=10)


def parameters() -> Figure:
    """Draw the parameters of the course's network as bars."""
    figure, (axes,) = sheet(9.2, 2.6)
    names = ("embedding", "layers", "head")
    for row, classes in enumerate((None, 2)):
        result = count_parameters(COURSE, COURSE_VOCABULARY, classes)
        counts = [each.count for each in result.rows]
        parts = (counts[0], sum(counts[1:-1]), counts[-1])
        left = 0
        for part, colour, name in zip(parts, (BLUE, GREEN, ORANGE), names, strict=True):
            axes.add_patch(Rectangle((left / 1e6, row + 0.1), part / 1e6, 0.56, facecolor=colour, edgecolor="none"))
            if part > 2e6:
                axes.text(
                    (left + part / 2) / 1e6,
                    row + 0.38,
                    f"{name} {part:,}",
                    color=PAPER,
                    ha="center",
                    va="center",
                    fontsize=9,
                )
            left += part
        small = f", head {parts[2]:,}" if classes else ""
        axes.text(
            left / 1e6 + 0.2,
            row + 0.38,
            f"layers {parts[1]:,}{small}" if classes else "",
            color=INK,
            va="center",
            fontsize=9,
        )
        task = f"{result.task}: {result.total:,}"
        axes.text(
            0,
            row + 0.02,
            task + (f" (layers {parts[1]:,})" if not classes else ""),
            color=INK,
            weight="bold",
            va="bottom",
            fontsize=10,
        )
    axes.set(xlim=(0, 21.2), ylim=(1.75, -0.2), yticks=[])
    axes.set_xlabel("million parameters", color=INK, fontsize=9)
    return figure


def masked() -> Figure:
    """Draw the masked tokens of a text in four epochs, and their fractions in a hundred thousand tokens."""
    words = ["<sos>", "un", "livre", "que", "l'on", "ne", "lâche", "pas", "avant", "la", "fin"]
    vocabulary = [*words[1:], "table", "hier", "vite", "rouge", "dort", "sous"]
    ids = torch.tensor([[SPECIAL.sos, *range(4, 4 + len(words) - 1)]])
    figure, (axes,) = sheet(9.2, 2.9)
    titled(axes, "one text in four epochs: different tokens are selected; only coloured tokens are predicted")
    for reading in range(4):
        rotated_key = hidden(ids, first=reading, size=4 + len(vocabulary))
        for ax, token in enumerate(rotated_key.ids_BT[0].tolist()):
            rotated_query = int(rotated_key.targets[0, ax]) != IGNORE_INDEX
            same = token == int(ids[0, ax])
            word = "<mask>" if token == SPECIAL.mask else words[0] if token == SPECIAL.sos else vocabulary[token - 4]
            colour = (GREEN if same else ORANGE if token != SPECIAL.mask else BLUE) if rotated_query else FAINT
            axes.add_patch(
                Rectangle(
                    (ax + 0.05, reading + 0.12),
                    0.9,
                    0.76,
                    facecolor=colour if rotated_query else "none",
                    edgecolor=colour,
                    linewidth=1.2,
                )
            )
            axes.text(
                ax + 0.5,
                reading + 0.5,
                word,
                color=PAPER if rotated_query else INK,
                ha="center",
                va="center",
                fontsize=9,
            )
    axes.set(xlim=(0, len(words)), ylim=(5.2, 0), xticks=[], yticks=[])
    fractions = measured_fractions()
    for ax, (colour, name) in enumerate(((BLUE, "masked"), (ORANGE, "random"), (GREEN, "kept"))):
        left = 0.05 + 3.6 * ax
        axes.add_patch(Rectangle((left, 4.45), 0.35, 0.35, facecolor=colour, edgecolor="none"))
        axes.text(
            left + 0.5,
            4.63,
            f"{name}: {100 * fractions[name]:.0f} % of the selected",
            color=INK,
            va="center",
            fontsize=9,
        )
    return figure


def hidden(ids: torch.Tensor, first: int, size: int) -> Batch:
    """Return the rows with some tokens masked, with the default settings."""
    batch = Batch(ids_BT=ids, segments_BT=torch.zeros_like(ids), targets=ids, num_targets=0, attention="bidirectional")
    return mask_tokens(batch, first, MaskingConfig(), SPECIAL, size, seed=SEED, next_token=False)


def measured_fractions() -> dict[str, float]:
    """Count the replacements of the selected tokens over 102,400 tokens."""
    rows = torch.randint(4, 1000, (200, 512), generator=torch.Generator().manual_seed(0))
    result = hidden(rows, 0, 1000)
    rotated_query = result.targets != IGNORE_INDEX
    masks, kept = rotated_query & (result.ids_BT == SPECIAL.mask), rotated_query & (result.ids_BT == rows)
    total = int(rotated_query.sum())
    return {
        "asked": total / rows.numel(),
        "masked": int(masks.sum()) / total,
        "kept": int(kept.sum()) / total,
        "random": int((rotated_query & ~masks & ~kept).sum()) / total,
    }


def rounded(tensor: torch.Tensor, digits: int = DIGITS) -> np.ndarray:
    return np.round(tensor.numpy().astype(np.float64), digits) + 0.0


BASE = ("errors", "version", "config", "files", "progress", "metrics", "tasks", "language")
"""The modules and packages that all others may import; the picture shows them as one box."""


COLUMNS = {
    "tokenization": 0.15,
    "data": 0.15,
    "linear": 0.4,
    "store": 0.35,
    "predict": 0.35,
    "serve": 0.12,
    "api": 0.3,
    "kernels": 0.85,
    "model": 0.85,
    "train": 0.7,
    "report": 0.85,
    "interop": 0.45,
    "recipes": 0.6,
    "cli": 0.75,
}
"""The horizontal order of packages, so that few lines cross; others are in the middle."""


def package_imports() -> dict[str, set[str]]:
    """Return which packages of `headstart` import which, read from the source; the base packages count as one."""
    source = Path(__file__).resolve().parent.parent / "src" / "headstart"
    imports: dict[str, set[str]] = {"base": set()}
    for path in sorted(source.rglob("*.py")):
        package = _package(path.relative_to(source).parts[0].removesuffix(".py"))
        names = [
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        ]
        used = {_package(name.split(".")[1]) for name in names if name.startswith("headstart.")}
        imports.setdefault(package, set()).update(used - {package})
    return {package: used for package, used in imports.items() if not package.startswith("__")}


def _package(name: str) -> str:
    return "base" if name in BASE else name


def reduced(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports without those that follow from others (the transitive reduction)."""

    def reachable(package: str) -> set[str]:
        return imports[package].union(*(reachable(used) for used in imports[package]))

    return {
        package: {used for used in direct if not any(used in reachable(other) for other in direct - {used})}
        for package, direct in imports.items()
    }


def packages() -> Figure:
    """Draw the packages in layers: each one imports only what is below it, along the lines or beyond them."""
    imports = package_imports()

    @cache
    def level(package: str) -> int:
        return 1 + max((level(used) for used in imports[package]), default=-1)

    figure, (axes,) = sheet(8, 7)
    rows: dict[int, list[str]] = {}
    for package in sorted(imports):
        rows.setdefault(level(package), []).append(package)
    at = {package: (COLUMNS.get(package, 0.5), float(row)) for row, names in rows.items() for package in names}
    for package, direct in reduced(imports).items():
        for used in sorted(direct):
            axes.plot(*zip(at[package], at[used], strict=True), color=GREY, linewidth=1, zorder=1)
    for package, (x, y) in at.items():
        colour = ORANGE if package == "kernels" else BLUE
        axes.add_patch(
            FancyBboxPatch(
                (x - 0.08, y - 0.22), 0.16, 0.44, boxstyle="round,pad=0,rounding_size=0.02", color=colour, zorder=2
            )
        )
        axes.text(x, y, package, ha="center", va="center", fontsize=9, color=PAPER, zorder=3)
    axes.set(xlim=(0, 1), ylim=(-0.5, max(rows) + 0.5), xticks=[], yticks=[])
    return figure


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "packages": packages,
    "mask": mask,
    "positions": positions,
    "rotary": rotary,
    "head-swap": head_swap,
    "parameters": parameters,
    "masked": masked,
}


def by_day_and_night(text: str) -> str:
    """Add a second set of colours to a drawing, for dark mode."""
    rules = [
        f'[style*="{what}: {day}"]{{{what}:{night}!important}}'
        for day, night in {**DARK, PAPER: NIGHT}.items()
        for what in ("fill", "stroke")
    ]
    style = (
        f"<style>text{{font-family:system-ui,sans-serif}}@media(prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    )
    return re.sub(r"(<svg[^>]*>)", rf"\1{style}", text, count=1)


def pictures() -> dict[str, str]:
    """Return all pictures by name, as SVG."""
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "path.simplify": False}):
        return {name: by_day_and_night(svg(draw())) for name, draw in DRAWINGS.items()}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
        print(f"wrote docs/pictures/{name}.svg, {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
