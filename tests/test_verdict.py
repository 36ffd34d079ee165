"""The verdict, its exit code, and all the ways in which it must not say PASS."""

import itertools
from dataclasses import replace

import pytest

from evalsuite import statistics
from evalsuite.errors import UserError
from evalsuite.verdict import EXIT, Verdict, decide
from made_runs import compared, make_question, make_receipt, make_run

PASS, FAIL, INCONCLUSIVE, INVALID, NOT_DETECTED = Verdict


def decided(run, margin=0.05, **options):
    return decide(compared(run), margin=margin, **options)


def change(run, arm, number, **fields):
    """Return the run with one response changed."""
    responses = list(run.responses[arm])
    responses[number] = replace(responses[number], **fields)
    return replace(run, responses=run.responses | {arm: tuple(responses)})


def change_arm(run, arm, **fields):
    arms = run.meta["arms"] | {arm: run.meta["arms"][arm] | fields}
    return replace(run, meta=run.meta | {"arms": arms})


GOOD = make_run("rr " * 60 + "ww " * 60)


def test_the_good_run_that_these_tests_spoil_passes():
    decision = decided(GOOD)
    assert decision.verdict is PASS and decision.exit_code == 0 and decision.reasons == ()
    assert decision.headline == (
        "PASS: no regression detected in 120 questions; these data rule out losses above 3.1 points (margin 5.0 points)"
    )


def test_exit_codes_are_those_of_the_design():
    assert {verdict: EXIT[verdict] for verdict in Verdict} == {
        PASS: 0, NOT_DETECTED: 0, FAIL: 1, INCONCLUSIVE: 3, INVALID: 4
    }  # fmt: skip


def test_every_table_of_up_to_thirty_pairs_gets_the_verdict_of_the_rule():
    base = compared(make_run("rr"))
    for pairs, lost in itertools.product((8, 30), range(0, 9)):
        for gained, kept in itertools.product(range(0, 4), (0, 2, 10)):
            missed = pairs - lost - gained - kept
            if missed < 0:
                continue
            interval = statistics.tango_interval(lost=lost, gained=gained, pairs=pairs)
            test = statistics.mcnemar(lost=lost, gained=gained)
            table = replace(
                base.table, kept=kept, lost=lost, gained=gained, missed=missed, interval=interval, bound=interval,
                test=test, regression_p=test.midp_one_sided,
            )  # fmt: skip
            found = replace(base, table=table, worst_case=table, questions=pairs)
            for margin in (None, 0.05, 0.2, 0.5):
                decision = decide(found, margin=margin)
                if test.midp_one_sided <= 0.05:
                    expected = FAIL
                elif lost + kept == 0:
                    expected = INCONCLUSIVE
                elif margin is None:
                    expected = NOT_DETECTED
                elif (lost + kept) / pairs <= margin:
                    expected = INCONCLUSIVE
                else:
                    expected = PASS if interval.low > -margin else INCONCLUSIVE
                assert decision.verdict is expected, (pairs, lost, gained, kept, margin)
                assert decision.headline.startswith(f"{expected.value}: ") and "\n" not in decision.headline
                assert decision.exit_code == EXIT[expected]


def test_fail_names_the_loss_its_p_value_and_its_interval():
    decision = decided(make_run("rr " * 92 + "rw " * 14 + "wr " * 6 + "ww " * 86))
    assert decision.verdict is FAIL and decision.exit_code == 1
    assert decision.headline == (
        "FAIL: regression detected: 14 lost and 6 gained of 198 questions, -4.0 points (95 % interval -8.9 to +0.4), "
        "p-value 0.0392; the interval does not lie wholly above -5.0"
    )
    assert decision.reasons == ()


def test_fail_within_the_margin_stays_fail_and_says_so():
    run = make_run("rr " * 300 + "rw " * 5)
    decision = decided(run, margin=0.05)
    assert decision.verdict is FAIL and decision.headline.endswith("the interval lies wholly above -5.0")
    assert "only a policy file can accept it" in decision.reasons[0]
    assert decided(run, margin=0.02).headline.endswith("the interval does not lie wholly above -2.0")


def test_a_policy_accepts_a_loss_within_the_margin_only_if_the_exact_test_agrees():
    run = make_run("rr " * 139 + "rw " * 11)  # the interval's end is -12.65 points, and the exact p-value 0.0257
    assert decided(run, margin=0.1275, accept_within_margin=True).verdict is FAIL
    assert decided(run, margin=0.14, accept_within_margin=True).verdict is PASS


def test_four_lost_of_few_is_the_earliest_detection():
    assert decided(make_run("rr " * 20 + "rw " * 3), margin=None).verdict is NOT_DETECTED
    assert decided(make_run("rr " * 20 + "rw " * 4), margin=None).verdict is FAIL


def test_not_detected_says_what_loss_is_ruled_out():
    decision = decided(make_run("rr " * 12 + "ww " * 12), margin=None)
    assert decision.verdict is NOT_DETECTED and decision.exit_code == 0
    assert decision.headline == (
        "NOT DETECTED: no regression detected in 24 questions; these data rule out only losses above 13.8 points"
    )


