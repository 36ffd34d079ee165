"""Count what became of the pairs, and compute what the counts say about the arms' difference.

Pure functions: a run and its grades in, values out. Nothing is decided here, see `verdict`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import median
from typing import Any

from evalsuite import early
from evalsuite.divergence import Divergence
from evalsuite.early import Early
from evalsuite.journal import Run
from evalsuite.pairing import Grades, Outcome, Pair, by_key, missing, pair_up
from evalsuite.receipts import Proof, audit
from evalsuite.records import ARMS
from evalsuite.statistics import Clustered, Interval, McNemar, mcnemar, rao_scott, rao_scott_clusters, tango_interval
from evalsuite.validity import find_problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A paired table and what it says about the difference, candidate - baseline accuracy."""

    kept: int
    lost: int
    gained: int
    missed: int
    interval: Interval | None
    """Tango's, 95 %. None in a run that may stop early: its length depends on its outcomes, so only `Early` says
    anything of them."""
    bound: Interval | None
    """Its lower end is what the data rule out: `interval`, or `Clustered.bound` where pairs are not independent."""
    regression_p: float | None
    """One-sided, small when much was lost: McNemar's mid-p, or `rao_scott`'s p-value for several samples a question. Of
    a run that may stop early 1 / the largest e-value, which holds whenever one stops."""
    test: McNemar | None
    """None unless every pair has a question and a cluster of its own, and the run has a fixed length."""
    design_effect: float | None
    """How many pairs are worth one independent pair; 1 where every pair is."""

    @property
    def pairs(self) -> int:
        """All pairs."""
        return self.kept + self.lost + self.gained + self.missed

    @property
    def baseline_right(self) -> int:
        """Pairs that the baseline got right: only these can be lost."""
        return self.kept + self.lost

    @property
    def candidate_right(self) -> int:
        """Pairs that the candidate got right."""
        return self.kept + self.gained

    @property
    def difference(self) -> float | None:
        """Candidate - baseline accuracy, a fraction; None without pairs."""
        return (self.gained - self.lost) / self.pairs if self.pairs else None

    @property
    def smallest_margin(self) -> float | None:
        """The smallest loss that the data rule out, a fraction; None where they rule out none."""
        return None if self.bound is None or self.bound.low <= -1 else max(0.0, -self.bound.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidence:
    """How often something befell the responses of a pair, paired."""

    neither: int
    baseline_only: int
    candidate_only: int
    both: int
    test: McNemar | None
    """Its one-sided p-values are small when it befell the candidate more. None for pairs that are not independent."""
    p: float | None
    """One-sided, small when it befell the candidate more: the test's mid-p, or that of `rao_scott` where pairs are not
    independent. None in a run that may stop early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """What one arm did, over all its responses."""

    name: str
    responses: int
    """As many as the next five, its grades, add up to."""
    right: int
    wrong: int
    no_answer: int
    truncated: int
    errors: int
    missing: int
    """Demanded and not there, see `pairing.missing`."""
    tokens: int | None
    """Generated, in all."""
    seconds: float | None
    """Median per response."""
    seconds_to_first_token: float | None
    """Median per response."""
    tokens_per_second: float | None
    """Tokens after the first, over the seconds after the first."""
    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that a run says about its two arms."""

    pairs: tuple[Pair, ...]
    questions: int
    repeated_prompts: int
    """Questions that are asked with the prompt of an earlier one."""
    table: Table
    worst_case: Table
    """Every error counted against the candidate. Equal to `table` without errors."""
    without_truncated: Table
    """Only the pairs that neither arm's budget ended."""
    truncation: Incidence
    errors: Incidence
    arms: Mapping[str, ArmFigures]
    same_arms: bool
    """An A/A run: both arms are configured alike."""
    same_logprobs: int
    """Pairs whose logprobs are equal to the last bit, of those with more than the prefill's own token."""
    with_logprobs: int
    """How many pairs those are."""
    planned_margin: float | None
    """The largest loss that the run was planned to accept, a fraction."""
    problems: tuple[str, ...]
    """Why the pairs are no evidence, one line each. Any makes the verdict INVALID."""
    early: Early | None = None
    """What the pairs show if the run may stop early; the tables then hold counts and no inference."""
    divergence: Divergence | None = None
    """Where the pairs part. `report.derive` adds it: nothing is decided from it, and a run that may stop early decides
    after each pair."""


def tabulate(pairs: Sequence[Pair], *, worst_case: bool = False, fixed: bool = True) -> Table:
    """Return the paired table of the pairs. `worst_case` fills every error in against the candidate.

    Without `fixed`, how many pairs there are depends on their outcomes, and there is no inference from counts.

    Pairs are independent if each has a cluster of its own. Samples of a question are allowed for by `rao_scott`,
    questions that share a cluster by `rao_scott_clusters`.
    """
    return _infer(pairs, [pair.worst_outcome if worst_case else pair.outcome for pair in pairs], fixed=fixed)


def _infer(pairs: Sequence[Pair], outcomes: Sequence[Outcome], *, fixed: bool) -> Table:
    count = Counter(outcomes)
    interval, bound, p, test, effect = None, None, None, None, None
    if not fixed:
        pass
    elif _independent(pairs):
        lost, gained, effect = count["lost"], count["gained"], 1.0
        interval = bound = tango_interval(lost=lost, gained=gained, pairs=len(pairs))
        test = mcnemar(lost=lost, gained=gained)
        p = test.midp_one_sided
    else:
        clustered = _by_cluster(pairs, outcomes)
        interval, bound, effect = clustered.interval, clustered.bound, clustered.design_effect
        p = clustered.p_regression
    return Table(
        kept=count["kept"],
        lost=count["lost"],
        gained=count["gained"],
        missed=count["missed"],
        interval=interval,
        bound=bound,
        regression_p=p,
        test=test,
        design_effect=effect,
    )


def _independent(pairs: Sequence[Pair]) -> bool:
    return len({pair.cluster for pair in pairs}) == len(pairs)


def _by_cluster(pairs: Sequence[Pair], outcomes: Sequence[Outcome]) -> Clustered:
    """Return the inference for pairs that are not independent."""
    samples = Counter(pair.question for pair in pairs)
    clusters = Counter(pair.cluster for pair in pairs)
    if len(clusters) < len(samples) or len(set(samples.values())) != 1:
        lost, gained = (
            Counter(pair.cluster for pair, outcome in zip(pairs, outcomes, strict=True) if outcome == kind)
            for kind in ("lost", "gained")
        )
        return rao_scott_clusters(
            lost=[lost[cluster] for cluster in clusters],
            gained=[gained[cluster] for cluster in clusters],
            pairs=list(clusters.values()),
        )
    right = {arm: Counter(dict.fromkeys(samples, 0)) for arm in ARMS}
    for pair, outcome in zip(pairs, outcomes, strict=True):
        right["baseline"][pair.question] += outcome in ("kept", "lost")
        right["candidate"][pair.question] += outcome in ("kept", "gained")
    return rao_scott(
        baseline_right=[right["baseline"][question] for question in samples],
        candidate_right=[right["candidate"][question] for question in samples],
        samples=max(samples.values()),
    )


def count_incidence(pairs: Sequence[Pair], verdict: str, *, fixed: bool = True) -> Incidence:
    """Return how often either arm's response was graded `verdict`, paired. `fixed` as in `tabulate`."""
    kinds: dict[tuple[bool, bool], Outcome] = {
        (False, False): "kept", (False, True): "lost", (True, False): "gained", (True, True): "missed"
    }  # fmt: skip
    befell = [kinds[pair.baseline.verdict == verdict, pair.candidate.verdict == verdict] for pair in pairs]
    table = _infer(pairs, befell, fixed=fixed)
    return Incidence(
        neither=table.kept,
        baseline_only=table.gained,
        candidate_only=table.lost,
        both=table.missed,
        test=table.test,
        p=table.regression_p,
    )


def compare(run: Run, grades: Grades) -> Comparison:
    """Return what the run says about its arms. `grades` holds a grade for each of its responses."""
    pairs = pair_up(run, grades)
    fixed = not run.meta.get("stop_early")
    if not fixed:
        pairs = early.finished(run, pairs)
    arms: dict[str, ArmFigures] = {arm: _figures(run, arm, grades) for arm in ARMS}
    table, shown, refused = tabulate(pairs, fixed=fixed), early.read(run, pairs), early.find_problem(run.meta)
    if shown is not None:
        table = replace(table, regression_p=shown.weigh(margin=shown.margin, alpha=shown.alpha).p_regression)
    equal = _equal_logprobs(run, pairs)
    return Comparison(
        pairs=pairs,
        questions=len({pair.question for pair in pairs}),
        repeated_prompts=len(run.questions) - len({question.prompt_sha256 for question in run.questions}),
        table=table,
        worst_case=tabulate(pairs, worst_case=True, fixed=fixed),
        without_truncated=tabulate([pair for pair in pairs if not pair.has("truncated")], fixed=fixed),
        truncation=count_incidence(pairs, "truncated", fixed=fixed),
        errors=count_incidence(pairs, "error", fixed=fixed),
        arms=arms,
        same_arms=_configured_alike(run.meta["arms"]),
        same_logprobs=sum(equal),
        with_logprobs=len(equal),
        planned_margin=run.meta.get("margin"),
        problems=(*([refused] if refused else ()), *find_problems(run, {arm: arms[arm].proof for arm in ARMS})),
        early=shown,
    )


def _equal_logprobs(run: Run, pairs: Sequence[Pair]) -> list[bool]:
    """Return for each pair that both arms recorded logprobs of whether they are equal to the last bit.

    Two kernels may agree in the first token's, which comes from the prefill.
    """
    one, other = (by_key(run.responses[arm]) for arm in ARMS)
    both = ((one[pair.question, pair.sample], other[pair.question, pair.sample]) for pair in pairs)
    return [b.logprobs == c.logprobs for b, c in both if b.logprobs and c.logprobs and len(b.logprobs) > 1]


def configuration(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an arm of run.json is, whatever it is called."""
    return {field: value for field, value in arm.items() if field != "name"}


def _configured_alike(arms: Mapping[str, Mapping[str, Any]]) -> bool:
    one, other = (configuration(arms[arm]) for arm in ARMS)
    # Of an imported log nothing is known, which does not make two of them alike.
    return one == other and "model" in one


def _figures(run: Run, arm: str, grades: Grades) -> ArmFigures:
    responses = by_key(run.responses[arm])
    counts = Counter(grades[arm][key].verdict for key in responses)
    served = [response for response in responses.values() if response.error is None]
    firsts = [r.seconds_to_first_token for r in served if r.seconds_to_first_token is not None]
    seconds = [response.seconds for response in served if response.seconds is not None]
    tokens = [response.tokens for response in served if response.tokens is not None]
    timed = [
        (response.tokens - 1, response.seconds - response.seconds_to_first_token)
        for response in served
        if response.tokens and response.seconds is not None and response.seconds_to_first_token is not None
    ]
    after_first = fsum(duration for _, duration in timed)
    configured = run.meta["arms"][arm]
    # Two arms of different runs, joined by `sides`, may have been served by different attention packages.
    attention = configured.get("attention") or run.meta.get("attention") or {}
    return ArmFigures(
        name=configured["name"],
        responses=len(responses),
        right=counts["right"],
        wrong=counts["wrong"],
        no_answer=counts["no_answer"],
        truncated=counts["truncated"],
        errors=counts["error"],
        missing=len(missing(run, arm)),
        tokens=sum(tokens) if tokens else None,
        seconds=median(seconds) if seconds else None,
        seconds_to_first_token=median(firsts) if firsts else None,
        tokens_per_second=sum(count for count, _ in timed) / after_first if after_first > 0 else None,
        proof=audit(tuple(responses.values()), configured, attention.get("sha256")),
    )
