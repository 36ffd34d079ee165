"""Two real vLLM servers on the CPU, killed on the way: every question is answered once, and receipts prove by whom.

.venv/bin/python -m pytest tests/test_end_to_end.py      (about five minutes on two cores)
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from evalsuite.journal import load_run

pytestmark = pytest.mark.server

QUESTIONS = 6
VERDICTS = (0, 1, 3)  # which of them six questions give is not the point here
EVIDENCE = {"run.json", "questions.jsonl", "baseline.jsonl", "candidate.jsonl"}
DERIVED = {"pairs.csv", "comparison.json", "report.md", "report.html"}


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "evalsuite", "run", "--limit", str(QUESTIONS), "--run", str(folder)]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(condition: Callable[[], bool], *, process: subprocess.Popen[str], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_server(process: psutil.Process) -> bool:
    return "vllm.entrypoints.openai.api_server" in process.cmdline() and "evalsuite.guard" not in process.cmdline()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run: the baseline's server is killed on the way, then evalsuite itself, then the run is resumed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    first = start(folder)
    wait_until(lambda: lines(folder / "baseline.jsonl") >= 2, process=first)
    servers = [child for child in psutil.Process(first.pid).children(recursive=True) if is_server(child)]
    assert len(servers) == 1
    servers[0].kill()
    wait_until(lambda: lines(folder / "candidate.jsonl") >= 2, process=first)
    started = psutil.Process(first.pid).children(recursive=True)
    assert any(is_server(child) for child in started)
    first.kill()
    first.communicate()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive, f"still running after evalsuite was killed: {[process.cmdline() for process in alive]}"
    second = start(folder)
    out, err = second.communicate(timeout=400)
    assert second.returncode in VERDICTS, err
    assert f"exit code {second.returncode}" in out
    return folder


def test_every_question_is_answered_once_by_each_arm(run_folder: Path) -> None:
    run = load_run(run_folder)
    for arm in ("baseline", "candidate"):
        assert sorted(r.question for r in run.responses[arm]) == sorted(q.id for q in run.questions)
        assert [r.error for r in run.responses[arm]] == [None] * QUESTIONS
    assert {r.session for r in run.responses["candidate"]} == {1, 2}


def test_the_run_directory_is_complete(run_folder: Path) -> None:
    assert {*EVIDENCE, *DERIVED} <= {path.name for path in run_folder.iterdir()}


def test_receipts_show_split_kv_for_every_decode_step_of_the_candidate_and_none_of_the_baseline(
    run_folder: Path,
) -> None:
    run = load_run(run_folder)
    for response in run.responses["candidate"]:
        assert response.receipt and response.tokens and response.prompt_tokens
        start, stop = response.prompt_tokens + 1, response.prompt_tokens + response.tokens
        assert response.receipt["split_kv"] == 30 * (response.tokens - 1)
        assert response.receipt["positions"] == ([[start, stop, 30]] if stop > start else [])
        assert response.receipt["fallback"] == 0
    for response in run.responses["baseline"]:
        assert response.receipt
        assert response.receipt["split_kv"] == 0
        assert response.receipt["positions"] == []


def test_report_rebuilds_the_same_bytes(run_folder: Path) -> None:
    before = {name: (run_folder / name).read_bytes() for name in DERIVED}
    for name in DERIVED:
        (run_folder / name).unlink()
    code = json.loads(before["comparison.json"])["exit_code"]
    done = subprocess.run([sys.executable, "-m", "evalsuite", "report", str(run_folder)], capture_output=True)
    assert done.returncode == code
    assert {name: (run_folder / name).read_bytes() for name in DERIVED} == before


def test_the_same_command_on_a_finished_run_asks_nothing(run_folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    assert subprocess.run(command(run_folder), capture_output=True, timeout=60).returncode in VERDICTS
    assert {path.name: path.read_bytes() for path in run_folder.iterdir()} == before


def test_an_interrupt_ends_the_servers_and_exits_with_130(tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    wait_until(lambda: any(map(is_server, psutil.Process(process.pid).children(recursive=True))), process=process)
    started = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not psutil.wait_procs(started, timeout=10)[1]
