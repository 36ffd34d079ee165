"""Pair both arms' graded responses to the same questions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from evalsuite.journal import Run
from evalsuite.records import ARMS, Response
from evalsuite.scoring import Grade

Outcome = Literal["kept", "lost", "gained", "missed"]
Grades = Mapping[str, Mapping[tuple[str, int], Grade]]
"""By arm, then by (question, sample)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both arms' responses to one sample of one question, graded."""

    question: str
    sample: int
    cluster: str
    target: str
    baseline: Grade
    candidate: Grade
    baseline_tokens: int | None
    candidate_tokens: int | None
    baseline_seconds: float | None
    candidate_seconds: float | None

    @property
    def outcome(self) -> Outcome:
        """Kept, lost, gained or missed. Only "right" counts as right: an error, too, is an answer the user lacks."""
        return _outcome(self.baseline.verdict == "right", self.candidate.verdict == "right")

    @property
    def worst_outcome(self) -> Outcome:
        """The outcome if every errored response had gone against the candidate, see `statistics.worst_case`."""
        return _outcome(self.baseline.verdict in ("right", "error"), self.candidate.verdict == "right")

    def has(self, verdict: str) -> bool:
        """Return whether either arm's response was graded `verdict`."""
        return verdict in (self.baseline.verdict, self.candidate.verdict)


def _outcome(baseline: bool, candidate: bool) -> Outcome:
    if baseline:
        return "kept" if candidate else "lost"
    return "gained" if candidate else "missed"


def by_key(responses: Iterable[Response]) -> dict[tuple[str, int], Response]:
    """Return the responses by (question, sample)."""
    return {(response.question, response.sample): response for response in responses}


def planned(run: Run) -> list[tuple[str, int]]:
    """Return each (question, sample) that the plan asks of both arms, in the order of questions.jsonl."""
    samples = range(run.meta["sampling"]["samples"])
    return [(question.id, sample) for question in run.questions for sample in samples]


def pair_up(run: Run, grades: Grades) -> tuple[Pair, ...]:
    """Return the pairs of a run, in the order of questions.jsonl, then by sample.

    A pair needs both responses; where one is missing there is none, and `compare` lists it as a problem.
    """
    questions = {question.id: question for question in run.questions}
    baseline, candidate = (by_key(run.responses[arm]) for arm in ARMS)
    return tuple(
        Pair(
            question=key[0],
            sample=key[1],
            cluster=questions[key[0]].cluster,
            target=questions[key[0]].target,
            baseline=grades["baseline"][key],
            candidate=grades["candidate"][key],
            baseline_tokens=baseline[key].tokens,
            candidate_tokens=candidate[key].tokens,
            baseline_seconds=baseline[key].seconds,
            candidate_seconds=candidate[key].seconds,
        )
        for key in planned(run)
        if key in baseline and key in candidate
    )
