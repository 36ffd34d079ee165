"""Start vLLM's OpenAI server for an arm, wait until it is healthy, confirm what it runs, and stop it for sure."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from evalsuite.arms import SWITCHES, Arm
from evalsuite.client import NO_REUSE, Endpoint, Prompt, RequestFailed, Sampling, attach
from evalsuite.errors import UserError

SERVED_NAME = "evalsuite"
START_SECONDS = 900.0
"""Longest wait for health: a first start compiles kernels and graphs."""
RECOVERY_SECONDS = 5.0
"""Pause before an attached server is asked again."""
_CONFIRMED = ("backends", "backend_names", "flash_attn_version", "digest", "max_num_batched_tokens")
"""What each receipt repeats of what its server confirmed at start."""
_SOCKET_LIMIT = 100  # a Unix socket's path has at most 107 bytes

_NO_MEMORY = re.compile(r"(?i)out of ?memory|\b(free|available) (kv cache )?memory\b")
"""How vLLM says that it has no room. It says how much memory is free in other lines too, but not in an error's."""

_COMMON = (
    "--served-model-name", SERVED_NAME, "--worker-extension-cls", "evalsuite_attention.receipt.ReceiptExtension",
    "--no-enable-prefix-caching", "--no-async-scheduling", "--max-num-seqs", "1",
)  # fmt: skip


def command(arm: Arm, checkpoint: Path, address: Path) -> list[str]:
    """Return the command that serves an arm on a Unix socket, one sequence at a time, without caches between requests.

    The arm's own flags come last, so that they win.
    """
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    return [*module, "--uds", str(address), *_COMMON, *arm.args]


