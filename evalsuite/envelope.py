"""The kernels that are known to be right: the baseline with its attention computed another way, and nothing else."""

import os
from collections.abc import Sequence
from dataclasses import replace

from evalsuite.arms import PRESETS, SWITCHES, Arm

_ATTENTION = "--attention-"


def like(baseline: Arm, other: Arm) -> Arm:
    """Return the arm `other` with what else the baseline is served with; its own flags come last, so that they win."""
    return replace(other, args=(*baseline.args, *other.args), env={**baseline.env, **other.env}, model=baseline.model)


def right_kernels(baseline: Arm) -> list[Arm]:
    """Return arms that are known to be right: the baseline with others of vLLM's own kernels, none the candidate's."""
    if baseline.backend == "CPU_ATTN":
        # It has one kernel, which sums the history in as many parts as there are threads, or in one.
        changes = {
            "unsplit": {"VLLM_CPU_ATTN_SPLIT_KV": "0"},
            "all-cores": {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))))},
        }
        return [Arm(name=f"{baseline.name}-{name}", env=env, backend=baseline.backend) for name, env in changes.items()]
    kernels = [PRESETS[name] for name in ("fa2", "triton", "fa3")]
    own = (baseline.backend, baseline.flash_attn_version)
    return [arm for arm in kernels if (arm.backend, arm.flash_attn_version) != own]


def switches(arm: Arm) -> bool:
    """Return whether the arm sets a variable that chooses a kernel of the code under test."""
    return any(name.startswith(SWITCHES) for name in arm.env)


def find_other_flags(baseline: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return the server's flags, those of attention apart, that two arms give otherwise. The last of a kind counts."""
    one, other = _flags(baseline), _flags(args)
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _flags(args: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for arg in map(str, args):
        if arg.startswith("-"):
            name, equals, value = arg.partition("=")
            found[name] = [value] if equals else []
        else:
            found.setdefault(name, []).append(arg)
    return {name: values for name, values in found.items() if not name.startswith(_ATTENTION)}
