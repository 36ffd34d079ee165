"""Grade responses. A grade is derived from the question and the response, and never stored with them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evalsuite.errors import UserError
from evalsuite.extraction import extract, visible_text
from evalsuite.records import Question, Response
from evalsuite.values import same_expression, same_number, same_words

Verdict = Literal["right", "wrong", "no_answer", "truncated", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How a response is counted, and the answer that was found in it."""

    verdict: Verdict
    answer: str | None


def grade(question: Question, response: Response) -> Grade:
    """Return the grade of `response`, by the kind of answer that `question.scoring` names.

    `{"kind": "mcq", "options": 4}`, `{"kind": "number"}`, `{"kind": "math"}`, or `{"kind": "text", "accept": [...]}`,
    where any of the accepted spellings is right. A truncated response is not read: a fragment is no answer.
    """
    if unread := _unread(response):
        return unread
    verdict, answer = judge(response.text, question.scoring, question.target)
    return Grade(verdict=verdict, answer=answer)


def grade_all(
    questions: Mapping[str, Question], responses: Sequence[Response], *, include_path: Path | None = None, seed: int = 0
) -> list[Grade]:
    """Return the grade of each response; those of an lm-eval task by its own filter and metric.

    `questions` are keyed by id; `include_path` and `seed` are those that loaded the task. Raises UserError if the task
    now holds other questions than those that were asked.
    """
    foreign = [r for r in responses if questions[r.question].scoring["kind"] == "lm-eval" and _unread(r) is None]
    graded = {id(r): g for r, g in zip(foreign, _grade_foreign(questions, foreign, include_path, seed), strict=True)}
    return [graded[id(r)] if id(r) in graded else _unread(r) or grade(questions[r.question], r) for r in responses]


def judge(text: str | None, scoring: Mapping[str, Any], target: str) -> tuple[Verdict, str | None]:
    """Return the verdict on a whole response, and the answer found in it."""
    answer = extract(text, scoring["kind"], scoring.get("options"))
    if answer is None:
        return "no_answer", None
    match scoring["kind"]:
        case "mcq":
            right = answer == target
        case "number":
            right = same_number(answer, target)
        case "math":
            right = same_expression(answer, target)
        case _:
            right = any(same_words(answer, accepted) for accepted in scoring["accept"])
    return ("right" if right else "wrong"), answer


def _unread(response: Response) -> Grade | None:
    """Return the grade of a response that must not be read, or None."""
    if response.error is not None or response.finish_reason not in ("stop", "length", None):
        return Grade(verdict="error", answer=None)
    if response.finish_reason == "length":
        return Grade(verdict="truncated", answer=None)
    return None


def _grade_foreign(
    questions: Mapping[str, Question], responses: Sequence[Response], include_path: Path | None, seed: int
) -> list[Grade]:
    if not responses:
        return []
    from evalsuite import harness

    scoring = questions[responses[0].question].scoring
    asked = scoring["task"]
    name = asked.removeprefix(harness.BUILT_IN)
    manager = harness.open_index(include_path, built_in=asked.startswith(harness.BUILT_IN))
    harness.entry_of(manager, name, asked=asked)
    task = harness.build(manager, name, asked=asked)
    last = max(questions[r.question].scoring["doc"] for r in responses)
    instances = {
        instance.doc_id: instance for instance, _ in harness.chat_requests(task, limit=last + 1, seed=seed, asked=asked)
    }
    answers = []
    for response in responses:
        wanted = questions[response.question].scoring
        instance = instances.get(wanted["doc"])
        if instance is None or harness.doc_digest(instance.doc) != wanted["doc_sha256"]:
            raise UserError(
                f"{asked}: question {wanted['doc']} is no longer the one that was asked; grade with the task's old data"
            )
        answers.append((instance, visible_text(response.text)))
    graded = harness.score(task, answers, filter_name=scoring["filter"], metric=scoring["metric"], asked=asked)
    return [_foreign_grade(text, right, found) for (_, text), (right, found) in zip(answers, graded, strict=True)]


def _foreign_grade(text: str, right: bool, found: Any) -> Grade:
    answer = found if isinstance(found, str) else json.dumps(found, default=str)
    if not right and (not text or answer.strip() in ("", "[invalid]")):
        return Grade(verdict="no_answer", answer=None)
    return Grade(verdict="right" if right else "wrong", answer=answer)
