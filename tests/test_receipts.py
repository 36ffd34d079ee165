"""Only a receipt that adds up proves which kernel served a response."""

from dataclasses import replace

import pytest

from evalsuite.receipts import audit, check
from made_runs import DIGEST, KERNELS, LAYERS, STOCK, make_meta, make_receipt, make_response

ARMS = make_meta([])["arms"]
HYBRID_ARM, STOCK_ARM = ARMS["candidate"], ARMS["baseline"]


def hybrid_response(*, receipt=None, prompt=40, tokens=20, **changes):
    served = make_receipt("split_kv", prompt_tokens=prompt, tokens=tokens)
    return make_response(
        "q000", "candidate", "r", prompt_tokens=prompt, tokens=tokens, receipt=served | (receipt or {}), **changes
    )


def test_a_receipt_of_every_decode_step_is_proof():
    assert check(hybrid_response(), HYBRID_ARM) is None
    assert check(make_response("q000", "baseline", "r"), STOCK_ARM) is None


@pytest.mark.parametrize("layers, prompt, tokens", [(1, 2, 1), (16, 2, 2), (30, 784, 96), (30, 1, 1), (30, 1, 7)])
def test_the_steps_expected_follow_from_prompt_and_tokens(layers, prompt, tokens):
    # A prompt of one token is prefilled by a step of one request and one token: split-KV serves it, too.
    steps = list(range(prompt + 1 if prompt > 1 else 1, prompt + tokens))
    runs = [[steps[0], steps[-1] + 1, layers]] if steps else []
    counts = {"layers": layers, "split_kv": layers * len(steps), "positions": runs}
    assert check(hybrid_response(prompt=prompt, tokens=tokens, receipt=counts), HYBRID_ARM) is None


def test_the_prefill_of_a_longer_prompt_must_not_show():
    counts = {"split_kv": LAYERS * 20, "positions": [[40, 60, LAYERS]]}
    assert "KV lengths" in check(hybrid_response(receipt=counts), HYBRID_ARM)


@pytest.mark.parametrize(
    "receipt, told",
    [
        ({"split_kv": 0, "positions": []}, "KV lengths [], not 41 to 59"),
        ({"split_kv": LAYERS * 18, "positions": [[41, 59, LAYERS]]}, "KV lengths"),
        ({"split_kv": LAYERS * 18, "positions": [[42, 60, LAYERS]]}, "KV lengths"),
        ({"split_kv": LAYERS * 18, "positions": [[41, 50, LAYERS], [51, 60, LAYERS]]}, "KV lengths"),
        ({"split_kv": LAYERS * 20, "positions": [[41, 61, LAYERS]]}, "KV lengths"),
        ({"split_kv": (LAYERS - 1) * 19, "positions": [[41, 60, LAYERS - 1]]}, "KV lengths"),
        ({"split_kv": LAYERS * 19 - 1}, "569 split-KV launches"),
        ({"split_kv": LAYERS * 38}, "1140 split-KV launches"),
        ({"fallback": 1}, "1 calls fell back"),
        ({"layers": 0, "split_kv": 0, "positions": []}, "no layer"),
        ({"backends": {STOCK: LAYERS}}, "0 run the attention package"),
        ({"backend_names": {"CUSTOM": LAYERS}}, "served by backend CUSTOM, not by CPU_ATTN"),
        ({"backend_names": {"CPU_ATTN": LAYERS - 1, "CUSTOM": 1}}, "served by backend CPU_ATTN, CUSTOM"),
        ({"positions": None}, "not one of the attention package"),
        ({"positions": [[41]]}, "KV lengths"),
        ({"layers": "30"}, "not one of the attention package"),
        ({"max_num_batched_tokens": 0}, "not one of the attention package"),
        ({"backends": None}, "not one of the attention package"),
    ],
)
def test_a_receipt_that_does_not_add_up_is_no_proof(receipt, told):
    assert told in check(hybrid_response(receipt=receipt), HYBRID_ARM)


@pytest.mark.parametrize("receipt", [{}, [], "x", {"layers": LAYERS}])
def test_foreign_json_is_no_proof(receipt):
    response = make_response("q000", "candidate", "r", receipt=receipt)
    assert "not one of the attention package" in check(response, HYBRID_ARM)
    assert audit([response], HYBRID_ARM, DIGEST).proven is False


def test_the_receipt_of_a_response_with_another_number_of_tokens_is_no_proof():
    response = hybrid_response(tokens=20)
    assert check(replace(response, tokens=21), HYBRID_ARM)
    assert check(replace(response, prompt_tokens=41), HYBRID_ARM)
    assert check(replace(response, tokens=None), HYBRID_ARM)


def test_a_stop_string_allows_whole_steps_after_the_last_token_and_nothing_else():
    def stopped(positions, launches, **changes):
        return hybrid_response(receipt={"positions": positions, "split_kv": launches}, stop_reason="\n\n", **changes)

    assert check(stopped([[41, 60, LAYERS]], LAYERS * 19), HYBRID_ARM) is None
    assert check(stopped([[41, 62, LAYERS]], LAYERS * 21), HYBRID_ARM) is None
    assert check(stopped([[41, 42, LAYERS]], LAYERS, tokens=1), HYBRID_ARM) is None
    assert check(stopped([[41, 59, LAYERS]], LAYERS * 18), HYBRID_ARM)
    assert check(stopped([[41, 60, LAYERS], [61, 62, LAYERS]], LAYERS * 20), HYBRID_ARM)
    assert check(stopped([[41, 60, LAYERS], [60, 61, LAYERS - 1]], LAYERS * 20 - 1), HYBRID_ARM)
    # A stop token id is a whole number; the engine itself ends on it.
    assert check(replace(stopped([[41, 62, LAYERS]], LAYERS * 21), stop_reason=2), HYBRID_ARM)


