"""What one decode step spends on what, from a trace of PyTorch's profiler.

On a GPU the trace holds every kernel, those inside replayed CUDA graphs too. Their times are added up, and what two of
them have in common counts once: a kernel may start while the one before still runs, and wait in it for its end. Without
a GPU the trace holds the operators of the CPU; the time of an operator includes what it calls, and what no family
claims of what vLLM's worker marks as a step is the rest, Python included.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ATTENTION, PROJECTIONS, REST = FAMILIES = ("attention", "projections", "rest")
Table = tuple[tuple[str, str], ...]

KERNELS: Table = (
    (REST, r"^triton_(poi|per|red)_"),  # fused by torch.compile; their names list the operators they come from
    (ATTENTION, r"flash_fwd|flash::|FlashAttn|fmha"),  # FlashAttention 2 and 3
    (ATTENTION, r"^decode_segment_kernel|^merge_kernel"),  # evalsuite_attention
    (ATTENTION, r"unified_attention|^reduce_segments"),  # vLLM's Triton kernels
    (ATTENTION, r"BatchDecode|BatchPrefill|VariableLengthMergeStates|paged_attention|XQA"),  # FlashInfer, older vLLM
    (PROJECTIONS, r"(?i)gemm|gemv|matmul|^nvjet|splitKreduce|cutlass.*::device_kernel"),  # cuBLAS, CUTLASS
    (PROJECTIONS, r"^triton_tem_|fused_moe|(?i:marlin|machete)"),  # of torch.compile, of vLLM
)
"""Which family a kernel belongs to, by the first expression found in its name. One that none fits is of the rest.

A copy is of the rest too, also that of FlashAttention 2's output, which follows each of its merges.
"""
OPERATORS: Table = (
    (ATTENTION, r"^vllm::unified_attention|^_C::cpu_attention"),
    (PROJECTIONS, r"^aten::(linear|matmul|addmm|mm)$|^_C::(onednn|cpu_.*gemm)|^vllm::.*gemm"),
)
"""The same for operators on a CPU."""

_STEP = re.compile(r"execute_context_0\(0\)_generation_1\(1\)")
"""How vLLM's worker names a decode step of one request."""
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A kernel or operator, per decode step."""

    name: str
    milliseconds: float
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of a decode step goes, in milliseconds per step."""

    steps: int
    on_gpu: bool
    families: Mapping[str, float]
    items: Mapping[str, Sequence[Item]]
    """What each family consists of, the longest first."""

    @property
    def total(self) -> float:
        """Milliseconds of all families."""
        return sum(self.families.values())


def read_trace(file: Path) -> list[dict[str, Any]]:
    """Return the events of a trace in Chrome's format, compressed or not. Raises OSError, ValueError and KeyError."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    events: list[dict[str, Any]] = json.loads(data)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def split(events: Sequence[Mapping[str, Any]], *, on_gpu: bool) -> Profile:
    """Return where the decode steps of a trace spend their time, in kernels or in operators of the CPU.

    A step is what vLLM's worker marks as one; the profiler was started and stopped between steps. Raises ValueError
    where the trace holds no decode step, a step of another kind, or none of the GPU's kernels.
    """
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    steps = [event for event in marks if _STEP.fullmatch(event["name"])]
    others = {event["name"] for event in marks if event["name"].startswith("execute_")} - {s["name"] for s in steps}
    if others or not steps:
        raise ValueError(f"the trace holds {len(steps)} decode steps of one request, and others: {sorted(others)}")
    if on_gpu:
        claimed = list(_once(event for event in events if event.get("cat") in _ON_DEVICE))
        if not claimed:
            raise ValueError("the trace holds no kernel of the GPU")
        return _build(claimed, len(steps), on_gpu=True, unclaimed=0.0)
    claimed = list(_outermost(event for event in events if event.get("cat") == "cpu_op" and _is_in(event, steps)))
    unclaimed = sum(event["dur"] for event in steps) - sum(event["dur"] for _, event in claimed)
    return _build(claimed, len(steps), on_gpu=False, unclaimed=max(unclaimed, 0.0))


@cache
def find_family(name: str, table: Table) -> str:
    """Return the family of a kernel or operator by the first expression of the table that its name holds."""
    return next((family for family, pattern in table if re.search(pattern, name)), REST)


def _once(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what runs on the GPU with its family, each with the time by which it outlasts all that began before it.

    With programmatic dependent launch a kernel's own duration holds its wait for the kernel before.
    """
    covered = 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = max(event["ts"] + event["dur"], covered)
        yield find_family(event["name"], KERNELS), {**event, "dur": end - max(event["ts"], covered)}
        covered = end


def _is_in(event: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> bool:
    return any(step["ts"] <= event["ts"] < step["ts"] + step["dur"] for step in steps)


def _outermost(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the operators that a family claims, without those that they call themselves."""
    ends: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        family = find_family(event["name"], OPERATORS)
        if family != REST and event["ts"] >= ends.get(event["tid"], 0.0):
            ends[event["tid"]] = event["ts"] + event["dur"]
            yield family, event


def _build(claimed: Iterable[tuple[str, Mapping[str, Any]]], steps: int, *, on_gpu: bool, unclaimed: float) -> Profile:
    durations: dict[str, dict[str, list[float]]] = {family: defaultdict(list) for family in FAMILIES}
    for family, event in claimed:
        durations[family][event["name"]].append(event["dur"])
    if unclaimed:
        durations[REST]["not claimed above, Python included"] = [unclaimed / steps] * steps
    items = {
        family: sorted(
            (
                Item(name=name, milliseconds=sum(times) / 1e3 / steps, calls=len(times) / steps)
                for name, times in named.items()
            ),
            key=lambda item: -item.milliseconds,
        )
        for family, named in durations.items()
    }
    families = {family: sum(item.milliseconds for item in found) for family, found in items.items()}
    return Profile(steps=steps, on_gpu=on_gpu, families=families, items=items)
