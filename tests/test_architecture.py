"""The rooms import one way, functions stay small, nothing is caught broadly, and no file brings code along that is run."""

import ast
import pkgutil
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

import headstart

PACKAGE = Path(__file__).parent.parent / "src" / "headstart"
FILES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "version", "config", "files", "progress", "metrics", "tasks", "language"}
MAY_IMPORT = {
    "__init__": {"version", "api", "estimator"},
    "__main__": {"cli"},
    "version": set(),
    "errors": set(),
    "config": {"errors"},
    "files": {"errors"},
    "progress": set(),
    "metrics": set(),
    "tasks": {"metrics"},
    "language": set(),
    "runtime": BASE,
    "interrupts": BASE | {"runtime"},
    "tokenization": BASE,
    "kernels": BASE,
    "linear": BASE,
    "data": BASE | {"tokenization"},
    "model": BASE | {"kernels"},
    "train": BASE | {"runtime", "interrupts", "data", "kernels", "model"},
    "store": BASE | {"tokenization", "model", "linear"},
    "predict": BASE | {"runtime", "interrupts", "tokenization", "data", "linear", "model", "train", "store"},
    "interop": BASE | {"runtime", "interrupts", "tokenization", "data", "linear", "model", "train", "store", "predict"},
    "report": BASE | {"store"},
    "serve": BASE | {"runtime", "interrupts", "tokenization", "store", "predict"},
    "recipes": BASE
    | {
        "runtime",
        "interrupts",
        "tokenization",
        "data",
        "kernels",
        "linear",
        "model",
        "train",
        "store",
        "predict",
        "report",
        "interop",
    },
    "api": BASE | {"tokenization", "data", "model", "train", "store", "predict", "serve", "recipes", "interop"},
    "estimator": BASE | {"runtime", "interrupts", "tokenization", "data", "store", "predict", "recipes", "api"},
    "cli": BASE
    | {
        "runtime",
        "tokenization",
        "data",
        "model",
        "train",
        "store",
        "predict",
        "serve",
        "report",
        "recipes",
        "interop",
    },
}
LONGEST_FUNCTION = 60
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
CATCHES_ALL = {
    "cli/main.py:run": "every error becomes one line and an exit code; HEADSTART_TRACEBACK shows where it came from",
    "files.py:_move_into_place": "an interruption, too, must not leave the place empty; raised again",
    "files.py:atomic_folder": "an interruption, too, must not leave a draft behind; raised again",
    "interrupts.py:handle_signals": "a process of several ignores signals while it ends; raised again",
    "recipes/workers.py:_worker_main": "an error of a job, of whatever kind, is raised in the parent",
    "recipes/workers.py:_error_reply": "an error that does not survive pickling is replaced by its text",
    "serve/middleware.py:__call__": "a client gets an answer in JSON whatever happens; a panic is no Exception",
    "store/run_folder.py:remove_on_error": "an interruption, too, leaves no new folder behind; raised again",
    "store/run_folder.py:record_failure": "notes the kind of error in the folder; raised again",
    "tokenization/base.py:library_panics": "a panic is no Exception, and has no class to import; all others are raised again",
    "tokenization/hf.py:read_engine": "the tokenizers library raises Exception itself; all others are raised again",
    "train/distributed.py:broadcast": "the other processes must hear that the first one failed; raised again",
}
"""The functions that may catch everything, each with its reason."""


