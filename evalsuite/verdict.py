"""Decide what a comparison says: one value, from which both the printed verdict and the exit code come.

In this order, the first that applies:

INVALID       The pairs are no evidence, see `validity.find_problems`.
FAIL          A regression is detected: one-sided mid-p McNemar at alpha (after Rao and Scott for several samples a
              question), on accuracy, or on errors where the candidate's requests fail more often. An errored response
              is an answer that the user did not get, so it counts as not right. A policy file may accept a loss of
              accuracy that lies within the margin.
INCONCLUSIVE  The run could not have shown a loss, so that it shows nothing. Only questions that the baseline got right
              can be lost. If it got none right (all truncated, say), no loss could show; and with an accuracy up to the
              margin, no loss as large as the margin could.
PASS          The lower end of the 95 % interval lies above -margin, and with up to 1,000 pairs the exact unconditional
              test agrees; where there are errors, also if each of them had gone against the candidate. Where pairs are
              not independent the bound of `statistics.rao_scott` takes the place of the interval's end.
INCONCLUSIVE  It does not.
NOT DETECTED  Without a margin, in place of the last two. The first line says which losses are ruled out, lest ten
              questions be taken for evidence.

A run that may stop early is judged by the e-values of `early` in place of test and interval, and without a margin by
the one that it was planned with.

A pair that an arm's budget cut off counts as what its user gets: not right in that arm. Truncation therefore makes
questions that cannot be lost, which the third rule watches, and the reasons name what the other pairs show alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from evalsuite.comparison import Comparison, Table
from evalsuite.early import ALPHA, Early
from evalsuite.errors import UserError
from evalsuite.statistics import EXACT_PAIRS, LEAST_MARGIN, Evidence, exact_noninferiority_p, questions_needed
from evalsuite.wording import count, e_value, p_value, points, signed


class Verdict(StrEnum):
    """What is said of a candidate; the values are what is printed."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_DETECTED = "NOT DETECTED"


ONE_SIDED = 0.025
"""Level of the exact test, that of the lower end of a 95 % interval."""
LEAST_ALPHA, MOST_ALPHA = 1e-5, 0.5
"""A gate over a hundred tasks divides the least that a policy may name, 0.001."""

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
    evidence: Evidence | None = None
    """What the verdict rests on if the run may stop early."""

    @property
    def exit_code(self) -> int:
        """What the process that prints this verdict ends with."""
        return EXIT[self.verdict]


def decide(
    comparison: Comparison, *, margin: float | None, alpha: float = ALPHA, accept_within_margin: bool = False
) -> Decision:
    """Return the verdict. `margin` is the largest loss accepted, a fraction; None applies "no detectable regression".

    With `accept_within_margin`, which only a policy file sets, a detected loss of accuracy is no FAIL where everything
    else says PASS. Raises UserError for a margin that is neither 0 nor from `LEAST_MARGIN` to below 1, and for an alpha
    outside `LEAST_ALPHA` to `MOST_ALPHA`.
    """
    if margin is not None and not 0 <= margin < 1:
        raise UserError(f"margin is {margin:g}; expected a fraction from 0 to below 1 (0.03 accepts three points)")
    if margin and margin < LEAST_MARGIN:
        raise UserError(f"margin is {margin:g}; expected 0, or {LEAST_MARGIN:g} (a hundredth of a point) and more")
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise UserError(f"alpha is {alpha:g}; expected a level from {LEAST_ALPHA:g} to {MOST_ALPHA:g}, such as 0.05")
    early, evidence = comparison.early, None
    if early is None:
        verdict, (claim, *reasons) = _judge(comparison, margin, alpha, accept_within_margin)
    else:
        margin = early.margin if margin is None else margin
        if not margin:
            raise UserError("margin is 0; expected one above 0, as e-values never show that there is no loss at all")
        evidence = early.weigh(margin=margin, alpha=alpha)
        verdict, (claim, *reasons) = _judge_early(comparison, early, evidence, accept_within_margin)
    errors = {name: arm.errors for name, arm in comparison.arms.items()}
    if any(errors.values()):
        claim += f" (errors: baseline {errors['baseline']}, candidate {errors['candidate']})"
    planned = comparison.planned_margin
    if margin is not None and planned is not None and margin > planned:
        claim += f" (planned with {points(planned)} points)"
    return Decision(
        verdict=verdict,
        headline=f"{verdict}: {claim}",
        reasons=(*_warn(comparison), *reasons, *_remark(comparison, margin, alpha)),
        margin=margin,
        alpha=alpha,
        evidence=evidence,
    )


