"""Grade responses. A grade is derived from the question and the response, and never stored with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    unread = _unread(response)
    if unread:
        return unread
    scoring = question.scoring
    answer = extract(response.text, scoring["kind"], scoring.get("options"))
    if answer is None:
        return Grade(verdict="no_answer", answer=None)
    return Grade(verdict="right" if _same(answer, question) else "wrong", answer=answer)


def _unread(response: Response) -> Grade | None:
    """Return the grade of a response that must not be read, or None."""
    if response.error is not None or response.finish_reason not in ("stop", "length", None):
        return Grade(verdict="error", answer=None)
    if response.finish_reason == "length":
        return Grade(verdict="truncated", answer=None)
    return None


def _same(answer: str, question: Question) -> bool:
    match question.scoring["kind"]:
        case "mcq":
            return answer == question.target
        case "number":
            return same_number(answer, question.target)
        case "math":
            return same_expression(answer, question.target)
        case _:
            return any(same_words(answer, accepted) for accepted in question.scoring["accept"])
