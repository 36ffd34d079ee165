"""The ratio of two totals over clusters."""

import math

import numpy as np
import pytest

from evalsuite.statistics import ratio_of_totals


def test_proportional_totals_have_an_interval_without_width() -> None:
    found = ratio_of_totals([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found is not None
    assert (found.low, found.ratio, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.clusters == 3


def test_the_interval_is_what_the_definition_says() -> None:
    above, below = [3.0, 5.0, 4.0, 8.0], [2.0, 2.0, 3.0, 3.0]
    found = ratio_of_totals(above, below)
    assert found is not None
    deviations = np.array(above) / np.mean(above) - np.array(below) / np.mean(below)
    error = np.std(deviations, ddof=1) / math.sqrt(4)
    assert found.ratio == pytest.approx(2.0)
    assert math.log(found.high / found.ratio) == pytest.approx(3.182446305 * error)  # t(0.975; 3 degrees of freedom)
    assert found.low * found.high == pytest.approx(found.ratio**2)


def test_swapping_the_totals_gives_the_reciprocal_and_scaling_scales() -> None:
    above, below = [3.0, 5.0, 4.0, 8.0], [2.0, 2.0, 3.0, 3.0]
    found, swapped = ratio_of_totals(above, below), ratio_of_totals(below, above)
    scaled = ratio_of_totals([10 * value for value in above], below)
    assert found is not None and swapped is not None and scaled is not None
    assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low))
    assert (scaled.low, scaled.high) == pytest.approx((10 * found.low, 10 * found.high))


@pytest.mark.parametrize(("clusters", "least"), [(10, 0.91), (40, 0.935), (200, 0.94)])
def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says(clusters: int, least: float) -> None:
    # A linearized logarithm is a little short with few clusters: 92.5 % in place of 95 % at 10.
    rng, runs, covered = np.random.default_rng(0), 2000, 0
    for _ in range(runs):
        shared = rng.gamma(4.0, size=clusters)
        above, below = (shared * rng.gamma(10.0, size=clusters) * scale for scale in (1.5, 1.0))
        found = ratio_of_totals(above.tolist(), below.tolist())
        covered += found is not None and found.low <= 1.5 <= found.high
    assert least <= covered / runs <= 0.965


def test_no_interval_without_two_clusters_or_with_a_total_of_zero() -> None:
    assert ratio_of_totals([1.0], [1.0]) is None
    assert ratio_of_totals([], []) is None
    assert ratio_of_totals([1.0, 2.0], [0.0, 0.0]) is None
    assert ratio_of_totals([0.0, 0.0], [1.0, 2.0]) is None


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="as many numerators"):
        ratio_of_totals([1.0, 2.0], [1.0])
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="at least 0"):
            ratio_of_totals([1.0, bad], [1.0, 1.0])
    with pytest.raises(ValueError, match="confidence"):
        ratio_of_totals([1.0, 2.0], [1.0, 1.0], confidence=1.0)
