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
from typing import NoReturn

from evalsuite import __version__, commands, progress
from evalsuite.commands import USAGE_ERROR
from evalsuite.errors import UserError

INTERRUPTED = 130


def _whole_from_one(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_whole_from_one(part.strip()) for part in text.split(","))


def _top(text: str) -> int:
    if not 2 <= (count := _whole_from_one(text)) <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no number of tokens from 2 to 100")
    return count


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
    # They measure with evalsuite's servers, so at module level this import would go in a circle.
    from evalsuite_performance import capture, profile, replay, speed

    parser = _Parser(
        prog="evalsuite",
        description="Did making serving faster make the answers worse? Two vLLM arms, one set of questions, a verdict.",
        epilog="exit codes: 0 PASS or NOT DETECTED, 1 FAIL, 2 usage or environment, 3 INCONCLUSIVE, 4 INVALID",
    )
    parser.add_argument("--version", action="version", version=f"evalsuite {__version__}")
    named = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = named.add_parser("run", help="ask both arms the same questions and compare; resumes where it stopped")
    run.add_argument("task", nargs="?", help="a task of `evalsuite tasks`, or lm-eval:NAME (default: the offline one)")
    run.add_argument("--budget", type=_whole_from_one, metavar="TOKENS", help="most tokens a response may generate")
    run.add_argument("--limit", type=_whole_from_one, metavar="N", help="ask the first N questions only")
    run.add_argument("--data", type=Path, metavar="FILE", help="read the task's questions from this file")
    run.add_argument("--context", type=_lengths, metavar="N,...", help="tokens of prompt and budget, for longfacts")
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
    run.set_defaults(call=commands.run)

    report = named.add_parser("report", help="rebuild a run's tables and report from its evidence")
    report.add_argument("run", type=Path, metavar="RUN")
    report.set_defaults(call=commands.report)

    compare = named.add_parser("compare", help="compare any two runs or response files question by question")
    compare.add_argument("baseline", type=Path, metavar="BASELINE", help="response file, run, or lm-eval's samples log")
    compare.add_argument("candidate", type=Path, metavar="CANDIDATE", help="the same of the other arm")
    compare.add_argument("--filter", metavar="NAME", help="whose grades to read, if a samples log holds several")
    _add_margin(compare, required=False)
    compare.add_argument("--json", action="store_true", help="print comparison.json instead of the table")
    compare.set_defaults(call=commands.compare)

    gate = named.add_parser("gate", help="release gate: PASS only where a loss of MARGIN is ruled out")
    gate.add_argument("runs", type=Path, metavar="RUN", nargs="+", help="one run of each task")
    demand = gate.add_mutually_exclusive_group(required=True)
    _add_margin(demand, required=False)
    demand.add_argument("--policy", type=Path, metavar="FILE", help="TOML file with each task's margin, see docs/ci.md")
    gate.add_argument("--noise", type=Path, metavar="RUN", action="append", default=[], help="A/A run to set beside it")
    gate.add_argument("--ship", type=Path, metavar="WHEEL|DIR", help="INVALID unless its attention package was tested")
    gate.add_argument("--json", action="store_true", help="print JSON instead of text")
    gate.add_argument("--junit", type=Path, metavar="FILE", help="also write JUnit XML")
    gate.set_defaults(call=commands.gate)

    plan = named.add_parser("plan", help="say what a run can show before it is run")
    plan.add_argument("task", nargs="?", metavar="TASK", help="whose number of questions to plan for")
    plan.add_argument("--questions", type=_whole_from_one, metavar="N", help="plan for N questions")
    plan.add_argument("--discordance", metavar="SHARE|RUN", help="share of pairs lost or gained, or an A/A run's")
    plan.add_argument("--seconds", type=float, metavar="S", help="GPU seconds of one response, for the hours it takes")
    _add_margin(plan, required=False)
    plan.set_defaults(call=commands.plan)

    tasks = named.add_parser("tasks", help="list the tasks")
    tasks.add_argument("--include-path", type=Path, metavar="DIR", help="folder of lm-eval task files of your own")
    tasks.set_defaults(call=commands.tasks)

    arms = named.add_parser("arms", help="list the arms")
    arms.add_argument("--arms", type=Path, metavar="FILE", dest="arms_file", help="TOML file with more arms")
    arms.set_defaults(call=commands.arms)

    force = named.add_parser("force", help="make each arm decode the baseline's tokens and compare the distributions")
    force.add_argument("run", type=Path, metavar="RUN")
    force.add_argument("--tokens", type=_whole_from_one, metavar="N", help="force about N tokens (default: all)")
    force.add_argument("--top", type=_top, metavar="K", help="most probable tokens to record, 2 to 100 (default 8)")
    right = "another arm that is known to be right and shows what rounding does"
    force.add_argument("--right", metavar="NAME", action="append", default=[], help=right)
    force.add_argument("--arms", type=Path, metavar="FILE", dest="arms_file", help="TOML file with more arms")
    force.add_argument("--model", metavar="DIR|NAME", action="append", default=[], help="checkpoint of the run")
    force.add_argument("--data", type=Path, metavar="FILE", help="the file that the run's questions were read from")
    force.add_argument("--jobs", type=_whole_from_one, metavar="N", default=1, help="servers up at once (default 1)")
    force.set_defaults(call=commands.force)

    for module in (replay, capture, speed, profile):
        module.add_parser(named)

    doctor = named.add_parser("doctor", help="say what of the environment is ready, and what mends the rest")
    doctor.set_defaults(call=commands.doctor)
    return parser


def _add_margin(parser: argparse._ActionsContainer, *, required: bool) -> None:
    text = "largest loss of accuracy accepted, a fraction; fixed before looking"
    parser.add_argument("--margin", type=_margin, required=required, help=text)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    args = build_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _interrupt)
    call: Callable[[argparse.Namespace], int] = args.call
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = call(args)
        sys.stdout.flush()
        return code
    except UserError as error:
        progress.say(f"evalsuite: {' '.join(str(error).splitlines())}")
        return USAGE_ERROR
    except KeyboardInterrupt:
        again = "; give the same command again to go on" if args.command in ("run", "force") else ""
        print(f"\nevalsuite: interrupted{again}", file=sys.stderr)
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
