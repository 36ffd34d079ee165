"""Published values, edge cases and refused input. Sources: tests/data/statistics_reference.csv, one row per value."""

import csv
import doctest
import math
import subprocess
import sys
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import pytest

import evalsuite.statistics as statistics
from evalsuite.statistics import (
    Counts,
    Errored,
    bonett_price_interval,
    confidence_sequence,
    connor_pairs,
    equivalence,
    exact_mcnemar_p,
    exact_noninferiority_p,
    holm,
    intention_to_treat,
    loss_wealth,
    mcnemar,
    mixture_evidence,
    most_lost,
    nam_liu_pairs,
    newcombe_interval,
    noninferiority,
    noninferiority_power,
    pairs_to_detect,
    questions_needed,
    rao_scott,
    regression_power,
    smallest_detectable_loss,
    smallest_margin,
    smallest_provable_margin,
    stopping,
    stratified_interval,
    stratified_score,
    tango_interval,
    tango_score,
    watch,
)

REFERENCE = list(csv.DictReader((Path(__file__).parent / "data" / "statistics_reference.csv").read_text().splitlines()))


def value_of(text: str) -> int | float | str:
    if text.isalpha():
        return text
    return int(text) if text.isdigit() else float(text)


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: f"row {row['row']} {row['function']} {row['field']}")
def test_a_published_value_is_reproduced_to_its_printed_digits(row):
    arguments = {name: value_of(text) for name, text in (item.split("=") for item in row["arguments"].split())}
    result = getattr(statistics, row["function"])(**arguments)
    actual = getattr(result, row["field"]) if row["field"] else result
    half_a_digit = 0.5 * 10.0 ** Decimal(row["value"]).as_tuple().exponent
    assert actual == pytest.approx(float(row["value"]), rel=0, abs=half_a_digit * (1 + 1e-9))


@pytest.mark.parametrize(
    ("lost", "gained", "shape", "e_value"),
    [(9, 3, 1, 2.7321678), (12, 3, 1, 8.906456), (20, 10, 1, 2.224093), (9, 3, 2, 3.0796204)],
)
def test_the_mixture_e_value_is_that_of_exact_arithmetic(lost, gained, shape, e_value):
    actual = math.exp(mixture_evidence(lost=lost, gained=gained, shape=shape))
    assert actual == pytest.approx(e_value, rel=1e-7 / e_value * 5)


def test_the_chow_shao_wang_example_needs_59_pairs():
    assert math.ceil(connor_pairs(loss=0.3, discordance=0.7, two_sided=True)) == 59


@pytest.mark.parametrize(
    "name", ["clusters", "evidence", "exact", "intervals", "mcnemar", "noninferiority", "power", "tango", "tasks"]
)
def test_the_examples_in_docstrings_hold(name):
    result = doctest.testmod(import_module(f"evalsuite.statistics._{name}"))
    assert result.attempted and not result.failed


