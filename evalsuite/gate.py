"""Decide over several runs, one for each task: one value, from which text, JSON, JUnit, Markdown and exit code come.

Each run gets the verdict that `verdict.decide` gives it, at the margin of its task. A task *blocks* the release

- if its run is INVALID, or forced decoding of it (`force`) does not say PASS, whatever the policy says;
- if it is required and says FAIL;
- if it is required and INCONCLUSIVE, unless the policy calls that advisory and another required task passes.

The gate's verdict is the gravest one that blocks, in this order, and PASS where nothing blocks.

"Which task regressed" is asked of several tasks at once, so Holm's method keeps the chance of any false alarm at alpha:
among the required tasks, and apart from them among the advisory ones, so that more advice does not weaken the test.
"No worse on every task" needs no correction, as every required task must show it by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evalsuite.comparison import Table, configuration
from evalsuite.errors import UserError
from evalsuite.force_output import ForceReport, derive_if_there
from evalsuite.journal import Run
from evalsuite.policy import Policy, TaskPolicy
from evalsuite.records import ARMS
from evalsuite.release import check_same_plan, check_tasks, task_of
from evalsuite.report import BLOCKING, Report, derive, overrule
from evalsuite.ship import Shipped, find_differences
from evalsuite.statistics import Counts, holm, mcnemar, pooled, stratified_interval
from evalsuite.verdict import EXIT, Decision, Verdict, decide
from evalsuite.wording import count, p_value, points

_GRAVEST_FIRST = (Verdict.INVALID, Verdict.FAIL, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What one task says."""

    task: str
    policy: TaskPolicy
    report: Report
    regression_p: float | None
    """p of a regression in this task alone; None where there is no test."""
    holm_p: float | None
    """The same, adjusted for the tasks it is tested with."""
    blocks: bool
    """Whether this task holds the release back."""
    forced: ForceReport | None
    """What forced decoding of the run shows, where it was done."""

    @property
    def decision(self) -> Decision:
        """The verdict of the task's run, and why."""
        return self.report.decision

    @property
    def table(self) -> Table:
        """The paired table of the task's run."""
        return self.report.comparison.table


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """All required tasks together, every question weighing the same."""

    counts: Counts
    difference: float
    low: float
    high: float
    """95 % interval of the difference, stratified by task."""
    regression_p: float
    """One-sided mid-p McNemar of the sums: whether any task regressed. It decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How often an arm differs from itself."""

    task: str
    arm: str
    discordant: int
    pairs: int

    @property
    def discordance(self) -> float:
        """Share of the pairs that are lost or gained."""
        return self.discordant / self.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The decision over all runs."""

    verdict: Verdict
    headline: str
    """One line that starts with the verdict."""
    findings: tuple[str, ...]
    """What a reader must know whatever the verdict."""
    tasks: tuple[TaskResult, ...]
    pooled: Pooled | None
    """None for a single required task, where pairs are not independent, and where a run may stop early."""
    noise: tuple[Noise, ...]
    alpha: float
    shipped: Shipped | None
    """The attention package that is about to be released, where one was given."""

    @property
    def exit_code(self) -> int:
        """What the process that prints this verdict ends with."""
        return EXIT[self.verdict]


def margin_for_all(runs: Sequence[Run], margin: float) -> Policy:
    """Return the policy without a file: every run's task is required, at the same margin."""
    return Policy(tasks={task_of(run): TaskPolicy(margin=margin) for run in runs})


