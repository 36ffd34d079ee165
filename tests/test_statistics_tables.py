"""Definitions checked on every table of counts up to 30 pairs, and error rates summed over every table."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, norm

from evalsuite.statistics import (
    equivalence,
    exact_mcnemar_p,
    exact_noninferiority_p,
    mcnemar,
    noninferiority,
    noninferiority_power,
    questions_needed,
    regression_power,
    smallest_margin,
    tango_interval,
    tango_score,
)

Z = norm.isf(0.025)


def tables(most: int, *, step: int = 1):
    """Yield (lost, gained, pairs) for every table of `most`, `most` - step, ... pairs."""
    for pairs in range(most, 0, -step):
        for lost in range(pairs + 1):
            for gained in range(pairs - lost + 1):
                yield lost, gained, pairs


def test_mcnemar_p_values_are_the_sums_that_define_them():
    for lost in range(31):
        for gained in range(31 - lost):
            if lost + gained == 0:
                continue
            discordant = lost + gained
            chance = [Fraction(math.comb(discordant, k), 2**discordant) for k in range(discordant + 1)]
            upper, lower = sum(chance[lost:]), sum(chance[: min(lost, gained) + 1])
            mid = 2 * lower - chance[lost] if lost != gained else 1 - chance[lost] / 2
            test = mcnemar(lost=lost, gained=gained)
            assert test.exact_one_sided == pytest.approx(float(upper), rel=1e-12)
            assert test.exact_two_sided == pytest.approx(min(1.0, float(2 * lower)), rel=1e-12)
            assert test.midp_one_sided == pytest.approx(float(upper - chance[lost] / 2), rel=1e-12)
            assert test.midp_two_sided == pytest.approx(float(mid), rel=1e-12)
            assert 0 < test.midp_two_sided <= test.exact_two_sided <= 1


def test_swapping_the_arms_mirrors_everything():
    for lost, gained, pairs in tables(30):
        interval = tango_interval(lost=lost, gained=gained, pairs=pairs)
        mirrored = tango_interval(lost=gained, gained=lost, pairs=pairs)
        assert mirrored.low == pytest.approx(-interval.high, abs=1e-12)
        assert mirrored.high == pytest.approx(-interval.low, abs=1e-12)
        assert tango_score(lost=lost, gained=gained, pairs=pairs, difference=0.07) == pytest.approx(
            -tango_score(lost=gained, gained=lost, pairs=pairs, difference=-0.07), abs=1e-9
        )
        assert mcnemar(lost=lost, gained=gained).z == -mcnemar(lost=gained, gained=lost).z


def test_the_ends_of_the_interval_put_back_into_the_score_give_its_quantile():
    for lost, gained, pairs in tables(30, step=3):
        interval = tango_interval(lost=lost, gained=gained, pairs=pairs)
        estimate = (gained - lost) / pairs
        assert -1 <= interval.low <= estimate <= interval.high <= 1
        for end, z in ((interval.low, Z), (interval.high, -Z)):
            if abs(end) < 1:
                score = tango_score(lost=lost, gained=gained, pairs=pairs, difference=end)
                assert score == pytest.approx(z, abs=1e-7)
        assert (interval.low == -1) == (lost == pairs) and (interval.high == 1) == (gained == pairs)


def test_the_interval_is_that_of_the_closed_form():
    """Yang, Sun, Hardin 2013: the ends are roots of a polynomial of degree four, found here by NumPy."""
    for lost, gained, pairs in tables(30, step=4):
        g, s, p = Z**2, gained - lost, gained + lost
        quadratic = np.poly1d(
            [pairs**2 + g * pairs, -2 * pairs * s - g * pairs + g * (2 * pairs - s) / 2, s**2 - g * p / 2]
        )
        inner = np.poly1d([-(2 * pairs - s), p]) ** 2 + 8 * pairs * lost * np.poly1d([-1, 1, 0])
        roots = (quadratic**2 - g**2 / 4 * inner).roots
        interval = tango_interval(lost=lost, gained=gained, pairs=pairs)
        for end in (interval.low, interval.high):
            assert abs(end) == 1 or np.abs(roots - end).min() < 1e-6


def test_the_score_falls_with_the_difference_and_rises_with_each_gain():
    grid = np.linspace(-0.95, 0.95, 39)
    for lost, gained, pairs in tables(30, step=3):
        scores = [tango_score(lost=lost, gained=gained, pairs=pairs, difference=d) for d in grid]
        assert all(b < a for a, b in itertools.pairwise(scores))
        if lost + gained < pairs:
            assert tango_score(lost=lost, gained=gained + 1, pairs=pairs, difference=-0.1) > tango_score(
                lost=lost, gained=gained, pairs=pairs, difference=-0.1
            )
        if lost:
            assert tango_score(lost=lost - 1, gained=gained, pairs=pairs, difference=-0.1) > tango_score(
                lost=lost, gained=gained, pairs=pairs, difference=-0.1
            )


def test_a_higher_confidence_and_fewer_pairs_widen_the_interval():
    for lost, gained, pairs in tables(30, step=3):
        interval = tango_interval(lost=lost, gained=gained, pairs=pairs)
        wider = tango_interval(lost=lost, gained=gained, pairs=pairs, confidence=0.99)
        assert wider.low <= interval.low and interval.high <= wider.high
        if lost + gained > pairs / 2:
            continue  # with nearly all pairs discordant, concordant ones make the discordance itself less certain
        more = tango_interval(lost=lost, gained=gained, pairs=pairs + 5)
        assert more.high - more.low < interval.high - interval.low


def test_margin_test_interval_and_smallest_margin_never_contradict_each_other():
    for lost, gained, pairs in tables(30, step=3):
        smallest = smallest_margin(lost=lost, gained=gained, pairs=pairs)
        interval = tango_interval(lost=lost, gained=gained, pairs=pairs)
        assert smallest == (None if lost == pairs else max(0.0, -interval.low))
        for margin in (0.01, 0.05, 0.1, 0.3, 0.9):
            # The p-value of `noninferiority` without its slower exact part.
            z = tango_score(lost=lost, gained=gained, pairs=pairs, difference=-margin)
            shown = smallest is not None and margin > smallest
            assert shown == (z > Z) == (interval.low > -margin)
            more = questions_needed(lost=lost, gained=gained, pairs=pairs, margin=margin)
            assert (more == 0) == shown
            both = equivalence(lost=lost, gained=gained, pairs=pairs, margin=margin)
            assert (both.p < 0.025) == (interval.low > -margin and interval.high < margin)
            assert both.p_not_worse == pytest.approx(norm.sf(z))


def trinomial(pairs: int, lost_rate: float, gained_rate: float) -> np.ndarray:
    """Return the chance of every table, indexed [lost, gained]."""
    chance = np.zeros((pairs + 1, pairs + 1))
    for lost in range(pairs + 1):
        rest = np.arange(pairs - lost + 1)
        share = min(1.0, gained_rate / (1 - lost_rate)) if lost_rate < 1 else 0.0
        chance[lost, : pairs - lost + 1] = binom.pmf(lost, pairs, lost_rate) * binom.pmf(rest, pairs - lost, share)
    return chance


@pytest.mark.parametrize(("pairs", "margin"), [(7, 0.1), (12, 0.05), (20, 0.3)])
def test_exact_p_values_are_the_largest_chance_over_all_truths(pairs, margin):
    rates = np.linspace(margin, (1 + margin) / 2, 301)
    at_margin = [trinomial(pairs, rate, rate - margin) for rate in rates]
    alike = [trinomial(pairs, rate / 2, rate / 2) for rate in np.linspace(0, 1, 301)]
    score = np.full((pairs + 1, pairs + 1), -np.inf)
    z = np.zeros((pairs + 1, pairs + 1))
    for lost, gained, n in tables(pairs):
        if n == pairs:
            score[lost, gained] = tango_score(lost=lost, gained=gained, pairs=pairs, difference=-margin)
            z[lost, gained] = abs(mcnemar(lost=lost, gained=gained).z)
    for lost, gained in [(0, 0), (1, 0), (0, 1), (3, 1), (1, 3), (5, 2), (pairs, 0), (0, pairs), (pairs // 2, 2)]:
        largest = max(chance[score >= score[lost, gained] - 1e-9].sum() for chance in at_margin)
        actual = exact_noninferiority_p(lost=lost, gained=gained, pairs=pairs, margin=margin)
        assert largest <= actual + 1e-7 and actual == pytest.approx(largest, abs=1e-3)
        largest = max(chance[z >= z[lost, gained] - 1e-9].sum() for chance in alike)
        actual = exact_mcnemar_p(lost=lost, gained=gained, pairs=pairs)
        assert largest <= actual + 1e-7 and actual == pytest.approx(largest, abs=1e-3)


def test_above_the_limit_only_the_score_test_is_given():
    assert noninferiority(lost=10, gained=10, pairs=1000, margin=0.05).exact_p is not None
    assert noninferiority(lost=10, gained=10, pairs=1001, margin=0.05).exact_p is None


@pytest.mark.parametrize("test", ["exact", "midp"])
@pytest.mark.parametrize("two_sided", [False, True])
def test_power_is_the_chance_of_all_significant_tables(test, two_sided):
    pairs, lost_rate, gained_rate = 24, 0.3, 0.08
    chance = trinomial(pairs, lost_rate, gained_rate)
    field = f"{test}_{'two' if two_sided else 'one'}_sided"
    direct = sum(
        chance[lost, gained]
        for lost, gained, n in tables(pairs)
        if n == pairs and getattr(mcnemar(lost=lost, gained=gained), field) <= 0.05
    )
    power = regression_power(pairs=pairs, lost_rate=lost_rate, gained_rate=gained_rate, test=test, two_sided=two_sided)
    assert power == pytest.approx(direct, rel=1e-9)


def test_noninferiority_power_is_the_chance_of_all_tables_that_show_the_margin():
    chance = trinomial(24, 0.05, 0.1)
    direct = sum(
        chance[lost, gained]
        for lost, gained, n in tables(24)
        if n == 24 and tango_score(lost=lost, gained=gained, pairs=24, difference=-0.1) >= norm.isf(0.05)
    )
    assert noninferiority_power(pairs=24, lost_rate=0.05, gained_rate=0.1, margin=0.1, alpha=0.05) == pytest.approx(
        direct, rel=1e-9
    )


# Error rates at 198 questions: reference values of the specification, by enumeration


@pytest.mark.parametrize(
    ("test", "sizes"),
    [
        ("exact", (0.008, 0.023, 0.032, 0.035, 0.038, 0.040)),
        ("midp", (0.024, 0.042, 0.049, 0.050, 0.049, 0.049)),
        ("asymptotic", (0.050, 0.052, 0.049, 0.050, 0.049, 0.050)),
    ],
)
def test_arms_that_do_not_differ_fail_as_often_as_stated(test, sizes):
    for discordance, size in zip((0.02, 0.05, 0.10, 0.15, 0.25, 0.50), sizes, strict=True):
        half = discordance / 2
        assert round(regression_power(pairs=198, lost_rate=half, gained_rate=half, test=test), 3) == size


def size_at(margin: float, discordance: float, alpha: float) -> float:
    return noninferiority_power(
        pairs=198,
        lost_rate=(discordance + margin) / 2,
        gained_rate=(discordance - margin) / 2,
        margin=margin,
        alpha=alpha,
    )


@pytest.mark.parametrize(
    ("margin", "worst", "sizes"),
    [
        (0.01, 0.0524, (0.049, 0.052, 0.051, 0.050)),
        (0.02, 0.0513, (0.049, 0.048, 0.049, 0.051)),
        # The specification prints .049 at 15 %; direct enumeration of all trinomial chances gives .04846.
        (0.03, 0.0514, (0.043, 0.048, 0.048, 0.050)),
        (0.05, 0.0517, (0.028, 0.046, 0.051, 0.049)),
    ],
)
def test_a_loss_equal_to_the_margin_passes_as_often_as_stated(margin, worst, sizes):
    for discordance, size in zip((0.05, 0.10, 0.15, 0.25), sizes, strict=True):
        # At 5 % discordance and a margin of 5 % every discordant pair is lost.
        assert round(size_at(margin, discordance, 0.05), 3) == size
    grid = np.linspace(margin, 1, 600)
    assert max(size_at(margin, d, 0.05) for d in grid) == pytest.approx(worst, abs=1e-4)


def test_at_the_level_of_a_95_percent_interval_no_margin_passes_more_often_than_it_may():
    worst = max(size_at(m, m + d, 0.025) for m in np.linspace(0.004, 0.1, 97) for d in np.linspace(0, 0.4, 41))
    assert worst == pytest.approx(0.0266, abs=2e-4)
    assert size_at(0.0135, 0.0135, 0.05) == pytest.approx(0.0678, abs=1e-4)


@pytest.mark.parametrize(("margin", "size"), [(0.01, 0.0486), (0.02, 0.0456), (0.03, 0.0458), (0.05, 0.0461)])
def test_the_exact_noninferiority_test_keeps_its_level(margin, size):
    # The exact p-value falls as z rises, so its 5 % region is found by bisection among the tables sorted by z.
    ordered = sorted(
        itertools.product(range(80), repeat=2),
        key=lambda table: tango_score(lost=table[0], gained=table[1], pairs=198, difference=-margin),
    )
    low, high = 0, len(ordered) - 1
    while high - low > 1:
        middle = (low + high) // 2
        lost, gained = ordered[middle]
        rejected = exact_noninferiority_p(lost=lost, gained=gained, pairs=198, margin=margin) <= 0.05
        low, high = (low, middle) if rejected else (middle, high)
    lost, gained = ordered[high]
    critical = tango_score(lost=lost, gained=gained, pairs=198, difference=-margin)
    alpha = float(norm.sf(critical - 1e-9))
    sizes = [size_at(margin, d, alpha) for d in np.linspace(margin, 1, 600)]
    assert max(sizes) <= 0.05
    assert max(sizes) == pytest.approx(size, abs=5e-4)
