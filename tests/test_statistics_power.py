"""Planning figures against the tables of the specification, and against their own definitions."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from evalsuite.statistics import (
    connor_pairs,
    miettinen_pairs,
    nam_liu_pairs,
    noninferiority_power,
    pairs_to_detect,
    pairs_to_prove,
    questions_needed,
    regression_power,
    smallest_detectable_loss,
    smallest_provable_margin,
    tango_interval,
)

DISCORDANCES = (0.05, 0.10, 0.15, 0.25)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("test", ["exact", "midp", "asymptotic"])
@pytest.mark.parametrize("discordance", DISCORDANCES)
def test_the_smallest_detectable_loss_has_the_power_asked_for_and_less_has_not(discordance, test, two_sided):
    loss = smallest_detectable_loss(pairs=198, discordance=discordance, test=test, two_sided=two_sided)

    def power(loss: float) -> float:
        lost_rate = (discordance + loss) / 2
        return regression_power(
            pairs=198, lost_rate=lost_rate, gained_rate=discordance - lost_rate, test=test, two_sided=two_sided
        )

    assert power(loss) >= 0.8 > power(loss - 1e-6)


@pytest.mark.parametrize(
    ("two_sided", "losses"), [(False, (5.57, 7.16, 8.44, 10.45)), (True, (6.61, 8.40, 9.73, 11.99))]
)
def test_losses_that_come_on_top_of_churn_are_seen_from_the_stated_size(two_sided, losses):
    for discordance, points in zip(DISCORDANCES, losses, strict=True):
        powers = [
            regression_power(
                pairs=198,
                lost_rate=discordance / 2 + (points + shift) / 100,
                gained_rate=discordance / 2,
                two_sided=two_sided,
            )
            for shift in (-0.02, 0.02)
        ]
        assert powers[0] < 0.8 < powers[1]


@pytest.mark.parametrize(("two_sided", "points"), [(False, 2.77), (True, 3.37)])
def test_losses_without_any_gains_are_seen_from_the_stated_size(two_sided, points):
    for shift, seen in ((-0.02, False), (0.02, True)):
        rate = (points + shift) / 100
        assert (regression_power(pairs=198, lost_rate=rate, gained_rate=0, two_sided=two_sided) >= 0.8) == seen


def test_too_few_discordant_pairs_show_no_loss_however_they_fall():
    assert smallest_detectable_loss(pairs=198, discordance=0.01) is None
    assert smallest_detectable_loss(pairs=3, discordance=0.9) is None


@pytest.mark.parametrize("discordance", DISCORDANCES)
def test_the_smallest_provable_margin_has_the_power_asked_for_and_less_has_not(discordance):
    margin = smallest_provable_margin(pairs=198, discordance=discordance)
    half = discordance / 2
    powers = [
        noninferiority_power(pairs=198, lost_rate=half, gained_rate=half, margin=m) for m in (margin, margin - 1e-6)
    ]
    assert powers[0] >= 0.8 > powers[1]


@pytest.mark.parametrize(("margin", "discordance"), [(0.05, 0.05), (0.05, 0.25), (0.03, 0.10), (0.10, 0.50)])
def test_from_the_pairs_to_prove_on_power_never_falls_below_the_target(margin, discordance):
    needed = pairs_to_prove(margin=margin, discordance=discordance, alpha=0.05)
    half = discordance / 2
    powers = [
        noninferiority_power(pairs=pairs, lost_rate=half, gained_rate=half, margin=margin, alpha=0.05)
        for pairs in range(needed - 1, 2 * needed)
    ]
    assert powers[0] < 0.8 <= min(powers[1:])


@pytest.mark.parametrize("test", ["exact", "midp", "asymptotic"])
@pytest.mark.parametrize(("loss", "discordance"), [(0.1, 0.3), (0.05, 0.05), (0.4, 0.5)])
def test_from_the_pairs_to_detect_on_power_never_falls_below_the_target(loss, discordance, test):
    needed = pairs_to_detect(loss=loss, discordance=discordance, test=test)
    lost_rate = (discordance + loss) / 2
    powers = [
        regression_power(pairs=pairs, lost_rate=lost_rate, gained_rate=discordance - lost_rate, test=test)
        for pairs in range(needed - 1, 2 * needed + 20)
    ]
    assert powers[0] < 0.8 <= min(powers[1:])


@pytest.mark.parametrize(("loss", "discordance"), [(0.05, 0.1), (0.1, 0.3), (0.03, 0.15)])
def test_the_fast_formulas_are_within_a_few_percent_of_the_exact_numbers(loss, discordance):
    exact = pairs_to_detect(loss=loss, discordance=discordance)
    assert miettinen_pairs(loss=loss, discordance=discordance) == pytest.approx(exact, rel=0.04)
    assert exact <= connor_pairs(loss=loss, discordance=discordance) <= 1.1 * exact
    exact = pairs_to_prove(margin=loss, discordance=discordance)
    assert nam_liu_pairs(margin=loss, discordance=discordance) == pytest.approx(exact, rel=0.06)


def test_the_fast_formula_for_a_true_loss_agrees_with_exact_power():
    needed = nam_liu_pairs(margin=0.03, discordance=0.10, difference=-0.01)
    power = noninferiority_power(pairs=round(needed), lost_rate=0.055, gained_rate=0.045, margin=0.03)
    assert power == pytest.approx(0.8, abs=0.01)


def test_the_variance_at_the_margin_is_that_of_the_likeliest_truth_there():
    # The restricted estimate inside the Nam/Liu formula, against a numerical maximum of the likelihood.
    lost_rate, gained_rate, margin = 0.07, 0.03, 0.05

    def surprise(rate: float) -> float:
        return -(
            lost_rate * math.log(rate)
            + gained_rate * math.log(rate - margin)
            + (1 - lost_rate - gained_rate) * math.log(1 - 2 * rate + margin)
        )

    best = minimize_scalar(surprise, bounds=(margin + 1e-9, 0.5), method="bounded", options={"xatol": 1e-12}).x
    z, z_power = 1.959963984540054, 0.8416212335729143
    by_hand = (z * math.sqrt(2 * best - margin - margin**2) + z_power * math.sqrt(0.1 - 0.04**2)) ** 2 / 0.01**2
    formula = nam_liu_pairs(margin=margin, discordance=0.1, difference=-0.04)
    assert formula == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize(
    ("lost", "gained", "pairs", "margin"), [(10, 10, 198, 0.03), (16, 8, 198, 0.05), (3, 3, 60, 0.08)]
)
def test_the_questions_needed_settle_the_matter_as_often_as_asked(lost, gained, pairs, margin):
    more = questions_needed(lost=lost, gained=gained, pairs=pairs, margin=margin)
    rng = np.random.default_rng(1)
    half = (lost + gained) / pairs / 2
    runs = rng.multinomial(more, [half, half, 1 - 2 * half], size=1000)
    settled = [
        tango_interval(lost=lost + int(new[0]), gained=gained + int(new[1]), pairs=pairs + more).low > -margin
        for new in runs
    ]
    # Three standard errors of a share of 1000, and the formula's own few percent.
    assert np.mean(settled) == pytest.approx(0.8, abs=0.04 + 0.02)


def test_more_losses_so_far_ask_for_more_questions():
    needed = [questions_needed(lost=lost, gained=20 - lost, pairs=198, margin=0.03) for lost in range(8, 15)]
    assert needed == sorted(needed) and needed[0] < needed[-1]


def test_ten_agreeing_questions_do_not_settle_a_margin_of_5_points():
    assert questions_needed(lost=0, gained=0, pairs=10, margin=0.05) == 63
    assert tango_interval(lost=0, gained=0, pairs=73, confidence=0.95).low > -0.05
    assert tango_interval(lost=0, gained=0, pairs=72, confidence=0.95).low <= -0.05
