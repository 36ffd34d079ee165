"""Stopping early, honestly: what the finished questions of a run show, at whichever of them one looks.

A run that stops when a result looks good, and is then judged as if its length had been fixed, finds what it wants too
often. A run with --stop-early is therefore judged by e-values (`statistics.watch`), which hold whenever one stops: it
ends with the first question after which the verdict is PASS or FAIL. Three rules make that true:

- The order of the questions is shuffled before the first is asked, and is that of questions.jsonl. Order of completion
  would not do: long answers finish late and are wrong more often.
- Only the leading questions count that both arms have finished, with all samples.
- Nothing is kept but the responses. A resumed run computes the same evidence from the same journals.

An errored response is not right where a regression is looked for, and goes against the candidate where PASS is.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from evalsuite.journal import Run
from evalsuite.pairing import Outcome, Pair
from evalsuite.records import Question
from evalsuite.statistics import LEAST_MARGIN, ConfidenceSequence, Evidence, confidence_sequence, watch

ALPHA = 0.05
"""What a run is planned with: the chance accepted for each of PASS and FAIL that it is ever said falsely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What a run that may stop early has shown, question by question in the order fixed beforehand.

    Each outcome is candidate - baseline, the mean over a question's samples: from -1, all lost, to 1, all gained.
    """

    planned: int
    """Questions that the run would ask if it never stopped."""
    margin: float
    """What the run was planned, and stops, with."""
    alpha: float
    """The chance accepted that PASS is said falsely, as planned."""
    outcomes: tuple[float, ...]
    """An errored response counts as not right."""
    worst_outcomes: tuple[float, ...]
    """An errored response counts against the candidate."""
    failures: tuple[float, ...]
    """-1 where the candidate alone failed to respond, 1 where the baseline alone did."""

    def weigh(self, *, margin: float, alpha: float) -> Evidence:
        """Return the evidence up to now, a regression's at `alpha`. Any margin will do, not only the planned one.

        Raises ValueError for a margin of 0.
        """
        seen = watch(self.outcomes, margin=margin, alpha=alpha)
        worst = watch(self.worst_outcomes, margin=margin, alpha=self.alpha)
        return replace(seen, noninferior_at=worst.noninferior_at, p_noninferior=worst.p_noninferior)

    def weigh_failures(self, *, margin: float, alpha: float) -> Evidence | None:
        """Return the same for failed responses, of which a regression is more in the candidate; None without any."""
        return watch(self.failures, margin=margin, alpha=alpha) if any(self.failures) else None

    def interval(self) -> ConfidenceSequence:
        """Return an interval for the difference that holds whenever one stops; each end is wrong in `alpha` of runs."""
        return confidence_sequence(self.outcomes, confidence=1 - 2 * self.alpha)


def shuffle(questions: Iterable[Question], seed: int) -> list[Question]:
    """Return one question of each cluster, in an order that follows from `seed` and the ids alone.

    Questions that share a cluster are not independent, and e-values need that each question is news.
    """

    def draw(question: Question) -> bytes:
        return hashlib.sha256(f"stop early/{seed}/{question.id}".encode()).digest()

    first = {question.cluster: question for question in reversed(tuple(questions))}
    return sorted(first.values(), key=draw)


def finished(run: Run, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return the pairs of the leading questions that both arms have finished, with all samples."""
    samples, have = run.meta["sampling"]["samples"], Counter(pair.question for pair in pairs)
    whole = {question.id for question in takewhile(lambda question: have[question.id] == samples, run.questions)}
    return tuple(pair for pair in pairs if pair.question in whole)


def find_problem(meta: Mapping[str, Any]) -> str | None:
    """Return why nothing may be concluded from a run.json with --stop-early, None where it holds what `run` writes."""
    if not meta.get("stop_early"):
        return None
    if not 0 < (alpha := meta["stop_early"]["alpha"]) <= ALPHA:
        return f"run.json stops early at alpha {alpha:g}; expected {ALPHA:g}, which `run` writes, or less"
    if not LEAST_MARGIN <= (margin := meta["margin"]) < 1:
        return f"run.json stops early with margin {margin:g}; expected a fraction from {LEAST_MARGIN:g} to below 1"
    return None


def read(run: Run, pairs: Sequence[Pair]) -> Early | None:
    """Return what a run with --stop-early has shown in its finished `pairs`; None for any other run.

    None, too, where `find_problem` finds one.
    """
    if not run.meta.get("stop_early") or find_problem(run.meta):
        return None
    return Early(
        planned=len(run.questions),
        margin=run.meta["margin"],
        alpha=run.meta["stop_early"]["alpha"],
        outcomes=_means(pairs, [_difference(pair.outcome) for pair in pairs]),
        worst_outcomes=_means(pairs, [_difference(pair.worst_outcome) for pair in pairs]),
        failures=_means(
            pairs, [(pair.baseline.verdict == "error") - (pair.candidate.verdict == "error") for pair in pairs]
        ),
    )


def _difference(outcome: Outcome) -> int:
    return (outcome == "gained") - (outcome == "lost")


def _means(pairs: Sequence[Pair], values: Sequence[int]) -> tuple[float, ...]:
    """Return the mean value of each question, in the order of the pairs."""
    sums, counts = Counter[str](), Counter(pair.question for pair in pairs)
    for pair, value in zip(pairs, values, strict=True):
        sums[pair.question] += value
    return tuple(sums[question] / count for question, count in counts.items())
