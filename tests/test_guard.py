"""Whatever happens to evalsuite, nothing that it started outlives it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

GUARD = [sys.executable, "-m", "evalsuite.guard"]
IMPATIENT = [sys.executable, "-c", "from evalsuite import guard; guard.PATIENCE = 0.5; raise SystemExit(guard.main())"]

# A command with a child in its process group and one in a session of its own, as a daemon would be.
FAMILY = "sleep 600 & echo $!; setsid sleep 600 & echo $!; echo $$; wait"
STUBBORN = "trap '' TERM; sleep 600 & echo $!; setsid sleep 600 & echo $!; echo $$; while :; do sleep 0.1; done"


def start(guard: list[str], script: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Return the guard and the three processes below it."""
    process = subprocess.Popen(
        [*guard, "/nonexistent", "bash", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    return process, [psutil.Process(int(process.stdout.readline())) for _ in range(3)]


def close_input(process: subprocess.Popen[str]) -> None:
    """Close standard input, as evalsuite does."""
    assert process.stdin
    process.stdin.close()
    process.wait(timeout=10)
    assert process.stdout
    process.stdout.close()


@pytest.mark.parametrize("guard", [IMPATIENT, GUARD], ids=["short patience", "own patience"])
def test_closing_standard_input_ends_the_group_before_the_guard_returns(guard: list[str]) -> None:
    process, family = start(guard, "sleep 600 & echo $!; sleep 600 & echo $!; echo $$; wait")
    begin = time.monotonic()
    close_input(process)
    assert not any(member.is_running() for member in family)
    assert time.monotonic() - begin < 5, "processes that obey SIGTERM are not waited for"
    assert process.returncode == 0


@pytest.mark.parametrize("script", [FAMILY, STUBBORN], ids=["daemon", "SIGTERM ignored"])
def test_what_ignores_sigterm_or_left_the_group_is_killed(script: str) -> None:
    """A process in a session of its own used to survive."""
    process, family = start(IMPATIENT, script)
    close_input(process)
    assert not any(member.is_running() for member in family)


def test_the_guard_outlives_signals_of_the_terminal() -> None:
    process, family = start(GUARD, "sleep 600 & echo $!; sleep 600 & echo $!; echo $$; wait")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    time.sleep(0.2)
    assert process.poll() is None
    assert all(member.is_running() for member in family)
    close_input(process)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_parent_that_is_killed_takes_everything_with_it(number: int, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "s").touch()
    command = [*IMPATIENT, str(tmp_path / "private"), "bash", "-c", FAMILY]
    script = (
        f"import subprocess\nguard = subprocess.Popen({command}, stdin=subprocess.PIPE)\n"
        "print(guard.pid, flush=True)\nguard.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    below = [psutil.Process(int(parent.stdout.readline())) for _ in range(4)]
    parent.send_signal(number)
    parent.wait(timeout=10)
    assert not psutil.wait_procs(below, timeout=10)[1]
    assert not (tmp_path / "private").exists()
    parent.stdout.close()


def test_a_command_that_ends_by_itself_gives_its_status_and_leaves_no_child() -> None:
    process, family = start(IMPATIENT, "sleep 600 & echo $!; setsid sleep 600 & echo $!; echo $$; sleep 0.5; exit 3")
    assert process.wait(timeout=10) == 3
    assert not any(member.is_running() for member in family)
    assert process.stdin and process.stdout
    process.stdin.close()
    process.stdout.close()
