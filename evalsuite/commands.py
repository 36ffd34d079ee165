"""What each command does: call the library, print, return the exit code."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.errors import UserError

if TYPE_CHECKING:
    from evalsuite.report import Report

USAGE_ERROR = 2


def run(args: argparse.Namespace) -> int:
    from evalsuite import runner
    from evalsuite.progress import say

    if args.task is None:
        from evalsuite.tasks import DEFAULT_TASK

        args.task = DEFAULT_TASK
    pair = runner.default_pair()
    settings = runner.Settings(
        task=args.task,
        baseline=pair[0] if args.baseline is None else args.baseline,
        candidate=pair[1] if args.candidate is None else args.candidate,
        model=args.model,
        arms_file=args.arms_file,
        limit=args.limit,
        data=args.data,
        include_path=args.include_path,
        context=args.context,
        budget=args.budget,
        temperature=args.temperature,
        samples=args.samples,
        seed=args.seed,
        margin=args.margin,
        stop_early=args.stop_early,
    )
    plan = runner.prepare(settings)
    folder = args.folder or runner.default_folder(plan)
    if settings.baseline == settings.candidate:
        say(f"both arms are {settings.baseline}: this is an A/A run, it measures the noise of one arm")
    say(f"run directory: {folder}")
    runner.run(plan, folder)
    return _rebuild(folder)


def _rebuild(folder: Path) -> int:
    from evalsuite import force_output, report
    from evalsuite.journal import load_run

    run = load_run(folder)
    result = report.derive(run, margin=run.meta.get("margin"))
    forced = force_output.derive_if_there(run)
    if forced is not None:
        force_output.write(run, forced)
        decision = report.overrule(result.decision, forced.judgement.verdict, forced.headline)
        result = replace(result, decision=decision)
    report.write(run, result)
    code = _conclude(result, where=folder / "report.md")
    if forced is not None:
        print(f"forced decoding: {forced.headline}")
    return code


def _conclude(result: "Report", *, where: Path | None = None) -> int:
    from evalsuite.report import render_text

    print(render_text(result))
    if where is not None:
        print(f"report: {where}")
    return result.decision.exit_code


def report(args: argparse.Namespace) -> int:
    return _rebuild(args.run)


def compare(args: argparse.Namespace) -> int:
    from evalsuite import report, samples, sides

    logs = [samples.is_samples(path) for path in (args.baseline, args.candidate)]
    if any(logs):
        if not all(logs):
            raise UserError(f"of {args.baseline} and {args.candidate} one is a samples log of lm-eval; expected two")
        run, grades = samples.join_samples(args.baseline, args.candidate, filter_name=args.filter)
        result = report.derive(run, margin=args.margin, grades=grades)
    elif args.filter is not None:
        raise UserError("--filter goes with samples logs of lm-eval only; leave it out")
    else:
        result = report.derive(sides.join(args.baseline, args.candidate), margin=args.margin)
    if not args.json:
        return _conclude(result)
    print(report.render_json(result), end="")
    return result.decision.exit_code


def gate(args: argparse.Namespace) -> int:
    from evalsuite import gate, gate_output, policy, ship
    from evalsuite.journal import load_run

    shipped = None if args.ship is None else ship.read_shipped(args.ship)
    runs = [load_run(path) for path in args.runs]
    demanded = gate.margin_for_all(runs, args.margin) if args.policy is None else policy.load_policy(args.policy)
    decided = gate.decide_release(runs, demanded, noise=[load_run(path) for path in args.noise], shipped=shipped)
    gate_output.write(decided, junit=args.junit)
    print(gate_output.render_json(decided).rstrip() if args.json else gate_output.render_text(decided))
    return decided.exit_code


def plan(args: argparse.Namespace) -> int:
    from evalsuite import plan_output, planning

    pairs = args.questions
    if pairs is None:
        from evalsuite.tasks import DEFAULT_TASK, size_of

        pairs = size_of(args.task or DEFAULT_TASK)
    if args.discordance is None and args.margin is None and args.seconds is None:
        print(plan_output.render_tables(pairs=pairs))
        return 0
    shares = planning.DISCORDANCES if args.discordance is None else (_discordance(args.discordance),)
    plans = [
        planning.plan(pairs=pairs, discordance=share, margin=args.margin, seconds_per_response=args.seconds)
        for share in shares
    ]
    print(plan_output.render_plans(plans))
    return 0


def _discordance(text: str) -> float:
    """Return a share as typed, a fraction or a percentage, or that of the A/A run in the directory of this name."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        from evalsuite.gate import measure_noise
        from evalsuite.journal import load_run

        return measure_noise(load_run(Path(text))).discordance


def force(args: argparse.Namespace) -> int:
    from evalsuite import force, force_output
    from evalsuite.journal import load_run

    run = load_run(args.run)
    plan = force.prepare(
        run,
        tokens=args.tokens,
        top=args.top or force.TOP,
        right=args.right,
        arms_file=args.arms_file,
        models=args.model,
        data=args.data,
    )
    force.measure(plan, run.path / force.FOLDER, jobs=args.jobs)
    result = force_output.derive(run)
    force_output.write(run, result)
    print(force_output.render_text(result))
    return result.exit_code


def tasks(args: argparse.Namespace) -> int:
    from evalsuite.tasks import DEFAULT_TASK, list_tasks

    rows = [
        (task.name + (" *" if task.name == DEFAULT_TASK else ""), task.budget, task.needs, task.about)
        for task in list_tasks(args.include_path)
    ]
    _print_table(("TASK", "BUDGET", "NEEDS", "WHAT IT ASKS"), rows)
    print("\n* the default. Any generate_until task of lm-eval: lm-eval:NAME, or your own with --include-path DIR.")
    return 0


def arms(args: argparse.Namespace) -> int:
    from evalsuite.arms import load_arms
    from evalsuite.runner import default_pair

    pair = default_pair()
    rows = [
        (name, (arm.kernel or "-").replace("_", "-"), arm.about or "from " + str(args.arms_file))
        for name, arm in load_arms(args.arms_file).items()
    ]
    _print_table(("ARM", "SINGLE DECODE", "WHAT SERVES"), rows)
    print(f"\nHere `run` compares {pair[0]} (baseline) with {pair[1]} (candidate). A URL attaches to a running server.")
    return 0


def _print_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    texts = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def doctor(args: argparse.Namespace) -> int:
    from evalsuite.doctor import examine

    findings = examine()
    for finding in findings:
        print(f"{'ready  ' if finding.ready else 'MISSING'}  {finding.what}: {finding.found}")
        if not finding.ready:
            print(f"         {finding.mend}")
    return 0 if all(finding.ready or finding.optional for finding in findings) else USAGE_ERROR
