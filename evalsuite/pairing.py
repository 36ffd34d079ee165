"""Pair both arms' graded responses to the same questions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalsuite.journal import Run
from evalsuite.records import ARMS, Question, Response
from evalsuite.scoring import Grade, grade_all

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


def missing(run: Run, arm: str) -> list[tuple[str, int]]:
    """Return the planned (question, sample) that an arm has no response to.

    A run that may stop early asks in order, and leaves out the rest by design: in it only gaps are missing.
    """
    keys, have = planned(run), by_key(run.responses[arm])
    if run.meta.get("stop_early"):
        keys = keys[: max((index + 1 for index, key in enumerate(keys) if key in have), default=0)]
    return [key for key in keys if key not in have]


def grade_responses(run: Run, responses: Sequence[Response]) -> dict[tuple[str, int], Grade]:
    """Return the grade of each of a run's responses, by (question, sample)."""
    task = run.meta["task"]
    folder, seed = task.get("include_path"), task.get("seed", 0)
    questions = {question.id: question for question in run.questions}
    grades = grade_all(questions, responses, include_path=Path(folder) if folder else None, seed=seed)
    return {(r.question, r.sample): grade for r, grade in zip(responses, grades, strict=True)}


def find_clusters(questions: Iterable[Question]) -> dict[str, str]:
    """Return the cluster of each question, by id. Questions with one prompt share one, whatever they are called."""
    joined: dict[str, str] = {}
    first: dict[str, str] = {}

    def root(cluster: str) -> str:
        while cluster in joined:
            cluster = joined[cluster]
        return cluster

    asked = list(questions)
    for question in asked:
        one, other = root(first.setdefault(question.prompt_sha256, question.cluster)), root(question.cluster)
        if one != other:
            joined[other] = one
    return {question.id: root(question.cluster) for question in asked}


def pair_up(run: Run, grades: Grades) -> tuple[Pair, ...]:
    """Return the pairs of a run, in the order of questions.jsonl, then by sample.

    A pair needs both responses; where one is missing there is none, and `compare` lists it as a problem.
    """
    questions = {question.id: question for question in run.questions}
    clusters = find_clusters(run.questions)
    baseline, candidate = (by_key(run.responses[arm]) for arm in ARMS)
    return tuple(
        Pair(
            question=key[0],
            sample=key[1],
            cluster=clusters[key[0]],
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
