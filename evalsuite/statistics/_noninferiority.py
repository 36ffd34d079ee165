"""Is the candidate worse by less than the margin?"""

import math
from dataclasses import dataclass

from . import _checks
from ._distributions import normal_quantile, normal_tail
from ._exact import EXACT_PAIRS, exact_noninferiority_p
from ._tango import interval, restricted_lost_rate, score

LEAST_MARGIN = 1e-4
"""No smaller margin is worth a question: to show it takes 38,000 pairs of arms that always agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    """Test of "the candidate loses at least the margin". A small p-value shows that it loses less."""

    lost: int
    gained: int
    pairs: int
    margin: float
    z: float
    p: float
    """One-sided, from the normal distribution of z."""
    exact_p: float | None
    """One-sided, exact and unconditional, which guarantees its level; None above 1000 pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Two one-sided tests of "the arms differ by at least the margin"."""

    lost: int
    gained: int
    pairs: int
    margin: float
    p_not_worse: float
    p_not_better: float
    p: float
    """The larger of the two: below alpha exactly if the 1 - 2 alpha interval lies within the margin on both sides."""


def noninferiority(*, lost: int, gained: int, pairs: int, margin: float) -> NonInferiority:
    """Test whether the candidate's true loss is below the margin.

    The score test evaluates Tango's z at a difference of -margin; it agrees with the lower end of `tango_interval`
    at twice its level. The exact p-value is the largest chance, over all truths at the margin, of a z at least as
    large as the one seen.

    Parameters
    ----------
    lost, gained, pairs : int
        Counts; `pairs` includes the pairs on which the arms agree.
    margin : float
        The largest loss accepted, a fraction strictly between 0 and 1.

    Returns
    -------
    NonInferiority
        Both p-values are 1 without pairs.

    Raises
    ------
    ValueError
        If a count is negative or not an integer, lost + gained > pairs, or the margin is out of range.

    References
    ----------
    J. Nam, Biometrics 53 (1997) 1422-1430. H. Hsueh, J. Liu, J. J. Chen, Biometrics 57 (2001) 478-483: the largest
    chance is reached at the margin itself.

    Examples
    --------
    >>> test = noninferiority(lost=1, gained=0, pairs=44, margin=0.1)
    >>> round(test.p, 6), round(test.exact_p, 4)
    (0.043766, 0.0571)
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    margin = _checks.fraction("margin", margin)
    z = score(lost, gained, pairs, -margin)
    return NonInferiority(
        lost=lost,
        gained=gained,
        pairs=pairs,
        margin=margin,
        z=z,
        p=normal_tail(z) if pairs else 1.0,
        exact_p=exact_noninferiority_p(lost=lost, gained=gained, pairs=pairs, margin=margin)
        if pairs <= EXACT_PAIRS
        else None,
    )


def equivalence(*, lost: int, gained: int, pairs: int, margin: float) -> Equivalence:
    """Test whether the arms' true difference is smaller than the margin, in either direction.

    Parameters and errors are those of `noninferiority`. Every p-value is 1 without pairs. Arms that differ little can
    be shown equivalent and different at once: the one is about size, the other about existence.

    References
    ----------
    D. J. Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15 (1987) 657-680, for two one-sided tests.
    J. Liu et al., Statistics in Medicine 21 (2002) 231-245, for the score version.
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    margin = _checks.fraction("margin", margin)
    not_worse = normal_tail(score(lost, gained, pairs, -margin)) if pairs else 1.0
    not_better = normal_tail(-score(lost, gained, pairs, margin)) if pairs else 1.0
    return Equivalence(
        lost=lost,
        gained=gained,
        pairs=pairs,
        margin=margin,
        p_not_worse=not_worse,
        p_not_better=not_better,
        p=max(not_worse, not_better),
    )


def smallest_margin(*, lost: int, gained: int, pairs: int, confidence: float = 0.95) -> float | None:
    """Return the smallest loss that the data rule out: every larger margin passes, none up to it does.

    Parameters and errors are those of `tango_interval`, whose lower end it is, with the sign turned.

    Returns
    -------
    float or None
        0.0 if the interval lies above 0, since then any margin passes; None if no margin below 1 passes, which
        happens without pairs and when every pair is lost.

    Examples
    --------
    >>> round(smallest_margin(lost=0, gained=0, pairs=198), 4)
    0.019
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    low = interval(lost, gained, pairs, _checks.fraction("confidence", confidence)).low
    return max(0.0, -low) if low > -1 else None


def questions_needed(
    *, lost: int, gained: int, pairs: int, margin: float, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """Return how many more questions should bring the lower end of the interval above -margin.

    The sample-size formula of Nam and of Liu et al., given what has been seen: the counts so far stay, questions to
    come are as often discordant as those seen, and lose as many as they gain. With N pairs in all, n of them seen and
    p the share of discordant ones, N is the smallest with

        gained - lost + N * margin >= z * s0 * sqrt(N) + z_power * sqrt((N - n) * p)

    where s0 is the standard deviation of one pair's outcome at the margin. With n = 0 that is the published formula.

    Parameters
    ----------
    lost, gained, pairs, confidence
        As for `tango_interval`.
    margin : float
        The largest loss accepted, a fraction strictly between 0 and 1.
    power : float
        Chance of success wanted, if the arms do not truly differ.

    Returns
    -------
    int or None
        0 if the interval lies above -margin already; None without pairs, which give no discordance to reckon with.
        If nothing was discordant so far, the number holds if nothing will be, so it is a lower bound.

    Raises
    ------
    ValueError
        As `noninferiority`, or if confidence or power is out of range.

    Notes
    -----
    To extend a run after a look at its result, and to look again, is a second chance: the level no longer holds
    exactly. A fresh run of the full size, or a sequential one (`watch`), keeps it.

    References
    ----------
    J. Nam, Biometrics 53 (1997) 1422-1430. J. Liu et al., Statistics in Medicine 21 (2002) 231-245.

    Examples
    --------
    >>> questions_needed(lost=0, gained=0, pairs=10, margin=0.05)
    63
    """
    lost, gained, pairs = _checks.counts(lost=lost, gained=gained, pairs=pairs)
    margin = _checks.fraction("margin", margin)
    confidence, power = _checks.fraction("confidence", confidence), _checks.fraction("power", power)
    if not pairs:
        return None
    z, z_power = normal_quantile((1 - confidence) / 2), normal_quantile(1 - power)
    if score(lost, gained, pairs, -margin) > z:
        return 0
    p = (lost + gained) / pairs
    s0 = math.sqrt(2 * restricted_lost_rate(p / 2, p / 2, 1, -margin) - margin * (1 + margin))

    def settled(more: int) -> bool:
        total = pairs + more
        return gained - lost + total * margin >= z * s0 * math.sqrt(total) + z_power * math.sqrt(more * p)

    # The left side less the right is convex in `more`, so it changes sign once.
    enough = 1
    while not settled(enough):
        enough *= 2
    short = enough // 2
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if settled(middle) else (middle, enough)
    return enough
