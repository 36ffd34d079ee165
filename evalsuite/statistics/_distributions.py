"""The two distributions everything here rests on. SciPy is imported on first use: it takes longer than `--help` may."""

import math
from statistics import NormalDist


def normal_tail(z: float) -> float:
    """Return P(Z >= z), with full relative accuracy for large z."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def normal_quantile(tail: float) -> float:
    """Return the z with P(Z >= z) = `tail`."""
    return -NormalDist().inv_cdf(tail)


def binomial_tail(k: int, n: int, p: float) -> float:
    """Return P(X >= k) for X ~ Binomial(n, p)."""
    from scipy.special import betainc

    if k <= 0:
        return 1.0
    return float(betainc(k, n - k + 1, p)) if k <= n else 0.0
