"""The command line: parse, call, print, exit code.

Exit codes: 0 PASS or NOT DETECTED, 1 FAIL, 3 INCONCLUSIVE, 4 INVALID, 2 usage or environment error, 130 interrupt.
"""

import argparse
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from evalsuite import __version__
from evalsuite.errors import UserError

if TYPE_CHECKING:
    from evalsuite.report import Report

USAGE_ERROR, INTERRUPTED = 2, 130


def _whole_from_one(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _margin(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no margin; expected the largest loss accepted, between 0 and 1 (0.05 is five points)"
        )
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature; expected 0 (greedy) to 2")
    return value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One line, as for every other mistake; argparse would print the whole usage first.
        self.exit(USAGE_ERROR, f"evalsuite: {message}; see `{self.prog} --help`\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="evalsuite",
        description="Did making serving faster make the answers worse? Two vLLM arms, one set of questions, a verdict.",
        epilog="exit codes: 0 PASS or NOT DETECTED, 1 FAIL, 2 usage or environment, 3 INCONCLUSIVE, 4 INVALID",
    )
    parser.add_argument("--version", action="version", version=f"evalsuite {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="ask both arms the same questions and compare; resumes where it stopped")
    run.add_argument("task", nargs="?", help="a task of `evalsuite tasks`, or lm-eval:NAME (default: the offline one)")
    run.add_argument("--budget", type=_whole_from_one, metavar="TOKENS", help="most tokens a response may generate")
    run.add_argument("--limit", type=_whole_from_one, metavar="N", help="ask the first N questions only")
    run.add_argument("--data", type=Path, metavar="FILE", help="read the task's questions from this file")
    run.add_argument("--include-path", type=Path, metavar="DIR", help="folder of lm-eval task files of your own")
    run.add_argument("--baseline", metavar="NAME|URL", help="the arm released today (default: fa2, without a GPU cpu)")
    run.add_argument("--candidate", metavar="NAME|URL", help="the arm asking for release (default: hybrid, cpu-hybrid)")
    run.add_argument("--arms", type=Path, metavar="FILE", dest="arms_file", help="TOML file with more arms")
    run.add_argument("--model", metavar="DIR|NAME", help="checkpoint both arms serve (default: a small one, made once)")
    run.add_argument("--temperature", type=_temperature, default=0.0, help="sampling temperature (default 0: greedy)")
    run.add_argument("--samples", type=_whole_from_one, default=1, metavar="K", help="responses per question")
    run.add_argument("--seed", type=int, default=0, help="seed of generated questions and of sampling (default 0)")
    run.add_argument("--run", type=Path, metavar="DIR", dest="folder", help="run directory (default: runs/TASK-PLAN)")
    _add_margin(run, required=False)
    run.add_argument("--stop-early", action="store_true", help="stop once PASS or FAIL at --margin is established")
    run.set_defaults(call=_run)

    report = commands.add_parser("report", help="rebuild a run's tables and report from its evidence")
    report.add_argument("run", type=Path, metavar="RUN")
    report.set_defaults(call=_report)

    compare = commands.add_parser("compare", help="compare any two runs or response files question by question")
    compare.add_argument("baseline", type=Path, metavar="BASELINE", help="response file, run, or lm-eval's samples log")
    compare.add_argument("candidate", type=Path, metavar="CANDIDATE", help="the same of the other arm")
    compare.add_argument("--filter", metavar="NAME", help="whose grades to read, if a samples log holds several")
    _add_margin(compare, required=False)
    compare.add_argument("--json", action="store_true", help="print comparison.json instead of the table")
    compare.set_defaults(call=_compare)

    gate = commands.add_parser("gate", help="release gate: PASS only where a loss of MARGIN is ruled out")
    gate.add_argument("runs", type=Path, metavar="RUN", nargs="+", help="one run of each task")
    demand = gate.add_mutually_exclusive_group(required=True)
    _add_margin(demand, required=False)
    demand.add_argument("--policy", type=Path, metavar="FILE", help="TOML file with each task's margin, see docs/ci.md")
    gate.add_argument("--noise", type=Path, metavar="RUN", action="append", default=[], help="A/A run to set beside it")
    gate.add_argument("--ship", type=Path, metavar="WHEEL|DIR", help="INVALID unless its attention package was tested")
    gate.add_argument("--json", action="store_true", help="print JSON instead of text")
    gate.add_argument("--junit", type=Path, metavar="FILE", help="also write JUnit XML")
    gate.set_defaults(call=_gate)

    plan = commands.add_parser("plan", help="say what a run can show before it is run")
    plan.add_argument("task", nargs="?", metavar="TASK", help="whose number of questions to plan for")
    plan.add_argument("--questions", type=_whole_from_one, metavar="N", help="plan for N questions")
    plan.add_argument("--discordance", metavar="SHARE|RUN", help="share of pairs lost or gained, or an A/A run's")
    plan.add_argument("--seconds", type=float, metavar="S", help="GPU seconds of one response, for the hours it takes")
    _add_margin(plan, required=False)
    plan.set_defaults(call=_plan)

    tasks = commands.add_parser("tasks", help="list the tasks")
    tasks.add_argument("--include-path", type=Path, metavar="DIR", help="folder of lm-eval task files of your own")
    tasks.set_defaults(call=_tasks)

    arms = commands.add_parser("arms", help="list the arms")
    arms.add_argument("--arms", type=Path, metavar="FILE", dest="arms_file", help="TOML file with more arms")
    arms.set_defaults(call=_arms)

    doctor = commands.add_parser("doctor", help="say what of the environment is ready, and what mends the rest")
    doctor.set_defaults(call=_doctor)
    return parser


def _add_margin(parser: argparse._ActionsContainer, *, required: bool) -> None:
    text = "largest loss of accuracy accepted, a fraction; fixed before looking"
    parser.add_argument("--margin", type=_margin, required=required, help=text)


def _run(args: argparse.Namespace) -> int:
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
    from evalsuite import report
    from evalsuite.journal import load_run

    run = load_run(folder)
    result = report.derive(run, margin=run.meta.get("margin"))
    report.write(run, result)
    return _conclude(result, where=folder / "report.md")


def _conclude(result: "Report", *, where: Path | None = None) -> int:
    from evalsuite.report import render_text

    print(render_text(result))
    if where is not None:
        print(f"report: {where}")
    return result.decision.exit_code


def _report(args: argparse.Namespace) -> int:
    return _rebuild(args.run)


def _compare(args: argparse.Namespace) -> int:
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


def _gate(args: argparse.Namespace) -> int:
    from evalsuite import gate, gate_output, policy, ship
    from evalsuite.journal import load_run

    shipped = None if args.ship is None else ship.read_shipped(args.ship)
    runs = [load_run(path) for path in args.runs]
    demanded = gate.margin_for_all(runs, args.margin) if args.policy is None else policy.load_policy(args.policy)
    decided = gate.decide_release(runs, demanded, noise=[load_run(path) for path in args.noise], shipped=shipped)
    gate_output.write(decided, junit=args.junit)
    print(gate_output.render_json(decided).rstrip() if args.json else gate_output.render_text(decided))
    return decided.exit_code


def _plan(args: argparse.Namespace) -> int:
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


def _tasks(args: argparse.Namespace) -> int:
    from evalsuite.tasks import DEFAULT_TASK, list_tasks

    rows = [
        (task.name + (" *" if task.name == DEFAULT_TASK else ""), task.budget, task.needs, task.about)
        for task in list_tasks(args.include_path)
    ]
    _print_table(("TASK", "BUDGET", "NEEDS", "WHAT IT ASKS"), rows)
    print("\n* the default. Any generate_until task of lm-eval: lm-eval:NAME, or your own with --include-path DIR.")
    return 0


def _arms(args: argparse.Namespace) -> int:
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


def _doctor(args: argparse.Namespace) -> int:
    from evalsuite.doctor import examine

    findings = examine()
    for finding in findings:
        print(f"{'ready  ' if finding.ready else 'MISSING'}  {finding.what}: {finding.found}")
        if not finding.ready:
            print(f"         {finding.mend}")
    return 0 if all(finding.ready or finding.optional for finding in findings) else USAGE_ERROR


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = build_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    call: Callable[[argparse.Namespace], int] = args.call
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = call(args)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"evalsuite: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("\nevalsuite: interrupted; give the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # A reader that went away, or a full disk behind standard output. What is left to write goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            where = f" ({error.filename})" if error.filename else ""
            print(f"evalsuite: {error.strerror or error}{where}; mend that and give the same command", file=sys.stderr)
        return USAGE_ERROR
    except Exception:  # noqa: BLE001
        traceback.print_exc()  # a bug; but it must not exit with 1, which says FAIL
        return USAGE_ERROR