def decide_release(
    runs: Sequence[Run], policy: Policy, *, noise: Sequence[Run] = (), shipped: Shipped | None = None
) -> Gate:
    """Return the decision over the runs. `noise` holds A/A runs, whose discordance is set beside the result.

    A run that did not test what is `shipped` is INVALID.

    Raises UserError for runs that do not go together or with the policy: two of one task, one whose task the policy
    does not name, a task without a run, one run under two names, an A/A run, other arms or another environment, and for
    noise that is none.
    """
    check_tasks(runs, policy)
    for other in runs[1:]:
        check_same_plan(runs[0], other)
    measured = tuple(_measure_beside(run, runs) for run in noise)
    reports = {task_of(run): _derive(run, shipped) for run in runs}
    forced = {task_of(run): derive_if_there(run) for run in runs}
    tasks = tuple(
        result
        for required in (True, False)
        for result in _decide_tasks(
            {name: reports[name] for name in reports if _required(policy, name) is required}, forced, policy
        )
    )
    together = _pool([result for result in tasks if result.policy.required])
    grave = [verdict for verdict in _GRAVEST_FIRST if any(r.blocks and r.decision.verdict is verdict for r in tasks)]
    verdict = grave[0] if grave else Verdict.PASS
    return Gate(
        verdict=verdict,
        headline=tasks[0].decision.headline if len(tasks) == 1 else f"{verdict}: {_claim(verdict, tasks)}",
        findings=(*_find(tasks, together, policy), *_find_noise(measured), *_find_shipped(runs, shipped)),
        tasks=tasks,
        pooled=together,
        noise=measured,
        alpha=policy.alpha,
        shipped=shipped,
    )


def _derive(run: Run, shipped: Shipped | None) -> Report:
    report = derive(run)
    if report.comparison.same_arms:
        raise UserError(f"{run.path} is an A/A run: an A/A run decides no release; give it as --noise")
    if shipped is None:
        return report
    problems = (*find_differences(run.meta, shipped), *report.comparison.problems)
    return replace(report, comparison=replace(report.comparison, problems=problems))


def measure_noise(run: Run) -> Noise:
    """Return how often the arm of an A/A run differs from itself. Raises UserError for another or an INVALID run."""
    comparison = derive(run).comparison
    if not comparison.same_arms:
        names = " with ".join(run.meta["arms"][arm]["name"] for arm in ARMS)
        raise UserError(f"{run.path} compares {names}; expected an A/A run, which gives the same arm as both")
    if comparison.problems:
        raise UserError(f"{run.path} measures no noise, as it is INVALID: {comparison.problems[0]}")
    table = comparison.table
    return Noise(
        task=task_of(run),
        arm=run.meta["arms"]["baseline"]["name"],
        discordant=table.lost + table.gained,
        pairs=table.pairs,
    )


def _required(policy: Policy, task: str) -> bool:
    return policy.tasks[task].required


def _measure_beside(noise: Run, runs: Sequence[Run]) -> Noise:
    """Return the noise of an A/A run. Raises UserError unless one of the runs has its task, an arm and its sampling."""
    measured = measure_noise(noise)
    beside = [run for run in runs if task_of(run) == measured.task]
    if not beside:
        raise UserError(f"{noise.path} is an A/A run of {measured.task}; expected the task of a run that is gated")
    if configuration(noise.meta["arms"]["baseline"]) not in [
        configuration(beside[0].meta["arms"][arm]) for arm in ARMS
    ]:
        raise UserError(f"{noise.path} measures another arm than those of {beside[0].path}; expected one of its arms")
    for field in ("budget", "temperature"):
        ours, theirs = (run.meta["sampling"][field] for run in (beside[0], noise))
        if ours != theirs:
            raise UserError(
                f"{beside[0].path} and {noise.path} are runs of different plans: {field} is {ours!r} and {theirs!r}"
            )
    return measured


