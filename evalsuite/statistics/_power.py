"""What a run of a given size can see: exact power, by summing over every table of counts.

A critical count is found for every number of discordant pairs at once; the chance of reaching it is then a sum of
binomial probabilities. Power as a function of the number of pairs has saw teeth, because counts are whole.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from . import _checks
from ._distributions import normal_quantile
from ._exact import tango_scores
from ._tango import restricted_lost_rate

if TYPE_CHECKING:
    from numpy import ndarray

Test = Literal["midp", "exact", "asymptotic"]
"""Which p-value of `mcnemar` decides."""


def regression_power(
    *,
    pairs: int,
    lost_rate: float,
    gained_rate: float,
    alpha: float = 0.05,
    test: Test = "midp",
    two_sided: bool = False,
) -> float:
    """Return the chance that McNemar's test is significant.

    Parameters
    ----------
    pairs : int
        Questions.
    lost_rate, gained_rate : float
        True probabilities that a pair is lost and gained.
    alpha : float
        The test's level, strictly between 0 and 1.
    test : {"midp", "exact", "asymptotic"}
        Which p-value decides.
    two_sided : bool
        Whether a gain counts as well as a loss.

    Raises
    ------
    ValueError
        If `pairs` is negative or not an integer, a rate is negative, their sum exceeds 1, or alpha is out of range.

    Examples
    --------
    >>> round(regression_power(pairs=144, lost_rate=0.45, gained_rate=0.25, alpha=0.025, test="exact"), 7)
    0.8009194
    """
    import numpy as np
    from scipy.special import bdtr

    pairs, alpha = _checks.count("pairs", pairs), _checks.fraction("alpha", alpha)
    lost_rate, gained_rate = _checks.probabilities(lost_rate=lost_rate, gained_rate=gained_rate)
    if not pairs or not lost_rate + gained_rate:
        return 0.0
    discordant, weights = _discordant(pairs, lost_rate + gained_rate)
    # Significant is: at most `few` of the kind that should be common if nothing happened.
    few = _most_gained(discordant, alpha / 2 if two_sided else alpha, test)
    chance = np.where(few >= 0, bdtr(np.maximum(few, 0), discordant, gained_rate / (lost_rate + gained_rate)), 0)
    if two_sided:
        chance += np.where(few >= 0, bdtr(np.maximum(few, 0), discordant, lost_rate / (lost_rate + gained_rate)), 0)
    return float(weights @ chance)


def noninferiority_power(
    *, pairs: int, lost_rate: float, gained_rate: float, margin: float, alpha: float = 0.025
) -> float:
    """Return the chance that the score test of `noninferiority` shows a loss below the margin.

    Parameters and errors are those of `regression_power`; `margin` is a fraction strictly between 0 and 1. The default
    alpha matches the lower end of a 95 % interval.

    Examples
    --------
    >>> round(noninferiority_power(pairs=198, lost_rate=0.05, gained_rate=0.05, margin=0.05, alpha=0.05), 3)
    0.69
    """
    import numpy as np
    from scipy.special import bdtr

    pairs, alpha = _checks.count("pairs", pairs), _checks.fraction("alpha", alpha)
    margin = _checks.fraction("margin", margin)
    lost_rate, gained_rate = _checks.probabilities(lost_rate=lost_rate, gained_rate=gained_rate)
    if not pairs:
        return 0.0
    discordant, weights = _discordant(pairs, lost_rate + gained_rate)
    few = _most_lost(discordant, pairs, margin, alpha)
    share = lost_rate / (lost_rate + gained_rate) if lost_rate + gained_rate else 0.0
    return float(weights @ np.where(few >= 0, bdtr(np.maximum(few, 0), discordant, share), 0))


def smallest_detectable_loss(
    *,
    pairs: int,
    discordance: float,
    alpha: float = 0.05,
    power: float = 0.8,
    test: Test = "midp",
    two_sided: bool = False,
) -> float | None:
    """Return the smallest true loss, a fraction, that `regression_power` finds with the power wanted.

    `discordance` is the share of pairs that are lost or gained, from 0 to 1; the loss is the difference of the two
    shares. None if even losing all discordant pairs would be seen too rarely.
    """
    discordance, power = _checks.share("discordance", discordance), _checks.fraction("power", power)

    def seen(loss: float) -> bool:
        lost_rate = (discordance + loss) / 2
        return power <= regression_power(
            pairs=pairs,
            lost_rate=lost_rate,
            gained_rate=discordance - lost_rate,
            alpha=alpha,
            test=test,
            two_sided=two_sided,
        )

    return _bisect(seen, discordance) if seen(discordance) else None


def smallest_provable_margin(
    *, pairs: int, discordance: float, alpha: float = 0.025, power: float = 0.8
) -> float | None:
    """Return the smallest margin, a fraction, that arms of no true difference show with the power wanted.

    Found with `noninferiority_power`, whose parameters and errors these are; `discordance` is the share of pairs that
    are lost or gained. None if no margin below 1 is shown often enough.
    """
    discordance, power = _checks.share("discordance", discordance), _checks.fraction("power", power)

    def shown(margin: float) -> bool:
        half = discordance / 2
        return power <= noninferiority_power(pairs=pairs, lost_rate=half, gained_rate=half, margin=margin, alpha=alpha)

    most = 1 - 1e-9
    return _bisect(shown, most) if shown(most) else None


def most_lost(*, discordant: int, pairs: int, margin: float, alpha: float = 0.025) -> int | None:
    """Return how many of the discordant pairs may be lost with the margin still shown, or None if none may.

    By the score test of `noninferiority`; errors are those of `noninferiority_power`, or discordant > pairs.
    """
    import numpy as np

    discordant, _, pairs = _checks.counts(lost=discordant, gained=0, pairs=pairs)
    margin, alpha = _checks.fraction("margin", margin), _checks.fraction("alpha", alpha)
    if not pairs:
        return None
    lost = int(_most_lost(np.array([discordant]), pairs, margin, alpha)[0])
    return lost if lost >= 0 else None


def pairs_to_detect(
    *,
    loss: float,
    discordance: float,
    alpha: float = 0.05,
    power: float = 0.8,
    test: Test = "midp",
    two_sided: bool = False,
) -> int:
    """Return the smallest number of pairs from which on `regression_power` stays at or above `power`.

    `loss` is a fraction, above 0 and at most `discordance`, which is the share of pairs that are lost or gained. Exact
    and slower than `miettinen_pairs`, from which it starts.
    """
    lost_rate = _lost_rate(loss, discordance)
    guess = miettinen_pairs(loss=loss, discordance=discordance, alpha=alpha, power=power, two_sided=two_sided)

    def enough(pairs: int) -> bool:
        return power <= regression_power(
            pairs=pairs,
            lost_rate=lost_rate,
            gained_rate=discordance - lost_rate,
            alpha=alpha,
            test=test,
            two_sided=two_sided,
        )

    # One more discordant pair may need one more loss: a tooth is some discordant pairs long.
    return _smallest_lasting(enough, round(guess), tooth=math.ceil(4 / discordance))


def pairs_to_prove(*, margin: float, discordance: float, alpha: float = 0.025, power: float = 0.8) -> int:
    """Return the smallest number of pairs from which on `noninferiority_power` stays at or above `power`.

    The arms do not truly differ; `discordance` is the share of pairs that are lost or gained. Exact and slower than
    `nam_liu_pairs`, from which it starts.
    """
    guess = nam_liu_pairs(margin=margin, discordance=discordance, alpha=alpha, power=power)

    def enough(pairs: int) -> bool:
        half = discordance / 2
        return power <= noninferiority_power(pairs=pairs, lost_rate=half, gained_rate=half, margin=margin, alpha=alpha)

    # One more loss is allowed for every 1 / margin pairs.
    return _smallest_lasting(enough, round(guess), tooth=math.ceil(2 / margin))


def miettinen_pairs(
    *, loss: float, discordance: float, alpha: float = 0.05, power: float = 0.8, two_sided: bool = False
) -> float:
    """Return about how many pairs McNemar's test needs to find `loss`, a fraction. The formula errs by a few percent.

    References
    ----------
    O. S. Miettinen, Biometrics 24 (1968) 339-352.
    """
    _lost_rate(loss, discordance)
    z, z_power = _quantiles(alpha, power, two_sided)
    spread = math.sqrt(discordance**2 - loss**2 * (3 + discordance) / 4)
    return (z * discordance + z_power * spread) ** 2 / (discordance * loss**2)


def connor_pairs(
    *, loss: float, discordance: float, alpha: float = 0.05, power: float = 0.8, two_sided: bool = False
) -> float:
    """Return about how many pairs McNemar's test needs to find `loss`, a fraction; mostly a little too many.

    References
    ----------
    R. J. Connor, Biometrics 43 (1987) 207-211.
    """
    _lost_rate(loss, discordance)
    z, z_power = _quantiles(alpha, power, two_sided)
    return (z * math.sqrt(discordance) + z_power * math.sqrt(discordance - loss**2)) ** 2 / loss**2


def nam_liu_pairs(
    *, margin: float, discordance: float, difference: float = 0.0, alpha: float = 0.025, power: float = 0.8
) -> float:
    """Return about how many pairs the score test of `noninferiority` needs to show a loss below the margin.

    `difference` is the true one, above -margin; negative is worse. For `equivalence` of arms that do not truly differ
    ask for a power of 1 - (1 - power) / 2.

    References
    ----------
    J. Nam, Biometrics 53 (1997) 1422-1430. J. Liu et al., Statistics in Medicine 21 (2002) 231-245.
    """
    margin, discordance = _checks.fraction("margin", margin), _checks.share("discordance", discordance)
    if not (-margin < difference and abs(difference) <= discordance):
        raise ValueError(f"difference must exceed -margin and be within discordance, found {difference!r}")
    z, z_power = _quantiles(alpha, power, two_sided=False)
    lost_rate, gained_rate = (discordance - difference) / 2, (discordance + difference) / 2
    at_margin = math.sqrt(2 * restricted_lost_rate(lost_rate, gained_rate, 1, -margin) - margin * (1 + margin))
    at_truth = math.sqrt(discordance - difference**2)
    return ((z * at_margin + z_power * at_truth) / (difference + margin)) ** 2


def _quantiles(alpha: float, power: float, two_sided: bool) -> tuple[float, float]:
    alpha, power = _checks.fraction("alpha", alpha), _checks.fraction("power", power)
    return normal_quantile(alpha / 2 if two_sided else alpha), normal_quantile(1 - power)


def _lost_rate(loss: float, discordance: float) -> float:
    """Return P(lost). Raises ValueError unless 0 < loss <= discordance <= 1."""
    if not 0 < loss <= discordance <= 1:
        raise ValueError(f"loss must be above 0 and at most discordance, found {loss!r} and {discordance!r}")
    return (discordance + loss) / 2


def _discordant(pairs: int, rate: float) -> tuple["ndarray", "ndarray"]:
    """Return the numbers of discordant pairs that matter, within nine standard deviations, and their chances."""
    import numpy as np
    from scipy.special import gammaln, xlog1py, xlogy

    reach = 9 * math.sqrt(pairs * rate * (1 - rate)) + 20
    discordant = np.arange(max(0, math.floor(pairs * rate - reach)), min(pairs, math.ceil(pairs * rate + reach)) + 1)
    log_choose = gammaln(pairs + 1) - gammaln(discordant + 1) - gammaln(pairs - discordant + 1)
    return discordant, np.exp(log_choose + xlogy(discordant, rate) + xlog1py(pairs - discordant, -rate))


def _most(small: "Callable[[ndarray], ndarray]", limit: "ndarray") -> "ndarray":
    """Return for each element the largest count up to `limit` that is `small`, or -1; all below a small one are."""
    import numpy as np

    most, refused = np.full(len(limit), -1), limit + 1
    while (open_ := refused - most > 1).any():
        middle = (most + refused) // 2
        accepted = small(middle)
        most = np.where(open_ & accepted, middle, most)
        refused = np.where(open_ & ~accepted, middle, refused)
    return most


def _most_gained(discordant: "ndarray", alpha: float, test: Test) -> "ndarray":
    """Return for each number of discordant pairs the most gained ones with which a loss is significant, or -1."""
    import numpy as np
    from scipy.special import bdtr

    def significant(gained: "ndarray") -> "ndarray":
        if test == "asymptotic":
            result: ndarray = (discordant - 2 * gained) >= normal_quantile(alpha) * np.sqrt(discordant)
            return result & (discordant > 0)
        p = np.where(discordant > 0, bdtr(gained, discordant, 0.5), 1.0)
        if test == "midp":
            p = (p + np.where(gained > 0, bdtr(np.maximum(gained - 1, 0), discordant, 0.5), discordant == 0)) / 2
        result = p <= alpha * (1 + 1e-12)
        return result

    return _most(significant, discordant)


def _most_lost(discordant: "ndarray", pairs: int, margin: float, alpha: float) -> "ndarray":
    """Return for each number of discordant pairs the most lost ones with which the margin is shown, or -1."""
    z = normal_quantile(alpha)
    return _most(lambda lost: tango_scores(lost, discordant - lost, pairs, margin) >= z, discordant)


def _bisect(holds: Callable[[float], bool], high: float) -> float:
    """Return the smallest value from which on `holds`; it does at `high`. Accurate to 1e-9 of it."""
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _smallest_lasting(enough: Callable[[int], bool], guess: int, *, tooth: int) -> int:
    """Return the smallest number that is `enough` with the 2 `tooth` numbers after it, looking near `guess`."""
    start = max(1, guess)
    while start > 1 and enough(start):
        start = max(1, start - tooth)
    failed = start - 1 if enough(start) else start
    tried = start
    while tried - failed <= 2 * tooth:
        tried += 1
        if not enough(tried):
            failed = tried
    return failed + 1
