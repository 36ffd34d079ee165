"""The notebooks run from top to bottom, show what is recorded, and hold no results of their own."""

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from evalsuite.journal import load_run
from evalsuite.report import derive, write
from made_runs import make_run, write_run

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NOTEBOOK = NOTEBOOKS / "run.ipynb"
PERFORMANCE = NOTEBOOKS / "performance.ipynb"
RESULTS = NOTEBOOKS.parent / "results"


def record(path):
    """Write a made-up run and what is derived from it to `path`; return the run."""
    run = load_run(write_run(make_run("rr " * 30 + "rw rw rt wr " + "ww " * 10 + "tt tt", path=path)))
    write(run, derive(run))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recorded") / "run")


@pytest.fixture(scope="module")
def stored(run, tmp_path_factory):
    """Return the folder to which `make notebooks` writes, with the run to look at chosen."""
    folder = tmp_path_factory.mktemp("stored")
    command = [sys.executable, NOTEBOOKS / "execute.py", folder]
    environment = os.environ | {"EVALSUITE_RUN": str(run.path)}
    subprocess.run(command, check=True, timeout=120, capture_output=True, env=environment)
    return folder


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_notebook_draws_the_paired_table_and_the_truncation_of_a_run(run, stored):
    notebook = nbformat.read(stored / NOTEBOOK.name, as_version=4)
    told = "".join(output.get("text", "") for output in outputs(notebook))
    assert derive(run).decision.headline in told
    tables = "".join(output["data"].get("text/plain", "") for output in outputs(notebook) if "data" in output)
    assert "not right" in tables and "not truncated" in tables


