"""A run whose evidence contradicts itself is INVALID, and one that merely says less is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.contradictions import find_contradictions, is_rewritten
from evalsuite.errors import UserError
from evalsuite.journal import Run, load_run
from evalsuite.receipts import fingerprint, plan_fingerprint
from evalsuite.records import ARMS, Response
from evalsuite.verdict import Verdict, decide
from made_runs import compared, make_question, make_response, make_run, write_run

GOOD = make_run("rr " * 60)
BUDGET = 96


def problems(run: Run) -> tuple[str, ...]:
    return compared(run).problems


def change(run: Run, arm: str, numbers: range, **fields: Any) -> Run:
    """Return the run with some responses of an arm changed; a field of the receipt is named receipt_FIELD."""
    inner = {name.removeprefix("receipt_"): value for name, value in fields.items() if name.startswith("receipt_")}
    outer = {name: value for name, value in fields.items() if not name.startswith("receipt_")}
    responses = list(run.responses[arm])
    for number in numbers:
        found = replace(responses[number], **outer)
        responses[number] = replace(found, receipt={**found.receipt, **inner}) if found.receipt and inner else found
    return replace(run, responses={**run.responses, arm: tuple(responses)})


def change_arm(run: Run, arm: str, **fields: Any) -> Run:
    return replace(run, meta=run.meta | {"arms": run.meta["arms"] | {arm: run.meta["arms"][arm] | fields}})


def stamped(run: Run) -> Run:
    """Return the run as `run` writes it: each receipt names arm and plan."""
    plan = plan_fingerprint(run.meta)
    responses = {
        arm: tuple(
            replace(r, receipt={**(r.receipt or {}), "arm": fingerprint(run.meta["arms"][arm]), "plan": plan})
            for r in run.responses[arm]
        )
        for arm in ARMS
    }
    return replace(run, responses=responses, meta=run.meta | {"stamped": True})


@pytest.mark.parametrize("run", [GOOD, stamped(GOOD)], ids=["old", "new"])
def test_a_run_as_it_is_recorded_contradicts_nothing(run: Run) -> None:
    assert problems(run) == ()


def test_one_word_changed_does_not_turn_a_fail_into_a_pass() -> None:
    run = make_run("rr " * 80 + "rw " * 12)
    assert decide(compared(run), margin=0.1).verdict is Verdict.FAIL
    decision = decide(compared(change(run, "baseline", range(80, 92), finish_reason="length")), margin=0.1)
    assert decision.verdict is Verdict.INVALID
    assert "12 of 92 responses contradict themselves" in decision.headline


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"finish_reason": "length"}, "ended it as too long, and the budget is 96"),
        ({"tokens": BUDGET + 1}, "97 tokens, more than the budget of 96"),
        ({"seed": 5}, "its seed is 5, and the plan's"),
        ({"seed": None}, "its seed is None"),
        ({"token_ids": (1,)}, "1 token_ids"),
        ({"logprobs": (-1.0,)}, "1 logprobs"),
        ({"runner_up_ids": (1,)}, "1 runner_up_ids"),
        ({"seconds": -1.0}, "it took -1.0 s"),
        ({"seconds": 0.0}, "it took 0.0 s"),
        ({"seconds_to_first_token": 99.0}, "its first token came after 99.0 s"),
        ({"seconds_to_first_token": -0.1}, "its first token came after -0.1 s"),
        ({"seconds": None}, "is missing"),
        ({"tokens": None}, "is missing"),
        ({"prompt_tokens": None}, "is missing"),
        ({"stop_reason": "X"}, "'X' ended it, which is no stop string of the plan"),
        ({"error": "boom"}, "an error and holds a response"),
    ],
)
def test_what_no_server_says_of_a_response_is_named(fields: dict[str, Any], told: str) -> None:
    for arm in ARMS:
        found = [line for line in find_contradictions(change(GOOD, arm, range(3, 4), **fields)) if told in line]
        assert len(found) == 1 and found[0].startswith(f"{arm}: 1 of 60 ") and "'q003'" in found[0]


def test_a_stop_string_does_not_make_a_receipt_longer_than_the_budget() -> None:
    def stopped(beyond: int) -> Run:
        sampling = GOOD.meta["sampling"] | {"until": ["X"]}
        response = GOOD.responses["candidate"][0]
        assert response.prompt_tokens and response.tokens and response.receipt
        [[start, _, layers]] = response.receipt["positions"]
        stop = response.prompt_tokens + BUDGET + beyond
        run = replace(GOOD, meta=GOOD.meta | {"sampling": sampling})
        return change(run, "candidate", range(1), stop_reason="X", receipt_positions=[[start, stop, layers]],
                      receipt_split_kv=layers * (stop - start))  # fmt: skip

    assert problems(stopped(0)) == ()
    assert "beyond prompt and budget" in problems(stopped(1))[0]


def test_a_second_clock_that_shows_the_same_times_is_a_copy() -> None:
    first = GOOD.responses["candidate"][0]
    run = change(GOOD, "candidate", range(1, 2), seconds=first.seconds)
    assert [line for line in problems(run) if "1 responses repeat another of the same arm" in line]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", 1),
        ("backends", {"evalsuite_attention.cpu.HybridImpl": 30, "x.OtherImpl": 2}),
        ("backend_names", {"CPU_ATTN": 1}),
        ("max_num_batched_tokens", 4096),
        ("flash_attn_version", 2),
    ],
)
def test_receipts_of_one_arm_that_disagree_are_named(name: str, value: Any) -> None:
    run = change(GOOD, "candidate", range(0, 60, 2), **{f"receipt_{name}": value})
    assert any(f"candidate: its receipts name different {name}" in line for line in problems(run))


@pytest.mark.parametrize("numbers", [range(60), range(0, 60, 2)], ids=["all", "half"])
@pytest.mark.parametrize("demanded", [True, False])
@pytest.mark.parametrize("stamp", ["arm", "plan"])
def test_a_stamp_that_was_taken_off_is_missed(stamp: str, demanded: bool, numbers: range) -> None:
    run = stamped(GOOD)
    responses = list(run.responses["candidate"])
    for number in numbers:
        receipt = {key: value for key, value in (responses[number].receipt or {}).items() if key != stamp}
        responses[number] = replace(responses[number], receipt=receipt)
    meta = run.meta | {"stamped": demanded}
    run = replace(run, meta=meta, responses={**run.responses, "candidate": tuple(responses)})
    assert problems(run) == (f"{len(numbers)} of 120 receipts do not name the {stamp} that they were taken for",)


def test_where_stamps_are_demanded_none_is_not_enough() -> None:
    assert len(problems(replace(GOOD, meta=GOOD.meta | {"stamped": True}))) == 2


@pytest.mark.parametrize("changed", [{"budget": 128}, {"temperature": 0.5}, {"until": ["x"]}])
def test_responses_that_were_sampled_otherwise_than_run_json_says_are_no_evidence(changed: dict[str, Any]) -> None:
    run = stamped(GOOD)
    found = problems(replace(run, meta=run.meta | {"sampling": run.meta["sampling"] | changed}))
    assert found == ("120 receipts were taken for other questions or another sampling than run.json names",)


def test_an_arm_that_demands_no_kernel_carries_no_receipts() -> None:
    fallen = change(GOOD, "candidate", range(60), receipt_fallback=9, receipt_split_kv=0, receipt_positions=[])
    found = problems(change_arm(fallen, "candidate", kernel=None))
    assert found == ("candidate: run.json demands no kernel, and 60 responses carry receipts of one",)


def test_an_attached_server_may_say_less_and_an_errored_response_nothing() -> None:
    bare: dict[str, Any] = {
        "receipt": None, "tokens": None, "prompt_tokens": None, "seconds_to_first_token": None, "stop_reason": "</s>",
    }  # fmt: skip
    run = make_run("rr " * 60 + "ee " * 2)
    for arm in ARMS:
        run = change_arm(change(run, arm, range(60), **bare), arm, kernel=None, url=f"http://{arm}:1")
    assert problems(run) == ()


def rewritten(one: dict[str, Any], other: dict[str, Any]) -> bool:
    base: Callable[..., Response] = lambda **fields: make_response("q000", "baseline", "r", **fields)  # noqa: E731
    return is_rewritten(base(**one), base(**other))


@pytest.mark.parametrize(
    ("ids", "others", "text", "expected"),
    [
        ((1, 2, 3, 0), (1, 2, 3, 0), "same", False),
        ((1, 2, 3, 0), (1, 2, 3, 0), "other", True),
        ((1, 2, 3, 0), (1, 5, 3, 0), "other", False),
        ((1, 2, 3, 0), (1, 5, 3, 0), "same", False),
        ((1, 2, 3, 0), (1, 2, 3, 9), "same", False),  # two end tokens
        ((1, 2, 3, 4, 0), (1, 7, 4, 0), "same", False),  # "12" as one token and as two
        ((1, 2, 3, 4, 0), (1, 2, 3, 4), "same", False),
        (tuple(range(20)), tuple(range(100, 120)), "same", True),
        ((1, 2, 3, 4, 5, 6, 7, 8, 0), (1, 20, 4, 5, 6, 7, 80, 90, 0), "same", False),  # two short respellings
        (None, (1, 2), "other", False),
    ],
)
def test_a_text_belongs_to_its_tokens(ids: Any, others: Any, text: str, expected: bool) -> None:
    assert rewritten({"token_ids": ids, "text": "same"}, {"token_ids": others, "text": text}) is expected


def test_a_text_copied_from_the_other_arm_is_invalid_where_both_have_one_tokenizer() -> None:
    run = GOOD
    for arm, first in (("baseline", 100), ("candidate", 500)):
        tokens = run.responses[arm][7].tokens
        assert tokens
        run = change(run, arm, range(7, 8), token_ids=tuple(range(first, first + tokens)))
    assert problems(run)[0].startswith("1 pairs hold one text for different tokens")
    assert problems(change_arm(run, "candidate", model_sha256="n" * 64)) == ()
    assert problems(change_arm(run, "candidate", args=["--tokenizer", "other"])) == ()


def test_a_run_of_fixed_length_does_not_become_one_that_stopped_early() -> None:
    run = replace(GOOD, meta=GOOD.meta | {"stop_early": {"alpha": 0.05}, "margin": 0.2})
    assert problems(run)[0].startswith("questions.jsonl is not in the order that --stop-early asks in")
    assert problems(make_run("rr " * 60, stop_early={"alpha": 0.05}, margin=0.2)) == ()


def test_questions_with_one_prompt_are_one_cluster_whatever_they_are_called() -> None:
    questions = list(GOOD.questions)
    for number, twin in ((1, 0), (2, 1)):
        questions[number] = make_question(number, prompt_sha256=questions[twin].prompt_sha256)
    questions[4] = make_question(4, cluster=questions[3].cluster)
    questions[5] = make_question(5, prompt_sha256=questions[4].prompt_sha256)
    pairs = compared(replace(GOOD, questions=tuple(questions), meta=GOOD.meta | {"questions_sha256": None})).pairs
    assert len({pair.cluster for pair in pairs[:3]}) == len({pair.cluster for pair in pairs[3:6]}) == 1
    assert len({pair.cluster for pair in pairs}) == 56


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("file", ["run.json", "candidate.jsonl"])
def test_no_reader_takes_a_number_that_is_none(tmp_path: Path, file: str, value: str) -> None:
    path = write_run(replace(GOOD, path=tmp_path / "run")) / file
    name = '"temperature":' if file == "run.json" else '"layers":'
    head, _, tail = path.read_text().partition(name)
    path.write_text(head + name + value + tail[tail.index(",") :])
    with pytest.raises(UserError, match="is no finite number"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("questions.jsonl", '"kind":"mcq","options":4', '"kind":"number"'),
        ("candidate.jsonl", '"token_ids":null', '"token_ids":["a"]'),
        ("candidate.jsonl", '"logprobs":null', '"logprobs":["a"]'),
    ],
)
def test_what_later_steps_could_not_read_is_refused_with_its_line(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    path = write_run(replace(GOOD, path=tmp_path / "run")) / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match="line 1: not a record of evalsuite"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("side", ARMS)
def test_an_arm_with_neither_kernel_nor_address_proves_nothing(side: str) -> None:
    """Without both, receipts could be taken off a run that was started here, and with them what they show."""
    bare = {arm: tuple(replace(r, receipt=None) for r in GOOD.responses[arm]) for arm in ARMS}
    run = change_arm(replace(GOOD, responses=GOOD.responses | {side: bare[side]}), side, kernel=None)
    assert problems(run) == (f"{side}: run.json names neither a kernel to prove nor the server that was attached to",)
    assert problems(change_arm(run, side, url="http://host:8000")) == ()


@pytest.mark.parametrize("added", [{"stop_early": {"alpha": 0.05}, "margin": 0.2}, {"margin": 0.2}])
def test_receipts_were_taken_under_one_rule_of_stopping_and_one_margin(added: dict[str, Any]) -> None:
    run = stamped(GOOD)
    assert any("other questions" in line for line in problems(replace(run, meta=run.meta | added)))


def test_a_server_that_was_attached_to_may_cut_a_response_off_earlier() -> None:
    run = change_arm(GOOD, "candidate", kernel=None, url="http://host:8000")
    cut = replace(GOOD.responses["candidate"][0], finish_reason="length", receipt=None)
    bare = tuple(replace(response, receipt=None) for response in GOOD.responses["candidate"][1:])
    assert problems(replace(run, responses=GOOD.responses | {"candidate": (cut, *bare)})) == ()


def test_a_stop_string_in_tokens_of_its_own_is_no_other_text() -> None:
    ended = {"token_ids": (1, 2, *range(90, 98)), "text": "same", "stop_reason": "<|im_end|>"}
    assert not rewritten({"token_ids": (1, 2, 0), "text": "same"}, ended)
