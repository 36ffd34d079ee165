"""Decide what a comparison says: one value, from which both the printed verdict and the exit code come.

In this order, the first that applies:

INVALID       The pairs are no evidence, see `validity.find_problems`.
FAIL          A regression is detected: one-sided mid-p McNemar at alpha (after Rao and Scott for several samples a
              question), on accuracy, or on errors where the candidate's requests fail more often. An errored response
              is an answer that the user did not get, so it counts as not right.
INCONCLUSIVE  The run could not have shown a loss, so that it shows nothing. Only questions that the baseline got right
              can be lost. If it got none right (all truncated, say), no loss could show; and with an accuracy up to the
              margin, no loss as large as the margin could. Nor is anything shown where pairs depend on each other in a
              way that no method here allows for.
PASS          The lower end of the 95 % interval lies above -margin; where there are errors, also if each of them had
              gone against the candidate.
INCONCLUSIVE  It does not.
NOT DETECTED  Without a margin, in place of the last two. The first line says which losses are ruled out, lest ten
              questions be taken for evidence.

A pair that an arm's budget cut off counts as what its user gets: not right in that arm. Truncation therefore makes
questions that cannot be lost, which the third rule watches, and the reasons name what the other pairs show alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from evalsuite.comparison import Comparison
from evalsuite.errors import UserError
from evalsuite.statistics import questions_needed
from evalsuite.wording import count, p_value, points, signed


class Verdict(StrEnum):
    """What is said of a candidate; the values are what is printed."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_DETECTED = "NOT DETECTED"


