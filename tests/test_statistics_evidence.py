"""Evidence that may be looked at after every question."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from evalsuite.statistics import (
    best_bet,
    confidence_sequence,
    loss_wealth,
    mixture_evidence,
    noninferiority_wealth,
    stopping,
    watch,
)


def outcomes_of(rng, *, questions: int, lost_rate: float, gained_rate: float) -> list[int]:
    chances = [lost_rate, gained_rate, 1 - lost_rate - gained_rate]
    return rng.choice([-1, 1, 0], size=questions, p=chances).tolist()


@pytest.mark.parametrize(("lost", "gained", "margin"), [(0.05, 0.05, 0.05), (0.1, 0.02, 0.1), (0.02, 0.2, 0.01)])
def test_the_best_bet_makes_log_wealth_grow_fastest(lost, gained, margin):
    def slowness(bet: float) -> float:
        return -(
            gained * math.log1p(bet * (1 + margin))
            + lost * math.log1p(-bet * (1 - margin))
            + (1 - lost - gained) * math.log1p(bet * margin)
        )

    bounds = (0, 0.9999 / (1 - margin))
    best = minimize_scalar(slowness, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x
    assert best_bet(lost_rate=lost, gained_rate=gained, margin=margin) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.3])
@pytest.mark.parametrize("gained_rate", [0.0, 0.1, 0.3])
def test_at_the_margin_the_mean_wealth_over_all_sequences_is_exactly_1(margin, gained_rate):
    chance = {-1: gained_rate + margin, 1: gained_rate, 0: 1 - 2 * gained_rate - margin}
    for wealth_of in (
        lambda outcomes: noninferiority_wealth(outcomes, margin=margin),
        lambda outcomes: loss_wealth(outcomes, beyond=margin),
    ):
        mean = 0.0
        for outcomes in itertools.product((-1, 0, 1), repeat=6):
            *_, log_wealth = wealth_of(outcomes)
            mean += math.exp(log_wealth) * math.prod(chance[outcome] for outcome in outcomes)
        assert mean == pytest.approx(1, rel=1e-12)


def test_without_a_difference_the_mean_regression_wealth_is_exactly_1():
    mean = 0.0
    for outcomes in itertools.product((-1, 0, 1), repeat=7):
        *_, log_wealth = loss_wealth(outcomes)
        mean += math.exp(log_wealth) * math.prod({-1: 0.2, 1: 0.2, 0: 0.6}[outcome] for outcome in outcomes)
    assert mean == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("shape", [1, 2, 5.5])
def test_without_a_difference_the_mean_mixture_e_value_is_exactly_1(shape):
    mean = sum(
        binom.pmf(lost, 20, 0.5) * math.exp(mixture_evidence(lost=lost, gained=20 - lost, shape=shape))
        for lost in range(21)
    )
    assert mean == pytest.approx(1, rel=1e-12)


def test_the_mixture_e_value_of_hopeless_counts_is_zero():
    assert mixture_evidence(lost=0, gained=5000) == -math.inf


def test_wealth_is_never_lost_entirely():
    for outcomes in ([-1] * 500, [1] * 500, [-1, 1] * 250, [0] * 500):
        for process in (noninferiority_wealth(outcomes, margin=0.05), loss_wealth(outcomes, beyond=0.05)):
            assert all(math.isfinite(wealth) for wealth in process)


def test_bets_depend_on_earlier_questions_only():
    first = list(noninferiority_wealth([0, -1, 1, 0], margin=0.05))
    assert list(noninferiority_wealth([0, -1, 1, 0, -1, -1], margin=0.05))[:4] == first
    live = noninferiority_wealth(iter([0, -1]), margin=0.05)
    assert next(live) == first[0] and next(live) == first[1]


def test_wealth_is_the_product_of_the_bets_made_on_what_was_seen_before():
    # Discordance starts from 15 % with the weight of 40 questions, the excess loss from 8 points.
    margin, bets = 0.05, []
    for number, discordant in enumerate((0, 1, 2, 2)):
        half = (0.15 * 40 + discordant) / (40 + number) / 2
        bets.append(best_bet(lost_rate=half, gained_rate=half, margin=margin))
    factors = [1 - 0.95 * bets[0], 1 + 1.05 * bets[1], 1 + 0.05 * bets[2], 1 - 0.95 * bets[3]]
    *_, wealth = noninferiority_wealth([-1, 1, 0, -1], margin=margin)
    assert wealth == pytest.approx(math.log(math.prod(factors)))

    *_, wealth = loss_wealth([-1, 1], beyond=0.02)
    first, second = 0.08 / 0.15, (0.08 * 40 + 0.98) / (0.15 * 40 + 1)
    assert wealth == pytest.approx(math.log((1 + 0.98 * first) * (1 - 1.02 * second)))


def test_the_simulated_stop_is_that_of_the_evidence():
    # Without discordance every run is the same.
    alike = stopping(pairs=198, margin=0.05, discordance=0, runs=2)
    assert alike.median == alike.in_80_percent == watch([0] * 198, margin=0.05).noninferior_at
    assert alike.share_within == 1
    assert stopping(pairs=alike.median - 1, margin=0.05, discordance=0, runs=2).share_within == 0


def test_evidence_is_that_of_the_wealth_it_reports():
    outcomes = [0, 0, 0, 0, -1] * 4 + [0, 0, 0, 0, 1, 0] * 60
    evidence = watch(outcomes, margin=0.05)
    wealth = list(noninferiority_wealth(outcomes, margin=0.05))
    assert evidence.noninferior_at == 1 + next(i for i, w in enumerate(wealth) if w >= math.log(20))
    assert evidence.p_noninferior == pytest.approx(math.exp(-max(wealth)))
    assert watch(outcomes[: evidence.noninferior_at - 1], margin=0.05).noninferior_at is None
    assert evidence.questions == len(outcomes) and evidence.regression_at is None


def test_a_broken_candidate_is_found_within_a_few_questions():
    evidence = watch([-1] * 30, margin=0.05)
    assert evidence.regression_at <= 12 and evidence.beyond_margin_at <= 12
    assert evidence.noninferior_at is None


def test_a_small_real_loss_is_found_to_be_real_and_within_the_margin():
    rng = np.random.default_rng(3)
    outcomes = outcomes_of(rng, questions=6000, lost_rate=0.06, gained_rate=0.03)
    evidence = watch(outcomes, margin=0.08)
    assert evidence.noninferior_at and evidence.regression_at and evidence.beyond_margin_at is None


@pytest.mark.parametrize(
    ("discordance", "loss", "questions", "found"),
    [(0.10, 0.0656, 198, 0.70), (0.25, 0.109, 198, 0.65), (0.09, 0.03, 4000, 0.95), (0.5, 0.4, 60, 0.98)],
)
def test_a_loss_is_found_whatever_its_size(discordance, loss, questions, found):
    # Bets made for one loss only, 8 points say, go broke on real losses of less than half of it.
    rng = np.random.default_rng(19)
    seen = 0
    for _ in range(100):
        outcomes = outcomes_of(
            rng, questions=questions, lost_rate=(discordance + loss) / 2, gained_rate=(discordance - loss) / 2
        )
        seen += watch(outcomes, margin=0.2).regression_at is not None
    assert seen / 100 >= found - 3 * math.sqrt(found * (1 - found) / 100)


def test_a_loss_of_twice_the_margin_is_found_to_be_beyond_it():
    rng = np.random.default_rng(23)
    found = sum(
        watch(outcomes_of(rng, questions=3000, lost_rate=0.05, gained_rate=0.01), margin=0.02).beyond_margin_at
        is not None
        for _ in range(40)
    )
    assert found >= 36


def test_means_over_samples_are_outcomes_too():
    assert watch([0.25, -0.5, 0.0] * 60, margin=0.1).questions == 180


@pytest.mark.parametrize("discordance", [0.05, 0.15])
def test_a_loss_equal_to_the_margin_passes_at_most_as_often_as_allowed(discordance):
    rng = np.random.default_rng(11)
    passed = failed = 0
    for _ in range(1000):
        outcomes = outcomes_of(
            rng, questions=600, lost_rate=(discordance + 0.05) / 2, gained_rate=(discordance - 0.05) / 2
        )
        passed += max(noninferiority_wealth(outcomes, margin=0.05)) >= math.log(20)
        same = outcomes_of(rng, questions=600, lost_rate=discordance / 2, gained_rate=discordance / 2)
        failed += max(loss_wealth(same)) >= math.log(20)
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
    assert 0.005 < passed / 1000 <= limit
    assert failed / 1000 <= limit


@pytest.mark.parametrize(("discordance", "accepted"), [(0.05, 0.699), (0.10, 0.439), (0.15, 0.299), (0.25, 0.153)])
def test_equal_arms_are_accepted_within_198_questions_as_often_as_stated(discordance, accepted):
    rng = np.random.default_rng(5)
    half = discordance / 2
    runs = 1500
    found = sum(
        max(noninferiority_wealth(outcomes_of(rng, questions=198, lost_rate=half, gained_rate=half), margin=0.05))
        >= math.log(20)
        for _ in range(runs)
    )
    # The stated value is a simulation as well, of 8000 runs.
    assert found / runs == pytest.approx(accepted, abs=3 * math.sqrt(accepted * (1 - accepted) * (1 / runs + 1 / 8000)))


def test_the_confidence_sequence_holds_the_truth_after_every_question():
    rng = np.random.default_rng(13)
    missed = 0
    for _ in range(200):
        outcomes = outcomes_of(rng, questions=200, lost_rate=0.08, gained_rate=0.04)
        # Its ends only ever move inwards, so the last interval lies within all earlier ones.
        interval = confidence_sequence(outcomes)
        missed += not interval.low <= -0.04 <= interval.high
    assert missed / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_the_confidence_sequence_only_narrows_and_mirrors_with_the_arms():
    outcomes = outcomes_of(np.random.default_rng(17), questions=300, lost_rate=0.08, gained_rate=0.04)
    before = confidence_sequence([])
    for questions in range(0, 301, 50):
        now = confidence_sequence(outcomes[:questions])
        assert before.low <= now.low < now.high <= before.high
        before = now
    swapped = confidence_sequence([-outcome for outcome in outcomes])
    assert (swapped.low, swapped.high) == pytest.approx((-before.high, -before.low))
    assert before.high - before.low < 0.15


def test_the_confidence_sequence_excludes_zero_for_a_large_loss():
    assert confidence_sequence([-1, 0, 0] * 60).high < 0
