"""`python selftest [--arms gpu] [--out DIR]`: do the instruments catch kernels that are known to be wrong?

Each fault of `faults` is served as a candidate by a process of its own, and so is the right kernel; each run is judged
by evalsuite itself. Exit code 0 if every fault is caught by the accuracy gate, by first divergence or by forced
decoding, and the right kernel by none of them; 1 otherwise, 2 for an error.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from candidate import ARMS, ENVELOPE, FORCED, MODEL, NOT_STARTED, QUESTIONS, TASK
from faults import FAULTS, RIGHT, SOURCE, Fault, Platform, plant
from judge import Finding, Row, judge, read_drift
from table import passed, render_json, render_markdown, render_text

from evalsuite import environment, journal
from evalsuite.errors import UserError
from evalsuite.progress import say

ROOT = SOURCE.parent
TESTS = {"cpu": ("tests/attention/test_reference.py",), "gpu": ("-m", "gpu", "tests/attention/test_decode.py")}
"""The kernel tests that take seconds. Those that start vLLM, test_cpu.py and test_gpu.py, take a minute each time."""
GPU_JOBS = 6
"""Servers at a time on one GPU, each of which takes 0.15 of its memory, see arms.toml."""
GIB_PER_SERVER = 4


class Bench:
    """A temporary folder with all copies and runs, and places to run processes in, each with a CPU of its own."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.platform = platform
        self.folder = folder
        self.places: queue.Queue[str | None] = queue.Queue()
        for place in _places(platform):
            self.places.put(place)
        self.jobs = self.places.qsize()

    def run(self, name: str, *command: str, copy: str) -> subprocess.CompletedProcess[str]:
        """Run a Python command with a copy of the package first on its path, once there is a place for it."""
        place = self.places.get()
        try:
            path = os.pathsep.join([str(self.folder / copy), *filter(None, [os.environ.get("PYTHONPATH")])])
            bound = {} if place is None else {"VLLM_CPU_OMP_THREADS_BIND": place, "OMP_NUM_THREADS": "1"}
            start = time.monotonic()
            done = subprocess.run(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **bound},
                capture_output=True,
                text=True,
                check=False,
            )
            say(f"{name}: {time.monotonic() - start:.0f} s")
            return done
        finally:
            self.places.put(place)

    def serve(self, role: str, *, copy: str = RIGHT, baseline: Path | None = None) -> Path:
        """Let `candidate` play a role; return the folder with what it wrote. Raises UserError where it failed.

        A kernel of the envelope whose server does not start here is left out, which a line says: it wrote nothing.
        """
        name = copy if role == "candidate" else role
        folder = self.folder / "served" / name
        folder.mkdir(parents=True)
        script = str(Path(__file__).with_name("candidate.py"))
        done = self.run(f"{name}, served", script, self.platform, role, str(folder), str(baseline or folder), copy=copy)
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        if done.returncode == NOT_STARTED and role in ENVELOPE[self.platform]:
            say(f"{role} is left out: {said}")
        elif done.returncode:
            raise UserError(f"{name} was not served: {said}")
        return folder

    def test(self, name: str) -> Finding:
        """Run the kernel tests on a copy, up to the first that fails."""
        done = self.run(
            f"{name}, tested", "-m", "pytest", "-x", "-p", "no:cacheprovider", *TESTS[self.platform], copy=name
        )
        if done.returncode not in (0, 1):
            raise UserError(f"{name}: the kernel tests did not run: {done.stdout[-300:]} {done.stderr[-300:]}")
        failed = [
            line.split(" - ")[0].rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("FAILED ")
        ]
        return Finding(
            caught=done.returncode == 1,
            effect=(failed or ["all pass"])[0].partition("[")[0],
            figures={"failed": failed},
        )


def _places(platform: Platform) -> list[str | None]:
    """Return the CPU of each process that runs at a time, None for any; with one thread all sum in the same order."""
    if platform == "gpu":
        return [None] * GPU_JOBS
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpus = sorted(os.sched_getaffinity(0))
    return [str(cpu) for cpu in cpus[: max(1, int(memory // GIB_PER_SERVER))]]


def measure(bench: Bench) -> list[Row]:
    """Serve and test every candidate; return their rows, the right kernel last."""
    candidates: Mapping[str, Fault | None] = {**{fault.name: fault for fault in FAULTS}, RIGHT: None}
    for name, fault in candidates.items():
        plant(fault, bench.platform, bench.folder / name)
    with ThreadPoolExecutor(3 * len(candidates)) as pool:
        try:
            first = pool.submit(bench.serve, "baseline")
            tested = {name: pool.submit(bench.test, name) for name in candidates}
            baseline = first.result()
            others = {role: pool.submit(bench.serve, role, baseline=baseline) for role in ENVELOPE[bench.platform]}
            served = {name: pool.submit(bench.serve, "candidate", copy=name, baseline=baseline) for name in candidates}
            envelope = [read_drift(role, future.result(), baseline) for role, future in others.items()]
            right = [drift for drift in envelope if drift.steps]
            return [
                judge(name, future.result(), baseline, right, tested[name].result()) for name, future in served.items()
            ]
        finally:
            pool.shutdown(cancel_futures=True)  # where one failed, the others need not begin


def describe(platform: Platform) -> dict[str, Any]:
    """Return what the self-test is made of, and where it ran."""
    return {
        "task": TASK,
        "questions": QUESTIONS[platform],
        "forced": FORCED[platform],
        "arms": ARMS[platform],
        "right_kernels": ENVELOPE[platform],
        "kernel_tests": TESTS[platform][-1],
        "attention": environment.attention_package(),
        "environment": environment.describe(),
    }


def main() -> int:
    """Run the self-test; return the exit code."""
    parser = argparse.ArgumentParser(prog="selftest", description=__doc__)
    parser.add_argument("--arms", choices=("cpu", "gpu"), default="cpu", help="which arms to plant faults in")
    parser.add_argument("--model", help="checkpoint folder; the embedded default where none is named")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write selftest.json and selftest.md there")
    options = parser.parse_args()
    if options.model:
        os.environ[MODEL] = str(Path(options.model).resolve())
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="evalsuite-selftest-"))
    try:
        rows = measure(Bench(options.arms, folder))
    except UserError as error:
        say(f"{error}; everything is kept in {folder}")
        return 2
    shutil.rmtree(folder)
    meta = {**describe(options.arms), "seconds": time.monotonic() - start}
    print(render_text(rows))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        journal.write_once(options.out / "selftest.md", render_markdown(rows, meta))
        journal.write_once(options.out / "selftest.json", render_json(rows, meta))
    return 0 if passed(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