def _judge(
    comparison: Comparison, margin: float | None, alpha: float, accept_within_margin: bool
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict, the claim of its headline, and the reasons that go with it."""
    if comparison.problems:
        return Verdict.INVALID, comparison.problems
    loss, failures = _detect_loss(comparison, margin, alpha), _detect_failures(comparison, alpha)
    if failures or (loss and not (accept_within_margin and _lies_within(comparison, margin))):
        return Verdict.FAIL, loss or failures or ()
    table, asked = comparison.table, _asked(comparison)
    right = f"the baseline got {table.baseline_right} of {asked} right, and only those can be lost"
    if not table.baseline_right:
        return Verdict.INCONCLUSIVE, (f"{right}: no loss could show",)
    if table.bound is None or comparison.worst_case.bound is None:
        raise ValueError("a run of fixed length has an interval")
    low = min(table.bound.low, comparison.worst_case.bound.low)
    losses = f"losses above {points(-low)} points" if low < 0 else "any loss"
    if margin is None:
        only = "only " if low < 0 else ""
        return Verdict.NOT_DETECTED, (f"no regression detected in {asked}; these data rule out {only}{losses}",)
    accepted = f"margin {points(margin)} points"
    if table.baseline_right <= margin * table.pairs:
        return Verdict.INCONCLUSIVE, (f"{right}: a loss as large as the {accepted} could not show",)
    if low <= -margin:
        return Verdict.INCONCLUSIVE, (
            f"no regression detected in {asked}, but losses up to {points(-low)} points are not ruled out "
            f"({accepted}); {_outlook(comparison, margin)}",
        )
    inexact = max(_exact_p(table, margin), _exact_p(comparison.worst_case, margin))
    if inexact > ONE_SIDED:
        return Verdict.INCONCLUSIVE, (
            f"no regression detected in {asked}; the interval reaches to {signed(low)} points only, but so few pairs "
            f"need the exact test, which does not rule the {accepted} out (p-value {p_value(inexact)}, {ONE_SIDED} "
            "needed); a fresh run with a few more, or one with --stop-early, would settle it if the arms are equally "
            "accurate",
        )
    if loss:
        return Verdict.PASS, (
            f"a regression within the margin, which the policy accepts; these data rule out {losses} ({accepted})",
            loss[0],
        )
    return Verdict.PASS, (f"no regression detected in {asked}; these data rule out {losses} ({accepted})",)


def _exact_p(table: Table, margin: float) -> float:
    """Return the exact unconditional p-value of a loss of `margin`; 0 where Tango's interval is accurate enough.

    With few pairs and none or few of them discordant the interval is up to a third too short.
    """
    bound = table.bound
    if bound is None or bound.pairs > EXACT_PAIRS or not margin:
        return 0.0
    # Counts in units of independent pairs, rounded against the candidate.
    pairs, lost, gained = math.floor(bound.pairs), math.ceil(bound.lost), math.floor(bound.gained)
    return exact_noninferiority_p(lost=lost, gained=gained, pairs=max(pairs, lost + gained), margin=margin)


def _lies_within(comparison: Comparison, margin: float | None) -> bool:
    """Return whether the loss lies within a margin as large as could have shown, whatever the errors hide."""
    if margin is None or comparison.table.baseline_right <= margin * comparison.table.pairs:
        return False
    tables = comparison.table, comparison.worst_case
    return all(t.bound is not None and t.bound.low > -margin and _exact_p(t, margin) <= ONE_SIDED for t in tables)


def _detect_loss(comparison: Comparison, margin: float | None, alpha: float) -> tuple[str, ...] | None:
    """Return the claim and the reasons of a detected loss of accuracy, None where there is none."""
    table = comparison.table
    if table.regression_p is not None and table.interval is not None and table.regression_p <= alpha:
        interval = f"95 % interval {signed(table.interval.low)} to {signed(table.interval.high)}"
        claim = (
            f"regression detected: {table.lost} lost and {table.gained} gained of {_asked(comparison)}, "
            f"{signed(table.difference or 0.0)} points ({interval}), p-value {p_value(table.regression_p)}"
        )
        if margin is None:
            return (claim,)
        accepted = table.bound is not None and table.bound.low > -margin
        claim += f"; the interval {'lies' if accepted else 'does not lie'} wholly above {signed(-margin)}"
        return (
            (claim, "a loss within the margin is still a loss: only a policy file can accept it")
            if accepted
            else (claim,)
        )
    return None


def _detect_failures(comparison: Comparison, alpha: float) -> tuple[str, ...] | None:
    """Return the claim that the candidate's requests fail more often, None where that is not detected."""
    errors = comparison.errors
    if errors.p is not None and errors.p <= alpha:
        return (
            f"regression detected: the candidate alone failed to answer {errors.candidate_only} of "
            f"{_asked(comparison)}, the baseline alone {errors.baseline_only}, p-value {p_value(errors.p)}",
        )
    return None


def _outlook(comparison: Comparison, margin: float) -> str:
    """Return what would settle a comparison whose interval reaches to -margin or below.

    More questions for this run are no advice: to extend it until it passes is to look again and again.
    """
    bound = comparison.table.bound
    if bound is None:
        raise ValueError("without an interval there is nothing to settle")
    if bound.low > -margin:
        return "the errors alone stand in the way: mend their cause and run again"
    if not margin:
        return "no number of questions would settle it if the arms are equally accurate"
    # Counts in units of independent pairs, to the nearest whole: a forecast needs no more.
    lost, gained, pairs = (round(x) for x in (bound.lost, bound.gained, bound.pairs))
    more = questions_needed(lost=lost, gained=gained, pairs=max(pairs, lost + gained), margin=margin) or 1
    questions = comparison.questions + math.ceil(more * comparison.questions / bound.pairs)
    return (
        f"a fresh run of about {count(questions, 'question')} in all, or one with --stop-early, would settle it if the "
        "arms are equally accurate"
    )


def _judge_early(
    comparison: Comparison, early: Early, evidence: Evidence, accept_within_margin: bool
) -> tuple[Verdict, tuple[str, ...]]:
    """Return what `_judge` does, for a run that may stop early."""
    if comparison.problems:
        return Verdict.INVALID, comparison.problems
    table, margin, planned = comparison.table, evidence.margin, f"{early.planned:,}"
    accepted, needed = f"margin {points(margin)} points", f"{1 / evidence.alpha:g} needed"
    passed, failed = evidence.noninferior_at, evidence.regression_at
    loss = (
        f"regression detected after question {failed} of {planned}: {table.lost} lost and {table.gained} gained of "
        f"{_asked(comparison)}, e-value {e_value(evidence.p_regression)}, {needed}"
    )
    failures = early.weigh_failures(margin=margin, alpha=evidence.alpha)
    if failures and failures.regression_at:
        return Verdict.FAIL, (
            f"regression detected after question {failures.regression_at} of {planned}: the candidate failed to answer "
            f"more often, e-value {e_value(failures.p_regression)}, {needed}",
        )
    possible = table.baseline_right > margin * table.pairs
    if failed and not (accept_within_margin and passed and possible):
        if passed and possible:
            return Verdict.FAIL, (
                f"{loss}; it is shown to be below the margin ({accepted})",
                "a loss within the margin is still a loss: only a policy file can accept it",
            )
        return Verdict.FAIL, (loss + (f"; it is above the {accepted}" if evidence.beyond_margin_at else ""),)
    seen = f"after {evidence.questions:,} of {count(early.planned, 'question')}"
    if not possible:
        return Verdict.INCONCLUSIVE, (
            f"the baseline got {table.baseline_right} of {_asked(comparison)} right, and only those can be lost: "
            f"{seen} a loss as large as the {accepted} could not show",
        )
    if passed:
        claim = (
            f"a loss of {points(margin)} points or more is ruled out after question {passed} of {planned}, e-value "
            f"{e_value(evidence.p_noninferior)}, {1 / early.alpha:g} needed"
        )
        return Verdict.PASS, (claim, loss) if failed else (claim,)
    again = "more questions are needed"
    if evidence.questions < early.planned:
        same = margin == early.margin
        again = "give the same `run` command again to go on" if same else "a run with this margin would have gone on"
    return Verdict.INCONCLUSIVE, (
        f"{seen} neither a regression (e-value {e_value(evidence.p_regression)}) nor a loss below the {accepted} "
        f"(e-value {e_value(evidence.p_noninferior)}) is shown, {needed}; {again}",
    )


def _asked(comparison: Comparison) -> str:
    samples = comparison.table.pairs // max(comparison.questions, 1)
    return count(comparison.questions, "question") + (f" x {samples} samples" if samples > 1 else "")


def _warn(comparison: Comparison) -> Iterator[str]:
    """Yield what must be read first, whatever the verdict."""
    same, pairs = comparison.same_logprobs, comparison.with_logprobs
    if not comparison.same_arms and same > pairs / 2:
        yield (
            f"in {same} of {count(pairs, 'pair')} the two arms' logprobs are equal to the last bit: nothing shows that "
            "two different things were served"
        )


def _remark(comparison: Comparison, margin: float | None, alpha: float) -> Iterator[str]:
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
    if table.interval is not None and table.bound is not None and table.bound.low < table.interval.low:
        yield (
            f"what is ruled out starts at {signed(table.bound.low)}, not at the interval's end of "
            f"{signed(table.interval.low)}: questions that are wholly lost may not have been drawn"
        )
    if alpha != ALPHA:
        yield f"a regression is looked for at alpha {p_value(alpha)}, in place of {ALPHA:g}"
    if comparison.early is not None and margin != comparison.early.margin:
        yield (
            f"the run was planned, and stops, with a margin of {points(comparison.early.margin)} points; e-values hold "
            "whenever one stops, so they are computed anew for another, which must be fixed before looking all the same"
        )
    cut = comparison.truncation
    if cut.p is not None and cut.p <= ALPHA:
        yield (
            f"the budget ended the candidate's responses more often: {cut.both + cut.candidate_only} against the "
            f"baseline's {cut.both + cut.baseline_only}, one-sided p-value {p_value(cut.p)}"
        )
    if finished.pairs < table.pairs and comparison.early is not None:
        yield f"the budget ended a response in {table.pairs - finished.pairs} of {count(table.pairs, 'pair')}"
    elif finished.pairs < table.pairs:
        limit = finished.smallest_margin
        alone = f"rule out only losses above {points(limit)} points" if limit is not None else "rule out no loss"
        yield (
            f"the budget ended a response in {table.pairs - finished.pairs} of {count(table.pairs, 'pair')}; "
            f"the other {finished.pairs} alone {alone}"
        )
    if worst.interval is not None and any(arm.errors for arm in comparison.arms.values()):
        yield f"with every error held against the candidate the interval would start at {signed(worst.interval.low)}"
