"""The three counts every statistic starts from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Lost, gained and all pairs: of one task, of several, or under an assumption about the missing ones."""

    lost: int
    gained: int
    pairs: int
