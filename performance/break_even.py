"""From which output length a change pays that costs time to the first token and saves time on each one after it.

A response of N tokens takes the time to its first token and N - 1 times the time per token after it, so an arm is ahead
once (N - 1) x seconds saved per token > extra seconds to the first token.

Both quantities are differences between two arms that were asked in the same round, known as a mean with an interval.
Where an interval holds zero the difference is not shown, and only a bound is claimed: what its far end allows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Literal

Kind = Literal["always", "never", "from", "until", "from at most", "until at most", "from at least", "until at least",
               "not shown"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over repetitions: its median and its range."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean of paired differences, and its 95 % confidence interval, which is unbounded for a single pair."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves out zero, 0 where it does not: the difference is within noise."""
        return (self.low > 0) - (self.high < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """For which output lengths an arm is faster than the baseline.

    `always` and `never`: for all and for none. `from` N: for N tokens and more, `until` N: for up to N, with `low` and
    `high` from the ends of both intervals. "at most" and "at least" mark a bound on N where one of the two differences
    is not shown. `not shown`: neither is, so that nothing can be said.
    """

    kind: Kind
    tokens: int | None = None
    low: int | None = None
    high: int | None = None


def spread(values: Sequence[float]) -> Spread:
    """Return median and range of at least one value."""
    return Spread(median=median(values), low=min(values), high=max(values))


def difference(minuends: Sequence[float], subtrahends: Sequence[float]) -> Difference:
    """Return the mean difference of values that were measured in pairs, with its interval by Student's t."""
    from scipy.special import stdtrit

    pairs = [one - other for one, other in zip(minuends, subtrahends, strict=True)]
    if len(pairs) == 1:
        return Difference(mean=pairs[0], low=-math.inf, high=math.inf)
    middle, half = mean(pairs), float(stdtrit(len(pairs) - 1, 0.975)) * stdev(pairs) / math.sqrt(len(pairs))
    return Difference(mean=middle, low=middle - half, high=middle + half)


def break_even(extra: Difference, saved: Difference) -> BreakEven:
    """Return for which output lengths an arm pays.

    `extra` is what it takes longer to the first token, in seconds; `saved` what each token after it takes less.
    Either may be negative.
    """
    match extra.sign, saved.sign:
        case (1, 1):
            return BreakEven(
                kind="from",
                tokens=first_ahead(extra.mean, saved.mean),
                low=first_ahead(extra.low, saved.high),
                high=first_ahead(extra.high, saved.low),
            )
        case (-1, -1):
            return BreakEven(
                kind="until",
                tokens=last_ahead(extra.mean, saved.mean),
                low=last_ahead(extra.high, saved.low),
                high=last_ahead(extra.low, saved.high),
            )
        case (1, -1):
            return BreakEven(kind="never")
        case (-1, 1):
            return BreakEven(kind="always")
        case (0, 1) if extra.high > 0:
            return BreakEven(kind="from at most", tokens=first_ahead(extra.high, saved.low))
        case (0, -1) if extra.low < 0:
            return BreakEven(kind="until at most", tokens=last_ahead(extra.low, saved.high))
        case (1, 0) if saved.high > 0:
            return BreakEven(kind="from at least", tokens=first_ahead(extra.low, saved.high))
        case (-1, 0) if saved.low < 0:
            return BreakEven(kind="until at least", tokens=last_ahead(extra.high, saved.low))
        case (0, 1) | (-1, 0):  # exactly equal in one of the two
            return BreakEven(kind="always")
        case (0, -1) | (1, 0):
            return BreakEven(kind="never")
    return BreakEven(kind="not shown")


def first_ahead(extra: float, saved: float) -> int:
    """Return the fewest tokens with which an arm is ahead that starts `extra` > 0 later and then saves `saved` > 0."""
    return math.floor(extra / saved) + 2


def last_ahead(extra: float, saved: float) -> int:
    """Return the most tokens with which an arm is still ahead that starts earlier and then loses: both are below 0."""
    return math.ceil(extra / saved)


def describe(found: BreakEven) -> str:
    """Return a break-even as a table prints it."""
    if found.tokens is None:
        return "no difference shown" if found.kind == "not shown" else found.kind
    ends = "" if found.low is None else f" ({found.low:,} to {found.high:,})"
    return f"{found.kind} {found.tokens:,} tokens{ends}"
