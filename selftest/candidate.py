"""`python candidate.py PLATFORM ROLE FOLDER BASELINE`: serve one arm with the copy of the package that the path names.

Each arm is a process of its own, because the package is imported once. What it writes is evidence of evalsuite's own
kind, taken by evalsuite's own functions; `__main__` judges it.

    baseline   asks the questions, then forces its own tokens: FOLDER/baseline.jsonl, FOLDER/forced.jsonl (BASELINE is
               FOLDER)
    candidate  likewise, but the tokens that the folder BASELINE holds: FOLDER becomes a whole run directory
    an arm     only forces these tokens: a kernel that is known to be right and sums in another order
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalsuite import force, journal, progress, runner, server
from evalsuite.arms import find_arm, load_arms
from evalsuite.errors import UserError
from evalsuite.receipts import fingerprint
from evalsuite.records import Response
from evalsuite.runner import Plan, Settings

MODEL = "EVALSUITE_SELFTEST_MODEL"
"""The variable that names the model, the embedded default where it is not set."""
NOT_STARTED = 3
"""Exit code where the server did not start."""
FILE = Path(__file__).with_name("arms.toml")
ARMS = {"cpu": ("cpu-small", "cpu-hybrid-small"), "gpu": ("fa2-small", "hybrid-small")}
"""Baseline and candidate."""
ENVELOPE = {"cpu": ("cpu-hybrid-3-segments",), "gpu": ("triton-small", "fa3-small")}
"""Kernels that are right."""
TASK = "copying"
QUESTIONS = {"cpu": 20, "gpu": 60}
FORCED = {"cpu": 6, "gpu": 60}
"""Of how many of the baseline's responses the tokens are forced."""


def prepare(platform: str) -> Plan:
    """Return the plan of every run of the self-test on a platform."""
    baseline, candidate = ARMS[platform]
    return runner.prepare(
        Settings(
            task=TASK,
            include_path=Path(__file__).parent,
            baseline=baseline,
            candidate=candidate,
            model=os.environ.get(MODEL),
            arms_file=FILE,
            limit=QUESTIONS[platform],
        )
    )


def ask(plan: Plan, up: server.Server | server.Attached, side: str, folder: Path) -> list[Response]:
    """Ask an arm every question; return the responses, which FOLDER then holds."""
    stamp, out = fingerprint(plan.meta["arms"][side]), journal.Journal(folder / f"{side}.jsonl")
    asked = []
    for question in plan.questions:
        response = runner.ask_once(plan, up, question, 0, session=1)
        asked.append(replace(response, receipt={**(response.receipt or {}), "arm": stamp}))
        out.append(asked[-1])
    return asked


def open_candidate(plan: Plan, folder: Path, baseline: Sequence[Response], source: Path) -> None:
    """Make `folder` a run directory that lacks only the candidate's responses."""
    # The baseline was asked once, beside its own copy of the package, and its receipts name that one.
    digest = (baseline[0].receipt or {})["digest"]
    arm = {**plan.meta["arms"]["baseline"], "attention": {"sha256": digest}}
    meta = {**plan.meta, "arms": {**plan.meta["arms"], "baseline": arm}}
    with runner.open_run(replace(plan, meta=meta), folder):
        shutil.copy(source, folder)


def serve(platform: str, role: str, folder: Path, other: Path) -> None:
    """Serve an arm and let it write its evidence into `folder`; `other` is the folder of the baseline."""
    plan, recorded = prepare(platform), other / "baseline.jsonl"
    baseline = journal.read_responses(recorded)
    if role == "candidate":
        open_candidate(plan, folder, baseline, recorded)
    arm = plan.arms[role] if role in plan.arms else find_arm(role, load_arms(FILE))
    checkpoint, log = plan.checkpoints["baseline"], folder / f"{role}.log"
    with server.serve(force.serving(arm, top=force.TOP), checkpoint, log, progress.announce) as up:
        if role in plan.arms:
            asked = ask(plan, up, role, folder)
            baseline = baseline or asked
        out = journal.Journal(folder / "forced.jsonl")
        for response in baseline[: FORCED[platform]]:
            out.append(force.ask(up, response, plan.prompts[response.question], top=force.TOP))


def main(platform: str, role: str, folder: str, other: str) -> int:
    """Do what the command line says; return the exit code."""
    try:
        serve(platform, role, Path(folder), Path(other))
    except UserError as error:
        print(error, file=sys.stderr)
        return NOT_STARTED if isinstance(error, server.NotStarted) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