def _decide_tasks(
    reports: Mapping[str, Report], forced: Mapping[str, ForceReport | None], policy: Policy
) -> Iterator[TaskResult]:
    """Yield the results of tasks that are tested together."""
    ps = {name: p for name, report in reports.items() if (p := _regression_p(report)) is not None}
    adjusted = dict(zip(ps, holm(tuple(ps.values())), strict=True))
    detected = sum(p <= policy.alpha for p in adjusted.values())
    # Holm's steps end at this level: each p-value at most as large is detected, and none above it.
    level = policy.alpha / max(len(ps) - detected, 1)
    decisions = {
        name: decide(
            report.comparison,
            margin=policy.tasks[name].margin,
            alpha=level,
            accept_within_margin=policy.tasks[name].accept_within_margin,
        )
        for name, report in reports.items()
    }
    judged = {name: found for name, found in forced.items() if found is not None and name in reports}
    for name, found in judged.items():
        decisions[name] = overrule(decisions[name], found.judgement.verdict, found.headline)
    wrong = [name for name, found in judged.items() if found.judgement.verdict in BLOCKING]
    passes = any(decision.verdict is Verdict.PASS for decision in decisions.values())
    for name, report in reports.items():
        task, verdict = policy.tasks[name], decisions[name].verdict
        blocking = {Verdict.FAIL, *({Verdict.INCONCLUSIVE} if policy.inconclusive_blocks or not passes else ())}
        yield TaskResult(
            task=name,
            policy=task,
            report=replace(report, decision=decisions[name]),
            regression_p=ps.get(name),
            holm_p=adjusted.get(name),
            blocks=verdict is Verdict.INVALID or name in wrong or (task.required and verdict in blocking),
            forced=forced[name],
        )


def _regression_p(report: Report) -> float | None:
    evidence = report.decision.evidence
    return report.comparison.table.regression_p if evidence is None else evidence.p_regression


def _pool(results: Sequence[TaskResult]) -> Pooled | None:
    tables = [result.table for result in results]
    if len(tables) < 2 or any(table.test is None or not table.pairs for table in tables):
        return None
    counts = [Counts(lost=table.lost, gained=table.gained, pairs=table.pairs) for table in tables]
    interval, sums = stratified_interval(counts), pooled(counts)
    return Pooled(
        counts=sums,
        difference=interval.difference,
        low=interval.low,
        high=interval.high,
        regression_p=mcnemar(lost=sums.lost, gained=sums.gained).midp_one_sided,
    )


def _claim(verdict: Verdict, tasks: Sequence[TaskResult]) -> str:
    required = [result for result in tasks if result.policy.required]
    if verdict is not Verdict.PASS:
        blocking = [result.task for result in tasks if result.blocks and result.decision.verdict is verdict]
        return f"{', '.join(blocking)} ({len(blocking)} of {count(len(tasks), 'task')})"
    passed = [result for result in required if result.decision.verdict is Verdict.PASS]
    let_through = [result.task for result in required if result.decision.verdict is not Verdict.PASS]
    claim = f"{len(passed)} of {count(len(required), 'required task')} shown to lose less than the margin"
    return claim + (f"; INCONCLUSIVE, advisory by the policy: {', '.join(let_through)}" if let_through else "")


def _find(tasks: Sequence[TaskResult], together: Pooled | None, policy: Policy) -> Iterator[str]:
    for result in tasks:
        verdict, p = result.decision.verdict, result.regression_p
        if result.forced is not None:
            yield f"forced decoding of {result.task}: {result.forced.headline}"
        if verdict is not Verdict.PASS and not result.blocks:
            yield f"{result.task} is {verdict} and holds nothing back, as the policy calls that advisory"
        if p is not None and result.holm_p is not None and p <= policy.alpha < result.holm_p:
            yield (
                f"{result.task} by itself would be a regression (p-value {p_value(p)}); among all tasks tested it is "
                f"not (Holm: {p_value(result.holm_p)})"
            )
    if together is not None and together.regression_p <= policy.alpha:
        p = together.regression_p
        yield f"all required tasks together: a regression somewhere among them, p-value {p_value(p)}"


def _find_noise(measured: Sequence[Noise]) -> Iterator[str]:
    for noise in measured:
        if noise.discordant:
            yield (
                f"{noise.arm} differs from itself on {noise.task}, asked one request at a time: {noise.discordant} of "
                f"{count(noise.pairs, 'pair')} discordant ({points(noise.discordance)} %); expected none, find out why"
            )


def _find_shipped(runs: Sequence[Run], shipped: Shipped | None) -> Iterator[str]:
    if shipped is not None and not any(line for run in runs for line in find_differences(run.meta, shipped)):
        yield f"{shipped.path} holds the attention package that was tested: {shipped.sha256[:8]}"
