"""Tango's score test and interval for the difference between two arms on the same questions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from . import _checks
from ._distributions import normal_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided interval for the difference, candidate - baseline accuracy; negative is worse."""

    low: float
    high: float
    confidence: float
    lost: float
    gained: float
    pairs: float
    """The counts it was computed from: whole numbers, except after `rao_scott` has shrunk them."""


def restricted_lost_rate(lost: float, gained: float, pairs: float, difference: float) -> float:
    """Return the maximum-likelihood estimate of P(lost) among all truths with the given difference."""
    a = 2 * pairs
    b = -(lost + gained) + (2 * pairs - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    # Of the two ways to write the larger root of a quadratic, the one that adds numbers of equal sign.
    rate = -2 * c / (root + b) if b > 0 else (root - b) / (2 * a)
    return max(rate, 0.0, -difference)


def score(lost: float, gained: float, pairs: float, difference: float) -> float:
    """Return Tango's z for counts that need not be whole. See `tango_score`."""
    if not pairs:
        return 0.0
    rate = restricted_lost_rate(lost, gained, pairs, difference)
    variance = pairs * (2 * rate + difference * (1 - difference))
    excess = gained - lost - pairs * difference
    return excess / math.sqrt(variance) if variance > 0 else 0.0


def invert(score_at: Callable[[float], float], *, estimate: float, z: float) -> tuple[float, float]:
    """Return where a score that falls through 0 at `estimate` equals z and -z, each within (-1, 1) or else its end."""

    def crossing(low: float, high: float, target: float) -> float:
        for _ in range(60):  # halves an interval of length 2 to below the spacing of floats
            middle = (low + high) / 2
            low, high = (middle, high) if score_at(middle) > target else (low, middle)
        return (low + high) / 2

    return (
        crossing(-1.0, estimate, z) if estimate > -1 else -1.0,
        crossing(estimate, 1.0, -z) if estimate < 1 else 1.0,
    )


def interval(lost: float, gained: float, pairs: float, confidence: float) -> Interval:
    """Return Tango's interval for counts that need not be whole. See `tango_interval`."""
    low, high = -1.0, 1.0
    if pairs:
        z = normal_quantile((1 - confidence) / 2)
        low, high = invert(
            lambda difference: score(lost, gained, pairs, difference), estimate=(gained - lost) / pairs, z=z
        )
    return Interval(low=low, high=high, confidence=confidence, lost=lost, gained=gained, pairs=pairs)


def tango_score(*, lost: int, gained: int, pairs: int, difference: float) -> float:
    """Return the z that compares the counts with a hypothetical true difference.

    It is (gained - lost - pairs * difference) over its standard deviation under the hypothesis, the rates being
    estimated by maximum likelihood under the hypothesis too. So it is defined even when nothing is discordant. At
    difference 0 it is McNemar's z.

    Parameters
    ----------
    lost, gained, pairs : int
        Counts; `pairs` includes the pairs on which the arms agree.
    difference : float
        The true difference to test, candidate - baseline accuracy, strictly between -1 and 1.

    Returns
    -------
    float
        Falls as `difference` grows; positive when the data lie above it; 0 without pairs.

    Raises
    ------
    ValueError
        If a count is negative or not an integer, lost + gained > pairs, or the difference is out of range.

    References
    ----------
    T. Tango, Statistics in Medicine 17 (1998) 891-908.

    Examples
    --------
    >>> round(tango_score(lost=1, gained=0, pairs=44, difference=-0.1), 6)
    1.708564
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    if not -1 < difference < 1:
        raise ValueError(f"difference must lie strictly between -1 and 1, found {difference!r}")
    return score(lost, gained, pairs, difference)


def tango_interval(*, lost: int, gained: int, pairs: int, confidence: float = 0.95) -> Interval:
    """Return the differences that the data do not rule out: those with |`tango_score`| below the normal quantile.

    Parameters
    ----------
    lost, gained, pairs : int
        Counts; `pairs` includes the pairs on which the arms agree.
    confidence : float
        Two-sided level, strictly between 0 and 1.

    Returns
    -------
    Interval
        Within [-1, 1]. It keeps a width when nothing is discordant, z^2 / (pairs + z^2) to each side, which is what
        stops ten agreeing questions from showing anything. [-1, 1] without pairs.

    Raises
    ------
    ValueError
        If a count is negative or not an integer, lost + gained > pairs, or the confidence is out of range.

    References
    ----------
    T. Tango, Statistics in Medicine 17 (1998) 891-908.

    Examples
    --------
    >>> interval = tango_interval(lost=14, gained=6, pairs=198)
    >>> round(interval.low, 4), round(interval.high, 4)
    (-0.0894, 0.0042)
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    return interval(lost, gained, pairs, _checks.fraction("confidence", confidence))
