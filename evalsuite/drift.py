"""How far an arm's next-token distributions lie from the baseline's on the same tokens: does rounding explain it?

Both arms generated the same tokens, each by a decode step of its own (see `force`), and recorded the most probable
tokens of every step. A token that one of them does not name is at most as probable there as the least one that it
names. So the total variation is bounded from both sides, and the KL divergence from below.

Kernels that are right differ: they sum in another order, and every layer after rounds another way. How far that goes is
measured, on the same tokens, with kernels that are known to be right: the baseline's attention computed by another
backend or in another number of segments. They are the *envelope*. None of them may come from the code under test, whose
mistakes they would share, and they must agree with each other about as well as a candidate has to with them.

A candidate passes if its total variation is at most TOLERANCE times that of the right kernel that differs most, with
the whole 95 % interval of that ratio: over all decode steps, within every range of KV lengths, and at the first tokens,
which prefill decides; and if its farthest steps are, too. It fails with a whole interval above, or where many single
steps lie beyond anything a right kernel does. The interval rests on clusters of questions: steps of one are not
independent, nor are samples.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from math import exp, log
from typing import Any

from evalsuite.records import Forced
from evalsuite.statistics import Ratio, ratio_of_totals
from evalsuite.verdict import Verdict

TOLERANCE = 2.0
"""Times as far as right kernels: what the kernel tests of `attention` allow a kernel's error, too, relative to the
error of plain PyTorch in the same type."""
SPIKES = 10
"""Steps beyond TOLERANCE times the farthest of right kernels that a candidate may not reach. A right kernel's step is
the farther of a pair with chance 1/2; that the 10 farthest all are the candidate's has chance 2**-10, below 0.001."""
TAIL = 0.01
"""Share of the steps, the farthest, that are compared apart: a fault at page boundaries is rare and large."""
LEAST_TAIL = 5
REST = 2.0**-23
"""Least probability of the lumped outcome: servers send float32, which does not resolve less."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far two distributions of the next token lie apart."""

    kv_length: int
    """Tokens attended to, the one that this step appends included."""
    total_variation: float
    """Lower bound, from 0 to 1."""
    total_variation_most: float
    """Upper bound."""
    kl: float
    """KL divergence of the arm's distribution from the baseline's, lower bound, natural log."""
    same_top: bool
    """Both name the same token as most probable."""
    equal: bool
    """Both name the same tokens with the same probabilities, to the last bit."""
    broken: bool = False
    """One of them holds a probability that is no finite number: then nothing is farther off."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One arm against the baseline."""

    name: str
    prefill: Mapping[Key, Step]
    """The first token of each response, which the prompt's own step decides."""
    decode: Mapping[Key, tuple[Step, ...]]
    """The other tokens of each response."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All decode steps."""
        return tuple(chain.from_iterable(self.decode.values()))

    @cached_property
    def equal(self) -> bool:
        """Whether every step, those of prefill among them, gives the baseline's distribution to the last bit."""
        return all(step.equal for step in (*self.steps, *self.prefill.values()))

    @property
    def tail(self) -> float:
        """Total variation of the farthest decode steps, on average: TAIL of them, at least LEAST_TAIL."""
        ranked = sorted((step.total_variation for step in self.steps), reverse=True)
        farthest = ranked[: max(LEAST_TAIL, round(TAIL * len(ranked)))]
        return sum(farthest) / max(len(farthest), 1)

    @property
    def farthest(self) -> float:
        """The largest total variation of a decode step."""
        return max((step.total_variation for step in self.steps), default=0.0)

    @property
    def mean(self) -> float:
        """Total variation of a decode step, on average."""
        return sum(step.total_variation for step in self.steps) / max(len(self.steps), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What forced decoding says of the candidate."""

    verdict: Verdict
    reason: str
    ratio: Ratio | None
    """How many times as far as `widest` the candidate lies; None where that is not known."""
    widest: str | None
    """The right kernel that differs most from the baseline."""
    spikes: int | None
    """Steps at which the candidate lies beyond TOLERANCE times the farthest step of any right kernel."""


def compare(baseline: Sequence[Forced], arm: Sequence[Forced], *, name: str) -> Drift:
    """Return how far an arm lies from the baseline on the responses that both have.

    Raises ValueError where they were made to generate different tokens.
    """
    theirs = {(forced.question, forced.sample): forced for forced in arm}
    prefill, decode = {}, {}
    for ours in baseline:
        key = (ours.question, ours.sample)
        if key not in theirs:
            continue
        if theirs[key].token_ids != ours.token_ids:
            raise ValueError(f"{ours.question!r}, sample {ours.sample}: the arms were made to generate other tokens")
        first, *rest = _steps(ours, theirs[key])
        prefill[key], decode[key] = first, tuple(rest)
    return Drift(name=name, prefill=prefill, decode=decode)


def _steps(ours: Forced, theirs: Forced) -> Iterator[Step]:
    for at in range(len(ours.token_ids)):
        one, other = (dict(zip(forced.top_ids[at], forced.top_logprobs[at], strict=True)) for forced in (ours, theirs))
        yield _compare_step(one, other, kv_length=ours.prompt_tokens + at)


def _compare_step(one: Mapping[int, float | None], other: Mapping[int, float | None], *, kv_length: int) -> Step:
    """Return how far two distributions lie apart, of which each gives the logprobs of its most probable tokens."""
    same_top = next(iter(one), None) == next(iter(other), None)
    if None in one.values() or None in other.values() or not one or not other:
        return Step(
            kv_length=kv_length, total_variation=1.0, total_variation_most=1.0, kl=-log(REST), same_top=same_top,
            equal=False, broken=True,
        )  # fmt: skip
    ours, theirs = ({token: exp(value or 0.0) for token, value in named.items()} for named in (one, other))
    shared = ours.keys() & theirs.keys()
    # What is not shared, lumped into one outcome: lumping loses information, so this is a lower bound.
    rest = [max(1.0 - sum(named[token] for token in shared), REST) for named in (ours, theirs)]
    apart = sum(abs(ours[token] - theirs[token]) for token in shared)
    lumped = (apart + abs(rest[0] - rest[1])) / 2
    # Total variation is also the sum of all that one holds more than the other, over any tokens at least.
    least = max(lumped, _excess(ours, theirs), _excess(theirs, ours)) if one != other else 0.0
    ratios = ((one[token] or 0.0) - (other[token] or 0.0) for token in shared)
    kl = sum(ours[token] * ratio for token, ratio in zip(shared, ratios, strict=True)) + rest[0] * log(
        rest[0] / rest[1]
    )
    return Step(
        kv_length=kv_length,
        total_variation=min(least, 1.0),
        total_variation_most=min(max((apart + sum(rest)) / 2, least), 1.0),
        kl=max(kl, 2 * least**2, 0.0),  # Pinsker's inequality
        same_top=same_top,
        equal=one == other,
    )


def _excess(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return how much more probability the tokens of `ours` hold there, at least, than in `theirs`."""
    unnamed = min(theirs.values())
    return sum(max(value - theirs.get(token, unnamed), 0.0) for token, value in ours.items())


def judge(
    candidate: Drift,
    right: Sequence[Drift],
    *,
    again: Drift | None = None,
    clusters: Mapping[str, str] | None = None,
) -> Judgement:
    """Return whether the candidate lies no farther from the baseline than right kernels explain.

    `again` is the baseline once more, `clusters` names the cluster of each question, by default itself. Whether the
    evidence is the candidate's own is not asked here, see `copies`.
    """
    steps = (*candidate.steps, *candidate.prefill.values())
    if not candidate.steps:
        return _judgement(Verdict.INCONCLUSIVE, "no decode step was forced")
    if broken := sum(step.broken for step in steps):
        return _judgement(Verdict.FAIL, f"{broken} steps hold a probability that is no finite number")
    if candidate.equal:
        return _judgement(Verdict.PASS, "it gives the baseline's distributions exactly")
    measured = find_measured(right)
    if not measured:
        return _judgement(
            Verdict.INCONCLUSIVE,
            "no right kernel that differs from the baseline was measured, so what rounding explains is not known; "
            "name one with --right",
        )
    narrowest, widest = (choose(measured, key=lambda drift: drift.mean) for choose in (min, max))
    if widest.mean > TOLERANCE * narrowest.mean:
        return _judgement(
            Verdict.INCONCLUSIVE,
            f"{widest.name} lies {widest.mean / narrowest.mean:.1f} times as far off as {narrowest.name}: one of "
            "them is not right",
        )
    if again is not None and again.mean * TOLERANCE > narrowest.mean:
        return _judgement(
            Verdict.INCONCLUSIVE, "the baseline lies as far from itself, so what rounding explains is not known"
        )
    return _weigh(candidate, measured, widest, clusters or {})


def find_measured(right: Sequence[Drift]) -> list[Drift]:
    """Return the right kernels that show rounding: one that differs in a few steps only is the baseline's kernel."""
    return [drift for drift in right if sum(not step.equal for step in drift.steps) > len(drift.steps) / 2]


def _weigh(candidate: Drift, right: Sequence[Drift], widest: Drift, clusters: Mapping[str, str]) -> Judgement:
    ratio = _ratio(candidate.decode, widest.decode, clusters)
    farthest = max(drift.farthest for drift in right)
    spikes = sum(step.total_variation > TOLERANCE * farthest for step in candidate.steps)
    found: dict[str, Any] = {"ratio": ratio, "widest": widest.name, "spikes": spikes}
    if spikes >= SPIKES:
        return _judgement(
            Verdict.FAIL, f"{spikes} steps lie beyond {TOLERANCE:g} times the farthest of right kernels", **found
        )
    if ratio is None:
        return _judgement(Verdict.INCONCLUSIVE, "one cluster of questions gives no interval; force more", **found)
    if ratio.low > TOLERANCE:
        return _judgement(Verdict.FAIL, "rounding does not explain how far it lies from the baseline", **found)
    parts = list(_parts(candidate, right, clusters))
    for name, part, strict in parts:
        if strict is not None and strict.low > TOLERANCE:
            return _judgement(Verdict.FAIL, f"{name} it lies {part.ratio:.2f} times as far as right kernels", **found)
    if ratio.high > TOLERANCE:
        return _judgement(Verdict.INCONCLUSIVE, "the interval is too wide; force more tokens", **found)
    for name, part, _ in parts:
        if part.high > TOLERANCE:
            told = f"{name} it lies {part.ratio:.2f} times as far as right kernels, with an interval to {part.high:.2f}"
            return _judgement(Verdict.INCONCLUSIVE, f"{told}; force more tokens there", **found)
    if any(step.total_variation for step in candidate.prefill.values()) and not any(
        step.total_variation for drift in right for step in drift.prefill.values()
    ):
        return _judgement(
            Verdict.INCONCLUSIVE, "its prefill differs from the baseline's, and no right kernel's does", **found
        )
    tail = max(drift.tail for drift in right)
    if candidate.tail > TOLERANCE * tail:
        return _judgement(
            Verdict.INCONCLUSIVE,
            f"its farthest steps lie {candidate.tail / tail:.1f} times as far as those of right kernels; look at them",
            **found,
        )
    return _judgement(Verdict.PASS, "it lies no farther from the baseline than rounding explains", **found)


def _parts(
    candidate: Drift, right: Sequence[Drift], clusters: Mapping[str, str]
) -> Iterator[tuple[str, Ratio, Ratio | None]]:
    """Yield each part of the steps by name, with its ratio, and that at a confidence for all parts together.

    A part of one cluster, or in which right kernels give the baseline's distributions, has none.
    """
    ranges = sorted(by_length(candidate))
    parts: list[tuple[str, Callable[[Drift], Mapping[Key, Sequence[Step]]]]] = [
        ("at the first tokens", lambda drift: {key: (step,) for key, step in drift.prefill.items()}),
        *((f"at KV lengths {low} to {high - 1}", partial(_within, low=low, high=high)) for low, high in ranges),
    ]
    for name, choose in parts:
        ours, others = choose(candidate), [choose(drift) for drift in right]
        ratios = [(ratio, theirs) for theirs in others if (ratio := _ratio(ours, theirs, clusters)) is not None]
        if ratios:
            least, theirs = min(ratios, key=lambda pair: pair[0].ratio)
            yield name, least, _ratio(ours, theirs, clusters, confidence=1 - 0.05 / len(parts))


def _within(drift: Drift, *, low: int, high: int) -> dict[Key, list[Step]]:
    return {key: [step for step in steps if low <= step.kv_length < high] for key, steps in drift.decode.items()}


def _ratio(
    ours: Mapping[Key, Sequence[Step]],
    theirs: Mapping[Key, Sequence[Step]],
    clusters: Mapping[str, str],
    *,
    confidence: float = 0.95,
) -> Ratio | None:
    """Return the ratio of two arms' total variations, over the clusters of questions that have steps in both."""
    above: dict[str, float] = defaultdict(float)
    below: dict[str, float] = defaultdict(float)
    for key in ours.keys() & theirs.keys():
        cluster = clusters.get(key[0], key[0])
        if ours[key] and theirs[key]:
            above[cluster] += sum(step.total_variation for step in ours[key])
            below[cluster] += sum(step.total_variation for step in theirs[key])
    names = sorted(above)
    return ratio_of_totals([above[name] for name in names], [below[name] for name in names], confidence=confidence)


def _judgement(verdict: Verdict, reason: str, **found: Any) -> Judgement:
    return Judgement(verdict=verdict, reason=reason, **({"ratio": None, "widest": None, "spikes": None} | found))


def by_length(drift: Drift) -> dict[tuple[int, int], list[Step]]:
    """Return the decode steps by KV length, in ranges [start, stop) that double: 1 to 2, ... 4096 to 8192."""
    found: dict[tuple[int, int], list[Step]] = {}
    for step in sorted(drift.steps, key=lambda step: step.kv_length):
        start = 1 << (step.kv_length.bit_length() - 1)
        found.setdefault((start, 2 * start), []).append(step)
    return found