def test_importing_the_statistics_loads_neither_scipy_nor_numpy():
    code = (
        "import sys, evalsuite.statistics; print([m for m in ('numpy', 'scipy', 'evalsuite.cli') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Edge cases


def test_without_discordant_pairs_every_p_value_is_1_and_flagged():
    test = mcnemar(lost=0, gained=0)
    assert test.no_discordant_pairs and test.z == 0
    assert test.exact_two_sided == test.exact_one_sided == test.midp_two_sided == test.midp_one_sided == 1
    assert test.asymptotic_two_sided == exact_mcnemar_p(lost=0, gained=0, pairs=198) == 1


def test_as_many_lost_as_gained_gives_an_exact_p_of_1_and_a_midp_below_1():
    test = mcnemar(lost=10, gained=10)
    assert test.exact_two_sided == 1
    assert test.midp_two_sided == pytest.approx(1 - math.comb(20, 10) / 2**21)
    assert test.midp_one_sided == pytest.approx(0.5)
    assert not test.no_discordant_pairs


@pytest.mark.parametrize(
    ("field", "first"), [("midp_one_sided", 4), ("exact_one_sided", 5), ("midp_two_sided", 5), ("exact_two_sided", 6)]
)
def test_the_fewest_lost_pairs_that_can_be_significant(field, first):
    assert getattr(mcnemar(lost=first - 1, gained=0), field) > 0.05 >= getattr(mcnemar(lost=first, gained=0), field)


@pytest.mark.parametrize("lost", [1, 5, 30])
def test_with_all_discordant_pairs_lost_the_one_sided_p_is_a_power_of_two(lost):
    assert mcnemar(lost=lost, gained=0).exact_one_sided == pytest.approx(2.0**-lost)
    assert mcnemar(lost=lost, gained=0).midp_one_sided == pytest.approx(2.0 ** -(lost + 1))


def test_identical_arms_still_give_the_tango_interval_a_width():
    z = 1.959963984540054
    for pairs in (1, 10, 198, 1319):
        interval = tango_interval(lost=0, gained=0, pairs=pairs)
        assert interval.high == pytest.approx(z**2 / (pairs + z**2))
        assert interval.low == pytest.approx(-interval.high)


@pytest.mark.parametrize(("margin", "needed"), [(0.01, 268), (0.02, 133), (0.03, 88), (0.05, 52)])
def test_identical_arms_need_this_many_questions_to_show_a_margin(margin, needed):
    z = noninferiority(lost=0, gained=0, pairs=needed, margin=margin).z
    assert z == pytest.approx(math.sqrt(needed * margin / (1 - margin)))
    assert noninferiority(lost=0, gained=0, pairs=needed, margin=margin).p <= 0.05
    assert noninferiority(lost=0, gained=0, pairs=needed - 1, margin=margin).p > 0.05


@pytest.mark.parametrize(("margin", "needed"), [(0.01, 299), (0.02, 149), (0.03, 99), (0.05, 59)])
def test_identical_arms_need_a_few_more_by_the_exact_test(margin, needed):
    assert exact_noninferiority_p(lost=0, gained=0, pairs=needed, margin=margin) <= 0.05
    assert exact_noninferiority_p(lost=0, gained=0, pairs=needed - 1, margin=margin) > 0.05


@pytest.mark.parametrize(("kept", "missed"), [(198, 0), (0, 198)])
def test_all_right_or_all_wrong_is_no_division_by_zero(kept, missed):
    interval = newcombe_interval(kept=kept, lost=0, gained=0, missed=missed)
    assert interval.low == pytest.approx(-0.0190, abs=5e-5) and interval.high == pytest.approx(0.0190, abs=5e-5)
    assert bonett_price_interval(lost=0, gained=0, pairs=198).high == pytest.approx(0.0139, abs=1e-4)


def test_no_pairs_give_no_evidence_and_no_division():
    nothing = {"lost": 0, "gained": 0, "pairs": 0}
    for interval in (tango_interval(**nothing), bonett_price_interval(**nothing)):
        assert (interval.low, interval.high) == (-1, 1)
    assert newcombe_interval(kept=0, lost=0, gained=0, missed=0).low == -1
    test = noninferiority(**nothing, margin=0.05)
    assert test.p == test.exact_p == equivalence(**nothing, margin=0.05).p == exact_mcnemar_p(**nothing) == 1
    assert tango_score(**nothing, difference=0.1) == 0
    assert smallest_margin(**nothing) is None and questions_needed(**nothing, margin=0.05) is None
    assert regression_power(pairs=0, lost_rate=0.2, gained_rate=0.1) == 0
    assert noninferiority_power(pairs=0, lost_rate=0.1, gained_rate=0.1, margin=0.05) == 0
    assert smallest_detectable_loss(pairs=0, discordance=0.1) is None
    assert smallest_provable_margin(pairs=0, discordance=0.1) is None
    assert most_lost(discordant=0, pairs=0, margin=0.05) is None
    assert watch([], margin=0.05).p_noninferior == 1 and mixture_evidence(lost=0, gained=0) == pytest.approx(0)
    assert confidence_sequence([]).low == -1 and confidence_sequence([]).high == 1
    assert rao_scott(baseline_right=[], candidate_right=[], samples=4).p_regression == 1


@pytest.mark.parametrize("pairs", [1, 7, 198])
def test_with_every_pair_lost_or_gained_the_interval_reaches_the_end(pairs):
    assert tango_interval(lost=pairs, gained=0, pairs=pairs).low == -1
    assert tango_interval(lost=0, gained=pairs, pairs=pairs).high == 1
    assert smallest_margin(lost=pairs, gained=0, pairs=pairs) is None


def test_the_score_at_no_difference_is_mcnemars_z():
    assert tango_score(lost=14, gained=6, pairs=198, difference=0) == pytest.approx(mcnemar(lost=14, gained=6).z)
    assert tango_score(lost=0, gained=0, pairs=198, difference=0) == 0


def test_an_interval_above_zero_passes_any_margin():
    assert smallest_margin(lost=2, gained=30, pairs=198) == 0


def test_no_discordance_and_no_loss_have_no_power():
    assert regression_power(pairs=198, lost_rate=0, gained_rate=0) == 0
    assert regression_power(pairs=198, lost_rate=0, gained_rate=0.1) < 1e-9
    assert noninferiority_power(pairs=198, lost_rate=0, gained_rate=0, margin=0.05) == pytest.approx(1)


def test_thousands_of_discordant_pairs_neither_overflow_nor_lose_digits():
    test = mcnemar(lost=500_900, gained=499_100)
    assert test.midp_two_sided == pytest.approx(test.asymptotic_two_sided, rel=1e-4)
    assert 0 < tango_interval(lost=0, gained=0, pairs=1_000_000).high < 4e-6


@pytest.mark.parametrize(
    ("lost", "gained", "pairs", "margin", "regression", "shown"),
    [
        (0, 0, 198, 0.01, False, False),
        (0, 0, 10, 0.05, False, False),
        (40, 40, 1319, 0.05, False, True),
        (25, 9, 198, 0.05, True, False),
    ],
)
def test_the_figures_a_verdict_rests_on(lost, gained, pairs, margin, regression, shown):
    assert (mcnemar(lost=lost, gained=gained).midp_one_sided <= 0.05) == regression
    assert (tango_interval(lost=lost, gained=gained, pairs=pairs).low > -margin) == shown
    assert (questions_needed(lost=lost, gained=gained, pairs=pairs, margin=margin) == 0) == shown


# Refused input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mcnemar(lost=-1, gained=0), "lost must be a whole number of at least 0, found -1"),
        (lambda: mcnemar(lost=1, gained=2.5), "gained must be a whole number of at least 0, found 2.5"),
        (lambda: tango_interval(lost=1, gained=1, pairs="9"), "pairs must be a whole number of at least 0, found '9'"),
        (lambda: tango_interval(lost=5, gained=6, pairs=10), "lost + gained must not exceed pairs, found 5 + 6 > 10"),
        (
            lambda: tango_interval(lost=0, gained=0, pairs=9, confidence=95),
            "confidence must lie strictly between 0 and",
        ),
        (lambda: tango_score(lost=0, gained=0, pairs=9, difference=1), "difference must lie strictly between -1 and 1"),
        (lambda: noninferiority(lost=0, gained=0, pairs=9, margin=0), "margin must lie strictly between 0 and 1, fou"),
        (
            lambda: noninferiority(lost=0, gained=0, pairs=9, margin=-0.1),
            "margin must lie strictly between 0 and 1, fo",
        ),
        (lambda: noninferiority(lost=0, gained=0, pairs=9, margin=math.nan), "margin must lie strictly between 0 and "),
        (lambda: equivalence(lost=0, gained=0, pairs=9, margin=1), "margin must lie strictly between 0 and 1, found 1"),
        (lambda: questions_needed(lost=0, gained=0, pairs=9, margin=0.1, power=1), "power must lie strictly between 0"),
        (
            lambda: regression_power(pairs=9, lost_rate=0.7, gained_rate=0.6),
            "lost_rate and gained_rate must be at leas",
        ),
        (lambda: regression_power(pairs=9, lost_rate=0.1, gained_rate=0, alpha=0), "alpha must lie strictly between 0"),
        (lambda: pairs_to_detect(loss=0.2, discordance=0.1), "loss must be above 0 and at most discordance, found 0.2"),
        (lambda: nam_liu_pairs(margin=0.1, discordance=0.2, difference=-0.1), "difference must exceed -margin and be "),
        (lambda: stratified_score([], difference=-1), "difference must lie strictly between -1 and 1, found -1"),
        (lambda: stopping(pairs=9, margin=0.1, discordance=0.1, runs=0), "runs must be at least 1, found 0"),
        (lambda: holm([0.1, 1.5]), "p-values must lie between 0 and 1, found 1.5"),
        (lambda: stratified_interval([]), "tasks must hold at least one task, found none"),
        (lambda: stratified_interval([Counts(lost=0, gained=0, pairs=0)]), "every task must have at least one pair"),
        (
            lambda: rao_scott(baseline_right=[1], candidate_right=[], samples=4),
            "both arms must have the same questions",
        ),
        (
            lambda: rao_scott(baseline_right=[5], candidate_right=[1], samples=4),
            "right samples must not exceed samples",
        ),
        (lambda: rao_scott(baseline_right=[], candidate_right=[], samples=0), "samples must be at least 1, found 0"),
        (lambda: watch([2], margin=0.1), "outcomes must lie between -1 and 1, found 2"),
        (lambda: list(loss_wealth([0], beyond=-0.1)), "beyond must be at least 0 and below 1, found -0.1"),
        (lambda: mixture_evidence(lost=1, gained=1, shape=0), "shape must be positive, found 0"),
        (
            lambda: intention_to_treat(
                Counts(lost=0, gained=0, pairs=1),
                Errored(
                    candidate_only_right=-1,
                    candidate_only_wrong=0,
                    baseline_only_right=0,
                    baseline_only_wrong=0,
                    both=0,
                ),
            ),
            "candidate_only_right must be a whole number of at least 0, found -1",
        ),
    ],
)
def test_invalid_input_is_refused_with_what_was_found(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)
