"""Two other intervals for the difference, for comparison with Tango's. No decision rests on them."""

import math

from . import _checks
from ._distributions import normal_quantile
from ._tango import Interval


def bonett_price_interval(*, lost: int, gained: int, pairs: int, confidence: float = 0.95) -> Interval:
    """Return the interval of Bonett and Price: Wald's, after one lost and one gained pair have been added.

    Parameters and errors are those of `tango_interval`; [-1, 1] without pairs.

    References
    ----------
    D. G. Bonett, R. M. Price, Journal of Educational and Behavioral Statistics 37 (2012) 479-488.

    Examples
    --------
    >>> interval = bonett_price_interval(lost=7, gained=1, pairs=21)
    >>> round(interval.low, 4), round(interval.high, 4)
    (-0.5084, -0.0134)
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    z = normal_quantile((1 - _checks.fraction("confidence", confidence)) / 2)
    low, high = -1.0, 1.0
    if pairs:
        total = pairs + 2
        difference = (gained - lost) / total
        reach = z * math.sqrt(((lost + gained + 2) / total - difference**2) / total)
        low, high = max(-1.0, difference - reach), min(1.0, difference + reach)
    return Interval(low=low, high=high, confidence=confidence, lost=lost, gained=gained, pairs=pairs)


def newcombe_interval(*, kept: int, lost: int, gained: int, missed: int, confidence: float = 0.95) -> Interval:
    """Return Newcombe's interval number 10, made from the Wilson intervals of the two accuracies.

    Parameters
    ----------
    kept, lost, gained, missed : int
        Pairs right in both arms, in the baseline alone, in the candidate alone, in neither.
    confidence : float
        Two-sided level, strictly between 0 and 1.

    Returns
    -------
    Interval
        [-1, 1] without pairs.

    Raises
    ------
    ValueError
        If a count is negative or not an integer, or the confidence is out of range.

    References
    ----------
    R. G. Newcombe, Statistics in Medicine 17 (1998) 2635-2650: method 10, whose correlation is corrected for
    continuity.

    Examples
    --------
    >>> interval = newcombe_interval(kept=1, lost=7, gained=1, missed=12)
    >>> round(interval.low, 4), round(interval.high, 4)
    (-0.5069, -0.0256)
    """
    kept, missed = _checks.count("kept", kept), _checks.count("missed", missed)
    lost, gained = _checks.count("lost", lost), _checks.count("gained", gained)
    z = normal_quantile((1 - _checks.fraction("confidence", confidence)) / 2)
    pairs = kept + lost + gained + missed
    low, high = -1.0, 1.0
    if pairs:
        candidate, baseline = kept + gained, kept + lost
        candidate_low, candidate_high = _wilson(candidate, pairs, z)
        baseline_low, baseline_high = _wilson(baseline, pairs, z)
        p1, p2 = candidate / pairs, baseline / pairs
        association = float(kept * missed - lost * gained)
        if association > 0:
            association = max(association - pairs / 2, 0.0)
        spread = math.sqrt(candidate * (pairs - candidate)) * math.sqrt(baseline * (pairs - baseline))
        phi = association / spread if spread else 0.0
        down, up = p1 - candidate_low, baseline_high - p2
        low = p1 - p2 - math.sqrt(max(0.0, down**2 + up**2 - 2 * phi * down * up))
        down, up = p2 - baseline_low, candidate_high - p1
        high = p1 - p2 + math.sqrt(max(0.0, down**2 + up**2 - 2 * phi * down * up))
    return Interval(
        low=max(-1.0, low), high=min(1.0, high), confidence=confidence, lost=lost, gained=gained, pairs=pairs
    )


def _wilson(right: int, total: int, z: float) -> tuple[float, float]:
    """Return the Wilson score interval of one proportion."""
    centre = (right + z * z / 2) / (total + z * z)
    reach = z * math.sqrt(right * (total - right) / total + z * z / 4) / (total + z * z)
    return centre - reach, centre + reach
