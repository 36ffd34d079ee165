"""How soon the evidence of `watch` accepts arms that do not differ: a simulation, since no formula is known."""

import math
from dataclasses import dataclass

from . import _checks
from ._evidence import MOST_STAKED, PRIOR_DISCORDANCE, PRIOR_QUESTIONS, best_bet


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """After how many questions equal arms are found no worse than the margin. Simulated, with an error of some 3 %."""

    median: int
    in_80_percent: int
    """The number of questions within which 80 % of runs stop."""
    share_within: float
    """The share of runs that stop within the questions at hand."""


def stopping(*, pairs: int, margin: float, discordance: float, alpha: float = 0.05, runs: int = 1000) -> Stopping:
    """Simulate `noninferiority_wealth` on arms that do not truly differ, and return when it reaches 1 / alpha.

    Parameters
    ----------
    pairs : int
        The questions at hand.
    margin : float
        A fraction strictly between 0 and 1.
    discordance : float
        Share of pairs that are lost or gained, from 0 to 1.
    alpha : float
        Level, strictly between 0 and 1.
    runs : int
        Runs to simulate, at least 1, made even. The result depends on nothing else.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    import numpy as np

    pairs, margin = _checks.count("pairs", pairs), _checks.fraction("margin", margin)
    discordance, alpha = _checks.share("discordance", discordance), _checks.fraction("alpha", alpha)
    if not _checks.count("runs", runs):
        raise ValueError("runs must be at least 1, found 0")
    rng = np.random.default_rng(0)
    half_runs = math.ceil(runs / 2)
    # Each draw serves two runs, with lost and gained exchanged: both bet the same, and their luck is opposite.
    stopped_at = np.full((2, half_runs), np.iinfo(np.int64).max)
    wealth, seen = np.zeros((2, half_runs), np.float32), np.zeros(half_runs, np.float32)
    going = np.arange(half_runs)
    start, block = 0, 256
    while len(going) and (start < pairs or (stopped_at > start).mean() > 0.2):
        draw = rng.random((len(going), block), dtype=np.float32)
        discordant = draw < discordance
        before = seen[going, None] + np.cumsum(discordant, axis=1, dtype=np.float32) - discordant
        asked = np.arange(start, start + block, dtype=np.float32)
        expected = (PRIOR_DISCORDANCE * PRIOR_QUESTIONS + before) / (PRIOR_QUESTIONS + asked)
        bet = np.minimum(
            best_bet(lost_rate=expected / 2, gained_rate=expected / 2, margin=margin), MOST_STAKED / (1 - margin)
        )
        outcome = np.where(draw < discordance / 2, np.float32(-1), discordant)
        for side, sign in enumerate((1, -1)):
            path = wealth[side, going, None] + np.cumsum(np.log1p(bet * (sign * outcome + margin)), axis=1)
            reached = path >= -math.log(alpha)
            stops = reached.any(axis=1) & (stopped_at[side, going] > start)
            stopped_at[side, going[stops]] = start + 1 + reached[stops].argmax(axis=1)
            wealth[side, going] = path[:, -1]
        seen[going] += discordant.sum(axis=1)
        start += block
        going = going[(stopped_at[:, going] > start).any(axis=0)]
    ordered = np.sort(stopped_at, axis=None)
    return Stopping(
        median=int(ordered[(len(ordered) - 1) // 2]),
        in_80_percent=int(ordered[math.ceil(0.8 * len(ordered)) - 1]),
        share_within=float((stopped_at <= pairs).mean()),
    )
