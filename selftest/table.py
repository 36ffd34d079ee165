"""The table of the self-test, as text, Markdown and JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from faults import RIGHT
from judge import Row

from evalsuite.render import markdown_table, text_table
from evalsuite.report import rounded

INSTRUMENTS = {
    "accuracy": "accuracy gate",
    "divergence": "first divergence",
    "forced": "forced decoding",
    "tests": "kernel tests",
}


def passed(rows: Sequence[Row]) -> bool:
    """Return whether a run catches every fault and finds nothing in the right kernel."""
    return all(bool(row.caught_by) != (row.name == RIGHT) for row in rows)


def conclude(rows: Sequence[Row]) -> list[str]:
    """Return the lines below the table; the first says whether the self-test passed."""
    faulty = [row for row in rows if row.name != RIGHT]
    caught = [row for row in faulty if row.caught_by]
    right = [name for row in rows if row.name == RIGHT for name in row.caught_by]
    missed = [row.name for row in faulty if not row.findings["accuracy"].caught]
    pairs = rows[0].findings["accuracy"].figures["pairs"]
    outcome = f"is held faulty by {', '.join(right)}" if right else "by none"
    lines = [
        f"{'PASS' if passed(rows) else 'FAIL'}: {len(caught)} of {len(faulty)} faults caught by at least one "
        f"instrument of a run, the right kernel {outcome}"
    ]
    if len(caught) < len(faulty):
        lines.append(f"Caught by no run: {', '.join(row.name for row in faulty if not row.caught_by)}.")
    lines.append(
        f"Accuracy alone, on {pairs} questions, misses {len(missed)} of {len(faulty)}: {', '.join(missed) or 'none'}."
    )
    return lines


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the table, its head first."""
    head = ("fault", *INSTRUMENTS.values())
    return [head, *((row.name, *(_cell(row, name) for name in INSTRUMENTS)) for row in rows)]


def _cell(row: Row, instrument: str) -> str:
    found = row.findings[instrument]
    return f"{'CAUGHT' if found.caught else 'not caught'}, {found.effect}"


def render_text(rows: Sequence[Row]) -> str:
    """Return what a terminal shows."""
    return "\n".join([*text_table(cells(rows)), "", *conclude(rows)])


def render_markdown(rows: Sequence[Row], meta: Mapping[str, Any]) -> str:
    """Return selftest.md; its first line is the outcome."""
    first, *rest = conclude(rows)
    asked = (
        f"Task {meta['task']}, {meta['questions']} questions, tokens of the first {meta['forced']} forced; baseline "
        f"{meta['arms'][0]}, candidates {meta['arms'][1]} with one fault each; rounding as the right kernels "
        f"{', '.join(meta['right_kernels'])} show it; kernel tests {meta['kernel_tests']}. "
        "`make selftest` makes this."
    )
    return "\n\n".join([f"# {first}", asked, markdown_table(cells(rows)), *rest]) + "\n"


def render_json(rows: Sequence[Row], meta: Mapping[str, Any]) -> str:
    """Return selftest.json: every figure. Floats have six significant digits."""
    data = {**meta, "passed": passed(rows), "conclusion": conclude(rows), "rows": [asdict(row) for row in rows]}
    return json.dumps(rounded(data), sort_keys=True, allow_nan=False, indent=1) + "\n"
