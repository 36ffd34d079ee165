"""Find where the two responses of a pair part, and whether rounding explains it.

A right kernel that only sums in another order moves every logit a little, so that greedy text parts where two tokens
are nearly tied. It never parts where one token leads by far. The *gap* is the logprob of the chosen token minus that of
its runner-up. At the first token that differs, the baseline prefers its choice by its gap and the candidate the other's
by its own, so the difference of the two logprobs *moved* by at least the sum of both gaps; by exactly that where each
choice is the other's runner-up.

How far rounding moves it is measured in the same run: up to where they part, both arms have read the same tokens, and
at each such step the same difference, of choice and runner-up, can be read from both. The largest movement there is the
yardstick. A pair hangs on a *near tie* if it moved no further than that, and no more than half of the baseline's steps
have a smaller gap; else it diverges at a *wide gap*. The second rule needs nothing of the candidate: a kernel that is
wrong everywhere also moves the steps before, and so the yardstick, but where it overturns more than the baseline's
median gap, it could overturn anything. Neither bound is a number chosen by anybody; both are shown with the result.

A coarse fault shows as wide gaps. A small one at every step, such as a scale that is 10 % off, need not overturn
anything: it shows in how far the steps before moved, and only forced decoding can judge that.

It says little of sampled responses, which part by chance: then only positions are given.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from evalsuite.journal import Run
from evalsuite.pairing import Outcome, Pair, by_key
from evalsuite.records import Response

LEVELS = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Of the quantiles that `spread` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where the responses of one pair part."""

    question: str
    sample: int
    outcome: Outcome
    position: int
    """Generated tokens that both share before it. 0 is the prompt's own step, which no decode kernel serves."""
    baseline_token: int | None
    candidate_token: int | None
    """None where this response ends and the other goes on."""
    baseline_gap: float | None
    candidate_gap: float | None
    """Natural log. None if not recorded, not finite, or sampled."""
    baseline_is_runner_up: bool | None
    """The baseline's choice was what the candidate would have taken next; None if not known."""
    candidate_is_runner_up: bool | None
    near: bool | None
    """A near tie; False is a wide gap, None not known."""

    @property
    def moved(self) -> float | None:
        """How far at least the difference of the two logprobs moved from one arm to the other."""
        if self.baseline_gap is None or self.candidate_gap is None:
            return None
        return _exact(self.baseline_gap + self.candidate_gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where all pairs of a run part."""

    greedy: bool
    """Temperature 0. Otherwise no gap is known: what is drawn need not be what leads."""
    pairs: int
    """All pairs, those without token ids among them."""
    compared: Mapping[tuple[str, int], Parting | None]
    """By (question, sample), the pairs that both arms recorded token ids of; None where all their tokens are equal."""
    moved: tuple[float, ...]
    """Ascending, how far the difference of the two leading logprobs moved at each step at which both arms had read the
    same tokens, took the same one, and had the same runner-up."""
    median_gap: float | None
    """Of the baseline, over all its steps in these pairs."""

    @property
    def partings(self) -> tuple[Parting, ...]:
        """The pairs that diverge, in the order asked."""
        return tuple(parting for parting in self.compared.values() if parting is not None)

    @property
    def wide(self) -> tuple[Parting, ...]:
        """The pairs that diverge at a wide gap, the widest first."""
        found = [parting for parting in self.partings if parting.near is False]
        return tuple(sorted(found, key=lambda parting: -(parting.moved or 0.0)))

    def count(self, outcome: str | None = None) -> Counter[bool | None]:
        """Return how many diverging pairs, of one outcome or all, hang on a near tie; None: not known."""
        return Counter(parting.near for parting in self.partings if outcome in (None, parting.outcome))


def find_divergence(run: Run, pairs: Sequence[Pair]) -> Divergence:
    """Return where these pairs of a run part. Responses without token ids are left out and counted."""
    responses = [by_key(run.responses[arm]) for arm in ("baseline", "candidate")]
    greedy = run.meta["sampling"].get("temperature") == 0
    both = {}
    for pair in pairs:
        one, other = (responses[side][pair.question, pair.sample] for side in (0, 1))
        if one.token_ids is not None and other.token_ids is not None:
            both[pair.question, pair.sample] = (pair.outcome, one, other)
    shared = sorted(moved for _, one, other in both.values() for moved in _movements(one, other)) if greedy else []
    gaps = [gap for _, one, _ in both.values() for gap in _gaps(one) if gap is not None] if greedy else []
    largest, middle = (shared[-1] if shared else None), (median(gaps) if gaps else None)
    return Divergence(
        greedy=greedy,
        pairs=len(pairs),
        compared={
            key: _part(one, other, outcome, greedy=greedy, largest=largest, middle=middle)
            for key, (outcome, one, other) in both.items()
        },
        moved=tuple(shared),
        median_gap=middle,
    )


def spread(values: Sequence[float]) -> tuple[float, ...] | None:
    """Return the quantiles of LEVELS, each one of the values (the nearest rank), None without values."""
    ranked = sorted(values)
    return tuple(ranked[max(math.ceil(level * len(ranked)) - 1, 0)] for level in LEVELS) if ranked else None


def _part(
    one: Response, other: Response, outcome: Outcome, *, greedy: bool, largest: float | None, middle: float | None
) -> Parting | None:
    ours, theirs = one.token_ids or (), other.token_ids or ()
    if ours == theirs:
        return None
    at = _shared(one, other)
    gaps = (_gap(one, at), _gap(other, at)) if greedy and at < min(len(ours), len(theirs)) else (None, None)
    near = None
    if gaps[0] is not None and gaps[1] is not None and largest is not None and middle is not None:
        near = _exact(gaps[0] + gaps[1]) <= largest and gaps[0] <= middle
    return Parting(
        question=one.question,
        sample=one.sample,
        outcome=outcome,
        position=at,
        baseline_token=ours[at] if at < len(ours) else None,
        candidate_token=theirs[at] if at < len(theirs) else None,
        baseline_gap=gaps[0],
        candidate_gap=gaps[1],
        baseline_is_runner_up=_is_runner_up(one, other, at) if greedy else None,
        candidate_is_runner_up=_is_runner_up(other, one, at) if greedy else None,
        near=near,
    )


def _shared(one: Response, other: Response) -> int:
    """Return how many tokens both share before the first that differs."""
    ours, theirs = one.token_ids or (), other.token_ids or ()
    shorter = min(len(ours), len(theirs))
    return next((at for at in range(shorter) if ours[at] != theirs[at]), shorter)


def _movements(one: Response, other: Response) -> Iterator[float]:
    """Yield how far the gap moved at each shared step at which both arms had the same runner-up."""
    ours, theirs = one.runner_up_ids or (), other.runner_up_ids or ()
    for at in range(min(_shared(one, other), len(ours), len(theirs))):
        gaps = _gap(one, at), _gap(other, at)
        if ours[at] == theirs[at] and gaps[0] is not None and gaps[1] is not None:
            yield _exact(abs(gaps[0] - gaps[1]))


def _is_runner_up(one: Response, other: Response, at: int) -> bool | None:
    """Return whether the token of `one` was the runner-up in `other`."""
    tokens, runners_up = one.token_ids or (), other.runner_up_ids or ()
    return tokens[at] == runners_up[at] if at < min(len(tokens), len(runners_up)) else None


def _gaps(response: Response) -> Iterator[float | None]:
    yield from (_gap(response, at) for at in range(len(response.token_ids or ())))


def _gap(response: Response, at: int) -> float | None:
    """Return the logprob of the chosen token minus that of its runner-up, None where either is not a finite number."""
    chosen, runner_up = response.logprobs or (), response.runner_up_logprobs or ()
    if at >= min(len(chosen), len(runner_up)):
        return None
    pair = chosen[at], runner_up[at]
    # A journal may hold null or NaN in place of a number.
    if any(value is None or not math.isfinite(value) for value in pair):
        return None
    return _exact(pair[0] - pair[1])


def _exact(value: float) -> float:
    # Servers send float32, whose neighbours are up to 8e-6 apart at the size of logprobs: the digits below are noise
    # that would make two equal gaps differ.
    return round(value, 5)
