"""Several tasks together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from . import _checks
from ._counts import Counts
from ._distributions import normal_quantile
from ._tango import invert, restricted_lost_rate

Average = Literal["micro", "macro"]
"""`micro`: every question weighs the same; `macro`: every task does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified:
    """An interval for the difference averaged over tasks."""

    tasks: tuple[Counts, ...]
    average: Average
    difference: float
    low: float
    high: float
    confidence: float


def pooled(tasks: Sequence[Counts]) -> Counts:
    """Return the sums over the tasks.

    `mcnemar` of the sums tests whether any task regressed: with pairs as strata it is the Mantel-Haenszel test. A loss
    on one task can hide behind a gain on another, so a table by task belongs beside it.
    """
    return Counts(
        lost=sum(task.lost for task in tasks),
        gained=sum(task.gained for task in tasks),
        pairs=sum(task.pairs for task in tasks),
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values, in their order, adjusted by Holm's method for the question "which of these?".

    Those at most alpha are claimed with a chance of at most alpha that any of the claims is false, whatever the
    dependence. "No worse on every task" needs no adjustment: each task must pass by itself.

    Raises
    ------
    ValueError
        If a p-value lies outside [0, 1].

    References
    ----------
    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.5])
    (0.08, 0.03, 0.5)
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        if not 0 <= p_values[index] <= 1:
            raise ValueError(f"p-values must lie between 0 and 1, found {p_values[index]!r}")
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def stratified_score(tasks: Sequence[Counts], *, difference: float, average: Average = "micro") -> float:
    """Return the z that compares the averaged difference with a hypothetical one, common to all tasks.

    Tango's score, with the rates of every task estimated under the hypothesis by itself; for one task it is
    `tango_score`. Parameters and errors are those of `stratified_interval`, and a difference strictly between -1
    and 1.
    """
    if not -1 < difference < 1:
        raise ValueError(f"difference must lie strictly between -1 and 1, found {difference!r}")
    return _score(_checked(tasks), _weights(tasks, average), difference)


def stratified_interval(tasks: Sequence[Counts], *, average: Average = "micro", confidence: float = 0.95) -> Stratified:
    """Return an interval for the difference averaged over tasks, by inverting `stratified_score`.

    Parameters
    ----------
    tasks : sequence of Counts
        One entry per task.
    average : {"micro", "macro"}
        Whether every question or every task weighs the same.
    confidence : float
        Two-sided level, strictly between 0 and 1.

    Raises
    ------
    ValueError
        If there is no task, a task without pairs, a count that is negative or not an integer, or lost + gained >
        pairs in a task.

    References
    ----------
    T. Tango, Statistics in Medicine 17 (1998) 891-908, for one task.

    Examples
    --------
    >>> tasks = [Counts(lost=14, gained=6, pairs=198), Counts(lost=10, gained=12, pairs=500)]
    >>> result = stratified_interval(tasks)
    >>> round(result.difference, 4), round(result.low, 4), round(result.high, 4)
    (-0.0086, -0.0281, 0.0099)
    """
    checked = _checked(tasks)
    z = normal_quantile((1 - _checks.fraction("confidence", confidence)) / 2)
    weights = _weights(checked, average)
    estimate = sum(
        weight * (task.gained - task.lost) / task.pairs for weight, task in zip(weights, checked, strict=True)
    )
    low, high = invert(lambda difference: _score(checked, weights, difference), estimate=estimate, z=z)
    return Stratified(tasks=checked, average=average, difference=estimate, low=low, high=high, confidence=confidence)


def _checked(tasks: Sequence[Counts]) -> tuple[Counts, ...]:
    """Return the tasks, each one's counts checked."""
    if not tasks:
        raise ValueError("tasks must hold at least one task, found none")
    for task in tasks:
        _checks.counts(lost=task.lost, gained=task.gained, pairs=task.pairs)
        if not task.pairs:
            raise ValueError("every task must have at least one pair, found one without")
    return tuple(tasks)


def _weights(tasks: Sequence[Counts], average: Average) -> list[float]:
    """Return the weight of each task; they add up to 1."""
    total = sum(task.pairs for task in tasks)
    return [task.pairs / total if average == "micro" else 1 / len(tasks) for task in tasks]


def _score(tasks: Sequence[Counts], weights: Sequence[float], difference: float) -> float:
    excess = variance = 0.0
    for task, weight in zip(tasks, weights, strict=True):
        rate = restricted_lost_rate(task.lost, task.gained, task.pairs, difference)
        excess += weight * ((task.gained - task.lost) / task.pairs - difference)
        variance += weight**2 * (2 * rate + difference * (1 - difference)) / task.pairs
    return excess / math.sqrt(variance) if variance > 0 else 0.0
