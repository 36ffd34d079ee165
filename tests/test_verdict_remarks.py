"""What a reader must know whatever the verdict is told beside it."""

from dataclasses import replace

from evalsuite import gate_output
from evalsuite.gate import decide_release, margin_for_all
from evalsuite.records import ARMS
from evalsuite.verdict import Verdict
from made_runs import make_receipt, make_response, make_run
from test_verdict import GOOD, change, change_arm, decided

PASS, _, _, _, NOT_DETECTED = Verdict


def with_logprobs(*, differing, tokens=20):
    """Return a run of 120 pairs whose logprobs are equal but for the last one in the first `differing` pairs."""
    run = make_run("rr " * 120)
    for arm in ARMS:
        served = tuple(
            make_response(
                r.question, arm, "r", tokens=tokens, token_ids=(7,) * tokens,
                logprobs=(*(-0.1,) * (tokens - 1), -0.2 if arm == "candidate" and number < differing else -0.3),
            )
            for number, r in enumerate(run.responses[arm])
        )  # fmt: skip
        run = replace(run, responses=run.responses | {arm: served})
    return run


def test_logprobs_that_are_equal_to_the_last_bit_are_the_first_reason():
    told = "in 61 of 120 pairs the two arms' logprobs are equal to the last bit: nothing shows that two different "
    decision = decided(with_logprobs(differing=59))
    assert decision.verdict is PASS and decision.reasons == (told + "things were served",)
    assert decided(with_logprobs(differing=60)).reasons == ()
    same = change_arm(with_logprobs(differing=0), "candidate", **GOOD.meta["arms"]["baseline"])
    assert not any("last bit" in reason for reason in decided(same).reasons)


def test_the_prefills_own_token_says_nothing_of_what_decoded():
    assert decided(with_logprobs(differing=0, tokens=1)).reasons == ()


def test_a_wider_margin_than_the_planned_one_is_named_in_the_first_line():
    run = replace(GOOD, meta=GOOD.meta | {"margin": 0.05})
    wider = decided(run, margin=0.1)
    assert wider.verdict is PASS and wider.headline.endswith("(margin 10.0 points) (planned with 5.0 points)")
    gate = decide_release([run], margin_for_all([run], 0.1))
    for text in (gate_output.render_text(gate), gate_output.render_json(gate), gate_output.render_junit(gate)):
        assert "planned with 5.0 points" in text
    for margin in (0.05, 0.04, None):
        assert "planned" not in decided(run, margin=margin).headline


def test_an_alpha_that_is_not_the_usual_one_is_named():
    assert decided(GOOD, alpha=0.01).reasons == ("a regression is looked for at alpha 0.01, in place of 0.05",)


def test_a_candidate_that_is_cut_off_more_often_is_named():
    decision = decided(make_run("rr " * 60 + "wt " * 9 + "tw " * 1 + "tt " * 21), margin=0.1)
    assert decision.reasons[0] == (
        "the budget ended the candidate's responses more often: 30 against the baseline's 22, one-sided p-value 0.00586"
    )
    assert "more often" not in decided(make_run("rr " * 60 + "wt " * 3 + "tw " * 1), margin=0.1).reasons[0]


def test_an_aa_run_says_so():
    run = change_arm(GOOD, "candidate", **GOOD.meta["arms"]["baseline"])
    for number, response in enumerate(GOOD.responses["candidate"]):
        stock = make_receipt("stock", prompt_tokens=response.prompt_tokens, tokens=response.tokens)
        run = change(run, "candidate", number, receipt=stock)
    decision = decided(run)
    assert decision.verdict is PASS and decision.reasons[0].startswith("A/A run: both arms are configured alike")


def test_questions_that_repeat_a_prompt_are_named():
    questions = (*GOOD.questions[:-1], replace(GOOD.questions[-1], prompt_sha256=GOOD.questions[0].prompt_sha256))
    run = replace(GOOD, questions=questions, meta=GOOD.meta | {"questions_sha256": None})
    assert decided(run).reasons == ("1 of the questions repeat the prompt of another: no evidence of their own",)


def test_truncation_is_named_with_what_the_other_pairs_show_alone():
    decision = decided(make_run("rr " * 60 + "tt " * 40 + "rt"), margin=None)
    assert decision.reasons == (
        "the budget ended a response in 41 of 101 pairs; the other 60 alone rule out only losses above 6.0 points",
    )


def test_too_few_right_answers_to_detect_anything_are_named():
    decision = decided(make_run("rr " * 3 + "ww " * 3), margin=None)
    assert decision.verdict is NOT_DETECTED and "the baseline got only 3 right" in decision.reasons[0]
    assert decided(make_run("rr " * 4 + "ww " * 3), margin=None).reasons == ()
