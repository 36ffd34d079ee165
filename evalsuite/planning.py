"""What a run can show before it is run: pure functions behind `evalsuite plan`."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalsuite import statistics
from evalsuite.errors import UserError

EXACT_QUESTIONS = 20_000
"""Above this many questions a plan uses the formula, which is then exact to 0.1 %, and simulates nothing."""
MOST_QUESTIONS = 100_000
"""Above this many questions a plan takes minutes."""
DISCORDANCES = (0.05, 0.10, 0.15, 0.25)
MARGINS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
DISCORDANT = (0, 2, 4, 6, 8, 10, 15, 20, 30, 40, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run can show. Losses and margins are fractions; a number that does not exist is None."""

    pairs: int
    discordance: float
    alpha: float
    confidence: float
    power: float
    detectable_loss: float | None
    """Smallest true loss that ends in FAIL with the power wanted; None if no loss does at this discordance."""
    provable_margin: float | None
    """Smallest margin at which arms that do not truly differ end in PASS with the power wanted."""
    margin: float | None
    pass_power: float | None
    """Chance that arms which do not truly differ are shown to lose less than the margin."""
    questions_needed: int | None
    """Questions for the margin, at the power wanted."""
    samples_needed: int | None
    """Samples of each question instead, if discordance is nothing but the noise of sampling; else it takes more. None
    where no number of samples is enough, see `statistics.samples_to_prove`."""
    early_stop: statistics.Stopping | None
    """When `run --stop-early` would accept arms that do not truly differ; None above `EXACT_QUESTIONS`."""
    hours: float | None
    """GPU hours of the run at hand, both arms one after the other."""
    hours_needed: float | None
    """GPU hours for `questions_needed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detectable:
    """The smallest loss that each test finds in 80 % of runs, by the share of discordant pairs."""

    discordance: float
    two_sided: bool
    discordant: float
    """Discordant pairs to expect."""
    exact: float | None
    midp: float | None
    asymptotic: float | None
    connor: float | None
    """By Connor's formula, the others by enumeration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Questions at one one-sided alpha, by how often the run is looked at."""

    formula: int
    """Once, at the end: Nam and Liu's formula."""
    looks: statistics.GroupSequential
    """After five planned parts."""
    early_stop: statistics.Stopping
    """After every question, with --stop-early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Questions to show a margin in 80 % of runs of arms that do not truly differ."""

    margin: float
    discordance: float
    at_05: Lengths
    at_025: Lengths
    """This alpha matches the 95 % interval of the verdict."""
    exact: int
    """By enumeration, one look, one-sided alpha 0.05."""
    equivalence: int
    """The formula for two one-sided tests, alpha 0.05 each."""
    samples: int
    """Samples of each question at hand that make up `at_05.formula`: for these very questions. `Plan.samples_needed`
    allows for others that might have been drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provable:
    """What the questions at hand can show of arms that do not truly differ."""

    discordance: float
    power: tuple[float, ...]
    """Chance to show each of `MARGINS`, one-sided alpha 0.05."""
    smallest: float | None
    """Smallest margin shown in 80 % of runs, one-sided alpha 0.05."""
    smallest_95: float | None
    """The same with the 95 % interval of the verdict."""


def plan(
    *,
    pairs: int,
    discordance: float,
    margin: float | None = None,
    alpha: float = 0.05,
    confidence: float = 0.95,
    power: float = 0.8,
    seconds_per_response: float | None = None,
) -> Plan:
    """Return what a run over `pairs` questions can show.

    Parameters
    ----------
    pairs : int
        Questions, at least 1.
    discordance : float
        Share of pairs expected to be lost or gained, from 0 to 1; an A/A run measures the least there can be.
    margin : float or None
        The largest loss accepted, a fraction; None leaves out what depends on it.
    alpha, confidence : float
        Level of the regression test and of the interval, as the verdict uses them.
    power : float
        Chance wanted that the run shows what is true.
    seconds_per_response : float or None
        GPU seconds of one response; None leaves out the hours.

    Raises
    ------
    UserError
        If an argument is out of range.
    """
    _check_questions(pairs)
    if seconds_per_response is not None and not 0 < seconds_per_response < math.inf:
        raise UserError(f"seconds for one response must be a positive number, found {seconds_per_response!r}")
    one_sided = (1 - confidence) / 2
    half = discordance / 2
    pass_power = questions = samples = early_stop = None
    if margin is not None and 0 < margin < statistics.LEAST_MARGIN:
        raise UserError(f"margin is {margin:g}; expected {statistics.LEAST_MARGIN:g} (a hundredth of a point) or more")
    try:
        detectable = statistics.smallest_detectable_loss(pairs=pairs, discordance=discordance, alpha=alpha, power=power)
        provable = statistics.smallest_provable_margin(
            pairs=pairs, discordance=discordance, alpha=one_sided, power=power
        )
        if margin is not None:
            pass_power = statistics.noninferiority_power(
                pairs=pairs, lost_rate=half, gained_rate=half, margin=margin, alpha=one_sided
            )
            questions = math.ceil(
                statistics.nam_liu_pairs(margin=margin, discordance=discordance, alpha=one_sided, power=power)
            )
            if questions <= EXACT_QUESTIONS:
                questions = statistics.pairs_to_prove(
                    margin=margin, discordance=discordance, alpha=one_sided, power=power
                )
                early_stop = statistics.stopping(pairs=pairs, margin=margin, discordance=discordance, alpha=alpha)
            samples = (
                1
                if questions <= pairs
                else statistics.samples_to_prove(
                    questions=pairs, margin=margin, discordance=discordance, alpha=one_sided, power=power
                )
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    hours = None if seconds_per_response is None else 2 * pairs * seconds_per_response / 3600
    return Plan(
        pairs=pairs,
        discordance=discordance,
        alpha=alpha,
        confidence=confidence,
        power=power,
        detectable_loss=detectable,
        provable_margin=provable,
        margin=margin,
        pass_power=pass_power,
        questions_needed=questions,
        samples_needed=samples,
        early_stop=early_stop,
        hours=hours,
        hours_needed=None if hours is None or questions is None else hours * questions / pairs,
    )


def detectable(*, pairs: int, two_sided: bool, discordances: Sequence[float] = DISCORDANCES) -> tuple[Detectable, ...]:
    """Return the losses that `pairs` questions can see, alpha 0.05, one row for each discordance.

    Raises UserError for a number of questions that is out of range.
    """
    _check_questions(pairs)

    def smallest(discordance: float, test: statistics.Test) -> float | None:
        return statistics.smallest_detectable_loss(pairs=pairs, discordance=discordance, test=test, two_sided=two_sided)

    def by_connor(discordance: float) -> float | None:
        return _solve(
            lambda loss: statistics.connor_pairs(loss=loss, discordance=discordance, two_sided=two_sided) - pairs,
            discordance,
        )

    return tuple(
        Detectable(
            discordance=discordance,
            two_sided=two_sided,
            discordant=pairs * discordance,
            exact=smallest(discordance, "exact"),
            midp=smallest(discordance, "midp"),
            asymptotic=smallest(discordance, "asymptotic"),
            connor=by_connor(discordance),
        )
        for discordance in discordances
    )


def needed(
    *, pairs: int, margins: Sequence[float] = (0.01, 0.02, 0.03, 0.05), discordances: Sequence[float] = DISCORDANCES
) -> tuple[Needed, ...]:
    """Return the questions needed for each margin and discordance, and the samples of `pairs` questions instead."""

    def lengths(margin: float, discordance: float, alpha: float) -> Lengths:
        return Lengths(
            formula=math.ceil(statistics.nam_liu_pairs(margin=margin, discordance=discordance, alpha=alpha)),
            looks=statistics.group_sequential(margin=margin, discordance=discordance, alpha=alpha),
            early_stop=statistics.stopping(pairs=pairs, margin=margin, discordance=discordance, alpha=alpha),
        )

    rows = []
    for margin, discordance in itertools.product(margins, discordances):
        at_05 = lengths(margin, discordance, 0.05)
        rows.append(
            Needed(
                margin=margin,
                discordance=discordance,
                at_05=at_05,
                at_025=lengths(margin, discordance, 0.025),
                exact=statistics.pairs_to_prove(margin=margin, discordance=discordance, alpha=0.05),
                equivalence=math.ceil(
                    statistics.nam_liu_pairs(margin=margin, discordance=discordance, alpha=0.05, power=0.9)
                ),
                samples=math.ceil(at_05.formula / pairs),
            )
        )
    return tuple(rows)


def provable(*, pairs: int, discordances: Sequence[float] = DISCORDANCES) -> tuple[Provable, ...]:
    """Return what `pairs` questions can show of arms that do not truly differ, one row for each discordance."""
    return tuple(
        Provable(
            discordance=discordance,
            power=tuple(
                statistics.noninferiority_power(
                    pairs=pairs, lost_rate=discordance / 2, gained_rate=discordance / 2, margin=margin, alpha=0.05
                )
                for margin in MARGINS
            ),
            smallest=statistics.smallest_provable_margin(pairs=pairs, discordance=discordance, alpha=0.05),
            smallest_95=statistics.smallest_provable_margin(pairs=pairs, discordance=discordance),
        )
        for discordance in discordances
    )


def losses_allowed(*, pairs: int, margin: float) -> tuple[int | None, ...]:
    """Return for each number in `DISCORDANT` of discordant pairs how many may be lost, one-sided alpha 0.05.

    None where the margin is not shown even if none is lost, and where there are fewer pairs than that.
    """
    return tuple(
        statistics.most_lost(discordant=discordant, pairs=pairs, margin=margin, alpha=0.05)
        if discordant <= pairs
        else None
        for discordant in DISCORDANT
    )


def _check_questions(pairs: int) -> None:
    if pairs < 1:
        raise UserError(f"a plan needs at least 1 question, found {pairs}")
    if pairs > MOST_QUESTIONS:
        raise UserError(f"a plan is computed for at most {MOST_QUESTIONS:,} questions, found {pairs:,}")


def _solve(excess: Callable[[float], float], high: float) -> float | None:
    """Return where `excess`, which falls from infinity at 0, becomes 0; None if it is still positive at `high`."""
    if excess(high) > 0:
        return None
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
