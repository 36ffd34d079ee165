"""Pairs, the four outcomes, and what is counted of them."""

import itertools
import random
from dataclasses import replace

import pytest

from evalsuite import statistics
from evalsuite.pairing import pair_up
from evalsuite.records import ARMS
from evalsuite.report import derive
from evalsuite.scoring import Grade
from made_runs import LAYERS, compared, grades_of, make_run, make_sampled_run

LETTERS = "rwnte"


@pytest.mark.parametrize("baseline, candidate", list(itertools.product(LETTERS, LETTERS)))
def test_only_right_counts_as_right(baseline, candidate):
    [pair] = compared(make_run(baseline + candidate)).pairs
    expected = {(True, True): "kept", (True, False): "lost", (False, True): "gained", (False, False): "missed"}
    assert pair.outcome == expected[baseline == "r", candidate == "r"]


@pytest.mark.parametrize("pairs", ["rr rw wr ww", "re ee ew wr er rr rr", "re " * 3 + "we ee er ew rw wr ww rr"])
def test_the_worst_case_is_the_one_of_the_statistics(pairs):
    words = pairs.split()
    complete = [word for word in words if "e" not in word]
    counts = statistics.Counts(lost=complete.count("rw"), gained=complete.count("wr"), pairs=len(complete))
    errored = statistics.Errored(
        candidate_only_right=words.count("re"),
        candidate_only_wrong=words.count("we"),
        baseline_only_right=words.count("er"),
        baseline_only_wrong=words.count("ew"),
        both=words.count("ee"),
    )
    found = compared(make_run(pairs))
    for table, expected in (
        (found.table, statistics.intention_to_treat(counts, errored)),
        (found.worst_case, statistics.worst_case(counts, errored)),
    ):
        assert (table.lost, table.gained, table.pairs) == (expected.lost, expected.gained, expected.pairs)


def test_pairs_come_in_the_order_of_the_questions_whatever_order_they_were_answered_in():
    run = make_run("rr rw wr ww rr tt")
    shuffled = {arm: tuple(random.Random(arm).sample(run.responses[arm], 6)) for arm in ARMS}
    assert compared(replace(run, responses=shuffled)) == compared(run)
    assert [pair.question for pair in compared(run).pairs] == [question.id for question in run.questions]


def test_a_missing_response_makes_no_pair_and_is_counted():
    run = make_run("rr rw wr ww")
    run = replace(run, responses=run.responses | {"candidate": run.responses["candidate"][:-2]})
    found = compared(run)
    assert len(found.pairs) == 2 and found.arms["candidate"].missing == 2 and found.arms["baseline"].missing == 0
    assert len(pair_up(run, grades_of(run))) == 2
    assert "2 of 4 responses of the candidate are missing" in found.problems[0]


def test_the_table_adds_up_and_its_figures_are_those_of_the_statistics():
    found = compared(make_run("rr " * 9 + "rw " * 4 + "wr ww tt rt tr en"))
    table = found.table
    assert (table.kept, table.lost, table.gained, table.missed, table.pairs) == (9, 5, 2, 3, 19)
    assert (table.baseline_right, table.candidate_right, table.difference) == (14, 11, -3 / 19)
    assert table.interval == statistics.tango_interval(lost=5, gained=2, pairs=19)
    assert table.test == statistics.mcnemar(lost=5, gained=2) and table.regression_p == table.test.midp_one_sided
    assert table.smallest_margin == statistics.smallest_margin(lost=5, gained=2, pairs=19)


def test_truncated_pairs_are_counted_apart_and_left_out_of_their_line():
    found = compared(make_run("rr rr rw tt tt tt rt tr nt"))
    seen = found.truncation
    assert (seen.both, seen.baseline_only, seen.candidate_only, seen.neither) == (3, 1, 2, 3)
    rest = found.without_truncated
    assert (rest.kept, rest.lost, rest.gained, rest.missed) == (2, 1, 0, 0)


