"""Pairs that are incomplete because an arm's request failed."""

from dataclasses import dataclass

from . import _checks
from ._counts import Counts
from ._tango import interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Errored:
    """How many pairs lack a response, and what the other arm did."""

    candidate_only_right: int
    """The candidate errored; the baseline was right."""
    candidate_only_wrong: int
    baseline_only_right: int
    """The baseline errored; the candidate was right."""
    baseline_only_wrong: int
    both: int


def intention_to_treat(complete: Counts, errored: Errored) -> Counts:
    """Return the counts with every error taken for a wrong answer. This is the primary analysis.

    `mcnemar(lost=candidate errored alone, gained=baseline errored alone)` tests whether one arm fails more often,
    which is a regression by itself.

    Raises
    ------
    ValueError
        If a count is negative or not an integer, or lost + gained > pairs.
    """
    _check(complete, errored)
    return Counts(
        lost=complete.lost + errored.candidate_only_right,
        gained=complete.gained + errored.baseline_only_right,
        pairs=complete.pairs + _errors(errored),
    )


def worst_case(complete: Counts, errored: Errored) -> Counts:
    """Return the counts with every missing response filled in against the candidate.

    What still passes, passes whatever the missing responses would have been. Errors are those of
    `intention_to_treat`.
    """
    _check(complete, errored)
    return Counts(
        lost=complete.lost + errored.candidate_only_right + errored.baseline_only_wrong + errored.both,
        gained=complete.gained,
        pairs=complete.pairs + _errors(errored),
    )


def best_case(complete: Counts, errored: Errored) -> Counts:
    """Return the counts with every missing response filled in for the candidate. See `worst_case`."""
    _check(complete, errored)
    return Counts(
        lost=complete.lost,
        gained=complete.gained + errored.candidate_only_wrong + errored.baseline_only_right + errored.both,
        pairs=complete.pairs + _errors(errored),
    )


def tipping_point(complete: Counts, errored: Errored, *, margin: float, confidence: float = 0.95) -> int | None:
    """Return how many of the incomplete pairs may count as lost, the others as kept, with the margin still shown.

    Returns
    -------
    int or None
        From 0 to the number of incomplete pairs; None if the margin is not shown even with none of them lost.

    Raises
    ------
    ValueError
        As `intention_to_treat`, or if margin or confidence is out of range.
    """
    _check(complete, errored)
    margin, confidence = _checks.fraction("margin", margin), _checks.fraction("confidence", confidence)
    pairs = complete.pairs + _errors(errored)

    def shown(also_lost: int) -> bool:
        return interval(complete.lost + also_lost, complete.gained, pairs, confidence).low > -margin

    if not shown(0):
        return None
    most, refused = 0, _errors(errored) + 1
    while refused - most > 1:
        middle = (most + refused) // 2
        most, refused = (middle, refused) if shown(middle) else (most, middle)
    return most


def _errors(errored: Errored) -> int:
    return (
        errored.candidate_only_right
        + errored.candidate_only_wrong
        + errored.baseline_only_right
        + errored.baseline_only_wrong
        + errored.both
    )


def _check(complete: Counts, errored: Errored) -> None:
    _checks.counts(lost=complete.lost, gained=complete.gained, pairs=complete.pairs)
    for name in Errored.__slots__:
        _checks.count(name, getattr(errored, name))