def test_a_gain_rules_out_any_loss():
    run = make_run("rr " * 50 + "wr " * 20)
    assert decided(run, margin=None).headline.endswith("these data rule out any loss")
    assert decided(run, margin=0.0).verdict is PASS


def test_inconclusive_says_how_many_questions_of_a_fresh_run_would_settle_it():
    decision = decided(make_run("rr " * 10), margin=0.05)
    assert decision.verdict is INCONCLUSIVE and decision.exit_code == 3
    more = statistics.questions_needed(lost=0, gained=0, pairs=10, margin=0.05)
    told = f"a fresh run of about {10 + more} questions in all, or one with --stop-early, would settle it"
    assert told in decision.headline and "more" not in decision.headline
    assert decided(make_run("rr " * (10 + round(1.1 * more))), margin=0.05).verdict is PASS


def test_a_margin_of_nothing_cannot_be_settled_by_more_of_the_same():
    assert "no number of questions" in decided(make_run("rr " * 20), margin=0.0).headline


@pytest.mark.parametrize("margin", [1, 1.0, 3, -0.01, float("nan"), float("inf")])
def test_a_margin_that_is_no_fraction_is_refused(margin):
    with pytest.raises(UserError, match="expected a fraction from 0"):
        decided(GOOD, margin)


@pytest.mark.parametrize("margin", [1e-300, 9e-5])
def test_a_margin_too_small_for_any_run_is_refused_in_one_line(margin):
    with pytest.raises(UserError, match=r"expected 0, or 0\.0001"):
        decided(make_run("rr " * 8), margin)
    assert decided(make_run("rr " * 8), 1e-4).verdict is INCONCLUSIVE


@pytest.mark.parametrize("alpha", [0, 1, -0.1, float("nan"), 1e-9, 0.51])
def test_an_alpha_that_is_no_level_is_refused(alpha):
    with pytest.raises(UserError, match="alpha is"):
        decided(GOOD, alpha=alpha)


# Runs that must not pass.


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_a_missing_receipt_is_invalid(arm):
    decision = decided(change(GOOD, arm, 7, receipt=None))
    assert decision.verdict is INVALID and decision.exit_code == 4
    assert "1 of 120 responses do not show the arm's own kernel" in decision.headline and "q007" in decision.headline


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_a_missing_response_is_invalid_and_says_how_to_go_on(arm):
    run = replace(GOOD, responses=GOOD.responses | {arm: GOOD.responses[arm][1:]})
    decision = decided(run)
    assert decision.verdict is INVALID
    assert f"1 of 120 responses of the {arm} are missing; give the same `run` command again" in decision.headline


def test_no_pairs_are_invalid_with_and_without_a_margin():
    for margin in (None, 0.9):
        assert decided(make_run(""), margin).verdict is INVALID


def test_an_arm_that_was_not_asked_is_invalid():
    assert decided(replace(GOOD, responses=GOOD.responses | {"candidate": ()})).verdict is INVALID


def test_swapped_arms_are_invalid():
    swapped = {"baseline": GOOD.responses["candidate"], "candidate": GOOD.responses["baseline"]}
    assert decided(replace(GOOD, responses=swapped)).verdict is INVALID


def test_a_candidate_served_by_the_stock_kernel_is_invalid():
    run = GOOD
    for number, response in enumerate(GOOD.responses["candidate"]):
        stock = make_receipt("stock", prompt_tokens=response.prompt_tokens, tokens=response.tokens)
        run = change(run, "candidate", number, receipt=stock)
    assert decided(run).verdict is INVALID


def test_a_receipt_of_another_response_is_invalid():
    other = next(r for r in GOOD.responses["candidate"] if r.tokens != GOOD.responses["candidate"][0].tokens)
    assert decided(change(GOOD, "candidate", 0, receipt=other.receipt)).verdict is INVALID


def test_another_package_than_the_one_measured_is_invalid():
    assert decided(replace(GOOD, meta=GOOD.meta | {"attention": {"sha256": "e" * 64}})).verdict is INVALID
    assert decided(replace(GOOD, meta=GOOD.meta | {"attention": None})).verdict is INVALID


def test_a_baseline_that_answers_with_the_candidates_responses_is_invalid():
    baseline = tuple(
        replace(response, receipt=make_receipt("stock", prompt_tokens=40, tokens=20))
        for response in GOOD.responses["candidate"]
    )
    decision = decided(replace(GOOD, responses=GOOD.responses | {"baseline": baseline}))
    assert decision.verdict is INVALID and "hold the same response twice" in decision.headline


def test_prompts_of_unequal_length_are_invalid_where_both_arms_serve_one_model():
    longer = GOOD.responses["baseline"][3].prompt_tokens + 1
    run = change(GOOD, "baseline", 3, prompt_tokens=longer)
    assert "prompts of unequal length" in decided(run).headline
    assert decided(change_arm(run, "candidate", model_sha256="n" * 64)).verdict is PASS