def test_a_stock_arm_must_not_show_split_kv():
    for kernel, arm in (("split_kv", STOCK_ARM), ("stock", HYBRID_ARM)):
        served = make_receipt(kernel, prompt_tokens=40, tokens=20)
        response = make_response("q000", "baseline", "r", prompt_tokens=40, tokens=20, receipt=served)
        assert check(response, arm)


def test_the_hybrid_switched_off_is_a_stock_arm():
    served = make_receipt("split_kv", prompt_tokens=40, tokens=20) | {"split_kv": 0, "positions": [], "fallback": 570}
    response = make_response("q000", "baseline", "r", receipt=served)
    assert check(response, STOCK_ARM) is None


def test_no_receipt_is_no_proof_except_where_none_can_be_demanded():
    response = make_response("q000", "candidate", "r", receipt=None)
    assert check(response, HYBRID_ARM) == check(response, STOCK_ARM) == "no receipt"
    assert check(response, HYBRID_ARM | {"kernel": None}) is None
    assert "not known" in check(response, HYBRID_ARM | {"kernel": "fast"})


def test_audit_tells_proven_from_not_proven_from_not_demanded():
    served = [make_response(f"q{i:03d}", "candidate", "r") for i in range(5)]
    proof = audit(served, HYBRID_ARM, DIGEST)
    assert proof.proven is True and proof.receipts == 5 and proof.fallback == 0
    assert proof.split_kv == LAYERS * sum(response.tokens - 1 for response in served)
    assert audit(served, HYBRID_ARM | {"kernel": None}, None).proven is None
    bare = [replace(response, receipt=None) for response in served]
    unproven = audit(bare, HYBRID_ARM | {"kernel": None}, None)
    assert (unproven.proven, unproven.receipts, unproven.split_kv) == (None, 0, None)


def test_one_bad_receipt_of_many_spoils_the_proof_and_is_named():
    served = [make_response(f"q{i:03d}", "candidate", "r") for i in range(5)]
    served[3] = replace(served[3], receipt=served[3].receipt | {"fallback": 2})
    proof = audit(served, HYBRID_ARM, DIGEST)
    assert proof.proven is False
    assert proof.problems[0].startswith(
        "1 of 5 responses do not show the arm's own kernel; the first is 'q003': 2 calls"
    )


@pytest.mark.parametrize("digest", [None, "e" * 64])
@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_another_attention_package_than_the_run_names_is_no_proof(arm, digest):
    proof = audit([make_response("q000", arm, "r")], ARMS[arm], digest)
    assert proof.proven is False and "attention package" in proof.problems[0]


def test_errors_carry_no_receipt_and_are_no_proof_either():
    served, failed = make_response("q000", "candidate", "r"), make_response("q001", "candidate", "e")
    assert audit([served, failed], HYBRID_ARM, DIGEST).proven is True
    assert audit([failed], HYBRID_ARM, DIGEST).proven is False
    assert audit([], STOCK_ARM, DIGEST).proven is False


def test_responses_of_one_token_never_ran_the_kernel():
    served = [hybrid_response(tokens=1)]
    proof = audit(served, HYBRID_ARM, DIGEST)
    assert check(served[0], HYBRID_ARM) is None
    assert proof.proven is False and "never ran" in proof.problems[0]


def test_a_kernel_that_ran_for_less_than_half_of_the_responses_was_not_tested():
    one, more = hybrid_response(tokens=1), hybrid_response(tokens=2)
    assert audit([one, more] * 5, HYBRID_ARM, DIGEST).proven is True
    proof = audit([one, more] * 5 + [one], HYBRID_ARM, DIGEST)
    assert proof.proven is False and proof.problems[0].startswith("6 of 11 responses have no decode step")


def test_the_stock_class_beside_the_packages_is_no_proof():
    receipt = {"backends": {"evalsuite_attention.cpu.HybridImpl": LAYERS, STOCK: 2}}
    assert "2 layers run the stock class beside 30" in check(hybrid_response(receipt=receipt), HYBRID_ARM)


def test_the_backend_and_the_version_that_an_arm_is_asked_for_are_demanded():
    unnamed = STOCK_ARM | {"backend": None}
    response = make_response("q000", "baseline", "r")
    assert check(response, unnamed) is None
    asked = unnamed | {"args": ["--attention-backend", "CUSTOM"]}
    assert check(response, asked) == "served by backend CPU_ATTN, not by CUSTOM"
    third = STOCK_ARM | {"flash_attn_version": 3}
    served = [replace(response, receipt=response.receipt | {"flash_attn_version": each}) for each in (2, 3, None)]
    assert [check(each, third) for each in served] == ["served by FlashAttention version 2, not by 3", None, None]
    assert check(response, third) is None  # receipts of older runs do not name it


def test_the_made_arms_are_what_these_tests_take_them_for():
    assert {arm: configured["kernel"] for arm, configured in ARMS.items()} == KERNELS
