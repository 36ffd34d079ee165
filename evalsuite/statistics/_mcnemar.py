"""McNemar's test: is there a difference between two arms on the same questions?"""

import math
from dataclasses import dataclass

from . import _checks
from ._distributions import binomial_tail, normal_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """P-values of McNemar's test. One-sided ones test for a regression: they are small when much was lost."""

    lost: int
    gained: int
    exact_two_sided: float
    exact_one_sided: float
    midp_two_sided: float
    midp_one_sided: float
    z: float
    """(gained - lost) / sqrt(lost + gained): negative when the candidate is worse, 0 without discordant pairs."""
    asymptotic_two_sided: float
    no_discordant_pairs: bool
    """Nothing was lost or gained, so that every p-value is 1: the data hold no evidence either way."""


def mcnemar(*, lost: int, gained: int) -> McNemar:
    """Test whether two arms are equally accurate on the same questions.

    Pairs on which the arms agree say nothing about their difference, so only discordant pairs enter: if the arms are
    equally accurate, each is lost or gained with probability one half. The exact p-value guarantees its level; the
    mid-p value counts half of the observed table's own probability, keeps close to its level in practice and sees
    more; the asymptotic one refers z to the normal distribution, without continuity correction.

    Parameters
    ----------
    lost : int
        Pairs that the baseline got right and the candidate got wrong.
    gained : int
        Pairs that the candidate got right and the baseline got wrong.

    Returns
    -------
    McNemar
        All p-values lie in (0, 1], up to underflow for thousands of discordant pairs.

    Raises
    ------
    ValueError
        If a count is negative or not an integer.

    Notes
    -----
    A large p-value is no evidence that the arms agree: with five or fewer discordant pairs the exact two-sided test
    cannot give a p-value below 0.05, however they fall. Samples of one question are not independent pairs, see
    `rao_scott`.

    References
    ----------
    Q. McNemar, Psychometrika 12 (1947) 153-157. M. W. Fagerland, S. Lydersen, P. Laake, BMC Medical Research
    Methodology 13:91 (2013), for the mid-p version.

    Examples
    --------
    Of 198 questions the candidate lost 14 and gained 6:

    >>> test = mcnemar(lost=14, gained=6)
    >>> round(test.exact_two_sided, 4), round(test.midp_one_sided, 4)
    (0.1153, 0.0392)
    """
    lost, gained = _checks.count("lost", lost), _checks.count("gained", gained)
    discordant = lost + gained
    if not discordant:
        return McNemar(
            lost=0,
            gained=0,
            exact_two_sided=1.0,
            exact_one_sided=1.0,
            midp_two_sided=1.0,
            midp_one_sided=1.0,
            z=0.0,
            asymptotic_two_sided=1.0,
            no_discordant_pairs=True,
        )
    at_least = binomial_tail(lost, discordant, 0.5)
    more = binomial_tail(lost + 1, discordant, 0.5)
    # By symmetry the two-sided values start from the tail on the side of the larger count.
    tail = binomial_tail(max(lost, gained), discordant, 0.5)
    beyond = binomial_tail(max(lost, gained) + 1, discordant, 0.5)
    z = (gained - lost) / math.sqrt(discordant)
    return McNemar(
        lost=lost,
        gained=gained,
        exact_two_sided=min(1.0, 2 * tail),
        exact_one_sided=at_least,
        midp_two_sided=tail + beyond if lost != gained else 1 - (tail - beyond) / 2,
        midp_one_sided=(at_least + more) / 2,
        z=z,
        asymptotic_two_sided=2 * normal_tail(abs(z)),
        no_discordant_pairs=False,
    )
