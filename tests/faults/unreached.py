"""Why a line of a reader was reached by no mutated file: most lines that remain are not about bytes at all."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from faults.reached import PACKAGE, numbers

NAMES = "about a missing file, a folder, a pattern or an address, not about bytes"
DISK = "about a disk that fails (each operation fails in turn above)"
SIZE = "about files of more than 64 MiB"
OTHERS = "about other requests at the same time, a slow client, a server that stops, its start"
CALLER = "about what a caller asks for, such as another kind of model, or about writing"

LOCATIONS = {
    **dict.fromkeys(("data/sources.py", "data/labelled.py:read_labelled", "data/io.py:_without_query"), NAMES),
    **dict.fromkeys(
        (
            "data/io.py:_open_raw",
            "data/io.py:missing_file_error",
            "store/locate.py:find_bundle",
        ),
        NAMES,
    ),
    **dict.fromkeys(
        ("tokenization/tokenizer.py:_find_file", "data/decontamination.py:load", "store/records.py:read_excerpts"),
        NAMES,
    ),
    **dict.fromkeys(("store/run_folder.py:read", "store/run_folder.py:open"), NAMES),
    **dict.fromkeys(("serve/batching.py", "serve/middleware.py", "serve/service.py", "serve/config.py"), OTHERS),
    **dict.fromkeys(("serve/app.py:_wait_for_disconnect", "serve/app.py:_handle_unexpected"), OTHERS),
    **dict.fromkeys(
        ("store/run_folder.py:flush", "store/bundle.py:load_bundle", "tokenization/base.py:as_utf8"), CALLER
    ),
    **dict.fromkeys(("tokenization/base.py:check_id", "data/shards.py:_memmap"), CALLER),
}
"""By file, or by file and function."""
WORDS = (
    (DISK, r"except OSError|strerror|return False$|FileNotFoundError|raise missing_file_error\("),
    (SIZE, r"LIMIT|too many"),
    (NAMES, r"has no \{MANIFEST\}|is not a file|holds no run"),
)
"""By what the line says."""


def unreached(rows: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Lines that no reader reached, each as `file, function: line`, by the reason; those without one under `other`."""
    check_locations(LOCATIONS)
    reached: dict[str, set[int]] = {}
    missed: dict[str, set[int]] = {}
    for row in rows:
        for result, kind in ((reached, "reached"), (missed, "missed")):
            for file, lines in row.get(kind, {}).items():
                result.setdefault(file, set()).update(numbers(lines))
    message: dict[str, list[str]] = {}
    for file, lines in sorted(missed.items()):
        for line in sorted(lines - reached.get(file, set())):
            words, functions = _source(file)[line - 1].strip(), _functions(file)
            name = next((name for name, first, last in functions if first <= line <= last), "")
            message.setdefault(_why(file, name, words), []).append(f"{file}, {name}: {words}")
    return message


def check_locations(locations: Iterable[str]) -> None:
    """Refuse a place that is not in the package: its reason would be given for nothing, and its lines counted as luck."""
    gone = [folder for folder in locations if not _is_there(*folder.split(":", 1))]
    if gone:
        raise ValueError(f"no such file or function in the package: {', '.join(gone)}; see LOCATIONS in unreached.py")


def _is_there(file: str, name: str | None = None) -> bool:
    return Path(PACKAGE, file).is_file() and (name is None or name in {function for function, _, _ in _functions(file)})


def _why(file: str, name: str, words: str) -> str:
    if reason := LOCATIONS.get(f"{file}:{name}") or LOCATIONS.get(file):
        return reason
    return next((reason for reason, pattern in WORDS if re.search(pattern, words)), "other")


@cache
def _source(file: str) -> list[str]:
    return Path(PACKAGE, file).read_text(encoding="utf-8").splitlines()


@cache
def _functions(file: str) -> list[tuple[str, int, int]]:
    """Name, first and last line of each function, the innermost first."""
    tree = ast.parse("\n".join(_source(file)))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    result = [(node.name, node.lineno, node.end_lineno or 0) for node in ast.walk(tree) if isinstance(node, kinds)]
    return sorted(result, key=lambda one: one[2] - one[1])
