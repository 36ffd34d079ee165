"""What a run directory holds, as values.

A question says how it is scored; a response is evidence and holds no grade. Both are stored as one JSON object per
line, keys sorted, `null` where something is not known.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from evalsuite.values import read_number

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What an arm's distribution was at each token of a response that it was made to generate, see `force`."""

    question: str
    sample: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    """The tokens it was made to generate: the baseline's response. The first follows from the prefill alone."""
    top_ids: tuple[tuple[int, ...], ...]
    """At each of them, the most probable tokens before anything was forced, the first of them first."""
    top_logprobs: tuple[tuple[float | None, ...], ...]
    """Natural log of their probabilities; None for what is no finite number."""
    receipt: Mapping[str, Any]


_NUMBER, _NONE = (int, float), type(None)
_QUESTION = dict.fromkeys(("id", "task", "target", "prompt_sha256", "cluster"), (str,)) | {"scoring": (dict,)}
_RESPONSE: Mapping[str, tuple[type, ...]] = {
    "question": (str,),
    "sample": (int,),
    "text": (str, _NONE),
    "prompt_tokens": (int, _NONE),
    "token_ids": (list, _NONE),
    "logprobs": (list, _NONE),
    "runner_up_ids": (list, _NONE),
    "runner_up_logprobs": (list, _NONE),
    "finish_reason": (str, _NONE),
    "stop_reason": (str, int, _NONE),
    "tokens": (int, _NONE),
    "seconds_to_first_token": (*_NUMBER, _NONE),
    "seconds": (*_NUMBER, _NONE),
    "seed": (int, _NONE),
    "receipt": (dict, _NONE),
    "session": (int,),
    "error": (str, _NONE),
}
_FORCED: Mapping[str, tuple[type, ...]] = {
    "question": (str,),
    "sample": (int,),
    "prompt_tokens": (int,),
    "token_ids": (list,),
    "top_ids": (list,),
    "top_logprobs": (list,),
    "receipt": (dict,),
}
_LISTS = ("token_ids", "logprobs", "runner_up_ids", "runner_up_logprobs")
_KINDS: Mapping[str, Mapping[str, type]] = {
    "mcq": {"options": int},
    "number": {},
    "math": {},
    "text": {"accept": list},
    "lm-eval": {},
}


def seed_of(seed: int, question: str, sample: int) -> int:
    """Return the sampling seed of one response: the same in both arms, another for each sample."""
    text = f"{seed}:{question}:{sample}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1


def response_of(**known: Any) -> Response:
    """Return a response of which only these fields are known."""
    values: dict[str, Any] = {field.name: None for field in fields(Response)} | known
    return Response(**values)


def to_json(record: Question | Response | Forced) -> dict[str, Any]:
    """Return the record as a JSON-ready dictionary."""
    names = _QUESTION if isinstance(record, Question) else _FORCED if isinstance(record, Forced) else _RESPONSE
    return {name: getattr(record, name) for name in names}  # asdict would copy every token


def check_types(data: Any, types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the fields of `data` that `types` names. Raises KeyError for a missing and TypeError for a wrong one."""
    if not isinstance(data, dict):
        raise TypeError(f"{type(data).__name__} in place of an object")
    for name, allowed in types.items():
        # bool is an int to Python, and not to us
        if not isinstance(data[name], allowed) or (isinstance(data[name], bool) and bool not in allowed):
            found = type(data[name]).__name__
            raise TypeError(f"{name} is a {found}, expected {' or '.join(kind.__name__ for kind in allowed)}")
    return {name: data[name] for name in types}


def question_from_json(data: Any) -> Question:
    """Return the question stored as `data`. Raises KeyError for a missing field and TypeError for a wrong one."""
    values = check_types(data, _QUESTION)
    kind = values["scoring"].get("kind")
    if kind not in _KINDS or any(not isinstance(values["scoring"].get(k), t) for k, t in _KINDS[kind].items()):
        raise TypeError(f"scoring is {values['scoring']}, expected a kind of {', '.join(_KINDS)} with what it needs")
    if kind == "number" and not read_number(values["target"].replace("$", "")):
        raise TypeError(f"target {values['target']!r} is not a number")
    return Question(**values)


def response_from_json(data: Any) -> Response:
    """Return the response stored as `data`. Raises KeyError for a missing field and TypeError for a wrong one."""
    values = check_types(data, _RESPONSE)
    if values["error"] is None and values["finish_reason"] not in ("stop", "length"):
        raise TypeError(f"finish_reason is {values['finish_reason']!r}, expected stop or length")
    for name in _LISTS:
        if values[name] is None:
            continue
        if name.endswith("ids") and any(type(token) is not int for token in values[name]):
            raise TypeError(f"{name} are not all whole numbers")
        if name.endswith("logprobs") and not all(map(math.isfinite, values[name])):
            raise TypeError(f"{name} are not all finite")
        values[name] = tuple(values[name])
    return Response(**values)


def forced_from_json(data: Any) -> Forced:
    """Return the record stored as `data`. Raises KeyError for a missing field and TypeError for a wrong one."""
    values = check_types(data, _FORCED)
    tokens, all_ids, all_logprobs = (values[name] for name in ("token_ids", "top_ids", "top_logprobs"))
    if not tokens or not len(tokens) == len(all_ids) == len(all_logprobs):
        raise TypeError("token_ids, top_ids and top_logprobs differ in length or are empty")
    for ids, logprobs in zip(all_ids, all_logprobs, strict=True):
        if not isinstance(ids, list) or not isinstance(logprobs, list) or not 0 < len(ids) == len(logprobs):
            raise TypeError("a step does not name its leading tokens with a logprob each")
        if any(type(token) is not int for token in ids) or len(set(ids)) < len(ids):
            raise TypeError(f"leading tokens {ids[:8]} are no different token ids")
        known = [value for value in logprobs if value is not None]
        # -9999 is what vLLM sends for minus infinity; rounding leaves a certain token a trifle above 0
        if any(type(value) not in (int, float) or not -1e6 < value < 1e-3 for value in known):
            raise TypeError(f"leading logprobs {logprobs[:8]} are no logarithms of probabilities")
        if known != sorted(known, reverse=True):
            raise TypeError(f"leading logprobs {logprobs[:8]} do not descend")
    return Forced(
        **{
            **values,
            "token_ids": tuple(tokens),
            "top_ids": tuple(map(tuple, all_ids)),
            "top_logprobs": tuple(map(tuple, all_logprobs)),
        }
    )
