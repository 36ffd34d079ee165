"""The notebook runs from top to bottom on a run directory, and holds no results of its own."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from evalsuite.journal import load_run
from evalsuite.report import derive, write
from made_runs import make_run, write_run

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "run.ipynb"


@pytest.fixture
def run(tmp_path, monkeypatch):
    run = load_run(write_run(make_run("rr " * 30 + "rw rw rt wr " + "ww " * 10 + "tt tt", path=tmp_path / "run")))
    write(run, derive(run))
    monkeypatch.setenv("EVALSUITE_RUN", str(run.path))
    return run


def execute():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return notebook


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_notebook_draws_the_paired_table_and_the_truncation_of_a_run(run):
    notebook = execute()
    told = "".join(output.get("text", "") for output in outputs(notebook))
    assert derive(run).decision.headline in told
    pictures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    tables = "".join(output["data"].get("text/plain", "") for output in outputs(notebook) if "data" in output)
    assert "not right" in tables and "not truncated" in tables


def test_the_notebook_refuses_pairs_of_another_run(run):
    lines = (run.path / "pairs.csv").read_text()
    (run.path / "pairs.csv").write_text(lines.replace(",lost,right,wrong", ",missed,wrong,wrong"))
    with pytest.raises(CellExecutionError, match="another run"):
        execute()


def test_the_notebook_is_stored_without_outputs():
    assert outputs(nbformat.read(NOTEBOOK, as_version=4)) == []
