"""Turn a gate's decision into text, JSON, JUnit XML and Markdown. Nothing is decided here."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from evalsuite.errors import UserError
from evalsuite.gate import Gate, TaskResult
from evalsuite.journal import write_once
from evalsuite.records import SCHEMA
from evalsuite.render import EXPLAINED, escape, markdown_table, render_summary, text_table
from evalsuite.report import rounded, table_json
from evalsuite.verdict import Verdict
from evalsuite.wording import UNKNOWN, clean, p_value, points, signed

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
# A policy may accept a regression that was detected.
_EXPLAINED = EXPLAINED | {Verdict.PASS: "what passed rules out a loss as large as its margin"}
_LONGEST = 1000


def render_text(gate: Gate) -> str:
    """Return what a terminal shows: of one run its whole summary, of several a line for each; the verdict is last."""
    lines = [*_noise_lines(gate), *(f"finding: {clean(finding, longest=_LONGEST)}" for finding in gate.findings)]
    result = gate.tasks[0]
    if len(gate.tasks) == 1 and not result.policy.accept_within_margin:
        return "\n".join([*lines, render_summary(result.report.comparison, result.decision)])
    return "\n".join(
        [
            *text_table(_rows(gate)),
            "",
            *(clean(line, longest=_LONGEST) for result in gate.tasks for line in _task_lines(result)),
            *lines,
            "",
            clean(gate.headline, longest=_LONGEST),
            f"exit code {gate.exit_code}: {_EXPLAINED[gate.verdict]}",
        ]
    )


def render_markdown(gate: Gate) -> str:
    """Return the summary for a page. Its first line is the verdict. What a user wrote is escaped."""
    lines = [*_noise_lines(gate), *(line for result in gate.tasks for line in _task_lines(result)), *gate.findings]
    blocks = [
        f"## {escape(gate.headline, longest=_LONGEST)}",
        markdown_table(_rows(gate)),
        "\n".join(f"- {escape(line, longest=_LONGEST)}" for line in lines),
        f"Exit code {gate.exit_code}: {_EXPLAINED[gate.verdict]}.",
    ]
    return "\n\n".join(blocks) + "\n"


def render_json(gate: Gate) -> str:
    """Return every figure that decides, with six significant digits, no answers and no questions."""
    data = {
        "schema": SCHEMA,
        "verdict": gate.verdict.value,
        "exit_code": gate.exit_code,
        "headline": gate.headline,
        "findings": list(gate.findings),
        "alpha": gate.alpha,
        "tasks": [_task_json(result) for result in gate.tasks],
        "pooled": None if gate.pooled is None else asdict(gate.pooled),
        "shipped": None if gate.shipped is None else gate.shipped.sha256,
        "noise": [asdict(noise) | {"discordance": noise.discordance} for noise in gate.noise],
    }
    return json.dumps(rounded(data), sort_keys=True, allow_nan=False, indent=1) + "\n"


def render_junit(gate: Gate) -> str:
    """Return JUnit XML, a test for each task: a failure or an error if and only if the task blocks the release.

    An INVALID run is an error. A task that says no PASS and blocks nothing is skipped, with what it says.
    """
    cases = []
    for result in gate.tasks:
        case = ElementTree.Element("testcase", classname="evalsuite.gate", name=_xml(result.task))
        verdict = result.decision.verdict
        if result.blocks or verdict is not Verdict.PASS:
            kind = ("error" if verdict is Verdict.INVALID else "failure") if result.blocks else "skipped"
            message = _xml(result.decision.headline)
            told = ElementTree.SubElement(
                case, kind, {"message": message} | ({"type": verdict} if result.blocks else {})
            )
            told.text = _xml("; ".join(result.decision.reasons))
        ElementTree.SubElement(case, "system-out").text = _xml(result.decision.headline)
        cases.append(case)
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "evalsuite gate"} | counts)
    suite.extend(cases)
    ElementTree.SubElement(suite, "system-out").text = _xml("; ".join((gate.headline, *gate.findings)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def write(gate: Gate, *, junit: Path | None) -> None:
    """Write the JUnit file, and append the Markdown to the file that $GITHUB_STEP_SUMMARY names, where it is set.

    Raises UserError where one cannot be written.
    """
    summary = os.environ.get(SUMMARY_VARIABLE)
    try:
        if junit is not None:
            write_once(junit, render_junit(gate))
        if summary:
            with open(summary, "a", encoding="utf-8") as file:
                file.write(render_markdown(gate))
    except OSError as error:
        name = f"--junit {junit}" if error.filename != summary else f"${SUMMARY_VARIABLE}, {summary},"
        raise UserError(
            f"{name} cannot be written ({error.strerror}); expected a file in a folder that exists"
        ) from error


def _rows(gate: Gate) -> list[tuple[str, ...]]:
    rows = [
        (
            "task",
            "",
            "margin",
            "questions",
            "lost",
            "gained",
            "difference",
            "95 % interval",
            "p",
            "p (Holm)",
            "verdict",
        ),
        *(_row(result) for result in gate.tasks),
    ]
    if gate.pooled is not None:
        counts = gate.pooled.counts
        rows.append(
            ("all required", "pooled", "", str(counts.pairs), str(counts.lost), str(counts.gained),
             signed(gate.pooled.difference), f"{signed(gate.pooled.low)} to {signed(gate.pooled.high)}",
             p_value(gate.pooled.regression_p), "", "")
        )  # fmt: skip
    return rows


def _row(result: TaskResult) -> tuple[str, ...]:
    table = result.table
    return (
        result.task,
        "required" if result.policy.required else "advisory",
        points(result.policy.margin),
        str(result.report.comparison.questions),
        str(table.lost),
        str(table.gained),
        UNKNOWN if table.difference is None else signed(table.difference),
        UNKNOWN if table.interval is None else f"{signed(table.interval.low)} to {signed(table.interval.high)}",
        UNKNOWN if result.regression_p is None else p_value(result.regression_p),
        UNKNOWN if result.holm_p is None else p_value(result.holm_p),
        result.decision.verdict.value,
    )


def _task_lines(result: TaskResult) -> Iterator[str]:
    yield f"{result.task}: {result.decision.headline}"
    yield from (f"{result.task}: {reason}" for reason in result.decision.reasons)


def _noise_lines(gate: Gate) -> Iterator[str]:
    beside = {result.task: result.table for result in gate.tasks}
    for noise in gate.noise:
        table = beside[noise.task]
        yield (
            f"{noise.task}: discordant {_share(table.lost + table.gained, table.pairs)}; "
            f"of {noise.arm} against itself (A/A) {_share(noise.discordant, noise.pairs)}"
        )


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} pairs" + (f" ({points(part / whole)} %)" if whole else "")


def _task_json(result: TaskResult) -> dict[str, Any]:
    decision = result.decision
    return {
        "task": result.task,
        "required": result.policy.required,
        "accept_within_margin": result.policy.accept_within_margin,
        "margin": decision.margin,
        "alpha": decision.alpha,
        "verdict": decision.verdict.value,
        "blocks": result.blocks,
        "headline": decision.headline,
        "reasons": list(decision.reasons),
        "questions": result.report.comparison.questions,
        "forced": None if result.forced is None else result.forced.judgement.verdict.value,
        "regression_p": result.regression_p,
        "holm_p": result.holm_p,
        "table": table_json(result.table),
    }


def _xml(text: str) -> str:
    # XML has no way to write control characters, and `clean` leaves none.
    return clean(text, longest=_LONGEST)
