"""Samples of one question, and questions of one cluster, are not independent: what they must not buy."""

from dataclasses import replace

import numpy as np
import pytest

from evalsuite import statistics
from evalsuite.verdict import Verdict, decide
from made_runs import compared, make_run, make_sampled_run
from test_verdict import decided

PASS, FAIL, INCONCLUSIVE, _, NOT_DETECTED = Verdict
COMPARED = compared(make_run("rr " * 9))


def test_repeated_samples_do_not_buy_a_pass():
    rows = ["rr rr rr rr"] * 30
    assert statistics.tango_interval(lost=0, gained=0, pairs=120).low > -0.05
    decision = decided(make_sampled_run(rows), margin=0.05)
    assert decision.verdict is INCONCLUSIVE and "30 questions x 4 samples" in decision.headline
    assert decided(make_sampled_run(rows * 4), margin=0.05).verdict is PASS


def test_repeated_samples_do_not_buy_a_fail():
    rows = ["rr rr rr rr"] * 30 + ["rw rw rw rw"]
    assert decided(make_sampled_run(rows), margin=None).verdict is NOT_DETECTED
    assert statistics.mcnemar(lost=4, gained=0).midp_one_sided < 0.05
    assert decided(make_sampled_run(["rr rr"] * 30 + ["rw rw"] * 6), margin=None).verdict is FAIL


def in_clusters_of_two(run):
    questions = tuple(replace(q, cluster=run.questions[n - n % 2].id) for n, q in enumerate(run.questions))
    return replace(run, questions=questions, meta=run.meta | {"questions_sha256": None})


def test_questions_asked_twice_under_two_names_count_once():
    assert decided(make_run("rr " * 80), margin=0.05).verdict is PASS
    assert decided(in_clusters_of_two(make_run("rr " * 80)), margin=0.05).verdict is INCONCLUSIVE
    assert decided(in_clusters_of_two(make_run("rr " * 160)), margin=0.05).verdict is PASS


def test_a_regression_is_detected_though_two_questions_share_a_cluster():
    run = make_run("rw " * 200)
    questions = (*run.questions[:-1], replace(run.questions[-1], cluster=run.questions[0].id))
    found = decided(replace(run, questions=questions, meta=run.meta | {"questions_sha256": None}), margin=0.05)
    assert found.verdict is FAIL


def test_a_candidate_that_fails_more_often_is_a_regression_though_questions_share_a_cluster():
    decision = decided(in_clusters_of_two(make_run("rr " * 100 + "we " * 20)), margin=0.3)
    assert decision.verdict is FAIL
    assert "the candidate alone failed to answer 20 of 120 questions" in decision.headline


def draw_samples(rng, *, questions, samples, accuracy, lost):
    """Return a comparison of arms that differ by nothing but questions, a share `lost`, that the candidate loses."""
    baseline = rng.binomial(samples, accuracy, questions)
    candidate = rng.binomial(samples, np.where(rng.random(questions) < lost, 0, accuracy))
    found = statistics.rao_scott(baseline_right=baseline, candidate_right=candidate, samples=samples)
    kept, lost_pairs = int(baseline.sum() - round(found.lost)), round(found.lost)
    table = replace(
        COMPARED.table, kept=kept, lost=lost_pairs, gained=round(found.gained), interval=found.interval,
        missed=samples * questions - kept - lost_pairs - round(found.gained), bound=found.bound,
        regression_p=found.p_regression, test=None, design_effect=found.design_effect,
    )  # fmt: skip
    return replace(COMPARED, table=table, worst_case=table, questions=questions)


@pytest.mark.parametrize(
    ("questions", "margin", "accuracy"), [(5, 0.1, 0.6), (8, 0.03, 0.6), (20, 0.05, 0.6), (60, 0.055, 0.95)]
)
def test_many_samples_of_few_questions_pass_as_rarely_as_stated_where_the_loss_is_the_margin(
    questions, margin, accuracy
):
    """All of it in questions that are wholly lost; by the interval alone 10 to 40 % of such runs passed."""
    rng, runs = np.random.default_rng(1), 300
    passed = by_interval = 0
    for _ in range(runs):
        found = draw_samples(rng, questions=questions, samples=100, accuracy=accuracy, lost=margin / accuracy)
        passed += decide(found, margin=margin).verdict is PASS
        by_interval += found.table.interval.low > -margin and found.table.regression_p > 0.05
    assert passed / runs <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / runs)
    assert by_interval / runs > 0.08


def test_enough_questions_of_several_samples_still_pass_and_say_which_bound_decides():
    rng = np.random.default_rng(2)
    found = [draw_samples(rng, questions=198, samples=8, accuracy=0.6, lost=0) for _ in range(100)]
    passed = [decision for each in found if (decision := decide(each, margin=0.05)).verdict is PASS]
    assert len(passed) > 60
    for decision in passed:
        (told,) = (reason for reason in decision.reasons if reason.startswith("what is ruled out starts at -"))
        assert "not at the interval's end of" in told and "wholly lost may not have been drawn" in told
