"""Evidence that contradicts itself: no server answered so, whatever the answers say.

What is not known, null, contradicts nothing, except in an arm that evalsuite started: there it is always known.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from evalsuite.arms import find_flag
from evalsuite.journal import Run
from evalsuite.receipts import plan_fingerprint
from evalsuite.records import ARMS, Response, seed_of

_ONE_VALUE = ("layers", "backends", "backend_names", "flash_attn_version", "max_num_batched_tokens", "digest")
"""What all receipts of an arm say alike: one configuration of one model served them."""
_RESPLIT = 4
"""Longest run of tokens that another run of tokens may stand for in the same text."""


def find_contradictions(run: Run) -> Iterator[str]:
    """Yield one line for each way in which a run's responses contradict themselves, each other or run.json."""
    receipts: dict[str, list[Mapping[str, Any]]] = {}
    for arm in ARMS:
        configured, served = run.meta["arms"][arm], [r for r in run.responses[arm] if r.error is None]
        receipts[arm] = [response.receipt for response in served if response.receipt is not None]
        told = [(response, find_contradiction(response, run.meta, configured)) for response in run.responses[arm]]
        found = [(response.question, why) for response, why in told if why]
        if found:
            yield (
                f"{arm}: {len(found)} of {len(told)} responses contradict themselves; the first is to "
                f"{found[0][0]!r}: {found[0][1]}"
            )
        times = Counter(timing(response) for response in served if response.seconds is not None)
        if repeated := times.total() - len(times):
            yield f"{arm}: {repeated} responses repeat another of the same arm, its timing included"
        for name in _ONE_VALUE:
            values = {json.dumps(receipt.get(name), sort_keys=True) for receipt in receipts[arm]}
            if len(values) > 1:
                yield f"{arm}: its receipts name different {name}: {' and '.join(sorted(values)[:2])}"
        # Only what is attached to has no kernel to prove, and gives no receipts. An imported log has no address.
        if configured.get("kernel") is None and "url" in configured:
            if receipts[arm]:
                yield f"{arm}: run.json demands no kernel, and {len(receipts[arm])} responses carry receipts of one"
            elif not configured["url"]:
                yield f"{arm}: run.json names neither a kernel to prove nor the server that was attached to"
    # Arms that were put side by side come from two plans.
    together = [[*receipts["baseline"], *receipts["candidate"]]] if _is_one_run(run) else receipts.values()
    for each in together:
        yield from _find_unstamped(each, run.meta)


def _is_one_run(run: Run) -> bool:
    return "attention" in run.meta  # which of a run.json is demanded


def _find_unstamped(receipts: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Iterator[str]:
    for name in ("arm", "plan"):
        lacking = sum(name not in receipt for receipt in receipts)
        if lacking and (meta.get("stamped") or lacking < len(receipts)):
            yield f"{lacking} of {len(receipts)} receipts do not name the {name} that they were taken for"
    if "attention" in meta:
        stamp = plan_fingerprint(meta)
        foreign = sum(receipt.get("plan", stamp) != stamp for receipt in receipts)
        if foreign:
            yield f"{foreign} receipts were taken for other questions or another sampling than run.json names"


def find_contradiction(response: Response, meta: Mapping[str, Any], arm: Mapping[str, Any]) -> str | None:
    """Return how a response of an arm contradicts itself or run.json (`meta`), None where it does not."""
    sampling, tokens = meta["sampling"], response.tokens
    if response.error is not None:
        held = response.text is not None or tokens is not None
        return "it is an error and holds a response" if held else None
    if arm.get("kernel") is not None and None in (response.prompt_tokens, tokens, response.seconds):
        return "how many tokens it has, or how long it took, is missing"
    # A server that is attached to may hold less than was planned, which shows as truncation.
    budget = sampling.get("budget") if arm.get("kernel") is not None else None
    return _check_length(response, budget) or _check_times(response) or _check_sampling(response, meta, arm)


def _check_length(response: Response, budget: int | None) -> str | None:
    tokens = response.tokens
    if tokens is None:
        return None
    for name in ("token_ids", "logprobs", "runner_up_ids", "runner_up_logprobs"):
        values = getattr(response, name)
        if values is not None and len(values) != tokens:
            return f"it has {tokens} tokens and {len(values)} {name}"
    if budget is None:
        return None
    if tokens > budget:
        return f"it has {tokens} tokens, more than the budget of {budget}"
    if response.finish_reason == "length" and tokens < budget:
        return f"{tokens} tokens ended it as too long, and the budget is {budget}; was the server's context too short?"
    return None


def _check_times(response: Response) -> str | None:
    seconds, first = response.seconds, response.seconds_to_first_token
    if seconds is not None and seconds <= 0:
        return f"it took {seconds} s"
    if first is not None and (first <= 0 or (seconds is not None and first > seconds)):
        return f"its first token came after {first} s of {seconds}"
    return None


def _check_sampling(response: Response, meta: Mapping[str, Any], arm: Mapping[str, Any]) -> str | None:
    sampling = meta["sampling"]
    if "attention" not in meta:  # no run.json, or two that may differ in their seed
        return None
    seed = seed_of(sampling["seed"], response.question, response.sample)
    if response.seed != seed:
        return f"its seed is {response.seed}, and the plan's {seed}"
    if arm.get("kernel") is None:
        return None
    if isinstance(response.stop_reason, str) and response.stop_reason not in sampling["until"]:
        return f"{response.stop_reason!r} ended it, which is no stop string of the plan"
    # The engine may be steps ahead when a stop string is noticed, and never beyond the budget.
    last = _last_position(response.receipt)
    if response.prompt_tokens is not None and last > response.prompt_tokens + sampling["budget"]:
        return f"its receipt shows a KV length of {last - 1}, beyond prompt and budget"
    return None


def _last_position(receipt: Mapping[str, Any] | None) -> int:
    try:
        return int((receipt or {})["positions"][-1][1])
    except (LookupError, TypeError, ValueError):
        return 0  # `receipts.check` says what is wrong with it


def timing(response: Response) -> tuple[float | None, float | None, str | None]:
    """Return what no two responses share: a clock read to the nanosecond does not show the same times twice."""
    return response.seconds, response.seconds_to_first_token, response.text


def same_tokenizer(run: Run) -> bool:
    """Return whether both arms are known to turn the same tokens into the same text."""
    arms = [run.meta["arms"][arm] for arm in ARMS]
    weights = {arm.get("model_sha256") for arm in arms}
    tokenizers = {find_flag(arm.get("args", ()), "--tokenizer") for arm in arms}
    return len(weights) == 1 and None not in weights and len(tokenizers) == 1


def is_rewritten(one: Response, other: Response) -> bool:
    """Return whether a text was changed: two responses have the same tokens and other texts, or the reverse.

    A text can have two spellings in tokens, but where such spellings differ they are short; and what ends a response
    is not in its text.
    """
    ids, others = one.token_ids, other.token_ids
    if ids is None or others is None or one.error is not None or other.error is not None:
        return False
    if isinstance(one.stop_reason, str) or isinstance(other.stop_reason, str):
        return False  # a stop string's tokens are not in the text
    if ids == others:
        return one.text != other.text
    if one.text != other.text:
        return False
    stretches = SequenceMatcher(None, ids[:-1], others[:-1], autojunk=False).get_opcodes()
    return any(
        max(end - start, stop - begin) > _RESPLIT for kind, start, end, begin, stop in stretches if kind != "equal"
    )
