"""`evalsuite profile`: what a decode step spends on attention, projections and the rest, from a real server."""

import argparse

from evalsuite.errors import UserError
from evalsuite_performance import options


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `profile`."""
    parser = commands.add_parser(
        "profile",
        help="share of a decode step by kernel family (attention, projections, the rest), from a real server",
        description="Serve one arm after the other and trace its decode steps at each context with PyTorch's profiler.",
    )
    options.add_options(parser)
    parser.set_defaults(call=run)


def run(args: argparse.Namespace) -> int:
    """Profile, print the table, write it to `--out`; return the exit code."""
    import httpx

    from evalsuite import environment
    from evalsuite.client import RequestFailed
    from evalsuite_performance import profile_output, profiling, serving
    from evalsuite_performance.workload import choose_arms, describe_model, open_workload, prepare_folder

    arms = choose_arms(args.arm or ["hybrid" if environment.nvidia_gpu() else "cpu-hybrid"], args.arms_file)
    with open_workload(args, arms, tokens=profiling.TOKENS) as workload:
        prepare_folder(args.out, "profile")
        result = profile_output.Result(found=[], model=describe_model(arms, workload))
        for arm in arms:
            try:
                for profiled in profiling.profile_arm(arm, workload, args.out):
                    result.found.append(profiled)
                    if args.out:  # at once: whatever ends the command leaves what was measured
                        profile_output.write(result, args.out)
            except serving.NotProven as fault:
                return serving.end_invalid(fault, args.out, "profile", "its profile says nothing")
            except (RequestFailed, httpx.HTTPError, ValueError) as error:
                raise UserError(f"arm {arm.name}: no profile ({error})") from error
        print(profile_output.render_text(result))
    return 0
