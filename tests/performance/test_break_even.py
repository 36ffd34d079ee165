"""No break-even is claimed that the scatter of the pairs covers."""

import pytest
import scipy.stats

from evalsuite_performance.break_even import Difference, break_even, describe, difference


def exactly(value: float) -> Difference:
    return Difference(mean=value, low=value, high=value)


def around(value: float, by: float) -> Difference:
    return Difference(mean=value, low=value - by, high=value + by)


def test_the_published_break_even_is_reproduced() -> None:
    """Triton everywhere: 8.5 s longer to the first token at 32K, 3 ms saved per token (DESIGN, section 1).

    Those are 2,833 tokens after the first: with one more both arms are level within 1 ms, and with two it is ahead.
    """
    assert break_even(exactly(8.5), exactly(0.003)).tokens == 2833 + 2


@pytest.mark.parametrize(
    ("extra", "saved", "expected"),
    [
        (
            around(1.05, 0.1),
            around(0.01, 0.002),
            "from 107 tokens (81 to 145)",
        ),  # 1.05 / 0.01; 0.95 / 0.012; 1.15 / 0.008
        (around(-1.05, 0.1), around(-0.01, 0.002), "until 105 tokens (80 to 144)"),
        (around(1.0, 0.1), around(-0.01, 0.001), "never"),
        (around(-1.0, 0.1), around(0.01, 0.001), "always"),
        (around(0.1, 0.203), around(0.01, 0.005), "from at most 62 tokens"),  # 0.303 / 0.005
        (around(0.1, 0.203), around(-0.01, 0.005), "until at most 21 tokens"),  # -0.103 / -0.005
        (around(1.0, 0.1), around(0.001, 0.0019), "from at least 312 tokens"),  # 0.9 / 0.0029
        (around(-1.0, 0.1), around(0.001, 0.0019), "until at least 1,000 tokens"),  # -0.9 / -0.0009
        (around(0.1, 0.2), around(0.001, 0.002), "no difference shown"),
        (exactly(0.0), around(0.01, 0.001), "always"),  # equal to the first token, faster after it
        (exactly(0.0), around(-0.01, 0.001), "never"),
        (around(1.0, 0.1), exactly(0.0), "never"),
        (around(-1.0, 0.1), exactly(0.0), "always"),
        (around(0.0, 0.0001), around(0.01, 0.001), "from at most 2 tokens"),  # with one it may still be behind
    ],
)
def test_break_even_claims_what_the_intervals_show(extra: Difference, saved: Difference, expected: str) -> None:
    assert describe(break_even(extra, saved)) == expected


@pytest.mark.parametrize("late", [0.0125, 0.5, 3.0, 3.0625])
def test_from_the_break_even_an_arm_is_ahead_and_before_it_is_not(late: float) -> None:
    """By its definition, in binary fractions: N tokens take the time to the first and N - 1 times that of a token."""

    def ahead(tokens: int) -> bool:
        return late + (tokens - 1) * 0.125 < (tokens - 1) * 0.25

    first = break_even(exactly(late), exactly(0.125)).tokens
    assert first and ahead(first) and not ahead(first - 1)
    last = break_even(exactly(-late), exactly(-0.125)).tokens
    assert last and -late + (last - 1) * 0.125 < 0 and not -late + last * 0.125 < 0


def test_a_difference_is_that_of_the_pairs_with_students_interval() -> None:
    slow, fast = [1.0, 1.4, 1.1, 1.7], [0.9, 1.25, 1.0, 1.55]
    found = difference(slow, fast)
    expected = scipy.stats.ttest_rel(slow, fast).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.125)
    assert found.sign == 1, "the ranges of the two overlap, and in every pair the second is faster"
    assert difference(fast, slow).sign == -1
    assert difference(slow, slow).sign == 0


def test_one_pair_shows_no_difference() -> None:
    assert difference([9.0], [1.0]).sign == 0
    assert describe(break_even(difference([9.0], [1.0]), difference([9.0], [1.0]))) == "no difference shown"
