"""Derive everything a run says from its evidence, and write it down: the same bytes each time."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from evalsuite import divergence_output
from evalsuite.comparison import Comparison, Incidence, Table, compare
from evalsuite.divergence import find_divergence
from evalsuite.errors import UserError
from evalsuite.journal import Run, write_once
from evalsuite.pairing import Grades, grade_responses
from evalsuite.records import ARMS, SCHEMA
from evalsuite.render import render_html, render_markdown, render_summary
from evalsuite.verdict import Decision, Verdict, decide
from evalsuite.wording import clean

BLOCKING = (Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.INVALID)
"""The verdicts of forced decoding that hold a release back, the graver last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run says, before it is written in any form."""

    meta: Mapping[str, Any]
    """run.json."""
    comparison: Comparison
    decision: Decision


def derive(run: Run, *, margin: float | None = None, grades: Grades | None = None) -> Report:
    """Grade, pair, compare and decide. `margin` is the largest loss accepted, a fraction; see `verdict.decide`.

    `grades` are those of an imported log, which holds its own.
    """
    graded = grades or {arm: grade_responses(run, run.responses[arm]) for arm in ARMS}
    comparison = compare(run, graded)
    comparison = replace(comparison, divergence=find_divergence(run, comparison.pairs))
    decision = decide(comparison, margin=margin)
    remarks = run.meta.get("remarks")
    if isinstance(remarks, tuple):  # what `compare` found; run.json, which is JSON, holds no tuple
        decision = replace(decision, reasons=(*remarks, *decision.reasons))
    return Report(meta=run.meta, comparison=comparison, decision=decision)


def overrule(decision: Decision, verdict: Verdict, headline: str) -> Decision:
    """Return a run's decision together with the verdict of its forced decoding: the graver holds.

    A kernel that is wrong, or was not shown to be right when that was asked, is not released, whatever few questions
    say of it. PASS there changes nothing.
    """
    if verdict not in BLOCKING:
        return decision
    if decision.verdict in BLOCKING[BLOCKING.index(verdict) :]:
        return replace(decision, reasons=(f"forced decoding: {headline}", *decision.reasons))
    alone = f"of the answers alone: {decision.headline}"
    told = f"{verdict}: forced decoding: {headline.removeprefix(f'{verdict}: ')}"
    return replace(decision, verdict=verdict, headline=told, reasons=(alone, *decision.reasons))


def write(run: Run, report: Report) -> None:
    """Write pairs.csv, comparison.json, report.md and report.html into the run directory.

    Raises UserError where that cannot be written; each file is then absent, old or whole.
    """
    markdown = render_markdown(report.meta, report.comparison, report.decision)
    files = {
        "pairs.csv": render_csv(report),
        "comparison.json": render_json(report),
        "report.md": markdown,
        "report.html": render_html(markdown, title=report.decision.headline),
    }
    for name, text in files.items():
        try:
            write_once(run.path / name, text)
        except OSError as error:
            raise UserError(
                f"{run.path / name} cannot be written ({error.strerror}); make room or mend rights"
            ) from error


def render_text(report: Report) -> str:
    """Return what a terminal shows: the paired table, the verdict, and a line that explains the exit code."""
    return render_summary(report.comparison, report.decision)


def render_json(report: Report) -> str:
    """Return comparison.json: every count and figure, no answers. Floats have six significant digits.

    More would differ in the last bit from one machine to the next.
    """
    comparison, decision = report.comparison, report.decision
    task, sampling = report.meta["task"], report.meta["sampling"]
    data = {
        "schema": SCHEMA,
        "task": {"name": task["name"], "version": task["version"]},
        "budget": sampling["budget"],
        "samples": sampling["samples"],
        "verdict": decision.verdict.value,
        "exit_code": decision.exit_code,
        "headline": decision.headline,
        "reasons": list(decision.reasons),
        "margin": decision.margin,
        "alpha": decision.alpha,
        "questions": comparison.questions,
        "same_arms": comparison.same_arms,
        "problems": list(comparison.problems),
        "table": table_json(comparison.table),
        "worst_case": table_json(comparison.worst_case),
        "without_truncated": table_json(comparison.without_truncated),
        "truncation": _incidence(comparison.truncation),
        "errors": _incidence(comparison.errors),
        "arms": {arm: asdict(figures) for arm, figures in comparison.arms.items()},
        "divergence": None if comparison.divergence is None else divergence_output.to_json(comparison.divergence),
    }
    if comparison.early is not None and decision.evidence is not None:
        interval = comparison.early.interval()
        data["evidence"] = asdict(decision.evidence) | {
            "planned": comparison.early.planned,
            "confidence_sequence": [interval.low, interval.high],
            "confidence": interval.confidence,
        }
    return json.dumps(rounded(data), sort_keys=True, allow_nan=False, indent=1) + "\n"


def table_json(table: Table) -> dict[str, Any]:
    """Return a paired table and its figures for JSON."""
    test, interval = table.test, table.interval
    return {
        "pairs": table.pairs,
        "kept": table.kept,
        "lost": table.lost,
        "gained": table.gained,
        "missed": table.missed,
        "baseline_right": table.baseline_right,
        "candidate_right": table.candidate_right,
        "difference": table.difference,
        "interval_95": None if interval is None else [interval.low, interval.high],
        "smallest_margin": table.smallest_margin,
        "regression_p": table.regression_p,
        "mcnemar": None if test is None else asdict(test),
        "design_effect": table.design_effect,
    }


def _incidence(incidence: Incidence) -> dict[str, Any]:
    return asdict(incidence) | {"test": None if incidence.test is None else asdict(incidence.test)}


def rounded(data: Any) -> Any:
    """Return data for JSON with each float in it at six significant digits."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    return [rounded(value) for value in data] if isinstance(data, list | tuple) else data


def render_csv(report: Report) -> str:
    """Return pairs.csv: one line per pair, in the order asked. Of a gated set it holds neither answers nor targets."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    shown = () if report.meta["task"]["gated"] else ("target", "baseline_answer", "candidate_answer")
    rows.writerow(
        ("question", "sample", "cluster", "outcome", "baseline_grade", "candidate_grade", "baseline_tokens",
         "candidate_tokens", "baseline_seconds", "candidate_seconds", "same_tokens", *divergence_output.COLUMNS,
         *shown)
    )  # fmt: skip
    for pair in report.comparison.pairs:
        answers = (pair.target, pair.baseline.answer, pair.candidate.answer) if shown else ()
        rows.writerow(
            (_cell(pair.question), pair.sample, _cell(pair.cluster), pair.outcome, pair.baseline.verdict,
             pair.candidate.verdict, pair.baseline_tokens, pair.candidate_tokens, rounded(pair.baseline_seconds),
             rounded(pair.candidate_seconds), *divergence_output.cells(report.comparison.divergence, pair),
             *map(_cell, answers))
        )  # fmt: skip
    return out.getvalue()


def _cell(text: str | None) -> str | None:
    """Return text for a CSV cell. A spreadsheet runs what starts like a formula, so an apostrophe goes before it."""
    if text is None:
        return None
    line = clean(text, longest=1000)
    formula = unicodedata.normalize("NFKC", line[:1]) in ("=", "+", "-", "@")
    return f"'{line}" if formula and not re.fullmatch(r"[+-]?[\d.,]+", line) else line
