"""How far an arm's next-token distributions lie from the baseline's on the same tokens: does rounding explain it?

Both arms generated the same tokens, each by a decode step of its own (see `force`), and recorded the most probable
tokens of every step. Where both name a token, both its probabilities are known; what is left of the two distributions
is lumped into one more outcome. Lumping only loses information, so what is computed on these outcomes is a lower bound
of the true KL divergence and of the true total variation; the total variation is also bounded from above.

Kernels that are right differ: they sum in another order, and every layer after rounds another way. How far that goes is
measured, on the same tokens, with kernels that are known to be right: the baseline's attention computed by another
backend or in another number of segments. They are the *envelope*. None of them may come from the code under test, whose
mistakes they would share, and they must agree with each other about as well as a candidate has to with them.

A candidate passes if its total variation, over all decode steps, is at most TOLERANCE times that of the right kernel
that differs most, with the whole 95 % interval of that ratio; it fails with the whole interval above, or where too many
single steps lie beyond anything a right kernel does. Questions are the clusters: steps of one are not independent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import exp, log

from evalsuite.records import Forced
from evalsuite.statistics import Ratio, ratio_of_totals
from evalsuite.verdict import Verdict

TOLERANCE = 2.0
"""Times as far as right kernels: what the kernel tests of `attention` allow a kernel's error, too, relative to the
error of plain PyTorch in the same type."""
SPIKES = 10
"""Steps beyond TOLERANCE times the farthest of right kernels that a candidate may not reach. A right kernel's step is
the farther of a pair with chance 1/2; that the 10 farthest all are the candidate's has chance 2**-10, below 0.001."""
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

    @property
    def totals(self) -> dict[Key, float]:
        """Total variation of each response, summed over its decode steps."""
        return {key: sum(step.total_variation for step in steps) for key, steps in self.decode.items()}

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
    if None in one.values() or None in other.values():  # NaN or infinite: nothing is farther off
        return Step(kv_length=kv_length, total_variation=1.0, total_variation_most=1.0, kl=-log(REST), same_top=False)
    pairs = [(value, other[token]) for token, value in one.items() if token in other]
    shared = [(exp(ours), exp(theirs), ours - theirs) for ours, theirs in pairs]  # type: ignore[arg-type, operator]
    rest = [max(1.0 - sum(pair[side] for pair in shared), REST) for side in (0, 1)]
    apart = sum(abs(ours - theirs) for ours, theirs, _ in shared)
    kl = sum(ours * ratio for ours, _, ratio in shared) + rest[0] * log(rest[0] / rest[1])
    return Step(
        kv_length=kv_length,
        total_variation=min((apart + abs(rest[0] - rest[1])) / 2, 1.0),
        total_variation_most=min((apart + sum(rest)) / 2, 1.0),
        kl=max(kl, 0.0),
        same_top=next(iter(one)) == next(iter(other)),
    )


def judge(candidate: Drift, right: Sequence[Drift]) -> Judgement:
    """Return whether the candidate lies no farther from the baseline than right kernels explain."""
    if not candidate.steps:
        return _judgement(Verdict.INCONCLUSIVE, "no decode step was forced")
    if not candidate.farthest:
        return _judgement(Verdict.PASS, "it gives the baseline's distributions exactly")
    measured = [drift for drift in right if drift.farthest]
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
            "them is not right; name others with --right",
        )
    totals, theirs = candidate.totals, widest.totals
    both = [key for key in totals if key in theirs]
    ratio = ratio_of_totals([totals[key] for key in both], [theirs[key] for key in both])
    farthest = max(drift.farthest for drift in measured)
    spikes = sum(step.total_variation > TOLERANCE * farthest for step in candidate.steps)
    found = {"ratio": ratio, "widest": widest.name, "spikes": spikes}
    if spikes >= SPIKES:
        return _judgement(
            Verdict.FAIL, f"{spikes} steps lie beyond {TOLERANCE:g} times the farthest of right kernels", **found
        )
    if ratio is None:
        return _judgement(Verdict.INCONCLUSIVE, "one response gives no interval; force more", **found)
    if ratio.low > TOLERANCE:
        return _judgement(Verdict.FAIL, "rounding does not explain how far it lies from the baseline", **found)
    if ratio.high > TOLERANCE:
        return _judgement(Verdict.INCONCLUSIVE, "the interval is too wide; force more tokens", **found)
    return _judgement(Verdict.PASS, "it lies no farther from the baseline than rounding explains", **found)


def _judgement(verdict: Verdict, reason: str, **found: object) -> Judgement:
    return Judgement(verdict=verdict, reason=reason, **({"ratio": None, "widest": None, "spikes": None} | found))  # type: ignore[arg-type]


def by_length(drift: Drift) -> dict[tuple[int, int], list[Step]]:
    """Return the decode steps by KV length, in ranges [start, stop) that double: 1 to 2, ... 4096 to 8192."""
    found: dict[tuple[int, int], list[Step]] = {}
    for step in sorted(drift.steps, key=lambda step: step.kv_length):
        start = 1 << (step.kv_length.bit_length() - 1)
        found.setdefault((start, 2 * start), []).append(step)
    return found