def test_questions_other_than_those_of_the_plan_are_invalid():
    questions = (make_question(0, target="B"), *GOOD.questions[1:])
    assert "questions.jsonl is not the one" in decided(replace(GOOD, questions=questions)).headline


def test_a_question_named_twice_is_invalid():
    run = replace(GOOD, questions=(*GOOD.questions, GOOD.questions[0]), meta=GOOD.meta | {"questions_sha256": None})
    assert "names 1 questions twice" in decided(run).headline


def test_a_sample_that_was_not_planned_is_invalid():
    extra = replace(GOOD.responses["candidate"][0], sample=1, seconds=9.0)
    run = replace(GOOD, responses=GOOD.responses | {"candidate": (*GOOD.responses["candidate"], extra)})
    assert "1 responses that the plan does not name" in decided(run).headline


def test_invalid_beats_a_detected_regression_and_lists_every_reason():
    run = make_run("rr " * 20 + "rw " * 20)
    run = change(change(run, "candidate", 0, receipt=None), "baseline", 1, receipt=None)
    decision = decided(run)
    assert decision.verdict is INVALID and decision.reasons[0].startswith("candidate: 1 of 40")


def test_attached_arms_can_be_judged_but_their_path_is_not_proven():
    run = change_arm(GOOD, "baseline", kernel=None, url="http://one:8000")
    run = change_arm(run, "candidate", kernel=None, url="http://other:8000")
    for number in range(120):
        for arm in ("baseline", "candidate"):
            run = change(run, arm, number, receipt=None)
    decision = decided(run)
    assert decision.verdict is PASS
    assert [reason.split(",")[0] for reason in decision.reasons] == [
        "baseline: the path is not proven", "candidate: the path is not proven"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pairs", ["tt " * 400, "ww " * 400, "wn " * 400, "wr " * 5 + "ww " * 400, "ee " * 20 + "ww ww"]
)
@pytest.mark.parametrize("margin", [None, 0.05, 0.9])
def test_a_baseline_that_got_nothing_right_can_show_no_loss(pairs, margin):
    decision = decided(make_run(pairs), margin)
    assert decision.verdict is INCONCLUSIVE and "the baseline got 0 of" in decision.headline


def test_a_loss_as_large_as_the_margin_must_have_been_possible():
    run = make_run("rr " * 20 + "tt " * 380)  # 5 % right
    assert compared(run).table.interval.low > -0.05
    assert decided(run, margin=0.05).verdict is INCONCLUSIVE
    assert decided(run, margin=0.045).verdict is PASS


def test_ten_agreeing_questions_prove_nothing():
    for margin in (0.03, 0.05, 0.1, 0.2):
        assert decided(make_run("rr " * 10), margin).verdict is INCONCLUSIVE


def test_an_error_counts_as_not_right_and_is_named_in_the_first_line():
    decision = decided(make_run("rr " * 100 + "re " * 4), margin=None)
    assert decision.verdict is FAIL and "(errors: baseline 0, candidate 4)" in decision.headline


def test_a_candidate_that_fails_more_often_is_a_regression_even_on_questions_nobody_got_right():
    decision = decided(make_run("rr " * 100 + "we " * 6), margin=0.3)
    assert decision.verdict is FAIL
    assert "the candidate alone failed to answer 6 of 106 questions, the baseline alone 0" in decision.headline


def test_errors_of_the_baseline_do_not_buy_a_pass():
    # As answers not got they are gains or misses; held against the candidate they are losses.
    run = make_run("rr " * 200 + "er " * 3 + "ew " * 8)
    assert compared(run).table.interval.low > -0.03
    decision = decided(run, margin=0.03)
    assert decision.verdict is INCONCLUSIVE and "errors alone stand in the way" in decision.headline
    assert "(errors: baseline 11, candidate 0)" in decision.headline
    assert decided(make_run("rr " * 200 + "ew"), margin=0.05).verdict is PASS
    headline = decided(run, margin=None).headline
    assert f"losses above {-100 * compared(run).worst_case.interval.low:.1f} points" in headline


def test_every_response_an_error_is_no_verdict_on_the_candidate():
    assert decided(make_run("re " * 30)).verdict is INVALID


@pytest.mark.parametrize(("pairs", "margin"), [(1, 0.8), (2, 0.7), (5, 0.44), (73, 0.05)])
def test_few_pairs_pass_only_if_the_exact_test_agrees(pairs, margin):
    # At a true loss of the margin, so good a result comes in more than 2.5 % of runs: it is no rare luck.
    assert statistics.exact_noninferiority_p(lost=0, gained=0, pairs=pairs, margin=margin) > 0.025
    assert statistics.tango_interval(lost=0, gained=0, pairs=pairs).low > -margin
    assert decided(make_run("rr " * pairs), margin=margin).verdict is INCONCLUSIVE
