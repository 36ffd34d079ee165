"""What makes the responses of a run worthless as evidence, whatever they say."""

import hashlib
from collections.abc import Iterator, Mapping

from evalsuite.journal import Run, dump
from evalsuite.pairing import by_key, missing, planned
from evalsuite.receipts import Proof
from evalsuite.records import ARMS, Response, to_json


def find_problems(run: Run, proofs: Mapping[str, Proof]) -> Iterator[str]:
    """Yield one line for each reason why nothing may be concluded from the run: gaps first, then proofs, then mix-ups.

    `proofs` says for each arm what its receipts prove.
    """
    keys = planned(run)
    responses = {arm: by_key(run.responses[arm]) for arm in ARMS}
    if not keys:
        yield "no pairs: questions.jsonl holds no question"
    if len(set(keys)) < len(keys):
        yield f"questions.jsonl names {len(keys) - len(set(keys))} questions twice"
    for arm in ARMS:
        if lacking := len(missing(run, arm)):
            yield (
                f"{lacking} of {len(keys)} responses of the {arm} are missing; give the same `run` command again to "
                "ask what is left"
            )
    for arm in ARMS:
        yield from (f"{arm}: {problem}" for problem in proofs[arm].problems)
    for arm in ARMS:
        foreign = sorted(set(responses[arm]) - set(keys))
        if foreign:
            question, sample = foreign[0]
            yield (
                f"{arm}: {len(foreign)} responses that the plan does not name; the first is to {question!r}, sample "
                f"{sample}"
            )
    asked = hashlib.sha256(dump([to_json(question) for question in run.questions]).encode()).hexdigest()
    if run.meta.get("questions_sha256") not in (None, asked):
        yield "questions.jsonl is not the one that run.json names, so what was asked is not known"
    baseline, candidate = responses["baseline"], responses["candidate"]
    yield from _find_mixed_pairs(
        run, [(baseline[key], candidate[key]) for key in keys if key in baseline and key in candidate]
    )


def _find_mixed_pairs(run: Run, both: list[tuple[Response, Response]]) -> Iterator[str]:
    copied = [one for one, other in both if one.seconds is not None and _timing(one) == _timing(other)]
    if copied:
        yield (
            f"{len(copied)} pairs hold the same response twice, its timing included, so one arm was not asked; the "
            f"first is to {copied[0].question!r}"
        )
    weights = {run.meta["arms"][arm].get("model_sha256") for arm in ARMS}
    unequal = [
        one
        for one, other in both
        if None not in (one.prompt_tokens, other.prompt_tokens) and one.prompt_tokens != other.prompt_tokens
    ]
    if len(weights) == 1 and None not in weights and unequal:
        yield (
            f"{len(unequal)} pairs were asked with prompts of unequal length; the first is to {unequal[0].question!r}"
        )


def _timing(response: Response) -> tuple[float | None, float | None, str | None]:
    # A clock read to the nanosecond does not show the same times twice.
    return response.seconds, response.seconds_to_first_token, response.text
