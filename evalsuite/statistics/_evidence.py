"""Evidence that may be looked at after every question.

Each process is the wealth of a gambler who starts with 1 and, before each question, bets against a hypothesis. If the
hypothesis is true the game is not in the gambler's favour, so wealth reaches 1 / alpha with a chance of at most alpha,
however long it goes on and whenever one looks (Ville's inequality). The outcome of a question is its difference,
candidate - baseline: -1 lost, +1 gained, 0 otherwise, or the mean over its samples, anything in [-1, 1].

The questions must come in an order fixed beforehand that has nothing to do with their outcomes. Order of completion
does: long answers finish late and are wrong more often.

References: I. Waudby-Smith, A. Ramdas, JRSS B 86 (2024) 1-27; A. Ramdas et al., Statistical Science 38 (2023) 576-601.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from . import _checks

if TYPE_CHECKING:
    from numpy import ndarray

# Before the first question the bets assume that 15 % of pairs are discordant, and bets on a loss that it is 8 points
# larger than the hypothesis allows, both with the weight of 40 questions. Any values are valid; these need few
# questions for the discordances of deterministic decoding (5 to 25 %) and the losses that 198 questions can show.
PRIOR_DISCORDANCE = 0.15
PRIOR_QUESTIONS = 40
PRIOR_EXCESS = 0.08
MOST_STAKED = 0.999
"""Share of wealth that a bet against "the loss is at least the margin" may put at risk."""
MOST_STAKED_ON_A_LOSS = 0.9
"""The same for a bet on a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What three processes have shown up to now, each at level alpha.

    The first two claims cannot both be false, so neither shares its alpha. Both at once mean: a real loss, smaller
    than the margin. The third is to be claimed only after the second; then it costs no alpha either.
    """

    questions: int
    margin: float
    alpha: float
    noninferior_at: int | None
    """After which question "the loss is below the margin" was shown, or None."""
    regression_at: int | None
    """After which question "there is a loss" was shown, or None."""
    beyond_margin_at: int | None
    """After which question "the loss is above the margin" was shown, or None."""
    p_noninferior: float
    """Smallest so far, hence valid at any time: 1 / the largest wealth."""
    p_regression: float
    p_beyond_margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceSequence:
    """An interval for the difference that may be looked at after every question."""

    questions: int
    low: float
    high: float
    confidence: float


Rate = TypeVar("Rate", float, "ndarray[Any, Any]")


def best_bet(*, lost_rate: Rate, gained_rate: Rate, margin: float) -> Rate:
    """Return the bet against "the difference is at most -margin" under which log wealth grows fastest, if rates hold.

    A bet multiplies wealth by 1 + bet * (outcome + margin). gained_rate - lost_rate must exceed -margin. The rates may
    be arrays.
    """
    neither = 1 - lost_rate - gained_rate
    edge = gained_rate - lost_rate + margin
    b = (
        gained_rate * (1 + margin) * (2 * margin - 1)
        - lost_rate * (1 - margin) * (1 + 2 * margin)
        + 2 * neither * margin**2
    )
    root: Rate = (b * b + 4 * margin * (1 - margin**2) * edge) ** 0.5
    bet: Rate = 2 * edge / (root - b)
    return bet


def noninferiority_wealth(outcomes: Iterable[float], *, margin: float) -> Iterator[float]:
    """Yield, after each outcome, the log wealth of bets against "the mean outcome is at most -margin".

    At log(1 / alpha) the loss is shown to be below the margin. Bets are the best ones if the arms do not differ, at the
    discordance seen so far. The outcomes may come one at a time from a run in progress.

    Raises
    ------
    ValueError
        If the margin is not strictly between 0 and 1, or an outcome not in [-1, 1].
    """
    margin = _checks.fraction("margin", margin)
    wealth = 0.0
    for outcome, discordance in _with_discordance(outcomes):
        half = discordance / 2
        bet = min(best_bet(lost_rate=half, gained_rate=half, margin=margin), MOST_STAKED / (1 - margin))
        wealth += math.log1p(bet * (outcome + margin))
        yield wealth


def loss_wealth(outcomes: Iterable[float], *, beyond: float = 0.0) -> Iterator[float]:
    """Yield, after each outcome, the log wealth of bets against "the mean outcome is at least -beyond".

    At log(1 / alpha) a loss of more than `beyond` is shown; with 0, the default, a regression. Bets follow the loss and
    the discordance seen so far: a loss of 2 points over thousands of questions is found, as is a broken candidate
    within ten. See `noninferiority_wealth`.

    Raises
    ------
    ValueError
        If `beyond` is negative or not below 1, or an outcome not in [-1, 1].
    """
    if not 0 <= beyond < 1:
        raise ValueError(f"beyond must be at least 0 and below 1, found {beyond!r}")
    wealth = 0.0
    excess, weight = PRIOR_EXCESS * PRIOR_QUESTIONS, PRIOR_QUESTIONS
    for outcome, discordance in _with_discordance(outcomes):
        bet = min(max(excess, 0.0) / weight / discordance, MOST_STAKED_ON_A_LOSS / (1 + beyond))
        wealth += math.log1p(-bet * (outcome + beyond))
        excess -= outcome + beyond
        weight += 1
        yield wealth


def mixture_evidence(*, lost: int, gained: int, shape: float = 1.0) -> float:
    """Return the log of an e-value against "there is no loss" that depends on the counts alone, not on their order.

    The likelihood ratio of P(lost | discordant) = t to 1/2, averaged over t in (1/2, 1) with the weights of a
    Beta(shape, shape) distribution; 1 is the uniform one. It too may be looked at after every question.

    Examples
    --------
    Six pairs lost and none gained give 127 / 7:

    >>> round(math.exp(mixture_evidence(lost=6, gained=0)), 6)
    18.142857
    """
    from scipy.special import betaincc, betaln

    lost, gained = _checks.count("lost", lost), _checks.count("gained", gained)
    if not shape > 0:
        raise ValueError(f"shape must be positive, found {shape!r}")
    upper_half = float(betaincc(lost + shape, gained + shape, 0.5))
    if not upper_half:
        return -math.inf
    average = float(betaln(lost + shape, gained + shape) - betaln(shape, shape))
    return (lost + gained + 1) * math.log(2) + average + math.log(upper_half)


def watch(outcomes: Iterable[float], *, margin: float, alpha: float = 0.05) -> Evidence:
    """Return what the outcomes so far have shown, in the order in which they came.

    Parameters
    ----------
    outcomes : iterable of float
        For each question -1 lost, +1 gained, 0 otherwise, or the mean over its samples. All evidence is recomputed,
        so a run that was interrupted goes on from its journal.
    margin : float
        The largest loss accepted, a fraction strictly between 0 and 1.
    alpha : float
        The chance accepted for each claim that it is ever made falsely, strictly between 0 and 1.

    Raises
    ------
    ValueError
        If the margin or alpha is out of range, or an outcome not in [-1, 1].

    Examples
    --------
    Of 198 pairs none is discordant; then every other one is lost:

    >>> watch([0] * 198, margin=0.05).noninferior_at
    110
    >>> watch([-1, 0] * 99, margin=0.05).regression_at
    11
    """
    alpha = _checks.fraction("alpha", alpha)
    outcomes = tuple(outcomes)
    noninferior_at, p_noninferior = _reached(noninferiority_wealth(outcomes, margin=margin), alpha)
    regression_at, p_regression = _reached(loss_wealth(outcomes), alpha)
    beyond_margin_at, p_beyond_margin = _reached(loss_wealth(outcomes, beyond=margin), alpha)
    return Evidence(
        questions=len(outcomes),
        margin=margin,
        alpha=alpha,
        noninferior_at=noninferior_at,
        regression_at=regression_at,
        beyond_margin_at=beyond_margin_at,
        p_noninferior=p_noninferior,
        p_regression=p_regression,
        p_beyond_margin=p_beyond_margin,
    )


def confidence_sequence(outcomes: Iterable[float], *, confidence: float = 0.95) -> ConfidenceSequence:
    """Return the differences that no process has ruled out up to now, one process per difference and direction.

    Bets are about the best ones at the shares of lost and gained pairs seen so far, and at most half of what is safe.
    Differences are tried in steps of 0.1 points, and the ends are rounded outwards to them. Half of 1 - confidence goes
    to each end.

    Parameters
    ----------
    outcomes : iterable of float
        As for `watch`.
    confidence : float
        The chance that the interval holds the true difference after every question, strictly between 0 and 1.

    Returns
    -------
    ConfidenceSequence
        [-1, 1] before the first question. It needs 5 ms per 100 questions.

    Raises
    ------
    ValueError
        If the confidence is out of range, or an outcome not in [-1, 1].
    """
    import numpy as np

    confidence = _checks.fraction("confidence", confidence)
    needed = math.log(2 / (1 - confidence))
    steps = 1000
    truths = np.arange(1 - steps, steps) / steps
    log_wealth = np.zeros((2, len(truths)))
    most = np.zeros((2, len(truths)))
    lost = gained = PRIOR_QUESTIONS * PRIOR_DISCORDANCE / 2
    seen = 0
    for outcome in outcomes:
        _check_outcome(outcome)
        rates = lost / (seen + PRIOR_QUESTIONS), gained / (seen + PRIOR_QUESTIONS)
        for side, (sign, lost_rate, gained_rate) in enumerate(((1, *rates), (-1, *reversed(rates)))):
            # The mirror image: with the arms exchanged a truth t reads -t.
            truth = sign * truths
            variance = lost_rate + gained_rate - 2 * truth * (gained_rate - lost_rate) + truth**2
            bet = np.clip((gained_rate - lost_rate - truth) / variance, 0, 0.5 / (1 + truth))
            log_wealth[side] += np.log1p(bet * (sign * outcome - truth))
        np.maximum(most, log_wealth, out=most)
        lost += max(-outcome, 0)
        gained += max(outcome, 0)
        seen += 1
    too_low, too_high = most[0] >= needed, most[1] >= needed
    low = int(np.argmin(too_low)) - 1  # the last of the truths ruled out from below on
    high = len(truths) - int(np.argmin(too_high[::-1]))
    return ConfidenceSequence(
        questions=seen,
        low=float(truths[low]) if low >= 0 else -1.0,
        high=float(truths[high]) if high < len(truths) else 1.0,
        confidence=confidence,
    )


def _reached(log_wealth: Iterable[float], alpha: float) -> tuple[int | None, float]:
    """Return after which question wealth first reached 1 / alpha, and 1 / the largest wealth."""
    at, most = None, 0.0
    for number, wealth in enumerate(log_wealth, start=1):
        most = max(most, wealth)
        if at is None and wealth >= -math.log(alpha):
            at = number
    return at, math.exp(-most)


def _with_discordance(outcomes: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Yield each outcome with the discordance expected before it was seen."""
    total, weight = PRIOR_DISCORDANCE * PRIOR_QUESTIONS, PRIOR_QUESTIONS
    for outcome in outcomes:
        _check_outcome(outcome)
        yield outcome, total / weight
        total += outcome * outcome
        weight += 1


def _check_outcome(outcome: float) -> None:
    if not -1 <= outcome <= 1:
        raise ValueError(f"outcomes must lie between -1 and 1, found {outcome!r}")
