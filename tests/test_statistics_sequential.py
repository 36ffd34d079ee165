"""Planned looks against published constants, the tables of the specification, and a simulation with whole counts."""

import math

import numpy as np
import pytest

from evalsuite.statistics import group_sequential, nam_liu_pairs, tango_score


@pytest.mark.parametrize(
    ("alpha", "looks", "constant", "inflation"),
    [
        (0.025, 1, 1.9600, 1.0), (0.05, 1, 1.6449, 1.0),
        (0.025, 2, 1.9774, 1.0078), (0.025, 3, 2.0040, 1.0174), (0.025, 4, 2.0243, 1.0238), (0.025, 5, 2.0401, 1.0284),
        (0.05, 2, 1.6780, 1.0156), (0.05, 3, 1.7096, 1.0270), (0.05, 4, 1.7331, 1.0347), (0.05, 5, 1.7509, 1.0400),
    ],
)  # fmt: skip
def test_constants_and_inflation_are_those_of_rpact_3_3_4(alpha, looks, constant, inflation):
    plan = group_sequential(margin=0.01, discordance=0.1, alpha=alpha, looks=looks)
    assert (round(plan.constant, 4), plan.inflation) == (constant, inflation)
    pairs = nam_liu_pairs(margin=0.01, discordance=0.1, alpha=alpha)
    assert plan.most == math.ceil(inflation * pairs)
    assert (plan.mean < plan.most) == (looks > 1)


@pytest.mark.parametrize(("alpha", "share"), [(0.025, 0.8176), (0.05, 0.8005)])
def test_for_a_small_margin_the_mean_is_the_published_share_of_a_run_with_one_look(alpha, share):
    plan = group_sequential(margin=0.001, discordance=0.5, alpha=alpha)
    one_look = nam_liu_pairs(margin=0.001, discordance=0.5, alpha=alpha)
    assert plan.mean / one_look == pytest.approx(share, abs=0.0001)


@pytest.mark.parametrize(("margin", "discordance"), [(0.05, 0.05), (0.05, 0.25), (0.02, 0.05)])
def test_runs_of_whole_counts_end_and_show_the_margin_as_planned(margin, discordance):
    plan = group_sequential(margin=margin, discordance=discordance, alpha=0.05)
    looks = [math.ceil(plan.most * look / plan.looks) for look in range(1, plan.looks + 1)]

    def simulate(loss: float) -> tuple[float, float]:
        """Return the share of runs that show the margin, and the mean number of pairs."""
        rng, runs = np.random.default_rng(0), 4000
        chances = [(discordance + loss) / 2, (discordance - loss) / 2, 1 - discordance]
        parts = [rng.multinomial(pairs, chances, size=runs) for pairs in np.diff([0, *looks])]
        shown, pairs_asked = 0, 0
        for counts in np.cumsum(parts, axis=0).transpose(1, 0, 2).tolist():
            for look, (pairs, (lost, gained, _)) in enumerate(zip(looks, counts, strict=True), start=1):
                score = tango_score(lost=lost, gained=gained, pairs=pairs, difference=-margin)
                if score >= plan.constant * math.sqrt(plan.looks / look):
                    shown += 1
                    break
            pairs_asked += pairs
        return shown / runs, pairs_asked / runs

    power, mean = simulate(loss=0)
    # Specified: power .800 to .812 and type I error .0270 to .0508, over all margins and discordances.
    assert 0.8 - 0.019 <= power <= 0.812 + 0.019  # three standard errors
    assert plan.mean == pytest.approx(mean, rel=0.01 + 0.014)  # the approximation's 1 %, and three standard errors
    false, _ = simulate(loss=margin)
    assert 0.027 - 0.008 <= false <= 0.0508 + 0.0104


def test_more_looks_cost_more_pairs_at_most_and_fewer_on_average():
    plans = [group_sequential(margin=0.03, discordance=0.1, looks=looks) for looks in (1, 2, 3, 5, 10)]
    assert [plan.most for plan in plans] == sorted({plan.most for plan in plans})
    assert [plan.mean for plan in plans] == sorted({plan.mean for plan in plans}, reverse=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"margin": 0}, "margin must lie strictly between 0 and 1, found 0"),
        ({"discordance": 0}, "discordance must lie strictly between 0 and 1, found 0"),
        ({"alpha": 0.5}, "alpha must be below 0.5 and below power, found 0.5 and 0.8"),
        ({"power": 0.01}, "alpha must be below 0.5 and below power, found 0.025 and 0.01"),
        ({"looks": 0}, "looks must be at least 1, found 0"),
        ({"looks": 2.5}, "looks must be a whole number of at least 0, found 2.5"),
    ],
)
def test_arguments_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError) as error:
        group_sequential(**{"margin": 0.05, "discordance": 0.1, **wrong})
    assert str(error.value) == message
