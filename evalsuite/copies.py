"""Forced evidence that is not an arm's own: another kernel rounds apart from it at nearly every step.

Of the recorded decode steps of two kernels at most 2.2 % agree, and in no response half of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from evalsuite.records import Forced
from evalsuite.statistics import Ratio

MOST, MOST_OF_ONE = 0.1, 0.5
"""Largest share of the decode steps that two kernels may agree in, over all responses and in each."""
LEAST_STEPS = 8
"""A response of fewer decode steps is not looked at by itself: those may agree by chance."""
NEAREST = 0.1
"""Times as far as right kernels: no kernel rounds so nearly like another. From 0.9 to 1.1 is recorded."""


def differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two arms of run.json decode with different kernels. An unnamed backend or version is any."""
    backends, versions = ([each(arm) for arm in (one, other)] for each in (_backend, _version))
    return one["kernel"] != other["kernel"] or any(
        None not in pair and pair[0] != pair[1] for pair in (backends, versions)
    )


def _backend(arm: Mapping[str, Any]) -> str | None:
    # Without split-KV the hybrid backend is FlashAttention.
    stock = arm["kernel"] == "stock" and arm["backend"] == "CUSTOM"
    return "FLASH_ATTN" if stock else arm["backend"]


def _version(arm: Mapping[str, Any]) -> int | None:
    return arm.get("flash_attn_version")


def find_copies(
    evidence: Mapping[str, Sequence[Forced]], arms: Mapping[str, Mapping[str, Any]], ratio: Ratio | None
) -> Iterator[str]:
    """Yield why evidence, given by role, is not that of the role's own kernel. `arms` are those of force.json.

    `ratio` is how many times as far from the baseline as right kernels the candidate lies. A right kernel that agrees
    with the baseline is left to `drift.find_measured`.
    """
    judged = ["candidate", *(role for role in evidence if role.startswith("right-"))]
    for one, other in [("candidate", "baseline"), *combinations(judged, 2)]:
        if not differ(arms[one], arms[other]):
            continue
        told = f"{one} gives the distributions of {other}, as another kernel does not: this is not {one}'s own evidence"
        counts = list(_count_equal(evidence[one], evidence[other]))
        equal, steps = (sum(count) for count in zip(*counts, strict=True))
        if equal > MOST * steps:
            yield f"in {equal} of {steps} decode steps {told}"
        copied = sum(equal > MOST_OF_ONE * steps for equal, steps in counts if steps >= LEAST_STEPS)
        if copied:
            yield f"in most decode steps of {copied} of {len(counts)} responses {told}"
    if ratio is not None and ratio.high < NEAREST and differ(arms["candidate"], arms["baseline"]):
        yield "the candidate lies nearer to the baseline than another kernel comes: this is not its own evidence"


def _count_equal(one: Sequence[Forced], other: Sequence[Forced]) -> Iterator[tuple[int, int]]:
    """Yield for each response in how many of its decode steps two roles agree, and how many there are."""
    theirs = {(forced.question, forced.sample): forced for forced in other}
    for ours in one:
        steps = [
            [
                dict(zip(forced.top_ids[at], forced.top_logprobs[at], strict=True))
                for at in range(1, len(forced.top_ids))
            ]
            for forced in (ours, theirs[ours.question, ours.sample])
        ]
        yield sum(_agree(*pair) for pair in zip(*steps, strict=True)), len(steps[0])


def _agree(one: Mapping[int, float | None], other: Mapping[int, float | None]) -> bool:
    return one == other and None not in one.values()
