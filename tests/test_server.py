"""A server starts as its arm says or not at all, and leaves nothing behind."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from evalsuite.arms import PRESETS, Arm
from evalsuite.client import Prompt, Sampling
from evalsuite.errors import UserError
from evalsuite.server import Attached, Server, command, environment, serve
from stub_server import DIGEST, LAYERS, MAX_NUM_BATCHED_TOKENS, running, started

# httpcore leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.*family=1:ResourceWarning")

PROMPT = Prompt(messages=(), token_ids=(5, 6, 7))
SAMPLING = Sampling(budget=32, temperature=0.0, until=())


def ignore(text: str) -> None:
    """Show nothing."""


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After every test: no process below this one, no private folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    before = psutil.Process().children(recursive=True)
    yield
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    assert not left, [process.cmdline() for process in left]
    everywhere = psutil.process_iter(["cmdline"])
    assert not [process for process in everywhere if str(tmp_path) in " ".join(process.info["cmdline"] or ())]
    assert not list((tmp_path / "t").iterdir())


def refuse(arm: Arm, folder: Path, *, seconds: float = 20) -> str:
    """Return why a server of this arm does not start."""
    server = Server(arm, folder, folder / "arm.log", ignore)
    try:
        with pytest.raises(UserError) as refused:
            server.start(seconds=seconds)
    finally:
        server.stop()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_started_server_is_confirmed_warm_and_has_counted_nothing(tmp_path: Path) -> None:
    arm = started(tmp_path, env={"GGUF_PQ2_SINGLE_ATTN_BACKEND": "torch"})
    with serve(arm, tmp_path, tmp_path / "arm.log", ignore) as server:
        assert isinstance(server, Server)
        assert server.alive()
        assert server.confirmed["backend_names"] == {"CPU_ATTN": LAYERS}
        told = server.endpoint.ask(PROMPT, SAMPLING, seed=1)
        receipt = server.take_receipt()
    assert told["token_ids"]
    assert receipt == {
        "layers": LAYERS, "split_kv": 4 * LAYERS, "fallback": 0, "other": LAYERS, "positions": [[4, 8, LAYERS]],
        "backends": {"stub.CPU_ATTN": LAYERS}, "backend_names": {"CPU_ATTN": LAYERS}, "digest": DIGEST,
        "flash_attn_version": None, "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
    }  # fmt: skip


def test_the_server_and_its_engine_run_while_it_serves_and_not_after(tmp_path: Path) -> None:
    with serve(started(tmp_path), tmp_path, tmp_path / "arm.log", ignore):
        below = psutil.Process().children(recursive=True)
        assert [process.name() for process in below].count("sleep") == 1, "the engine"
        folder = next((tmp_path / "t").iterdir())
        assert folder.stat().st_mode & 0o777 == 0o700, "dev mode is open to whoever reaches the socket"
    assert len(below) == 3
    assert not psutil.wait_procs(below, timeout=0)[1]


def test_kernel_switches_and_keys_of_the_callers_shell_do_not_reach_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGUF_PQ2_SINGLE_ATTN_BACKEND", "triton")
    monkeypatch.setenv("GGUF_PQ2_SINGLE_ATTN_SEGMENTS", "32")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("HF_HOME", "/cache")
    variables = environment(PRESETS["cpu"])
    assert not [name for name in variables if name.startswith("GGUF_PQ2_")]
    assert "VLLM_API_KEY" not in variables
    assert variables["HF_HOME"] == "/cache"
    assert environment(PRESETS["cpu-hybrid"])["GGUF_PQ2_SINGLE_ATTN_BACKEND"] == "torch"
    with serve(started(tmp_path), tmp_path, tmp_path / "arm.log", ignore) as server:
        receipt = server.take_receipt()
    assert receipt is not None
    assert receipt["layers"] == 0, "the stub counts layers where it sees the switch"


def test_one_sequence_at_a_time_without_caches_and_the_arms_own_flags_last(tmp_path: Path) -> None:
    words = command(PRESETS["hybrid"], tmp_path, tmp_path / "s")
    assert words[words.index("--max-num-seqs") + 1] == "1"
    assert "--no-enable-prefix-caching" in words
    assert tuple(words[-len(PRESETS["hybrid"].args) :]) == PRESETS["hybrid"].args


def test_a_server_that_ends_while_starting_is_told_with_its_logs_first_error(tmp_path: Path) -> None:
    told = refuse(started(tmp_path, "--misbehave", "crash"), tmp_path)
    assert "its server ended while starting" in told
    assert "ValueError: no such backend" in told
    assert "INFO bye" in told
    assert str(tmp_path / "arm.log") in told


@pytest.mark.parametrize("how", ["unhealthy", "deaf"])
def test_a_server_that_never_gets_healthy_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A server that took the connection and said nothing used to be waited for without end."""
    begin = time.monotonic()
    told = refuse(started(tmp_path, "--misbehave", how), tmp_path, seconds=0.5)
    assert "is not healthy after" in told
    assert time.monotonic() - begin < 12


