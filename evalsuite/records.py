"""What a run directory holds, as values.

A question says how it is scored; a response is evidence and holds no grade. Both are stored as one JSON object per
line, keys sorted, `null` where something is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

ARMS: tuple[Literal["baseline"], Literal["candidate"]] = ("baseline", "candidate")
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, without its prompt: owners of gated sets ask that questions stay unpublished."""

    id: str
    task: str
    target: str
    prompt_sha256: str
    cluster: str
    """Questions of one cluster are not independent. A question without siblings is its own cluster."""
    scoring: Mapping[str, Any]
    """How a response is graded, see `scoring.grade`: {"kind": "mcq", "options": 4}, for instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One arm's response to one question, or the error that stands in its place."""

    question: str
    sample: int
    text: str | None
    prompt_tokens: int | None
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    """Natural log of the probability of each generated token."""
    runner_up_ids: tuple[int, ...] | None
    """At each step, the most probable token other than the generated one."""
    runner_up_logprobs: tuple[float, ...] | None
    finish_reason: str | None
    """`stop` (end of sequence or a stop string) or `length` (the budget ended it: truncated)."""
    stop_reason: str | int | None
    """The stop string that ended it, where one did."""
    tokens: int | None
    seconds_to_first_token: float | None
    seconds: float | None
    seed: int | None
    receipt: Mapping[str, Any] | None
    """What the attention package counted while this response was served, see `receipts.check`."""
    session: int
    """1 for the responses of a run's first start, 2 after its first resume, and so on."""
    error: str | None = None


_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in (Question, Response)}


def to_json(record: Question | Response) -> dict[str, Any]:
    """Return the record as a JSON-ready dictionary."""
    return {name: getattr(record, name) for name in _FIELDS[type(record)]}  # asdict would copy every token


def question_from_json(data: Mapping[str, Any]) -> Question:
    """Return the question stored as `data`. Raises KeyError for a missing field and TypeError for a wrong one."""
    return Question(**{name: data[name] for name in _FIELDS[Question]})


def response_from_json(data: Mapping[str, Any]) -> Response:
    """Return the response stored as `data`. Raises KeyError for a missing field and TypeError for a wrong one."""
    values = {name: data[name] for name in _FIELDS[Response]}
    if not isinstance(values["question"], str) or not isinstance(values["sample"], int):
        raise TypeError("question must be text and sample a whole number")
    for name in ("token_ids", "logprobs", "runner_up_ids", "runner_up_logprobs"):
        if values[name] is not None:
            values[name] = tuple(values[name])
    return Response(**values)
