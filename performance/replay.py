"""`evalsuite replay`: attention of one decode step alone, by every kernel there is, on the same paged KV.

Each kernel is captured in a CUDA graph that attends to the KV of all layers in turn, so that no layer finds its KV in
the L2 cache. The graphs are replayed alternately; times are medians, and a kernel's gain is the median of its ratios to
the yardstick within one round. The yardstick runs twice, the second time in the middle of a round: what its two rows
differ by is noise. What the graph wrote for each layer is compared with float64.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.errors import UserError
from evalsuite.progress import say
from evalsuite_performance.layer_shape import LayerShape, parse_heads
from evalsuite_performance.options import whole_from_one, whole_numbers

if TYPE_CHECKING:
    from evalsuite_performance.candidate import Candidate
    from evalsuite_performance.capture_file import Capture

HEADS, PAGE = (24, 4, 256), 784
CONTEXTS = {"cuda": (4096, 32768, 131072), "cpu": (1024, 4096)}
LAYERS = {"cuda": 16, "cpu": 2}  # the least that are rotated
ROUNDS = {"cuda": 40, "cpu": 3}
SPLITS, SEGMENTS = (8, 16, 32, 64, 128), (16, 32, 64, 128)


def add_parser(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "replay",
        help="time attention alone: every kernel on the same paged KV, each output checked against float64",
        description="Time attention of one decode step alone, by every kernel there is, on the same paged KV. "
        "Without an NVIDIA GPU the reference implementations run, to show that they agree. "
        "Exit code 1 if an output is wrong.",
    )
    parser.add_argument("--heads", metavar="Q/KV/SIZE", help="query heads, KV heads, head size (default 24/4/256)")
    parser.add_argument("--page", type=whole_from_one, metavar="N", help="KV positions per page (default 784)")
    parser.add_argument("--context", type=whole_numbers, metavar="N,...",
                        help="KV positions (default 4096,32768,131072; CPU 1024,4096)")  # fmt: skip
    parser.add_argument("--kv", type=Path, metavar="FILE", help="real queries and KV, from `evalsuite capture`")
    parser.add_argument("--splits", type=whole_numbers, default=SPLITS, metavar="N,...",
                        help="split counts to force on FA2 (default 8,16,32,64,128)")  # fmt: skip
    parser.add_argument("--segments", type=whole_numbers, default=SEGMENTS, metavar="N,...",
                        help="segment counts of vLLM's Triton (default 16,32,64,128)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="write replay.json, .csv, .md and .svg there")
    parser.set_defaults(call=replay)


def replay(args: argparse.Namespace) -> int:
    """Measure, print the tables, write the files that were asked for. Returns 1 if an output is wrong, else 0."""
    capture, shape, contexts = choose_input(args)
    device = choose_device()
    contexts = contexts or CONTEXTS[device]
    from evalsuite_performance.kernels import list_candidates
    from evalsuite_performance.paged import free_bytes
    from evalsuite_performance.replay_output import format_context, format_heading, write
    from evalsuite_performance.timing import copy_bandwidth
    from evalsuite_performance.workload import prepare_folder

    prepare_folder(args.out, "replay")
    candidates = list_candidates(device, splits=args.splits, segments=args.segments)
    layers = {context: plan_layers(shape, context, capture, device) for context in contexts}
    copy = round(copy_bandwidth(free_bytes(device)), 1) if device == "cuda" else None
    report = describe_run(device, shape, capture, copy)
    print(format_heading(report), flush=True)
    try:
        for context in contexts:
            result = replay_context(
                candidates,
                shape,
                context,
                longest=max(contexts),
                layers=layers[context],
                capture=capture,
                device=device,
                copy=copy,
            )
            report["contexts"].append(result)
            print(format_context(report, result), flush=True)
    finally:  # what was measured is kept, whatever ended the rest
        if args.out and report["contexts"]:
            write(args.out, report)
    rows = [row for result in report["contexts"] for row in result["rows"]]
    if all(row["skipped"] for row in rows):
        raise UserError(f"no kernel here serves {shape.heads} in pages of {shape.page_size}: the table says why")
    return 1 if any(row["wrong"] for row in rows) else 0


def choose_input(args: argparse.Namespace) -> "tuple[Capture | None, LayerShape, tuple[int, ...]]":
    """Return the capture if there is one, the shape, and the contexts, which are empty where the default holds.

    Raises UserError for heads that are none, and for options that a capture contradicts.
    """
    heads = None if args.heads is None else parse_heads("--heads", args.heads)
    if args.kv is None:
        q_heads, kv_heads, head_size = heads or HEADS
        shape = LayerShape(q_heads=q_heads, kv_heads=kv_heads, head_size=head_size, page_size=args.page or PAGE)
        return None, shape, args.context or ()
    from evalsuite_performance.capture_file import open_capture

    capture = open_capture(args.kv)
    shape = capture.shape
    for option, wanted, stored in (
        ("--heads", heads, (shape.q_heads, shape.kv_heads, shape.head_size)),
        ("--page", args.page, shape.page_size),
        ("--context", args.context, (capture.context,)),
    ):
        if wanted not in (None, stored):
            raise UserError(
                f"{args.kv} was captured with --heads {shape.heads} --page {shape.page_size} --context "
                f"{capture.context}, but {option} says otherwise; leave {option} out, or capture again"
            )
    return capture, shape, (capture.context,)


def choose_device() -> str:
    """Return "cuda" where PyTorch has an NVIDIA GPU, else "cpu", having said what that means."""
    try:
        import torch
    except ImportError as error:
        raise UserError("PyTorch is not installed; replay needs it, even without a GPU: `pip install torch`") from error
    if torch.version.cuda is not None and torch.cuda.is_available():
        return "cuda"
    from evalsuite.environment import nvidia_gpu

    gpu = nvidia_gpu()
    why = "is built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
    found = "no NVIDIA GPU here" if gpu is None else f"PyTorch {torch.__version__} {why} and cannot use the {gpu[0]}"
    say(
        f"{found}: the reference implementations run on the CPU, which shows that segments merge to the same "
        "answer; their times say nothing of any kernel"
    )
    return "cpu"


def plan_layers(shape: LayerShape, context: int, capture: "Capture | None", device: str) -> int:
    """Return how many layers to rotate at a context. Raises UserError if they do not fit into memory."""
    from evalsuite_performance.paged import check_fits, count_layers, free_bytes

    least = capture.layers if capture else LAYERS[device]
    layers = count_layers(shape, context, least=least, cache_bytes=l2_bytes(device) or 0)
    check_fits(shape, context, layers, free_bytes(device))
    return layers


def l2_bytes(device: str) -> int | None:
    """Return the size of the GPU's L2 cache, None for a CPU."""
    import torch

    return int(torch.cuda.get_device_properties(0).L2_cache_size) if device == "cuda" else None


