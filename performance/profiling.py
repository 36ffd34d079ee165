"""Trace the decode steps of a real server with PyTorch's profiler, one arm and context at a time."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evalsuite import environment, progress
from evalsuite.arms import Arm
from evalsuite.server import Server
from evalsuite_performance import serving, traces
from evalsuite_performance.traces import Profile
from evalsuite_performance.workload import Workload, kv_bytes

_STEPS = 32
TOKENS = 128
"""Generated for a trace: its first token, those until the profiler runs, the steps of the trace, and what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The profile of one arm at one context."""

    arm: str
    context: int
    kv_bytes: int
    """Keys and values that a step reads in all layers, by the model's configuration, in the middle of the trace."""
    profile: Profile

    @property
    def bandwidth(self) -> float:
        """Bytes per second at which attention reads keys and values."""
        return self.kv_bytes / (self.profile.families[traces.ATTENTION] / 1e3)


def profiler_config(folder: Path) -> dict[str, object]:
    """Return vLLM's `--profiler-config` for traces of a fixed number of steps in `folder`, of the worker alone."""
    return {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
        "max_iterations": _STEPS,
    }


def profile_arm(arm: Arm, workload: Workload, out: Path | None) -> Iterator[Profiled]:
    """Yield an arm's profile at each context.

    Raises NotProven, RequestFailed, httpx.HTTPError, and ValueError where the server writes no usable trace.
    """
    with tempfile.TemporaryDirectory(prefix="evalsuite-trace-") as scratch:
        traced = replace(arm, args=("--profiler-config", json.dumps(profiler_config(Path(scratch))), *arm.args))
        with serving.serve_all([traced], workload, out, whole_steps=True) as (servers, _):
            for context in workload.contexts:
                yield _profile(servers[arm.name], workload, context, Path(scratch))


def _profile(server: Server, workload: Workload, context: int, scratch: Path) -> Profiled:
    serving.generate(server, workload.prompt(context, 0), serving.WARM_UP_TOKENS)
    server.take_receipt()
    before = set(scratch.iterdir())

    def post(path: str) -> None:
        server.endpoint.client.post(path).raise_for_status()

    # Started with the first token, so that no prefill is in the trace; it stops by itself after so many steps.
    told = serving.generate(server, workload.prompt(context, 1), workload.tokens, begun=lambda: post("/start_profile"))
    post("/stop_profile")
    serving.check_receipt(server, told)
    written = sorted(file for file in set(scratch.iterdir()) - before if ".pt.trace.json" in file.name)
    if not written:
        raise ValueError("the server wrote no trace")
    profile = traces.split(traces.read_trace(written[0]), on_gpu=environment.nvidia_gpu() is not None)
    calls = max((item.calls for item in profile.items[traces.ATTENTION]), default=0.0)
    if calls < workload.shape.layers:
        raise ValueError(f"the trace shows {calls:g} calls of attention in a step of {workload.shape.layers} layers")
    progress.say(f"context {context}: {server.arm.name}: {profile.steps} steps traced")
    return Profiled(
        arm=server.arm.name,
        context=context,
        kv_bytes=kv_bytes(server.arm, workload) * (context + profile.steps // 2),
        profile=profile,
    )
