"""The ratio of two totals over clusters, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import _checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of totals and the interval around it."""

    ratio: float
    low: float
    high: float
    confidence: float
    clusters: int


def ratio_of_totals(
    numerators: Sequence[float], denominators: Sequence[float], *, confidence: float = 0.95
) -> Ratio | None:
    """Return sum(numerators) / sum(denominators), both of which have one value for each cluster.

    The interval is symmetric on the logarithm's scale: its variance is that of the linearized logarithm,
    a_i / mean(a) - b_i / mean(b), over the clusters, its quantile Student's t with one degree of freedom less than
    there are clusters. None where no interval exists: fewer than two clusters, or a total of 0. Raises ValueError for
    sequences of unequal length and for a negative value.

    References
    ----------
    W. G. Cochran, Sampling Techniques, 3rd edition (1977), sections 6.3 and 6.8.

    Examples
    --------
    >>> found = ratio_of_totals([2.0, 4.0, 6.0], [1.0, 2.1, 2.9])
    >>> round(found.ratio, 3), round(found.low, 3), round(found.high, 3)
    (2.0, 1.766, 2.265)
    """
    from scipy.special import stdtrit

    if len(numerators) != len(denominators):
        raise ValueError(f"expected as many numerators as denominators, found {len(numerators)}, {len(denominators)}")
    if any(not value >= 0 for value in (*numerators, *denominators)):
        raise ValueError("every value must be a number of at least 0")
    level = _checks.fraction("confidence", confidence)
    clusters, above, below = len(numerators), math.fsum(numerators), math.fsum(denominators)
    if clusters < 2 or not above or not below:
        return None
    deviations = [clusters * (one / above - other / below) for one, other in zip(numerators, denominators, strict=True)]
    error = math.sqrt(math.fsum(each**2 for each in deviations) / (clusters - 1) / clusters)
    reach = float(stdtrit(clusters - 1, (1 + level) / 2)) * error
    ratio = above / below
    return Ratio(
        ratio=ratio,
        low=ratio * math.exp(-reach),
        high=ratio * math.exp(reach),
        confidence=level,
        clusters=clusters,
    )
