"""Several tasks, several samples of a question, incomplete pairs."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from evalsuite.statistics import (
    Counts,
    Errored,
    best_case,
    holm,
    intention_to_treat,
    mcnemar,
    pooled,
    rao_scott,
    rao_scott_clusters,
    stratified_interval,
    stratified_score,
    tango_interval,
    tango_score,
    tipping_point,
    worst_case,
)

TASKS = [
    Counts(lost=14, gained=6, pairs=198),
    Counts(lost=40, gained=44, pairs=1319),
    Counts(lost=0, gained=0, pairs=50),
]


def test_holm_is_the_closure_of_bonferroni():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p_values = [float(p) for p in rng.uniform(0, 0.4, size=5)]
        for index, adjusted in enumerate(holm(p_values)):
            others = [p for i, p in enumerate(p_values) if i != index]
            families = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(5))
            every = [(p_values[index], *family) for family in families]
            assert adjusted == pytest.approx(max(min(1, len(family) * min(family)) for family in every))


def test_holm_agrees_with_r_and_takes_no_task_at_all():
    # R: p.adjust(c(.01, .02, .03, .04, .05), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx((0.05, 0.08, 0.09, 0.09, 0.09))
    assert holm([]) == ()


def test_the_pooled_test_is_the_mantel_haenszel_test_with_pairs_as_strata():
    counts = pooled(TASKS)
    assert counts == Counts(lost=54, gained=50, pairs=1567)
    strata = [(1, 0)] * counts.lost + [(0, 1)] * counts.gained
    excess = sum(g - lost for lost, g in strata) / 2
    assert mcnemar(lost=counts.lost, gained=counts.gained).z == pytest.approx(excess / np.sqrt(len(strata) / 4))


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("task", TASKS)
def test_one_task_by_itself_has_the_tango_interval(task, average):
    alone = stratified_interval([task], average=average)
    tango = tango_interval(lost=task.lost, gained=task.gained, pairs=task.pairs)
    assert (alone.low, alone.high) == pytest.approx((tango.low, tango.high), abs=1e-12)
    assert stratified_score([task], difference=-0.05) == pytest.approx(
        tango_score(lost=task.lost, gained=task.gained, pairs=task.pairs, difference=-0.05)
    )


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_the_ends_of_the_averaged_interval_put_back_give_its_quantile(average):
    result = stratified_interval(TASKS, average=average, confidence=0.9)
    assert stratified_score(TASKS, difference=result.low, average=average) == pytest.approx(norm.isf(0.05))
    assert stratified_score(TASKS, difference=result.high, average=average) == pytest.approx(-norm.isf(0.05))
    swapped = [Counts(lost=t.gained, gained=t.lost, pairs=t.pairs) for t in reversed(TASKS)]
    mirrored = stratified_interval(swapped, average=average, confidence=0.9)
    assert (mirrored.low, mirrored.high) == pytest.approx((-result.high, -result.low), abs=1e-12)


def test_micro_weighs_questions_and_macro_weighs_tasks():
    assert stratified_interval(TASKS, average="micro").difference == pytest.approx(-4 / 1567)
    assert stratified_interval(TASKS, average="macro").difference == pytest.approx((-8 / 198 + 4 / 1319 + 0) / 3)


def test_the_averaged_interval_of_tasks_that_all_agree_keeps_a_width():
    result = stratified_interval([Counts(lost=0, gained=0, pairs=100)] * 2)
    assert result.low < -0.015 and result.high == pytest.approx(-result.low)
    assert stratified_score([Counts(lost=0, gained=0, pairs=9)], difference=0) == 0


# Samples


def test_one_sample_of_each_question_is_the_plain_comparison():
    baseline, candidate = [1] * 20 + [0] * 180, [0] * 14 + [1] * 12 + [0] * 174
    result = rao_scott(baseline_right=baseline, candidate_right=candidate, samples=1)
    plain = tango_interval(lost=14, gained=6, pairs=200)
    assert (result.lost, result.gained, result.design_effect) == (14, 6, 1)
    assert (result.interval.low, result.interval.high) == pytest.approx((plain.low, plain.high))
    assert result.p_regression == pytest.approx(mcnemar(lost=14, gained=6).asymptotic_two_sided / 2)
    assert result.bound == result.interval


def test_samples_that_always_repeat_count_each_question_once():
    baseline, candidate = [4] * 20 + [0] * 180, [0] * 14 + [4] * 12 + [0] * 174
    result = rao_scott(baseline_right=baseline, candidate_right=candidate, samples=4)
    plain = tango_interval(lost=14, gained=6, pairs=200)
    assert result.design_effect == 4
    assert (result.interval.low, result.interval.high) == pytest.approx((plain.low, plain.high))


@pytest.mark.parametrize(("right", "questions"), [(4, 50), (0, 50), (2, 1)])
def test_samples_without_discordance_or_a_second_question_count_each_question_once(right, questions):
    result = rao_scott(baseline_right=[right] * questions, candidate_right=[right] * questions, samples=4)
    assert result.design_effect == 4
    assert result.interval.pairs == questions


def test_few_clusters_rule_out_no_small_loss_though_they_hold_many_pairs():
    few = rao_scott_clusters(lost=[12, 13], gained=[12, 13], pairs=[250, 250])
    assert few.interval.low > -0.05 and few.bound.low < -0.3
    many = rao_scott_clusters(lost=[1] * 200, gained=[1] * 200, pairs=[25] * 200)
    assert -0.03 < many.bound.low < many.interval.low


def test_a_few_shared_clusters_cost_next_to_nothing():
    plain = tango_interval(lost=0, gained=0, pairs=200)
    shared = rao_scott_clusters(lost=[0] * 199, gained=[0] * 199, pairs=[2] + [1] * 198)
    assert shared.bound.low == pytest.approx(plain.low, abs=0.0005)


def test_samples_that_vary_less_between_questions_than_by_chance_count_as_independent():
    result = rao_scott(baseline_right=[2] * 50, candidate_right=[2] * 50, samples=4)
    assert (result.lost, result.gained) == (50, 50)
    assert result.design_effect == 1 and result.interval.pairs == 200


def test_every_sample_lost_is_no_division_by_zero():
    result = rao_scott(baseline_right=[3] * 9, candidate_right=[0] * 9, samples=3)
    assert result.interval.low == -1 and result.p_regression < 0.01


def simulate(rng, *, samples: int, margin: float, shifting: float) -> tuple[list[int], list[int]]:
    """Return right counts on 198 questions for a true loss of `margin`; on a share of them it is large and opposite."""
    difficulty = rng.beta(1.5, 1.5, size=198)
    baseline = np.clip(difficulty, 0.1, 0.9)
    shift = np.zeros(198)
    moved = rng.uniform(size=198) < shifting
    shift[moved] = rng.choice([-0.8, 0.8], size=moved.sum())
    # Means over many questions: what is clipped is symmetric, so the average loss stays the margin.
    candidate = np.clip(baseline - margin + shift, 0, 1)
    expected = rng.binomial(samples, baseline), rng.binomial(samples, candidate)
    return expected[0].tolist(), expected[1].tolist()


@pytest.mark.parametrize("shifting", [0.0, 0.3])
def test_the_interval_over_samples_misses_the_truth_as_rarely_as_stated(shifting):
    """One-sided, nominal 2.5 % to each side; pairs taken for independent miss it more often when questions shift."""
    rng = np.random.default_rng(7)
    truth_rng = np.random.default_rng(8)
    draws = [simulate(truth_rng, samples=1000, margin=0.05, shifting=shifting) for _ in range(300)]
    truth = float(np.mean([(np.mean(c) - np.mean(b)) / 1000 for b, c in draws]))
    missed = naive = 0
    for _ in range(1000):
        baseline, candidate = simulate(rng, samples=8, margin=0.05, shifting=shifting)
        result = rao_scott(baseline_right=baseline, candidate_right=candidate, samples=8)
        missed += not result.interval.low <= truth <= result.interval.high
        independent = tango_interval(lost=round(result.lost), gained=round(result.gained), pairs=198 * 8)
        naive += not independent.low <= truth <= independent.high
    assert missed / 1000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)
    if shifting:
        assert naive / 1000 > 0.1


# Incomplete pairs

COMPLETE = Counts(lost=4, gained=3, pairs=180)
ERRORED = Errored(candidate_only_right=2, candidate_only_wrong=1, baseline_only_right=3, baseline_only_wrong=1, both=2)


def test_every_way_to_fill_in_the_missing_responses_lies_between_worst_and_best():
    # Each incomplete pair: (baseline right?, candidate right?), None where the arm errored.
    pairs = [(1, None)] * 2 + [(0, None)] + [(None, 1)] * 3 + [(None, 0)] + [(None, None)] * 2
    differences = []
    for fill in itertools.product((0, 1), repeat=sum(pair.count(None) for pair in pairs)):
        rest = iter(fill)
        filled = [tuple(next(rest) if right is None else right for right in pair) for pair in pairs]
        lost = COMPLETE.lost + sum(b > c for b, c in filled)
        gained = COMPLETE.gained + sum(c > b for b, c in filled)
        differences.append((gained - lost) / 189)
    worst, best = worst_case(COMPLETE, ERRORED), best_case(COMPLETE, ERRORED)
    assert (worst.gained - worst.lost) / worst.pairs == pytest.approx(min(differences))
    assert (best.gained - best.lost) / best.pairs == pytest.approx(max(differences))


def test_an_error_counts_as_a_wrong_answer():
    assert intention_to_treat(COMPLETE, ERRORED) == Counts(lost=6, gained=6, pairs=189)
    assert worst_case(COMPLETE, ERRORED) == Counts(lost=9, gained=3, pairs=189)
    assert best_case(COMPLETE, ERRORED) == Counts(lost=4, gained=9, pairs=189)


def test_without_errors_all_three_are_the_complete_pairs():
    none = Errored(candidate_only_right=0, candidate_only_wrong=0, baseline_only_right=0, baseline_only_wrong=0, both=0)
    assert intention_to_treat(COMPLETE, none) == worst_case(COMPLETE, none) == best_case(COMPLETE, none) == COMPLETE
    assert tipping_point(COMPLETE, none, margin=0.05) == 0


@pytest.mark.parametrize("margin", [0.03, 0.04, 0.05, 0.06, 0.08, 0.2])
def test_the_tipping_point_is_the_last_number_of_losses_that_still_shows_the_margin(margin):
    shown = [tango_interval(lost=4 + more, gained=3, pairs=189).low > -margin for more in range(10)]
    expected = max((more for more in range(10) if shown[more]), default=None)
    assert tipping_point(COMPLETE, ERRORED, margin=margin) == expected