def environment(arm: Arm) -> dict[str, str]:
    """Return the variables a server starts with: the caller's without kernel switches and key, then the arm's own."""
    dropped = (SWITCHES, "VLLM_API_KEY")  # with a key the server would refuse evalsuite itself
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    # Dev mode opens the worker's methods to whoever reaches the socket; its folder is readable by this user alone.
    return {**inherited, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", **arm.env}


class NotStarted(UserError):
    """A server did not start, or does not run what its arm names."""


class OutOfMemory(NotStarted):
    """A server found no memory to start in."""


class Server:
    """One running server; `serve` is the way to get one."""

    def __init__(self, arm: Arm, checkpoint: Path, log: Path, announce: Callable[[str], None]) -> None:
        self.arm = arm
        self.checkpoint = checkpoint
        self.log = log
        self.announce = announce
        self.endpoint: Endpoint
        self._client: httpx.Client | None = None
        self.confirmed: Mapping[str, Any] = {}
        self._told = 0  # where this start's part of the log begins
        self._folder: Path | None = None
        self._address: Path
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, *, seconds: float = START_SECONDS) -> None:
        """Start the server, wait for health, confirm its backend. Raises UserError with the log's end otherwise."""
        self._folder = _private_folder()
        self._address = self._folder / "s"
        served = command(self.arm, self.checkpoint, self._address)
        try:
            with self.log.open("ab", buffering=0) as log:
                self._told = log.tell()
                log.write(f"$ {' '.join(served)}\n".encode())
                self._guard = subprocess.Popen(
                    [sys.executable, "-m", "evalsuite.guard", str(self._folder), *served],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(self.arm),
                    start_new_session=True,
                )
        except OSError as error:
            raise UserError(f"{self.log} cannot be written ({error.strerror}); make room on the disk") from error
        transport = httpx.HTTPTransport(uds=str(self._address), limits=NO_REUSE)
        timeout = httpx.Timeout(600, connect=5)
        self._client = httpx.Client(transport=transport, base_url="http://arm", timeout=timeout)
        self.endpoint = Endpoint(self._client, model=SERVED_NAME, extended=True)
        self._wait(self._client, seconds)
        self.confirmed = self._confirm()
        # The first request compiles what is left to compile; neither it nor graph capture is anybody's response.
        warm_up = Prompt(messages=(), token_ids=(1,) * 8)
        try:
            self.endpoint.ask(warm_up, Sampling(budget=4, temperature=0.0, until=()), seed=0)
            self.take_receipt()
        except RequestFailed as error:
            raise UserError(f"arm {self.arm.name}: its first request failed ({error}); {self.hint()}") from error

    def _wait(self, client: httpx.Client, seconds: float) -> None:
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            if not self.alive():
                kind = OutOfMemory if any(map(_NO_MEMORY.search, self._errors())) else NotStarted
                raise kind(f"arm {self.arm.name}: its server ended while starting; {self.hint()}")
            if waited > seconds:
                raise NotStarted(f"arm {self.arm.name}: its server is not healthy after {seconds:.0f} s; {self.hint()}")
            self.announce(f"{self.arm.name}: starting its server, {waited:.0f} s")
            with suppress(httpx.HTTPError):
                if self._listens() and client.get("/health", timeout=2).status_code == 200:
                    return
            time.sleep(0.1)

    def _listens(self) -> bool:
        """Return whether the socket takes connections. The client leaks a descriptor each time it does not."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._address)) == 0

    def _confirm(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self.endpoint.call("evalsuite_confirm")
        except RequestFailed as error:
            message = f"arm {self.arm.name}: its server does not say what it runs ({error}); {self.hint()}"
            raise UserError(message) from error
        for key, expected in (
            ("backend_names", self.arm.backend),
            ("flash_attn_version", self.arm.flash_attn_version),
        ):
            seen = sorted(found[key]) if key == "backend_names" else [found[key]]
            if expected is not None and seen != [expected]:
                raise NotStarted(
                    f"arm {self.arm.name}: its layers run {key} {seen}, expected {expected!r}; nothing was asked; "
                    f"see {self.log}"
                )
        return found

    def alive(self) -> bool:
        """Return whether the server's process still runs."""
        return self._guard is not None and self._guard.poll() is None

    def hint(self) -> str:
        """Return what this start's log says (the first error, the last line) and what to do, on one line."""
        told = dict.fromkeys(line[-300:] for line in [*self._errors()[:1], *self._lines()[-1:]])
        said = " ... ".join(told) or "nothing"
        return f"its log says: {said}; read {self.log}, try `evalsuite doctor`, then give the same command again"

    def _lines(self) -> list[str]:
        log = self.log.read_bytes()[self._told :].decode(errors="replace")
        return [line.strip() for line in log.splitlines()[1:] if line.strip()]

    def _errors(self) -> list[str]:
        named = re.compile(r"\b\w*(Error|Exception): ")
        return [line for line in self._lines() if named.search(line) and "WARNING" not in line]

    def take_receipt(self) -> dict[str, Any]:
        """Return what the attention package counted since the last call, and what serves. Raises RequestFailed."""
        counts = self.endpoint.call("evalsuite_take_receipt")
        return {**counts, **{key: self.confirmed[key] for key in _CONFIRMED}}

    def restart(self) -> None:
        """Stop the server and start it anew. Raises UserError where it does not come back."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End the server and every process it started; return once they are gone."""
        if self._guard is not None:
            if self._guard.stdin:
                self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class Attached:
    """A running server that is not ours: no receipts, no restarts."""

    def __init__(self, arm: Arm, endpoint: Endpoint) -> None:
        self.arm = arm
        self.endpoint = endpoint

    def take_receipt(self) -> None:
        """Return None: what served a response can't be confirmed here."""
        return None

    def restart(self) -> None:
        """Give the server time. Raises UserError where it is gone."""
        time.sleep(RECOVERY_SECONDS)
        try:
            status = self.endpoint.client.get("/v1/models", timeout=30).status_code
            told = None if status < 400 or status == 429 else f"HTTP {status}"
        except httpx.HTTPError as error:
            told = type(error).__name__
        if told is not None:
            raise UserError(
                f"arm {self.arm.name}: the server at {self.arm.url} is gone ({told}); start it, then give the same "
                "command again: what it answered is kept"
            )


def _private_folder() -> Path:
    """Return a new folder, for this user alone, whose path leaves room for a socket's name."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="evalsuite-", dir=base if len(base) < _SOCKET_LIMIT - 30 else "/tmp"))


@contextmanager
def serve(
    arm: Arm, checkpoint: Path | None, log: Path, announce: Callable[[str], None], model: str | None = None
) -> Iterator[Server | Attached]:
    """Serve an arm for the length of a `with` block, or attach to it; `model` picks one of an attached server's."""
    if arm.url is not None:
        endpoint = attach(arm.url, model=arm.model or model)
        with closing(endpoint.client):
            yield Attached(arm, endpoint)
        return
    if checkpoint is None:
        raise ValueError(f"arm {arm.name} is to be started and has no checkpoint")
    server = Server(arm, checkpoint, log, announce)
    try:
        server.start()
        yield server
    finally:
        server.stop()
