"""The rooms import one way, stay small, and never run code that a file brings along."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "headstart"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOOR = {
    "errors",
    "version",
    "sections",
    "shape",
    "config",
    "layering",
    "files",
    "progress",
    "measures",
    "evaluations",
    "kinds",
}
MAY_IMPORT = {
    "__init__": {"version", "api", "estimator"},
    "__main__": {"cli"},
    "version": set(),
    "errors": set(),
    "sections": {"errors"},
    "shape": {"sections"},
    "config": {"errors", "sections", "shape"},
    "layering": {"errors", "config"},
    "files": {"errors"},
    "progress": set(),
    "measures": set(),
    "evaluations": {"measures"},
    "kinds": {"measures", "evaluations"},
    "runtime": FLOOR,
    "text": FLOOR,
    "data": FLOOR | {"text"},
    "model": FLOOR,
    "train": FLOOR | {"runtime", "data", "model"},
    "store": FLOOR | {"text", "model"},
    "predict": FLOOR | {"runtime", "text", "data", "model", "train", "store"},
    "interop": FLOOR | {"runtime", "text", "data", "model", "train", "store", "predict"},
    "report": FLOOR | {"store"},
    "serve": FLOOR | {"runtime", "text", "store", "predict"},
    "recipes": FLOOR | {"runtime", "text", "data", "model", "train", "store", "predict", "report", "interop"},
    "api": FLOOR | {"text", "data", "model", "train", "store", "predict", "serve", "recipes", "interop"},
    "estimator_input": FLOOR | {"text", "data", "store", "recipes"},
    "estimator": FLOOR | {"runtime", "data", "store", "predict", "recipes", "api", "estimator_input"},
    "cli": FLOOR | {"text", "data", "model", "train", "store", "predict", "serve", "report", "recipes", "interop"},
}
LONGEST_FILE = 320
LONGEST_FUNCTION = 60


def test_every_file_of_the_package_was_found():
    assert len(FILES) > 50


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_ever_unpickled_or_evaluated(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "np.load"}, name
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"} & set(names)
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "a bare except hides what it catches"
            assert ast.unparse(node.type) != "Exception", "an except Exception hides what it catches"


TORCH_FREE = [
    "headstart",
    "headstart.config",
    "headstart.files",
    "headstart.cli.main",
    "headstart.model.ledger",
    "headstart.model.presets",
    "headstart.report.page",
    "headstart.store.rundir",
    "headstart.store.cells",
    "headstart.store.card",
    "headstart.store.origins",
    "headstart.measures",
    "headstart.recipes.prepare",
    "headstart.recipes.merge",
    "headstart.recipes.forecast",
    "headstart.recipes.inspect",
]


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_needs_no_torch_does_not_import_it(module):
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