def test_errors_answers_not_found_and_wrong_answers_are_different_things():
    found = compared(make_run("rw nn ee tt wr re"))
    baseline, candidate = found.arms["baseline"], found.arms["candidate"]
    assert (baseline.right, baseline.wrong, baseline.no_answer, baseline.truncated, baseline.errors) == (2, 1, 1, 1, 1)
    assert (candidate.right, candidate.wrong, candidate.no_answer, candidate.truncated) == (1, 1, 1, 1)
    assert candidate.errors == 2 and found.errors.candidate_only == 1 and found.errors.both == 1


def test_an_arms_figures_leave_its_errors_out():
    run = make_run("rr ee")
    figures = compared(run).arms["candidate"]
    served = run.responses["candidate"][0]
    assert figures.responses == 2 and figures.tokens == served.tokens and figures.seconds == served.seconds
    assert figures.seconds_to_first_token == 0.05
    assert figures.tokens_per_second == pytest.approx((served.tokens - 1) / (served.seconds - 0.05))
    assert figures.proof.receipts == 1 and figures.proof.split_kv == LAYERS * (served.tokens - 1)


def test_what_is_not_known_is_none_and_not_zero():
    run = make_run("ee ee")
    figures = compared(run).arms["baseline"]
    assert figures.tokens is figures.seconds is figures.seconds_to_first_token is figures.tokens_per_second is None
    assert figures.proof.split_kv is None
    empty = compared(make_run(""))
    assert empty.table.difference is None and empty.table.smallest_margin is None and empty.pairs == ()


def test_samples_of_a_question_are_not_taken_for_independent_pairs():
    rows = ["rr rr rr rr"] * 20 + ["rw rw rw rw"] * 5 + ["ww ww ww ww"] * 5
    found = compared(make_sampled_run(rows))
    expected = statistics.rao_scott(
        baseline_right=[4] * 20 + [4] * 5 + [0] * 5, candidate_right=[4] * 20 + [0] * 5 + [0] * 5, samples=4
    )
    assert found.questions == 30 and found.table.pairs == 120 and found.table.lost == 20
    assert found.table.interval == expected.interval and found.table.regression_p == expected.p_regression
    assert found.table.test is None and found.truncation.test is None
    naive = statistics.tango_interval(lost=20, gained=0, pairs=120)
    assert found.table.interval.low < naive.low and found.table.design_effect == pytest.approx(4)


def test_questions_of_one_cluster_count_as_less_than_independent_ones():
    run = make_run("rw rw rw rw rr rr rr rr")
    paired = [replace(q, cluster=run.questions[n - n % 2].id) for n, q in enumerate(run.questions)]
    alone, shared = compared(run).table, compared(replace(run, questions=tuple(paired))).table
    assert shared.design_effect == pytest.approx(2) and shared.test is None
    assert shared.interval.low < alone.interval.low and shared.interval.high > alone.interval.high
    assert shared.regression_p > alone.regression_p


def test_swapping_the_arms_mirrors_the_table():
    words = ("rr " * 5 + "rw rw rw wr ww rt tn ee").split()
    ours = compared(make_run(" ".join(words))).table
    theirs = compared(make_run(" ".join(word[::-1] for word in words))).table
    assert (ours.lost, ours.gained, ours.kept, ours.missed) == (theirs.gained, theirs.lost, theirs.kept, theirs.missed)
    assert ours.interval.low == pytest.approx(-theirs.interval.high, abs=1e-12)


def test_an_aa_run_is_one_whose_arms_differ_in_name_only():
    run = make_run("rr rw")
    assert not compared(run).same_arms
    arms = run.meta["arms"] | {"candidate": run.meta["arms"]["baseline"] | {"name": "again"}}
    assert compared(replace(run, meta=run.meta | {"arms": arms})).same_arms


def test_every_response_is_graded_by_its_own_question():
    run = make_run("rr rr")
    questions = (run.questions[0], replace(run.questions[1], target="B"))
    pairs = derive(replace(run, questions=questions)).comparison.pairs
    assert [pair.baseline for pair in pairs] == [
        Grade(verdict="right", answer="A"),
        Grade(verdict="wrong", answer="A"),
    ]