EXIT: dict[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.NOT_DETECTED: 0,
    Verdict.FAIL: 1,
    Verdict.INCONCLUSIVE: 3,
    Verdict.INVALID: 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict and why."""

    verdict: Verdict
    headline: str
    """One line that starts with the verdict."""
    reasons: tuple[str, ...]
    margin: float | None
    alpha: float

    @property
    def exit_code(self) -> int:
        """What the process that prints this verdict ends with."""
        return EXIT[self.verdict]


def decide(comparison: Comparison, *, margin: float | None, alpha: float = 0.05) -> Decision:
    """Return the verdict. `margin` is the largest loss accepted, a fraction; None applies "no detectable regression".

    Raises UserError for a margin outside [0, 1) or an alpha outside (0, 1).
    """
    if margin is not None and not 0 <= margin < 1:
        raise UserError(f"margin is {margin:g}; expected a fraction from 0 to below 1 (0.03 accepts three points)")
    if not 0 < alpha < 1:
        raise UserError(f"alpha is {alpha:g}; expected a fraction between 0 and 1, such as 0.05")
    verdict, (claim, *reasons) = _judge(comparison, margin, alpha)
    errors = {name: arm.errors for name, arm in comparison.arms.items()}
    if any(errors.values()):
        claim += f" (errors: baseline {errors['baseline']}, candidate {errors['candidate']})"
    return Decision(
        verdict=verdict,
        headline=f"{verdict}: {claim}",
        reasons=(*reasons, *_remark(comparison, alpha)),
        margin=margin,
        alpha=alpha,
    )


def _judge(comparison: Comparison, margin: float | None, alpha: float) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict, the claim of its headline, and the reasons that go with it."""
    if comparison.problems:
        return Verdict.INVALID, comparison.problems
    if detected := _detect(comparison, margin, alpha):
        return Verdict.FAIL, detected
    table, asked = comparison.table, _asked(comparison)
    right = f"the baseline got {table.baseline_right} of {asked} right, and only those can be lost"
    if not table.baseline_right:
        return Verdict.INCONCLUSIVE, (f"{right}: no loss could show",)
    if table.interval is None or comparison.worst_case.interval is None:
        return Verdict.INCONCLUSIVE, (
            f"no method here allows for the way in which these {count(table.pairs, 'pair')} depend on each other",
            "questions that share a cluster are not independent: ask one question of each cluster",
        )
    low = min(table.interval.low, comparison.worst_case.interval.low)
    losses = f"losses above {points(-low)} points" if low < 0 else "any loss"
    if margin is None:
        only = "only " if low < 0 else ""
        return Verdict.NOT_DETECTED, (f"no regression detected in {asked}; these data rule out {only}{losses}",)
    accepted = f"margin {points(margin)} points"
    if table.baseline_right <= margin * table.pairs:
        return Verdict.INCONCLUSIVE, (f"{right}: a loss as large as the {accepted} could not show",)
    if low > -margin:
        return Verdict.PASS, (f"no regression detected in {asked}; these data rule out {losses} ({accepted})",)
    return Verdict.INCONCLUSIVE, (
        f"no regression detected in {asked}, but losses up to {points(-low)} points are not ruled out ({accepted}); "
        + _outlook(comparison, margin),
    )


def _detect(comparison: Comparison, margin: float | None, alpha: float) -> tuple[str, ...] | None:
    """Return the claim and the reasons of a detected regression, None where there is none."""
    table, errors = comparison.table, comparison.errors
    if table.regression_p is not None and table.interval is not None and table.regression_p <= alpha:
        interval = f"95 % interval {signed(table.interval.low)} to {signed(table.interval.high)}"
        claim = (
            f"regression detected: {table.lost} lost and {table.gained} gained of {_asked(comparison)}, "
            f"{signed(table.difference or 0.0)} points ({interval}), p-value {p_value(table.regression_p)}"
        )
        if margin is None:
            return (claim,)
        accepted = table.interval.low > -margin
        claim += f"; the interval {'lies' if accepted else 'does not lie'} wholly above {signed(-margin)}"
        return (
            (claim, "a loss within the margin is still a loss: only a policy file can accept it")
            if accepted
            else (claim,)
        )
    if errors.test is not None and errors.test.midp_one_sided <= alpha:
        return (
            f"regression detected: the candidate alone failed to answer {errors.candidate_only} of "
            f"{_asked(comparison)}, the baseline alone {errors.baseline_only}, p-value "
            f"{p_value(errors.test.midp_one_sided)}",
        )
    return None


def _outlook(comparison: Comparison, margin: float) -> str:
    """Return what would settle a comparison whose interval reaches to -margin or below."""
    table = comparison.table
    if table.interval is None or table.design_effect is None:
        raise ValueError("without an interval there is nothing to settle")
    if table.interval.low > -margin:
        return "the errors alone stand in the way: mend their cause and run again"
    if not margin:
        return "no number of questions would settle it if the arms are equally accurate"
    # Counts in units of independent pairs, to the nearest whole: a forecast needs no more.
    lost, gained, pairs = (round(x) for x in (table.interval.lost, table.interval.gained, table.interval.pairs))
    more = questions_needed(lost=lost, gained=gained, pairs=max(pairs, lost + gained), margin=margin) or 1
    questions = math.ceil(more * table.design_effect * comparison.questions / table.pairs)
    return f"about {count(questions, 'more question')} would settle it if the arms are equally accurate"


def _asked(comparison: Comparison) -> str:
    samples = comparison.table.pairs // max(comparison.questions, 1)
    return count(comparison.questions, "question") + (f" x {samples} samples" if samples > 1 else "")


def _remark(comparison: Comparison, alpha: float) -> Iterator[str]:
    """Yield what a reader must know whatever the verdict."""
    table, worst, finished = comparison.table, comparison.worst_case, comparison.without_truncated
    if comparison.repeated_prompts:
        yield f"{comparison.repeated_prompts} of the questions repeat the prompt of another: no evidence of their own"
    if comparison.same_arms:
        yield "A/A run: both arms are configured alike, so that every difference is chance and FAIL a false alarm"
    for arm, figures in comparison.arms.items():
        if figures.proof.proven is None:
            yield f"{arm}: the path is not proven, as no receipt can be demanded of this arm"
    if table.baseline_right and table.test is not None and 0.5 ** (table.baseline_right + 1) > alpha:
        yield f"the baseline got only {table.baseline_right} right: had all been lost, it would not have been detected"
    if table.design_effect is not None and table.pairs > comparison.questions:
        yield f"samples of a question are not independent: {table.design_effect:.1f} pairs are worth one"
    if finished.pairs < table.pairs:
        limit = finished.smallest_margin
        alone = f"rule out only losses above {points(limit)} points" if limit is not None else "rule out no loss"
        yield (
            f"the budget ended a response in {table.pairs - finished.pairs} of {count(table.pairs, 'pair')}; "
            f"the other {finished.pairs} alone {alone}"
        )
    if worst.interval is not None and any(arm.errors for arm in comparison.arms.values()):
        yield f"with every error held against the candidate the interval would start at {signed(worst.interval.low)}"