def test_every_file_of_the_package_was_found():
    modules = {"headstart"} | {result.name for result in pkgutil.walk_packages(headstart.__path__, "headstart.")}
    parts = [("headstart", *path.relative_to(PACKAGE).with_suffix("").parts) for path in FILES]
    assert {".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts} == modules
    assert {part[1] for part in parts} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_lies_below(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):  # walk, so that imports inside functions count too
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("headstart."):
                other = name.split(".")[1]
                assert other == room or other in MAY_IMPORT[room], f"{room} may not import {other}"


MAX_FILES = 16
MODULES = [path for path in FILES if path.stat().st_size and path.stem not in ("__init__", "__main__")]
PARALLEL = {"run", "trainer", "attention", "mlp", "cross_entropy"}
"""Names that parallel packages share for the same thing: recipes, trainers, and an operation beside its kernel."""
SHARED_NAMES = {"add_norm", "concat_sum", "train_tokenizer"}
"""Functions that two modules define for the same thing: an operation and its kernel, a verb and what it calls."""


def test_no_package_is_wider_than_sixteen_files():
    width = Counter(path.parent for path in MODULES)
    assert [str(folder) for folder, files in width.items() if files > MAX_FILES and folder.name != "cli"] == []


def test_no_file_name_is_used_for_two_things():
    names = Counter(path.stem for path in MODULES if path.parent.name != "cli")
    assert {name for name, files in names.items() if files > 1} == PARALLEL


def test_no_two_files_of_a_package_share_a_stem():
    siblings = [(one, other) for one, other in combinations(MODULES, 2) if one.parent == other.parent]
    shared = [(one, other) for one, other in siblings if one.stem[:6] == other.stem[:6]]
    assert [(one.stem, other.stem) for one, other in shared if one.parent.name != "cli"] == []


def test_no_public_name_is_defined_in_two_modules():
    """The commands and the Python verbs have the same names on purpose."""
    names = Counter(
        node.name
        for path in MODULES
        if path.parent.name != "cli"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")
    )
    assert {name for name, modules in names.items() if modules > 1} == SHARED_NAMES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_stay_small(path):
    assert long_functions(path.read_text()) == []


def long_functions(source: str) -> list[str]:
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS)]
    return [node.name for node in functions if node.end_lineno - node.lineno >= LONGEST_FUNCTION]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_long_function_is_seen(kind):
    body = "    pass\n" * (LONGEST_FUNCTION - 1)
    assert long_functions(f"class A:\n  {kind} f():\n{body}") == []
    assert long_functions(f"class A:\n  {kind} f():\n{body}    pass\n") == ["f"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_ever_unpickled_or_evaluated(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "np.load"}, name
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"} & set(names)


def test_only_known_functions_catch_everything():
    result = {f"{path.relative_to(PACKAGE).as_posix()}:{name}" for path in FILES for name in broad(path.read_text())}
    assert result == set(CATCHES_ALL)  # one that catches no longer leaves the list


def broad(source: str) -> list[str]:
    """The innermost function around each place where all errors are caught; empty for a module's own lines."""
    tree = ast.parse(source)
    functions = sorted(
        (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)), key=lambda one: one.end_lineno - one.lineno
    )

    def around(line: int) -> str:
        return next((node.name for node in functions if node.lineno <= line <= node.end_lineno), "")

    return [around(node.lineno) for node in ast.walk(tree) if _catches_all(node)]


def _catches_all(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        caught = [node.type]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
        caught = node.args
    else:
        return False
    names = {ast.unparse(part).rpartition(".")[2] for kind in caught if kind for part in ast.walk(kind)}
    return None in caught or bool(names & {"Exception", "BaseException", "ExceptionGroup", "BaseExceptionGroup"})


@pytest.mark.parametrize(
    ("caught", "all_of_them"),
    [
        ("except Exception:", True),
        ("except BaseException as error:", True),
        ("except (ValueError, Exception):", True),
        ("except (OSError, (KeyError, builtins.BaseException)):", True),
        ("except* Exception:", True),
        ("except:", True),
        ("except ValueError:", False),
        ("except (KeyError, pa.ArrowException):", False),
    ],
)
def test_what_catches_everything_is_seen(caught, all_of_them):
    source = f"async def f():\n  def g():\n    try:\n      pass\n    {caught}\n      raise\n"
    assert broad(source) == (["g"] if all_of_them else [])


def test_suppressing_everything_is_seen():
    assert broad("def f():\n  with contextlib.suppress(OSError, Exception):\n    pass\n") == ["f"]
    assert broad("def f():\n  with suppress(OSError):\n    pass\n") == []


TORCH_FREE = [
    "headstart",
    "headstart.config.schema",
    "headstart.files",
    "headstart.cli.main",
    "headstart.model.parameter_count",
    "headstart.config.presets",
    "headstart.report.page",
    "headstart.store.run_folder",
    "headstart.store.records",
    "headstart.store.model_card",
    "headstart.metrics",
    "headstart.recipes.prepare",
    "headstart.recipes.forecast",
    "headstart.recipes.inspect",
    "headstart.recipes.starter_choice",
    "headstart.language",
    "headstart.recipes.run_request",
]


IMPORT_WITHOUT_TORCH = """
import importlib, sys
sys.modules["torch"] = None
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module}: {error}")
"""


def test_what_needs_no_torch_does_not_import_it():
    command = [sys.executable, "-c", IMPORT_WITHOUT_TORCH, *TORCH_FREE, "headstart.model.heads"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith("headstart.model.heads: import of torch halted")  # control
