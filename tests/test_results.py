"""Every recorded run still says what it said: its derived files are rebuilt from its evidence, byte by byte."""

import json
import shutil
from pathlib import Path

import pytest

from evalsuite import report
from evalsuite.cli import main
from evalsuite.journal import load_run
from evalsuite.receipts import check

RESULTS = Path(__file__).parent.parent / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("*/run.json"))


def test_runs_are_recorded() -> None:
    assert len(RUNS) >= 5


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_derived_files_are_rebuilt_to_the_same_bytes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    main(["report", str(copy)])
    capsys.readouterr()
    forced = ["forced/drift.json", "forced/drift.md"] if (run / "forced").is_dir() else []
    for name in ("pairs.csv", "comparison.json", "report.md", "report.html", *forced):
        assert (copy / name).read_bytes() == (run / name).read_bytes(), name


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_receipts_prove_every_response(run: Path) -> None:
    recorded = load_run(run)
    for arm, responses in recorded.responses.items():
        assert [check(response, recorded.meta["arms"][arm]) for response in responses] == [None] * len(responses)
    assert report.derive(recorded).comparison.problems == ()


def test_nothing_recorded_names_a_machines_folders() -> None:
    for path in RESULTS.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not any(folder in text for folder in ("/root", "/home/", "/tmp/")), path


def test_the_self_test_is_recorded_as_passed_and_says_what_the_pages_say() -> None:
    recorded = json.loads((RESULTS / "cpu-selftest" / "selftest.json").read_text())
    findings = {row["name"]: row["findings"] for row in recorded["rows"]}
    right = findings.pop("right kernel")
    assert recorded["passed"] and len(findings) == 10
    assert not any(found["caught"] for found in right.values())
    assert [found["forced"]["caught"] for found in findings.values()] == [True] * 10
    for instrument in ("accuracy", "divergence"):
        assert sum(not found[instrument]["caught"] for found in findings.values()) == 7
    least = min(found["forced"]["figures"]["ratio"]["ratio"] for found in findings.values())
    assert f"{least:,.0f} times" in " ".join((RESULTS / "README.md").read_text().split())


def test_the_table_of_forced_decoding_is_the_one_recorded() -> None:
    page = (RESULTS / "README.md").read_text()
    runs = [
        json.loads((RESULTS / name / "forced" / "drift.json").read_text())["arms"]
        for name in ("h200-longfacts-fa2-hybrid", "h200-longfacts-8192-fa2-hybrid")
    ]

    def short(value: float) -> str:
        return f"{value:.1e}" if value < 9.95e-3 else f"{value:.2e}"

    for name, role in (("hybrid", "candidate"), ("triton", "right-triton"), ("fa3", "right-fa3")):
        one, other = (run[role] for run in runs)
        values = [*one["by_length"], one["decode"], other["decode"]]
        cells = [short(each["total_variation"]).replace("e-0", "e-") for each in values]
        cells += [f"{one['decode']['kl']:.1e}".replace("e-0", "e-")]
        cells += [f"{one['decode']['same_top'] / one['decode']['steps']:.1%}".replace("%", " %")]
        assert f"| {name} | {' | '.join(cells)} |" in page
    assert all(run["again"]["decode"]["farthest"] == 0 for run in runs)
