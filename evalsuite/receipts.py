"""What a receipt proves: which kernel served the tokens of a response.

A run whose candidate never ran its own kernel compares the baseline with itself and finds no difference. So each
response carries what the attention package counted while it was served, and is held against what its arm's `kernel`
promises. A token costs one launch per layer, and the log names the KV length of every step that split-KV served: a
missing step, one too many, or the receipt of another response does not add up.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.arms import named_backend
from evalsuite.records import Response

PACKAGE = "evalsuite_attention."
"""Where the classes live that run split-KV."""
_REPLACED = ("FlashAttentionImpl", "CPUAttentionBackendImpl")
"""The stock classes whose place they take in every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the receipts of one arm add up to."""

    proven: bool | None
    """Whether every response shows the arm's own kernel; None where no receipt can be demanded: not proven."""
    receipts: int
    """Responses that carry a receipt."""
    split_kv: int | None
    """Launches of split-KV, one per layer and step; None without receipts."""
    fallback: int | None
    """Attention calls that the stock kernel served although split-KV could have; None without receipts."""
    problems: tuple[str, ...]
    """Why `proven` is False, one line each."""


def fingerprint(arm: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an arm as run.json describes it. Each receipt names the arm that it was taken from."""
    described = {key: value for key, value in arm.items() if key != "attention"}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def plan_fingerprint(meta: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what run.json says was asked, and how. Each receipt names it, too."""
    return fingerprint({key: meta.get(key) for key in ("questions_sha256", "sampling", "stop_early", "margin")})


def check(response: Response, arm: Mapping[str, Any]) -> str | None:
    """Return None where the receipt proves what the arm's `kernel` promises, else one line that says why not.

    `split_kv`: every decode step shows, once per layer, at its own KV length, and no call fell back. With P prompt
    tokens and G generated ones those are the lengths P+1 to P+G-1. Where the last token of a prompt is prefilled by
    itself (a prompt of one token, or one token more than whole chunks of prefill), that is a step of one request and
    one token too, and shows at P. A response that a stop string ended may show whole steps after its last token: the
    engine had begun them before the string was noticed.
    `stock`: split-KV shows nowhere. None: nothing is demanded. A response that is an error has no receipt and passes.
    """
    kernel = arm.get("kernel")
    if kernel is None or response.error is not None:
        return None
    if kernel not in ("stock", "split_kv"):
        return f"kernel {kernel!r} is not known, so nothing can be proven"
    receipt = response.receipt
    if receipt is None:
        return "no receipt"
    try:
        if "arm" in receipt and receipt["arm"] != fingerprint(arm):
            return "it was taken from another arm than the one that run.json names here"
        return _check_backend(receipt, arm) or _check_counts(response, receipt, kernel)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return f"the receipt is not one of the attention package ({type(error).__name__}: {error})"


def _check_backend(receipt: Mapping[str, Any], arm: Mapping[str, Any]) -> str | None:
    names, demanded = receipt["backend_names"], arm.get("backend") or named_backend(arm.get("args", ()))
    if demanded is not None and set(names) != {demanded}:
        return f"served by backend {', '.join(sorted(names)) or 'none'}, not by {demanded}"
    version, found = arm.get("flash_attn_version"), receipt.get("flash_attn_version")
    if None not in (version, found) and version != found:
        return f"served by FlashAttention version {found}, not by {version}"
    # The hybrid may keep the stock backend's name, so its class says more.
    classes = receipt["backends"]
    ours = sum(layers for name, layers in classes.items() if name.startswith(PACKAGE))
    if arm["kernel"] == "split_kv" and ours < receipt["layers"]:
        return f"{receipt['layers']} layers count split-KV launches, but {ours} run the attention package"
    stock = sum(layers for name, layers in classes.items() if name.rpartition(".")[2] in _REPLACED)
    if arm["kernel"] == "split_kv" and stock:
        return f"{stock} layers run the stock class beside {ours} that run the attention package"
    return None


def _check_counts(response: Response, receipt: Mapping[str, Any], kernel: str) -> str | None:
    layers, split_kv, fallback = receipt["layers"], receipt["split_kv"], receipt["fallback"]
    positions = [[int(number) for number in run] for run in receipt["positions"]]
    if kernel == "stock":
        stock = type(split_kv) is int and not split_kv and not positions
        return None if stock else f"split-KV served {split_kv} calls of a stock arm"
    prompt, tokens = response.prompt_tokens, response.tokens
    if prompt is None or tokens is None or prompt < 1 or tokens < 1:
        return f"{prompt} prompt tokens and {tokens} generated ones: no decode step can be counted"
    if layers < 1:
        return "no layer can use split-KV"
    if type(fallback) is not int or fallback:
        return f"{fallback} calls fell back to the stock kernel"
    alone = prompt % receipt["max_num_batched_tokens"] == 1
    start = prompt if alone else prompt + 1
    stop = prompt + tokens
    if isinstance(response.stop_reason, str) and positions:
        stop = max(stop, positions[-1][1])
    if positions != ([[start, stop, layers]] if start < stop else []):
        return f"split-KV served KV lengths {positions}, not {start} to {stop - 1} by {layers} layers"
    if split_kv != layers * (stop - start):
        return f"{split_kv} split-KV launches, not {layers} layers x {stop - start} steps"
    return None


def audit(responses: Sequence[Response], arm: Mapping[str, Any], digest: str | None) -> Proof:
    """Return what the receipts of an arm prove, taken together.

    `digest` is the SHA-256 of the attention package that the run says it measured; every receipt must name it. An arm
    with a `kernel` is not proven by silence: it needs a receipt, and `split_kv` decode steps in half of its responses.
    """
    served = [response for response in responses if response.error is None]
    receipts = [response.receipt for response in served if isinstance(response.receipt, Mapping)]
    split_kv, fallback = _total(receipts, "split_kv"), _total(receipts, "fallback")
    if arm.get("kernel") is None:
        return Proof(proven=None, receipts=len(receipts), split_kv=split_kv, fallback=fallback, problems=())
    faults = find_faults(served, arm, digest)
    prefilled = sum(response.tokens == 1 for response in served)
    problems = []
    if faults:
        response, fault = faults[0]
        problems.append(
            f"{len(faults)} of {len(served)} responses do not show the arm's own kernel; the first is "
            f"{response.question!r}: {fault}"
        )
    elif not served:
        problems.append("no response carries a receipt, so nothing shows which kernel served")
    elif arm["kernel"] == "split_kv" and 2 * prefilled > len(served):
        problems.append(
            f"{prefilled} of {len(served)} responses have no decode step: split-KV never ran for them, and their one "
            "token comes from the prefill, which is the same in both arms; give a larger budget"
        )
    return Proof(
        proven=not problems, receipts=len(receipts), split_kv=split_kv, fallback=fallback, problems=tuple(problems)
    )


def find_faults(
    responses: Sequence[Response], arm: Mapping[str, Any], digest: str | None
) -> list[tuple[Response, str]]:
    """Return the responses that do not show what the arm promises, each with why; errored ones show nothing."""
    if arm.get("kernel") is None:
        return []
    served = [response for response in responses if response.error is None]
    faults = [(response, check(response, arm) or _check_digest(response, digest)) for response in served]
    return [(response, fault) for response, fault in faults if fault]


def _check_digest(response: Response, digest: str | None) -> str | None:
    found = (response.receipt or {}).get("digest")
    if digest is None:
        return "run.json names no digest of the attention package"
    return None if found == digest else f"served by attention package {found}, but run.json names {digest}"


def _total(receipts: Sequence[Mapping[str, Any]], name: str) -> int | None:
    numbers = [receipt[name] for receipt in receipts if isinstance(receipt.get(name), int)]
    return sum(numbers) if numbers else None
