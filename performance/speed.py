"""`evalsuite speed`: time to first token and decode rate of several arms, through real servers, asked alternately."""

import argparse
import time

from evalsuite.errors import UserError
from evalsuite_performance import options

_TOKENS, _REPETITIONS = 512, 3


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `speed`."""
    parser = commands.add_parser(
        "speed",
        help="time to first token and decode rate of several arms through their servers, and where a change pays",
        description="Serve several arms at once, ask them alternately, one request at a time, and check each receipt. "
        "The first arm is the baseline.",
    )
    options.add_options(parser)
    parser.add_argument("--tokens", type=options.whole_from_one, default=_TOKENS, metavar="N", help="to generate (512)")
    parser.add_argument("--repetitions", type=options.whole_from_one, default=_REPETITIONS, metavar="N",
                        help="generations of each arm and context (default 3)")  # fmt: skip
    parser.add_argument("--concurrency", type=options.whole_from_one, default=1, metavar="N",
                        help="also time N requests at once: tokens per second in all")  # fmt: skip
    parser.set_defaults(call=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, write them to `--out`; return the exit code."""
    from evalsuite import environment, progress
    from evalsuite.client import RequestFailed
    from evalsuite_performance import measuring, serving, speed_output
    from evalsuite_performance.workload import choose_arms, describe_model, open_workload, prepare_folder

    if args.tokens < 2:
        raise UserError("--tokens 1 has no decode step to time; give 2 or more")
    names = args.arm or (["fa2", "triton", "hybrid"] if environment.nvidia_gpu() else ["cpu", "cpu-hybrid"])
    arms = choose_arms(names, args.arms_file)
    begin = time.monotonic()
    with open_workload(args, arms, tokens=args.tokens, at_once=args.concurrency) as workload:
        prepare_folder(args.out, "speed")
        with serving.serve_all(arms, workload, args.out) as (servers, skipped):
            result = speed_output.Result(
                measurements=[],
                baseline=arms[0].name,
                skipped=skipped,
                model=describe_model((server.arm for server in servers.values()), workload),
                arms={name: server.arm for name, server in servers.items()},
            )
            try:
                for rows in measuring.measure(servers, workload, repetitions=args.repetitions):
                    result.measurements.extend(rows)
                    if args.out:  # at once: whatever ends the command leaves what was measured
                        speed_output.write(result, args.out)
            except serving.NotProven as fault:
                return serving.end_invalid(fault, args.out, "speed", "its times say nothing")
            except RequestFailed as error:
                logs = servers[arms[0].name].log.parent
                raise UserError(f"a request failed ({error}); see the servers' logs in {logs}") from error
            print(speed_output.render_text(result))
    progress.say(f"{time.monotonic() - begin:.0f} s in all, server starts included")
    return 0
