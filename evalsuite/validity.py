"""What makes the responses of a run worthless as evidence, whatever they say."""

import hashlib
from collections.abc import Iterator, Mapping

from evalsuite import early
from evalsuite.contradictions import find_contradictions, is_rewritten, same_tokenizer, timing
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
    if run.meta.get("stop_early") and list(run.questions) != early.shuffle(run.questions, run.meta["sampling"]["seed"]):
        yield "questions.jsonl is not in the order that --stop-early asks in, so where it stopped may have been chosen"
    yield from find_contradictions(run)
    baseline, candidate = responses["baseline"], responses["candidate"]
    yield from _find_mixed_pairs(
        run, [(baseline[key], candidate[key]) for key in keys if key in baseline and key in candidate]
    )


def _find_mixed_pairs(run: Run, both: list[tuple[Response, Response]]) -> Iterator[str]:
    copied = [one for one, other in both if one.seconds is not None and timing(one) == timing(other)]
    if copied:
        yield (
            f"{len(copied)} pairs hold the same response twice, its timing included, so one arm was not asked; the "
            f"first is to {copied[0].question!r}"
        )
    alike = same_tokenizer(run)
    unequal = [
        one
        for one, other in both
        if None not in (one.prompt_tokens, other.prompt_tokens) and one.prompt_tokens != other.prompt_tokens
    ]
    if alike and unequal:
        yield (
            f"{len(unequal)} pairs were asked with prompts of unequal length; the first is to {unequal[0].question!r}"
        )
    if alike and (rewritten := [one for one, other in both if is_rewritten(one, other)]):
        yield (
            f"{len(rewritten)} pairs hold one text for different tokens, or different texts for the same; the first is "
            f"to {rewritten[0].question!r}"
        )
