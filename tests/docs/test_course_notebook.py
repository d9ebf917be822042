"""examples/course/course.ipynb runs from top to bottom on made-up data, and shows what it says it shows."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "course" / "course.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.delenv("HEADSTART_DATA", raising=False)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):  # nothing outside the test's own folder
        patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
    try:
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
        return client.execute()
    finally:
        patch.undo()


def outputs(notebook, kind):
    """What the cells showed of one kind of content, in order."""
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    if kind == "stream":
        return [output.text for output in shown if output.output_type == "stream" and output.name == "stdout"]
    return [output.data[kind] for output in shown if "data" in output and kind in output.data]


def test_the_notebook_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 15
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert max(cell.source.count("\n") + 1 for cell in code) <= 16


def test_the_notebook_runs_and_complains_of_nothing(executed):
    errors = [
        output.text
        for cell in executed.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert errors == []


def test_the_notebook_draws_the_mask_the_positions_and_the_curves(executed):
    assert len(outputs(executed, "image/png")) == 4
    (curves,) = outputs(executed, "image/svg+xml")
    assert "accuracy on validation" in curves


def test_the_notebook_counts_the_published_parameters(executed):
    text = "".join(outputs(executed, "stream"))
    assert "21,018,401" in text
    assert "10,968,602" in text


def test_the_notebook_shows_the_receipt_the_verdict_and_both_protocols(executed):
    text = "".join(outputs(executed, "stream"))
    assert "25 tensors moved, 2 new" in text
    assert "3 paired seeds" in text
    assert "3 texts of test also appear in train" in text
    assert text.count("course 0.") + text.count("course 1.") == 2


def test_the_notebook_shows_that_a_prediction_does_not_depend_on_its_batch(executed):
    assert any(text.endswith(", True)") for text in outputs(executed, "text/plain"))
