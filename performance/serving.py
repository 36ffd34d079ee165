"""Serve several arms at once and time what they generate: what `speed` and `profile` have in common."""

import argparse
import shutil
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
from evalsuite.arms import Arm
from evalsuite.checkpoint import context_length, find_checkpoint
from evalsuite.client import Endpoint, RequestFailed, read_events, read_json
from evalsuite.errors import UserError
from evalsuite.records import response_of
from evalsuite.server import OutOfMemory, Server
from evalsuite_performance.models import ModelShape, parse_shape, read_shape, write_model

INVALID = 4
"""Exit code where a receipt does not show the arm's own kernel."""
WARM_UP_TOKENS = 8
_SHARE = 0.8  # of the GPU's memory, for all arms together
_CONTEXTS, _CPU_CONTEXTS = (4096, 16384, 32768), (256, 1024)
_FIRST_TOKEN_ID = 100  # below lie the special tokens of most vocabularies
_STRIDE = 7919  # a prime, so that a prompt's tokens do not repeat soon


class NotProven(Exception):
    """A receipt does not show that the arm's own kernel served: what was timed was something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is served to every arm: a model, prompts of these lengths, so many tokens, so many requests at once."""

    shape: ModelShape
    checkpoint: Path
    dummy: bool
    """Whether the weights are dummies, without a tokenizer."""
    contexts: tuple[int, ...]
    tokens: int
    at_once: int = 1

    def prompt(self, context: int, number: int) -> list[int]:
        """Return `context` token ids; another `number` gives another prompt, the same one the same in every arm."""
        usable = self.shape.vocabulary - _FIRST_TOKEN_ID
        return [_FIRST_TOKEN_ID + (i * _STRIDE + number * 31) % usable for i in range(context)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One response, timed by the client."""

    prompt_tokens: int
    tokens: int
    seconds_to_first_token: float
    seconds_per_token: float | None
    """Mean time between tokens after the first to arrive; None where all arrived together."""
    seconds: float


def choose_arms(names: Sequence[str], arms_file: Path | None) -> list[Arm]:
    """Return the arms of these names. One that is named again is the same arm under another name: its noise."""
    known = arms_module.load_arms(arms_file)
    chosen: list[Arm] = []
    for name in names:
        arm = arms_module.find_arm(name, known)
        if arm.url is not None:
            raise UserError(f"{name} is a running server; expected an arm that can be started, see `evalsuite arms`")
        if arm.backend not in (None, "CPU_ATTN") and environment.nvidia_gpu() is None:
            raise UserError(f"arm {name} needs an NVIDIA GPU, and there is none; without: --arm cpu --arm cpu-hybrid")
        again = sum(other.name.partition("-again")[0] == arm.name for other in chosen)
        chosen.append(replace(arm, name=f"{arm.name}-again{again if again > 1 else ''}") if again else arm)
    return chosen


@contextmanager
def open_workload(
    args: argparse.Namespace, arms: Sequence[Arm], *, tokens: int, at_once: int = 1
) -> Iterator[Workload]:
    """Yield what the options ask for; a dummy model lasts as long as the `with` block.

    Raises UserError where an arm cannot serve it.
    """
    if args.layers and not args.shape:
        raise UserError("--layers has no --shape; give the shape of the dummy model, for instance 24/4/256")
    with tempfile.TemporaryDirectory(prefix="evalsuite-model-") as scratch:
        folder = Path(scratch)
        if args.shape:
            shape = parse_shape(args.shape, layers=args.layers or 16)
            for arm in arms:
                if arm.model:
                    raise UserError(f"arm {arm.name} has a model of its own, and --shape gives dummies; leave one out")
            write_model(shape, folder, positions=max(args.context or (0,)) + tokens)
        else:
            folder = find_checkpoint(args.model or arms[0].model)
            shape = read_shape(folder)
        yield Workload(
            shape=shape,
            checkpoint=folder,
            dummy=bool(args.shape),
            contexts=_fit_contexts(args.context, arms, folder, tokens),
            tokens=tokens,
            at_once=at_once,
        )


def _fit_contexts(asked: tuple[int, ...] | None, arms: Sequence[Arm], folder: Path, tokens: int) -> tuple[int, ...]:
    """Return the lengths asked for, or those of the usual ones that every arm can hold with its response.

    Raises UserError where one asked for, or each of the usual ones, is too long.
    """
    usual = _CONTEXTS if environment.nvidia_gpu() else _CPU_CONTEXTS
    fitting = list(asked or usual)
    for arm in arms:
        limit = context_length(_checkpoint(arm, folder), arm.args)
        fits = [length for length in fitting if limit is None or length + tokens <= limit]
        if not fits or (asked and len(fits) < len(asked)):
            raise UserError(
                f"arm {arm.name}: a prompt of {fitting[-1]} tokens and {tokens} generated ones exceed the {limit} that "
                "the model holds; give smaller --context"
            )
        fitting = fits
    return tuple(fitting)


def _checkpoint(arm: Arm, common: Path) -> Path:
    return find_checkpoint(arm.model) if arm.model else common


@contextmanager
def open_folder(out: Path | None) -> Iterator[Path]:
    """Yield the folder for logs and results: `out`, or a temporary one that outlives an error, so its logs can be read.

    Raises UserError where it cannot be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="evalsuite-logs-")) if out is None else out
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}); name another folder with --out") from error
    yield folder
    if out is None:
        shutil.rmtree(folder)


def _fit_arm(arm: Arm, workload: Workload, *, arms: int, gpu: bool, whole_steps: bool) -> Arm:
    """Return the arm with flags for the workload, `arms` of them up at once; the arm's own flags come last, and win."""
    longest = workload.contexts[-1] + workload.tokens
    args = ["--max-model-len", str(longest), "--max-num-seqs", str(workload.at_once)]
    if workload.dummy:
        args += ["--load-format", "dummy", "--skip-tokenizer-init"]
    if gpu:
        # Requests of a fixed length waste no step on their end, so receipts stay exact with vLLM's default.
        args += [] if whole_steps else ["--async-scheduling"]
        cache = workload.shape.kv_bytes * longest * workload.at_once
        args += ["--kv-cache-memory-bytes", str(cache * 5 // 4 + (1 << 28))]
        args += ["--gpu-memory-utilization", f"{_SHARE / arms:.2f}"]
    return replace(arm, args=(*args, *arm.args))


@contextmanager
def serve_all(
    arms: Sequence[Arm], workload: Workload, folder: Path, *, whole_steps: bool = False
) -> Iterator[tuple[dict[str, Server], dict[str, str]]]:
    """Serve all arms at once for the length of a `with` block.

    With `whole_steps` a decode step ends before the next begins; else they overlap as they do by vLLM's default.
    Yields the servers that run, by arm, and why the others do not. Raises UserError where the first arm is among these.
    """
    gpu = environment.nvidia_gpu() is not None
    fitted = [_fit_arm(arm, workload, arms=len(arms), gpu=gpu, whole_steps=whole_steps) for arm in arms]
    servers = {
        arm.name: Server(arm, _checkpoint(arm, workload.checkpoint), folder / f"{arm.name}.log", progress.announce)
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
    endpoint: Endpoint, prompt: Sequence[int], tokens: int, *, begun: Callable[[], None] | None = None
) -> Generation:
    """Generate exactly `tokens` tokens, whatever they are, and time them; call `begun` once the first has arrived.

    Raises RequestFailed where they did not all come.
    """
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
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    if usage["completion_tokens"] != tokens:
        raise RequestFailed(f"{usage['completion_tokens']} tokens came; expected {tokens}")
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
