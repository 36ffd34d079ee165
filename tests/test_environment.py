"""What a run says about where it ran is true, or null."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from evalsuite import environment
from evalsuite.journal import dump

ROOT = Path(__file__).parent.parent


def put_command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a command of this name first in the search path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_run_json_can_hold_it() -> None:
    told = environment.describe()
    assert json.loads(dump(told)) == told
    assert told["evalsuite"] == "0.1.0"
    assert told["python"].startswith("3.")


def test_the_digest_of_the_attention_package_is_what_sha256sum_prints() -> None:
    told = environment.attention_package()
    assert told is not None
    script = "LC_ALL=C; sha256sum *.py | sha256sum"
    printed = subprocess.run(["sh", "-c", script], cwd=ROOT / "attention", capture_output=True, text=True, check=True)
    assert told["sha256"] == printed.stdout.split()[0]
    for name, digest in told["files"].items():
        assert digest == hashlib.sha256((ROOT / "attention" / name).read_bytes()).hexdigest()


def test_a_gpu_is_named_with_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_command(tmp_path, "nvidia-smi", "echo 'NVIDIA GeForce RTX 3090, 550.54'; echo 'Other, 1'", monkeypatch)
    assert environment.nvidia_gpu() == ("NVIDIA GeForce RTX 3090", "550.54")


@pytest.mark.parametrize("script", ["exit 9", "true"])
def test_a_driver_that_fails_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    put_command(tmp_path, "nvidia-smi", script, monkeypatch)
    assert environment.nvidia_gpu() is None


def test_a_command_that_is_missing_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.nvidia_gpu() is None
    told = environment.describe()
    assert (told["git_commit"], told["git_dirty"], told["gpu"]) == (None, None, None)


def test_versions_of_what_is_not_installed_are_not_known() -> None:
    assert environment.version("no-such-distribution") is None
    assert environment.version("no-such-distribution", "evalsuite") == "0.1.0"


def test_vllms_variables_are_kept_and_its_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """run.json is committed with a recorded run."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_SOME_TOKEN", "secret")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    told = environment.describe()["variables"]
    assert told["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "secret" not in dump(told)


def test_the_commit_is_this_repositorys_and_never_one_that_merely_surrounds_an_installed_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_command(tmp_path, "git", 'case "$1" in rev-parse) echo abc;; ls-files) exit 1;; esac', monkeypatch)
    told = environment.describe()
    assert (told["git_commit"], told["git_dirty"]) == (None, None)
    put_command(tmp_path, "git", 'case "$1" in rev-parse) echo abc;; ls-files) echo x;; esac', monkeypatch)
    told = environment.describe()
    assert (told["git_commit"], told["git_dirty"]) == ("abc", False)
