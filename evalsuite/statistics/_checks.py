"""Checks of what callers pass in: one function, and one error text, per rule."""

import operator


def count(name: str, value: int) -> int:
    """Return `value` as an int. Raises ValueError if it is negative or not an integer."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = -1
    if whole < 0:
        raise ValueError(f"{name} must be a whole number of at least 0, found {value!r}")
    return whole


def counts(*, lost: int, gained: int, pairs: int) -> tuple[int, int, int]:
    """Return the three as ints. Raises ValueError if one is no count, or if more pairs are discordant than exist."""
    lost, gained, pairs = count("lost", lost), count("gained", gained), count("pairs", pairs)
    if lost + gained > pairs:
        raise ValueError(f"lost + gained must not exceed pairs, found {lost} + {gained} > {pairs}")
    return lost, gained, pairs


def fraction(name: str, value: float) -> float:
    """Return `value`. Raises ValueError unless it lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, found {value!r}")
    return float(value)


def share(name: str, value: float) -> float:
    """Return `value`. Raises ValueError unless it lies from 0 to 1, both allowed."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie from 0 to 1, found {value!r}")
    return float(value)


def probabilities(*, lost_rate: float, gained_rate: float) -> tuple[float, float]:
    """Return the two. Raises ValueError unless both are at least 0 and their sum is at most 1."""
    if not (lost_rate >= 0 and gained_rate >= 0 and lost_rate + gained_rate <= 1):
        raise ValueError(
            "lost_rate and gained_rate must be at least 0 and add up to at most 1, "
            f"found {lost_rate!r} and {gained_rate!r}"
        )
    return float(lost_rate), float(gained_rate)