def describe_run(device: str, shape: LayerShape, capture: "Capture | None", copy: float | None) -> dict[str, Any]:
    """Return the report without its contexts, as JSON values."""
    from evalsuite.environment import attention_package, describe

    package = attention_package()
    return {
        "schema": 1,
        "command": shlex.join(["evalsuite", *sys.argv[1:]]),
        "device": device,
        "environment": describe(),
        "attention_sha256": package["sha256"] if package else None,
        "shape": asdict(shape),
        "capture": {"file": capture.path.name, **capture.details} if capture else None,
        "copy_gigabytes_per_second": copy,
        "l2_bytes": l2_bytes(device),
        "contexts": [],
    }


def replay_context(
    candidates: "Sequence[Candidate]",
    shape: LayerShape,
    context: int,
    *,
    longest: int,
    layers: int,
    capture: "Capture | None",
    device: str,
    copy: float | None,
) -> dict[str, Any]:
    """Return the report's entry of one context. Raises UserError if memory runs out after all."""
    import torch

    from evalsuite_performance.paged import describe_memory, free_bytes, load_case, make_case
    from evalsuite_performance.trials import compare_kernels

    def attempt() -> dict[str, Any]:
        if capture:
            case = load_case(capture, layers=layers, device=device)
        else:
            case = make_case(shape, context, longest=longest, layers=layers, device=device)
        return compare_kernels(case, candidates, device=device, rounds=ROUNDS[device], copy=copy)

    try:
        return attempt()
    except RuntimeError as error:  # of a CPU it is no OutOfMemoryError
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
    # what the attempt holds is free only once its exception is gone
    raise UserError(describe_memory(shape, context, layers, free_bytes(device)))
