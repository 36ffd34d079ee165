"""What `speed` and `profile` serve: the arms, the model, the prompts, and the folder for what comes of it."""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from evalsuite import arms as arms_module
from evalsuite import environment
from evalsuite.arms import Arm, find_flag
from evalsuite.checkpoint import context_length, find_checkpoint
from evalsuite.errors import UserError
from evalsuite_performance.models import ModelShape, parse_shape, read_shape, write_model

_CONTEXTS, _CPU_CONTEXTS = (4096, 16384, 32768), (256, 1024)
_FIRST_TOKEN_ID = 100  # below lie the special tokens of most vocabularies
_STRIDE = 7919  # a prime, so that a prompt's tokens do not repeat soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is served to every arm: a model, prompts of these lengths, so many tokens, so many requests at once."""

    shape: ModelShape
    checkpoint: Path
    dummy: bool
    """Whether the weights are dummies, without a tokenizer."""
    contexts: tuple[int, ...]
    tokens: int
    at_once: int = 1

    def prompt(self, context: int, number: int) -> list[int]:
        """Return `context` token ids; another `number` gives another prompt, the same one the same in every arm."""
        usable = self.shape.vocabulary - _FIRST_TOKEN_ID
        return [_FIRST_TOKEN_ID + (i * _STRIDE + number * 31) % usable for i in range(context)]

    def prompts(self, context: int, number: int) -> list[list[int]]:
        """Return the prompts of requests at once, each of them another one."""
        return [self.prompt(context, 1000 * (number + 1) + each) for each in range(self.at_once)]


def choose_arms(names: Sequence[str], arms_file: Path | None) -> list[Arm]:
    """Return the arms of these names. One that is named again is the same arm under another name: its noise."""
    known = arms_module.load_arms(arms_file)
    chosen: dict[str, Arm] = {}
    for name in names:
        arm = arms_module.find_arm(name, known)
        if arm.url is not None:
            raise UserError(f"{name} is a running server; expected an arm that can be started, see `evalsuite arms`")
        if arm.backend not in (None, "CPU_ATTN") and environment.nvidia_gpu() is None:
            raise UserError(f"arm {name} needs an NVIDIA GPU, and there is none; without: --arm cpu --arm cpu-hybrid")
        free, again = name, 1
        while free in chosen or (again > 1 and free in names):
            free, again = f"{name}-again{again if again > 1 else ''}", again + 1
        chosen[free] = replace(arm, name=free)
    return list(chosen.values())


@contextmanager
def open_workload(
    args: argparse.Namespace, arms: Sequence[Arm], *, tokens: int, at_once: int = 1
) -> Iterator[Workload]:
    """Yield what the options ask for; a dummy model lasts as long as the `with` block.

    Raises UserError where an arm cannot serve it.
    """
    if args.layers and args.shape is None:
        raise UserError("--layers has no --shape; give the shape of the dummy model, for instance 24/4/256")
    with tempfile.TemporaryDirectory(prefix="evalsuite-model-") as scratch:
        folder = Path(scratch)
        if args.shape is not None:
            shape = parse_shape(args.shape, layers=args.layers or 16)
            for arm in arms:
                if arm.model:
                    raise UserError(f"arm {arm.name} has a model of its own, and --shape gives dummies; leave one out")
            write_model(shape, folder, positions=max(args.context or (0,)) + tokens)
        else:
            folder = find_checkpoint(arms[0].model if args.model is None else args.model)
            shape = read_shape(folder)
        yield Workload(
            shape=shape,
            checkpoint=folder,
            dummy=args.shape is not None,
            contexts=_fit_contexts(args.context, arms, folder, tokens),
            tokens=tokens,
            at_once=at_once,
        )


def _fit_contexts(asked: tuple[int, ...] | None, arms: Sequence[Arm], folder: Path, tokens: int) -> tuple[int, ...]:
    """Return the lengths asked for, or those of the usual ones that every arm can hold with its response.

    Raises UserError where one asked for, or each of the usual ones, is too long.
    """
    usual = _CONTEXTS if environment.nvidia_gpu() else _CPU_CONTEXTS
    fitting = list(asked or usual)
    for arm in arms:
        limit = context_length(checkpoint_of(arm, folder), arm.args)
        fits = [length for length in fitting if limit is None or length + tokens <= limit]
        if not fits or (asked and len(fits) < len(asked)):
            raise UserError(
                f"arm {arm.name}: a prompt of {fitting[-1]} tokens and {tokens} generated ones exceed the {limit} that "
                "the model holds; give smaller --context"
            )
        fitting = fits
    return tuple(fitting)


def checkpoint_of(arm: Arm, common: Path) -> Path:
    return find_checkpoint(arm.model) if arm.model else common


def describe_model(arms: Iterable[Arm], workload: Workload) -> str:
    """Return what is served: the dummy's shape, or the name of the model, of each arm where they differ."""
    if workload.dummy:
        return f"dummy {workload.shape}"
    names = {arm.name: checkpoint_of(arm, workload.checkpoint).name for arm in arms}
    if len(set(names.values())) == 1:
        return workload.checkpoint.name
    return ", ".join(f"{arm}: {model}" for arm, model in names.items())


def kv_bytes(arm: Arm, workload: Workload) -> int:
    """Return the bytes of keys and values per token in all layers, of the arm's own model and in the type it keeps."""
    shape = read_shape(find_checkpoint(arm.model)) if arm.model else workload.shape
    cached, computed = (find_flag(arm.args, flag) or "auto" for flag in ("--kv-cache-dtype", "--dtype"))
    kept = computed if cached == "auto" else cached
    return shape.kv_bytes * (1 if kept.startswith("fp8") else 4 if kept in ("float", "float32") else 2) // 2


def prepare_folder(out: Path | None, stem: str) -> None:
    """Make the folder for results and take out those of an earlier run, so that what lies there is of this one.

    Raises UserError where it cannot be written.
    """
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for suffix in ("json", "csv", "md", "svg"):
            (out / f"{stem}.{suffix}").unlink(missing_ok=True)
        (out / f"{stem}.json").touch()
        (out / f"{stem}.json").unlink()
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}); name another folder with --out") from error
