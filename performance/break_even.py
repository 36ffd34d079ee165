"""From which output length a change pays that costs time to the first token and saves time on each one after it.

    tokens = extra seconds to first token / seconds saved per token

Each quantity is known as a median and a range over a few repetitions. A difference whose range holds zero is not shown,
and then only a bound is claimed: what the far end of the range allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
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
class BreakEven:
    """For which output lengths an arm is faster than the baseline.

    `always` and `never`: for all and for none. `from` N: for N tokens and more, `until` N: for up to N. "at most" and
    "at least" mark a bound on N where one of the two differences lies within the scatter. `not shown`: both do, so that
    nothing can be said.
    """

    kind: Kind
    tokens: int | None = None


def spread(values: Sequence[float]) -> Spread:
    """Return median and range of at least one value."""
    return Spread(median=median(values), low=min(values), high=max(values))


def difference(minuend: Spread, subtrahend: Spread) -> Spread:
    """Return the difference of the medians, and the smallest and largest difference of two single values."""
    return Spread(
        median=minuend.median - subtrahend.median,
        low=minuend.low - subtrahend.high,
        high=minuend.high - subtrahend.low,
    )


def sign(change: Spread) -> int:
    """Return 1 or -1 where the two ranges do not meet, and 0 where they overlap: the difference is within noise."""
    return (change.low > 0) - (change.high < 0)


def break_even(extra: Spread, saved: Spread) -> BreakEven:
    """Return for which output lengths an arm pays.

    `extra` is what it takes longer to the first token, in seconds; `saved` what each token after it takes less.
    Either may be negative.
    """
    match sign(extra), sign(saved):
        case (1, 1):
            return BreakEven(kind="from", tokens=round(extra.median / saved.median))
        case (-1, -1):
            return BreakEven(kind="until", tokens=round(extra.median / saved.median))
        case (1, -1):
            return BreakEven(kind="never")
        case (-1, 1):
            return BreakEven(kind="always")
        case (0, 1):
            worst = round(extra.high / saved.low)
            return BreakEven(kind="from at most", tokens=worst) if worst > 0 else BreakEven(kind="always")
        case (0, -1):
            best = round(extra.low / saved.high)
            return BreakEven(kind="until at most", tokens=best) if best > 0 else BreakEven(kind="never")
        case (1, 0):
            if saved.high <= 0:
                return BreakEven(kind="never")
            return BreakEven(kind="from at least", tokens=round(extra.low / saved.high))
        case (-1, 0):
            if saved.low >= 0:
                return BreakEven(kind="always")
            return BreakEven(kind="until at least", tokens=round(extra.high / saved.low))
    return BreakEven(kind="not shown")


def describe(found: BreakEven) -> str:
    """Return a break-even as a table prints it."""
    if found.tokens is None:
        return "no difference shown" if found.kind == "not shown" else found.kind
    return f"{found.kind} {found.tokens:,} tokens"
