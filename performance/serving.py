"""Serve several arms at once and time what they generate: what `speed` and `profile` have in common."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from evalsuite import arms as arms_module
from evalsuite import environment, progress, receipts
from evalsuite.arms import Arm, find_flag
from evalsuite.client import RequestFailed, read_events, read_json
from evalsuite.errors import UserError
from evalsuite.records import response_of
from evalsuite.server import OutOfMemory, Server
from evalsuite_performance.workload import Workload, checkpoint_of, kv_bytes, prepare_folder

INVALID = 4
"""Exit code where a receipt does not show the arm's own kernel."""
WARM_UP_TOKENS = 8
_SHARE = 0.8  # of the GPU's memory, for all arms together


class NotProven(Exception):
    """A receipt does not show that the arm's own kernel served: what was timed was something else."""


def end_invalid(fault: NotProven, out: Path | None, stem: str, what: str) -> int:
    """Say what is not proven, `what` that means, take away the results written so far, and return the exit code."""
    prepare_folder(out, stem)
    print(f"evalsuite: INVALID: {fault}; {what} about this arm", file=sys.stderr)
    return INVALID


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One response, timed by the client."""

    prompt_tokens: int
    tokens: int
    seconds_to_first_token: float
    seconds_per_token: float | None
    """Mean time between tokens after the first to arrive; None where all arrived together."""
    seconds: float


def _fit_arm(arm: Arm, workload: Workload, *, arms: int, gpu: bool, whole_steps: bool) -> Arm:
    """Return the arm with flags for the workload, `arms` of them up at once; the arm's own flags come last, and win."""
    longest = workload.contexts[-1] + workload.tokens
    most = find_flag(arm.args, "--max-num-seqs")
    if most is not None and most.isdecimal() and int(most) < workload.at_once:
        raise UserError(f"arm {arm.name} has --max-num-seqs {most}, and {workload.at_once} requests are to run at once")
    args = ["--max-model-len", str(longest), "--max-num-seqs", str(workload.at_once)]
    if workload.dummy:
        args += ["--load-format", "dummy", "--skip-tokenizer-init"]
    if gpu:
        # Requests of a fixed length waste no step on their end, so receipts stay exact with vLLM's default.
        args += [] if whole_steps else ["--async-scheduling"]
        cache = kv_bytes(arm, workload) * longest * workload.at_once
        args += ["--kv-cache-memory-bytes", str(cache * 5 // 4 + (1 << 28))]
        args += ["--gpu-memory-utilization", f"{_SHARE / arms:.2f}"]
    return replace(arm, args=(*args, *arm.args))


@contextmanager
def serve_all(
    arms: Sequence[Arm], workload: Workload, out: Path | None, *, whole_steps: bool = False
) -> Iterator[tuple[dict[str, Server], dict[str, str]]]:
    """Serve all arms at once for the length of a `with` block, their logs in `out`, or else in a temporary folder.

    With `whole_steps` a decode step ends before the next begins; else they overlap as they do by vLLM's default.
    Yields the servers that run, by arm, and why the others do not. Raises UserError where the first arm is among these.
    """
    folder, named = out or Path(tempfile.mkdtemp(prefix="evalsuite-logs-")), False
    try:
        with _serve_logged(arms, workload, folder, whole_steps=whole_steps) as served:
            yield served
            named = bool(served[1])  # the reason why an arm is left out names its log
    except UserError:
        named = True
        raise
    finally:
        if out is None and not named:
            shutil.rmtree(folder)


@contextmanager
def _serve_logged(
    arms: Sequence[Arm], workload: Workload, folder: Path, *, whole_steps: bool
) -> Iterator[tuple[dict[str, Server], dict[str, str]]]:
    gpu = environment.nvidia_gpu() is not None
    fitted = [_fit_arm(arm, workload, arms=len(arms), gpu=gpu, whole_steps=whole_steps) for arm in arms]
    servers = {
        arm.name: Server(arm, checkpoint_of(arm, workload.checkpoint), folder / f"{arm.name}.log", progress.announce)
        for arm in fitted
    }
    starting: list[Server] = []
    interrupted = Event()

    def start(server: Server) -> None:
        starting.append(server)
        try:
            if not interrupted.is_set():
                server.start()
        finally:
            starting.remove(server)

    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            try:
                started = {name: pool.submit(start, server) for name, server in servers.items()}
                wait(started.values())
            finally:
                interrupted.set()  # where it was: do not wait for health, and begin no other
                while starting:
                    _stop(servers)
                    time.sleep(0.2)
        skipped = {}
        for name, future in started.items():
            error = future.exception()
            if isinstance(error, UserError) and name != arms[0].name:
                servers.pop(name).stop()
                skipped[name] = str(error)
                progress.say(f"{name} is left out: {error}")
            elif error is not None:
                raise _explain(error, len(arms))
        yield servers, skipped
    finally:
        _stop(servers)


def _stop(servers: Mapping[str, Server]) -> None:
    for server in servers.values():
        server.stop()


def _explain(error: BaseException, arms: int) -> BaseException:
    if isinstance(error, OutOfMemory) and arms > 1:
        return UserError(f"{error}; {arms} arms are served at once: name fewer with --arm, or give smaller --context")
    return error


def generate(
    server: Server, prompt: Sequence[int], tokens: int, *, begun: Callable[[], None] | None = None
) -> Generation:
    """Generate exactly `tokens` tokens, whatever they are, and time them; call `begun` once the first has arrived.

    Raises RequestFailed where they did not all come.
    """
    endpoint, asked = server.endpoint, f"arm {server.arm.name}, context {len(prompt)}"
    body = {
        "model": endpoint.model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    first, last, early, usage = 0.0, 0.0, 0, {"prompt_tokens": 0, "completion_tokens": 0}
    start = time.perf_counter()
    try:
        with endpoint.client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                reply.read()
                read_json(reply)
            for event in read_events(reply):
                if event.get("error"):
                    raise ValueError(f"the server reports {event['error']!r}")
                if event["choices"]:  # the last event holds only the usage
                    last = time.perf_counter()
                    usage = event["usage"]
                    if not first:
                        first, early = last, usage["completion_tokens"]
                        if begun:
                            begun()
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RequestFailed(f"{asked}: {type(error).__name__}: {error}") from error
    if usage["completion_tokens"] != tokens:
        raise RequestFailed(f"{asked}: {usage['completion_tokens']} tokens came; expected {tokens}")
    return Generation(
        prompt_tokens=usage["prompt_tokens"],
        tokens=tokens,
        seconds_to_first_token=first - start,
        seconds_per_token=(last - first) / (tokens - early) if tokens > early else None,
        seconds=last - start,
    )


def check_receipt(server: Server, generation: Generation) -> Mapping[str, Any]:
    """Return the receipt of the request that was just served alone. Raises NotProven where it does not add up."""
    receipt = server.take_receipt()
    response = response_of(
        question="",
        sample=0,
        session=0,
        receipt=receipt,
        prompt_tokens=generation.prompt_tokens,
        tokens=generation.tokens,
    )
    package = environment.attention_package() or {}
    arm = arms_module.to_json(server.arm, model_sha256=None)
    for _, fault in receipts.find_faults([response], arm, package.get("sha256")):
        raise NotProven(f"arm {server.arm.name}, context {generation.prompt_tokens}: {fault}")
    return receipt