def test_the_notebook_refuses_pairs_of_another_run(tmp_path, monkeypatch):
    run = record(tmp_path / "run")
    monkeypatch.setenv("EVALSUITE_RUN", str(run.path))
    lines = (run.path / "pairs.csv").read_text()
    (run.path / "pairs.csv").write_text(lines.replace(",lost,right,wrong", ",missed,wrong,wrong"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.raises(CellExecutionError, match="another run"):
        NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()


@pytest.mark.parametrize("file", [NOTEBOOK, PERFORMANCE], ids=lambda file: file.stem)
def test_one_command_executes_the_notebook_to_its_end_and_stores_its_figures(file, stored):
    notebook = nbformat.read(stored / file.name, as_version=4)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    pictures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == len(list(stored.glob(f"{file.stem}-*.png"))) >= 3


@pytest.mark.parametrize("file", [NOTEBOOK, PERFORMANCE], ids=lambda file: file.stem)
def test_the_notebook_is_stored_without_outputs(file):
    cells = [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in cells] == [([], None)] * len(cells)


@pytest.fixture(scope="module")
def shown():
    """Return the variables of the performance notebook after its last cell."""
    plt.switch_backend("agg")
    variables = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(NOTEBOOKS)
        for cell in nbformat.read(PERFORMANCE, as_version=4).cells:
            if cell.cell_type == "code":
                exec(cell.source, variables)
    plt.close("all")
    return variables


def test_attention_and_screen_are_those_of_the_recorded_replay(shown):
    recorded = json.loads((RESULTS / "h200-replay" / "24-4-256" / "replay.json").read_text())
    for entry in recorded["contexts"]:
        for row in entry["rows"]:
            if row["kernel"] in ("FA2 auto", "split-KV (ours)"):
                step = shown["steps"].loc[entry["context"], row["kernel"]]
                assert step["KV per token (KiB)"] == 64
                assert step["KV per step (GB)"] == 16 * entry["kv_bytes"] / 1e9
                assert step["attention per step (ms)"] == pytest.approx(16 * row["microseconds"] / 1e3)
                assert step["read at (GB/s)"] == pytest.approx(row["gigabytes_per_second"], rel=1e-3)
            if row["kernel"] in shown["screen"].index and row["gain"] is not None:
                assert shown["screen"].filter(regex=f" {entry['context']}$").loc[row["kernel"]].item() == row["gain"]
            if row["kernel"].endswith(" splits"):
                assert shown["splits"].loc[row["kernel"], entry["context"]] == row["microseconds"]
    assert list(shown["skipped"].index) == ["FlashInfer"]


def test_what_the_text_says_of_tritons_segments_holds(shown):
    gains = shown["screen"].loc[["Triton 32 segments", "Triton 64 segments"]].filter(like="ours: ")
    assert gains.shape == (2, 3)
    assert (gains.iloc[:, 0] > 1.3).all() and (gains.iloc[:, 1:] < 1).all(axis=None)


def test_the_profile_is_the_recorded_one_and_shows_what_the_text_says(shown):
    recorded = json.loads((RESULTS / "h200-profile" / "profile.json").read_text())["profiles"]
    assert {(one["arm"], one["context"]) for one in recorded} == {
        (arm, context) for arm in ("fa2", "hybrid") for context in (4096, 16384, 32768)
    }
    for one in recorded:
        times = one["profile"]["families"]
        share = shown["profile"].filter(like=f", {one['arm']}").loc[one["context"]].item()
        assert share == round(times["attention"] / sum(times.values()), 3)
    kernels = {one["context"]: one["profile"]["families"] for one in recorded if one["arm"] == "hybrid"}
    assert [round(sum(times.values()), 1) for times in kernels.values()] == [1.6, 1.7, 2.0]


def test_speed_is_that_of_the_recorded_measurements(shown):
    rows = list(csv.DictReader((RESULTS / "h200-speed/speed.csv").read_text().splitlines()))
    assert len(rows) == 54

    def middle(arm, context, column, concurrency="1", middle=statistics.geometric_mean):
        return middle(
            float(row[column])
            for row in rows
            if (row["arm"], row["context"], row["concurrency"]) == (arm, str(context), concurrency)
        )

    for name, arm in (("switch", "triton"), ("hybrid", "hybrid")):
        for context in (4096, 16384, 32768):
            ours = shown[name].loc[context].filter(like="ours: ")
            first, rate = (ours[ours.index.str.endswith(what)].item() for what in (": first token", ": decode rate"))
            first_times, decode_times = (
                [middle(each, context, column) for each in (arm, "fa2")]
                for column in ("seconds_to_first_token", "decode_ms_per_token")
            )
            assert first == pytest.approx(first_times[0] / first_times[1] - 1)
            assert rate == pytest.approx(decode_times[1] / decode_times[0] - 1)
    at_once = shown["throughput"].set_index(["context", "arm"]).filter(like="ours: ").iloc[:, 0]
    for (context, arm), rate in at_once.items():
        assert rate == pytest.approx(8 * 512 / middle(arm, context, "seconds", "8", statistics.median))
    assert len(at_once) == 9


def test_what_the_text_says_of_the_speeds_holds(shown):
    switch, hybrid = (
        shown[name].filter(like="ours: ").rename(columns=lambda n: n.split(": ")[-1]) for name in ("switch", "hybrid")
    )
    assert (switch["first token"] > 0).all() and not switch["first token, interval"].str.startswith("-").any()
    assert switch["decode rate, interval"].str.count("-").to_list() == [1, 2, 2]
    assert hybrid["decode rate, interval"].str.count("-").to_list() == [1, 0, 0]
    assert (hybrid["first token, interval"].str.count("-") == 1).all()
    served = shown["speed"].query("arm == 'hybrid'").groupby("context")["decode (ms/token)"].median()
    assert served.round(1).between(2.1, 2.2).all()


def test_quality_is_that_of_the_recorded_comparisons(shown):
    files = sorted(RESULTS.glob("h200-*-fa2-hybrid/comparison.json"))
    assert len(files) == len(shown["quality"]) - 1 >= 4
    for file in files:
        table = json.loads(file.read_text())["table"]
        row = shown["quality"].loc[file.parent.name]
        assert [row["lost"], row["gained"], row["p"]] == [table["lost"], table["gained"], table["regression_p"]]
    drifts = {file.parents[1].name: json.loads(file.read_text()) for file in RESULTS.glob("*/forced/drift.json")}
    assert shown["drift"]["ratio"].to_dict() == {name: drift["ratio"]["ratio"] for name, drift in drifts.items()}


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("h200-speed/speed.json", "NVIDIA H200", "NVIDIA T4", "of NVIDIA T4"),
        ("h200-profile/profile.json", "NVIDIA H200", "NVIDIA T4", "of NVIDIA T4"),
        ("h200-replay/9-3-64/replay.json", '"q_heads": 9', '"q_heads": 12', "a replay of 12-3-64"),
        ("h200-replay/24-4-256/replay.json", '"wrong": false', '"wrong": true', "whose output is wrong"),
    ],
)
def test_a_measurement_of_something_else_is_not_drawn(tmp_path, name, old, new, told):
    (tmp_path / "notebooks").mkdir()
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("*.jsonl", "*.html", "*.svg"))
    text = (RESULTS / name).read_text()
    assert old in text
    (tmp_path / "results" / name).write_text(text.replace(old, new))
    notebook = nbformat.read(PERFORMANCE, as_version=4)
    with pytest.raises(CellExecutionError, match=told):
        NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path / "notebooks")}}).execute()