@pytest.mark.parametrize("expected", ["CPU_ATTN", "FLASH_ATTN"])
def test_a_server_with_another_backend_is_refused_before_it_is_asked(tmp_path: Path, expected: str) -> None:
    wrong = ("--misbehave", "wrong-backend") if expected == "CPU_ATTN" else ()
    told = refuse(started(tmp_path, *wrong, backend=expected), tmp_path)
    found = "WRONG" if wrong else "CPU_ATTN"
    assert f"its layers run backend_names ['{found}'], expected '{expected}'; nothing was asked" in told


def test_a_server_without_the_flash_attention_version_of_its_arm_is_refused(tmp_path: Path) -> None:
    told = refuse(started(tmp_path, flash_attn_version=2), tmp_path)
    assert "flash_attn_version [None], expected 2" in told


def test_a_server_whose_first_request_fails_is_refused(tmp_path: Path) -> None:
    """This used to end in a traceback."""
    told = refuse(started(tmp_path, "--misbehave", "500", "--on", "1"), tmp_path)
    assert "its first request failed (HTTP 500" in told


def test_a_restarted_server_is_another_process_and_answers(tmp_path: Path) -> None:
    with serve(started(tmp_path), tmp_path, tmp_path / "arm.log", ignore) as server:
        before = psutil.Process().children(recursive=True)
        server.restart()
        assert not psutil.wait_procs(before, timeout=0)[1]
        assert server.endpoint.ask(PROMPT, SAMPLING, seed=1)["tokens"] == 5
    assert (tmp_path / "arm.log").read_text().count("$ ") == 2


def test_an_error_within_the_with_block_ends_the_server_too(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        serve(started(tmp_path), tmp_path, tmp_path / "arm.log", ignore),
    ):
        raise KeyboardInterrupt


def test_a_log_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    server = Server(started(tmp_path), tmp_path, Path("/dev/full"), ignore)
    with pytest.raises(UserError, match="/dev/full cannot be written"):
        server.start()
    server.stop()


def test_a_long_temporary_path_does_not_break_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with serve(started(tmp_path), tmp_path, tmp_path / "arm.log", ignore) as server:
        assert server.endpoint.ask(PROMPT, SAMPLING, seed=1)["tokens"] == 5
    assert not list(long.iterdir())


def test_an_attached_server_gives_no_receipt_and_is_left_running(tmp_path: Path) -> None:
    with running() as url:
        for _ in range(2):
            with serve(Arm(name="url", url=url, kernel=None), None, tmp_path / "arm.log", ignore) as server:
                assert isinstance(server, Attached)
                assert server.take_receipt() is None
                assert server.endpoint.ask(PROMPT, SAMPLING, seed=1)["tokens"] == 5
    assert not (tmp_path / "arm.log").exists()


def test_workers_that_disagree_are_no_evidence(tmp_path: Path) -> None:
    assert "workers disagree" in refuse(started(tmp_path, "--misbehave", "disagree"), tmp_path)


def test_this_process_holds_no_open_socket_of_an_ended_server(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with serve(started(tmp_path), tmp_path, tmp_path / "arm.log", ignore) as server:
        server.restart()
    assert len(os.listdir("/proc/self/fd")) == before
