"""A few planned looks at a run that is under way: O'Brien and Fleming's group-sequential test of the margin."""

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from . import _checks
from ._distributions import normal_quantile
from ._power import _bisect, nam_liu_pairs
from ._tango import restricted_lost_rate

if TYPE_CHECKING:
    from numpy import ndarray

_NODES = 64
"""Points of the numerical integration; twice as many change no constant by 1e-10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSequential:
    """A run whose score test of the margin is looked at after equal parts; look k of K decides at constant * √(K/k)."""

    looks: int
    alpha: float
    power: float
    constant: float
    inflation: float
    """Pairs of the whole run, over those of a run with a single look; rounded to four digits, as in printed tables."""
    most: int
    """Pairs of the whole run."""
    mean: float
    """Pairs after which it ends on average, if the arms do not truly differ."""


def group_sequential(
    *, margin: float, discordance: float, alpha: float = 0.025, power: float = 0.8, looks: int = 5
) -> GroupSequential:
    """Return the pairs that a test with planned looks needs to show a loss below the margin.

    Normal approximation throughout: the score has the variance of the likeliest truth at the margin under the null
    hypothesis, and the variance of arms that do not differ in the mean. By simulation with whole counts the mean is
    within 1 %.

    Parameters
    ----------
    margin, discordance : float
        Fractions strictly between 0 and 1; discordance is the share of pairs that are lost or gained.
    alpha : float
        The chance accepted that any look shows the margin falsely, one-sided, above 0, below 0.5 and below power.
    power : float
        The chance wanted that some look shows it, if the arms do not truly differ.
    looks : int
        At least 1.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    P. C. O'Brien, T. R. Fleming, Biometrics 35 (1979) 549-556. Recursive integration: P. Armitage, C. K. McPherson,
    B. C. Rowe, JRSS A 132 (1969) 235-244. C. Jennison, B. W. Turnbull, Group Sequential Methods (2000), chapters 2, 19.

    Examples
    --------
    >>> plan = group_sequential(margin=0.05, discordance=0.1, alpha=0.05)
    >>> plan.most, round(plan.mean), round(plan.constant, 4)
    (285, 223, 1.7509)
    """
    margin, discordance = _checks.fraction("margin", margin), _checks.fraction("discordance", discordance)
    alpha, power, looks = (
        _checks.fraction("alpha", alpha),
        _checks.fraction("power", power),
        _checks.count("looks", looks),
    )
    if not (alpha < 0.5 and alpha < power):
        raise ValueError(f"alpha must be below 0.5 and below power, found {alpha!r} and {power!r}")
    if not looks:
        raise ValueError("looks must be at least 1, found 0")
    constant, inflation = _design(alpha, power, looks)
    most = math.ceil(inflation * nam_liu_pairs(margin=margin, discordance=discordance, alpha=alpha, power=power))
    half = discordance / 2
    at_margin = math.sqrt(2 * restricted_lost_rate(half, half, 1, -margin) - margin * (1 + margin))
    ends = _chances(
        drift=margin * math.sqrt(most / looks) / at_margin,
        spread=math.sqrt(discordance) / at_margin,
        bound=constant * math.sqrt(looks),
        looks=looks,
    )
    mean = most * (1 - sum((looks - look) / looks * chance for look, chance in enumerate(ends, start=1)))
    return GroupSequential(
        looks=looks, alpha=alpha, power=power, constant=constant, inflation=inflation, most=most, mean=mean
    )


@cache
def _design(alpha: float, power: float, looks: int) -> tuple[float, float]:
    """Return the constant of the boundary, and the inflation of the pairs that keeps the power."""
    root = math.sqrt(looks)
    z, z_power = normal_quantile(alpha), normal_quantile(1 - power)
    constant = _bisect(
        lambda c: sum(_chances(drift=0, spread=1, bound=c * root, looks=looks)) <= alpha, normal_quantile(alpha / looks)
    )
    # The last look alone has the power at the highest drift tried.
    drift = _bisect(
        lambda d: sum(_chances(drift=d, spread=1, bound=constant * root, looks=looks)) >= power,
        (constant + max(z_power, 0)) / root,
    )
    return constant, round(looks * (drift / (z + z_power)) ** 2, 4)


def _chances(*, drift: float, spread: float, bound: float, looks: int) -> tuple[float, ...]:
    """Return the chance for each look that a walk of independent normal steps first reaches the bound there."""
    import numpy as np
    from scipy.special import ndtr

    def density(steps: "ndarray") -> "ndarray":
        result: ndarray = np.exp(-(((steps - drift) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
        return result

    low = min(0.0, drift * looks) - 8.5 * spread * math.sqrt(looks)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    places, weights = low + (nodes + 1) / 2 * (bound - low), weights / 2 * (bound - low)
    chances = [float(ndtr((drift - bound) / spread))]
    mass = weights * density(places)  # of walks that have not reached the bound, by place
    for _ in range(looks - 1):
        chances.append(float(mass @ ndtr((places + drift - bound) / spread)))
        mass = weights * (mass @ density(places - places[:, None]))
    return tuple(chances)
