"""`evalsuite profile`: what a decode step spends on attention, projections and the rest, from a real server."""

import argparse
import sys

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

    arms = serving.choose_arms(args.arm or ["hybrid" if environment.nvidia_gpu() else "cpu-hybrid"], args.arms_file)
    with (
        serving.open_workload(args, arms, tokens=profiling.TOKENS) as workload,
        serving.open_folder(args.out) as folder,
    ):
        result = profile_output.Result(
            found=[], model=f"dummy {workload.shape}" if workload.dummy else workload.checkpoint.name
        )
        for arm in arms:
            try:
                for profiled in profiling.profile_arm(arm, workload, folder):
                    result.found.append(profiled)
                    if args.out:  # at once: whatever ends the command leaves what was measured
                        profile_output.write(result, folder)
            except serving.NotProven as fault:
                print(f"evalsuite: INVALID: {fault}; its profile says nothing about this arm", file=sys.stderr)
                return serving.INVALID
            except (RequestFailed, httpx.HTTPError, ValueError) as error:
                raise UserError(f"arm {arm.name}: no profile ({error}); see the server's log in {folder}") from error
        print(profile_output.render_text(result))
    return 0
