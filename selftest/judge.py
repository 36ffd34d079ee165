"""What each instrument says of one candidate, and the table of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalsuite import drift, force, journal, report
from evalsuite.drift import Drift
from evalsuite.errors import UserError
from evalsuite.force_output import as_response
from evalsuite.journal import Run
from evalsuite.receipts import find_faults
from evalsuite.verdict import Verdict

MARGIN = 0.2
"""Of the accuracy gate: a loss that twenty questions without one rule out."""
RUN_LEVEL = ("accuracy", "divergence", "forced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one instrument says of one candidate."""

    caught: bool
    effect: str
    """Its size, in a few words."""
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All findings on one candidate."""

    name: str
    findings: Mapping[str, Finding]
    """By instrument: accuracy, divergence, forced, tests."""

    @property
    def caught_by(self) -> tuple[str, ...]:
        """The instruments of a run that catch it."""
        return tuple(name for name in RUN_LEVEL if self.findings[name].caught)


def judge(name: str, folder: Path, baseline: Path, right: Sequence[Drift], tests: Finding) -> Row:
    """Return the row of the candidate whose run directory is `folder`.

    `baseline` is the folder with what the baseline says of its own tokens. Raises UserError where the run is INVALID or
    a receipt of forced decoding does not show the candidate's own kernel: then nothing is known of the candidate.
    """
    run = journal.load_run(folder)
    derived = report.derive(run, margin=MARGIN)
    if derived.decision.verdict is Verdict.INVALID:
        raise UserError(f"{name}: {derived.decision.headline}; expected a valid run, read {folder}")
    evidence = force.read_forced(folder / "forced.jsonl")
    if unproven := find_faults(list(map(as_response, evidence)), run.meta["arms"]["candidate"], _digest(run)):
        raise UserError(
            f"{name}: {len(unproven)} forced responses show another kernel: {unproven[0][1]}; read {folder}"
        )
    forced = read_drift(name, folder, baseline)
    return Row(
        name=name,
        findings={
            "accuracy": _accuracy(derived),
            "divergence": _divergence(derived),
            "forced": _forced(forced, right),
            "tests": tests,
        },
    )


def read_drift(name: str, folder: Path, baseline: Path) -> Drift:
    """Return how far what an arm wrote into `folder` lies from what the baseline says of the same tokens."""
    own, theirs = (force.read_forced(each / "forced.jsonl") for each in (baseline, folder))
    return drift.compare(own, theirs, name=name)


def _accuracy(derived: report.Report) -> Finding:
    table, verdict = derived.comparison.table, derived.decision.verdict
    return Finding(
        caught=verdict is Verdict.FAIL,
        effect=f"{verdict.value}: {table.lost} lost, {table.gained} gained of {table.pairs}",
        figures={**report.table_json(table), "verdict": verdict.value, "margin": MARGIN},
    )


def _divergence(derived: report.Report) -> Finding:
    found = derived.comparison.divergence
    if found is None:
        raise ValueError("a run without token ids has no divergence")
    near = found.count()
    return Finding(
        caught=near[False] > 0,
        effect=f"{near[False]} of {len(found.partings)} that part at a wide gap",
        figures={"parted": len(found.partings), "wide": near[False], "unknown": near[None], "pairs": found.pairs},
    )


def _forced(candidate: Drift, right: Sequence[Drift]) -> Finding:
    found = drift.judge(candidate, right)
    times = "" if found.ratio is None else f"{_times(found.ratio.ratio)} times rounding"
    return Finding(
        caught=found.verdict is Verdict.FAIL,
        effect=f"{found.verdict.value}: {times or found.reason}",
        figures={
            "verdict": found.verdict.value,
            "reason": found.reason,
            "steps": len(candidate.steps),
            "total_variation": candidate.mean,
            "ratio": None if found.ratio is None else asdict(found.ratio),
            "widest": found.widest,
            "spikes": found.spikes,
            "tolerance": drift.TOLERANCE,
        },
    )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def _digest(run: Run) -> str:
    return str(run.meta["attention"]["sha256"])
