"""Exact unconditional p-values: the largest chance, over every truth the hypothesis allows, of data as extreme."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import _checks

if TYPE_CHECKING:
    from numpy import ndarray

EXACT_PAIRS = 1000
"""Above this many pairs an exact unconditional p-value takes long and differs little from the score test's."""

_TIE = 1e-9
"""Statistics of tables closer than this count as equal; rounding errors are a thousand times smaller."""


def _largest(chance: "Callable[[ndarray], ndarray]", low: float, high: float) -> float:
    """Return the maximum of `chance` over [low, high]: on a grid, denser at both ends, then on a finer one at its best.

    Near the ends `chance` varies on the scale of one pair in all, in between on that of the square root of it.
    """
    import numpy as np

    grid = low + (high - low) * np.sin(np.linspace(0, np.pi / 2, 401)) ** 2
    chances = chance(grid)
    best = int(np.argmax(chances))
    around = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, 400)], 41)
    return min(1.0, float(max(chances[best], chance(around).max())))


def tango_scores(lost: "ndarray", gained: "ndarray", pairs: int, margin: float) -> "ndarray":
    """Return Tango's z at -margin for arrays of counts, as `_tango.score` does for one table."""
    import numpy as np

    b = -(lost + gained) - (2 * pairs - gained + lost) * margin  # always negative
    root = np.sqrt(np.maximum(b * b - 8 * pairs * lost * margin * (1 + margin), 0))
    rate = np.maximum((root - b) / (4 * pairs), margin)
    z: ndarray = (gained - lost + pairs * margin) / np.sqrt(pairs * (2 * rate - margin * (1 + margin)))
    return z


def exact_noninferiority_p(*, lost: int, gained: int, pairs: int, margin: float) -> float:
    """Return the exact unconditional p-value of `noninferiority`, tables being ordered by Tango's z.

    Parameters, errors and references are those of `noninferiority`. The time grows with the number of pairs: about
    0.02 s for 198, 0.1 s for 1000.
    """
    import numpy as np
    from scipy.special import bdtrc, gammaln, xlog1py, xlogy

    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    margin = _checks.fraction("margin", margin)
    if not pairs:
        return 1.0
    # z grows with gained, so for each number of lost pairs the extreme tables are those from some `needed` gains on.
    seen = tango_scores(np.array([lost]), np.array([gained]), pairs, margin)[0] - _TIE
    losses = np.arange(pairs + 1)
    short, needed = np.full(pairs + 1, -1), pairs - losses + 1
    while (open_ := needed - short > 1).any():
        middle = (short + needed) // 2
        extreme = open_ & (tango_scores(losses, middle, pairs, margin) >= seen)
        needed = np.where(extreme, middle, needed)
        short = np.where(open_ & ~extreme, middle, short)
    losses, needed = losses[needed <= pairs - losses], needed[needed <= pairs - losses]
    log_choose = gammaln(pairs + 1) - gammaln(losses + 1) - gammaln(pairs - losses + 1)

    def chance(lost_rate: "ndarray") -> "ndarray":
        rate = lost_rate[:, None]
        of_losses = np.exp(log_choose + xlogy(losses, rate) + xlog1py(pairs - losses, -rate))
        of_gains = bdtrc(needed - 1.0, pairs - losses, np.clip((rate - margin) / (1 - rate), 0, 1))
        total: ndarray = (of_losses * np.where(needed > 0, of_gains, 1.0)).sum(axis=1)
        return total

    return _largest(chance, margin, (1 + margin) / 2)


def exact_mcnemar_p(*, lost: int, gained: int, pairs: int) -> float:
    """Test exactly, without conditioning on the number of discordant pairs, whether two arms are equally accurate.

    The largest chance, over every share of discordant pairs, of a McNemar |z| at least as large as the one seen. It
    guarantees its level, as the exact p-value of `mcnemar` does, and sees more.

    Parameters
    ----------
    lost, gained, pairs : int
        Counts; `pairs` includes the pairs on which the arms agree.

    Returns
    -------
    float
        Two-sided p-value in (0, 1]; 1 when nothing is discordant. Time and memory grow with the number of pairs:
        0.02 s for 1000.

    Raises
    ------
    ValueError
        If a count is negative or not an integer, or lost + gained > pairs.

    References
    ----------
    S. Suissa, J. J. Shuster, Biometrics 47 (1991) 361-372.

    Examples
    --------
    >>> round(exact_mcnemar_p(lost=7, gained=1, pairs=21), 6)
    0.035316
    """
    import numpy as np
    from scipy.special import bdtr, gammaln, xlog1py, xlogy

    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    if lost == gained:
        return 1.0
    seen = abs(gained - lost) / np.sqrt(lost + gained) - _TIE
    discordant = np.arange(1, pairs + 1)
    # Extreme are at most `few` of the rarer kind, whichever kind that is.
    few = np.floor((discordant - seen * np.sqrt(discordant)) / 2)
    tail = np.where(few >= 0, 2 * bdtr(np.maximum(few, 0), discordant, 0.5), 0)
    log_choose = gammaln(pairs + 1) - gammaln(discordant + 1) - gammaln(pairs - discordant + 1)

    def chance(rate: "ndarray") -> "ndarray":
        rate = rate[:, None]
        of_discordant = np.exp(log_choose + xlogy(discordant, rate) + xlog1py(pairs - discordant, -rate))
        total: ndarray = of_discordant @ tail
        return total

    return _largest(chance, 0.0, 1.0)
