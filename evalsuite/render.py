"""Turn a comparison and its verdict into Markdown, HTML, and text for a terminal."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evalsuite.comparison import ArmFigures, Comparison, Incidence, Table
from evalsuite.divergence_output import describe, summarize
from evalsuite.early import Early
from evalsuite.pairing import Pair
from evalsuite.records import ARMS
from evalsuite.verdict import Decision, Verdict
from evalsuite.wording import UNKNOWN, clean, count, e_value, p_value, points, signed

EXPLAINED = {
    Verdict.PASS: "no regression detected, and one as large as the margin is ruled out",
    Verdict.NOT_DETECTED: "no regression detected; that is no proof of equality, the line above says what is ruled out",
    Verdict.FAIL: "a regression was detected",
    Verdict.INCONCLUSIVE: "neither a regression nor its absence was shown",
    Verdict.INVALID: "the evidence does not hold, so nothing was decided; the figures only help to find out why",
}
"""What a verdict means, in words that go with its exit code."""
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}"
    "th,td{border:1px solid #ccc;padding:.25rem .6rem;text-align:left}"
)


def render_summary(comparison: Comparison, decision: Decision) -> str:
    """Return the paired table, the figures, the verdict and why, and a line that explains the exit code."""
    lines = [
        *text_table(_paired_rows(comparison.table)),
        "",
        *text_table(_figure_rows(comparison, decision)),
        "",
        *text_table(_subset_rows(comparison)),
        "",
        *text_table(_incidence_rows(comparison.truncation, "truncated", "not truncated")),
        "",
        *text_table(_arm_rows(comparison.arms)),
        "",
        f"first divergence: {summarize(comparison.divergence)}",
        "",
        clean(decision.headline, longest=1000),
        *(f"  - {clean(reason, longest=1000)}" for reason in decision.reasons),
        f"exit code {decision.exit_code}: {EXPLAINED[decision.verdict]}",
    ]
    return "\n".join(lines)


def render_markdown(meta: Mapping[str, Any], comparison: Comparison, decision: Decision) -> str:
    """Return the whole report. Its first line is the verdict. What a model or a user wrote is escaped."""
    blocks = [
        f"# {escape(decision.headline, longest=1000)}",
        "\n".join(f"- {escape(reason, longest=1000)}" for reason in decision.reasons),
        f"Exit code {decision.exit_code}: {EXPLAINED[decision.verdict]}.",
        *_section("What was asked", _plan_rows(meta, comparison)),
        *_section("Pairs", _paired_rows(comparison.table)),
        *_section("Difference, candidate - baseline", _figure_rows(comparison, decision)),
        *_section("With and without truncated pairs", _subset_rows(comparison)),
        *_section("Truncated by the budget", _incidence_rows(comparison.truncation, "truncated", "not truncated")),
        *_section("Errors", _incidence_rows(comparison.errors, "error", "no error")),
        *_section("Arms", _arm_rows(comparison.arms)),
        "Times depend on the machine: compare them within one run only.",
        "## First divergence",
        *(
            escape(part, longest=1000) if isinstance(part, str) else markdown_table(part)
            for part in describe(comparison.divergence)
        ),
        *_changed("Lost", "lost", comparison.pairs, gated=meta["task"]["gated"]),
        *_changed("Gained", "gained", comparison.pairs, gated=meta["task"]["gated"]),
        *_section("Environment", [("", "found"), *_flat(meta.get("environment", {}))]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_html(markdown: str, *, title: str) -> str:
    """Return the Markdown report as one HTML page that loads nothing and runs nothing."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(clean(title))}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def escape(text: str, *, longest: int = 120) -> str:
    """Return text of foreign origin so that Markdown shows it as it is, on one line, in a table cell or elsewhere."""
    return re.sub(r"[\\`*_\[\]<>|&~$@!#]|(?<=:)/(?=/)|(?<=www)\.", r"\\\g<0>", clean(text, longest=longest))


def _section(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"## {title}"
    yield markdown_table(rows)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, the first row its head. What a model or a user wrote is escaped."""
    head, *body = rows
    lines = ["| " + " | ".join(escape(cell, longest=300) for cell in row) + " |" for row in (head, *body)]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]])


def text_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table for a terminal, its columns aligned."""
    shown = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _paired_rows(table: Table) -> list[tuple[str, ...]]:
    right, pairs = table.candidate_right, table.pairs
    return [
        ("", "candidate right", "candidate not right", "all"),
        ("baseline right", f"{table.kept} kept", f"{table.lost} lost", str(table.baseline_right)),
        ("baseline not right", f"{table.gained} gained", f"{table.missed} missed", str(pairs - table.baseline_right)),
        ("all", str(right), str(pairs - right), str(pairs)),
    ]


def _figure_rows(comparison: Comparison, decision: Decision) -> list[tuple[str, str]]:
    table, test = comparison.table, comparison.table.test
    asked_for = ("margin asked for", "none" if decision.margin is None else f"{points(decision.margin)} points")
    rows = [
        ("", "value"),
        ("baseline accuracy", _share(table.baseline_right, table.pairs)),
        ("candidate accuracy", _share(table.candidate_right, table.pairs)),
        ("difference", UNKNOWN if table.difference is None else f"{signed(table.difference)} points"),
    ]
    if comparison.early is not None:
        return [*rows, *_evidence_rows(comparison.early, decision), asked_for]
    rows += [
        ("95 % interval (Tango)", f"{_interval(table)} points"),
        ("smallest margin supported", _margin(table)),
        asked_for,
    ]
    if test is None:
        p = UNKNOWN if table.regression_p is None else p_value(table.regression_p)
        return [*rows, (f"p of a regression (Rao-Scott; decides at {decision.alpha:g})", p)]
    return [
        *rows,
        (f"p of a regression, mid-p McNemar, one-sided (decides at {decision.alpha:g})", p_value(test.midp_one_sided)),
        ("the same, exact", p_value(test.exact_one_sided)),
        ("p of any difference, mid-p McNemar, two-sided", p_value(test.midp_two_sided)),
        ("the same, exact", p_value(test.exact_two_sided)),
    ]


def _evidence_rows(early: Early, decision: Decision) -> Iterator[tuple[str, str]]:
    interval = early.interval()
    name = f"{100 * interval.confidence:.0f} % confidence sequence, valid whenever one stops"
    yield name, f"{signed(interval.low)} to {signed(interval.high)} points"
    if decision.evidence is not None:
        yield (
            f"e-value of a loss below the margin ({1 / early.alpha:g} decide)",
            e_value(decision.evidence.p_noninferior),
        )
        yield f"e-value of a regression ({1 / decision.alpha:g} decide)", e_value(decision.evidence.p_regression)


def _subset_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    subsets = [
        ("all pairs", comparison.table),
        ("without pairs that either arm truncated", comparison.without_truncated),
    ]
    if comparison.errors.neither < comparison.table.pairs:
        subsets.append(("all pairs, errors held against the candidate", comparison.worst_case))
    columns = 9 if comparison.early is None else 7  # no interval holds for a part of a run that stops early
    rows = [
        ("", "pairs", "kept", "lost", "gained", "missed", "points", "95 % interval", "smallest margin"),
        *(
            (name, *map(str, (table.pairs, table.kept, table.lost, table.gained, table.missed)),
             UNKNOWN if table.difference is None else signed(table.difference), _interval(table), _margin(table))
            for name, table in subsets
        ),
    ]  # fmt: skip
    return [row[:columns] for row in rows]


def _incidence_rows(seen: Incidence, name: str, otherwise: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("", f"candidate {name}", f"candidate {otherwise}"),
        (f"baseline {name}", str(seen.both), str(seen.baseline_only)),
        (f"baseline {otherwise}", str(seen.candidate_only), str(seen.neither)),
    ]
    if seen.p is not None:
        rows.append(("p of more in the candidate, mid-p", p_value(seen.p), ""))
    return rows


def _arm_rows(arms: Mapping[str, ArmFigures]) -> list[tuple[str, ...]]:
    def row(name: str, *values: str) -> tuple[str, ...]:
        return (name, *values)

    figures = [arms[arm] for arm in ARMS]
    return [
        ("", *ARMS),
        row("arm", *(f.name for f in figures)),
        row("responses", *(str(f.responses) + (f", {f.missing} missing" if f.missing else "") for f in figures)),
        row("right", *(str(f.right) for f in figures)),
        row("wrong", *(str(f.wrong) for f in figures)),
        row("answer not found", *(str(f.no_answer) for f in figures)),
        row("truncated", *(str(f.truncated) for f in figures)),
        row("errors", *(str(f.errors) for f in figures)),
        row("own kernel", *(_proof(f) for f in figures)),
        row("receipts", *(str(f.proof.receipts) for f in figures)),
        row("split-KV launches", *(_known(f.proof.split_kv, ",d") for f in figures)),
        row("fallbacks to the stock kernel", *(_known(f.proof.fallback, ",d") for f in figures)),
        row("tokens generated", *(_known(f.tokens, ",d") for f in figures)),
        row("seconds per response, median", *(_known(f.seconds, ".2f") for f in figures)),
        row("seconds to first token, median", *(_known(f.seconds_to_first_token, ".3f") for f in figures)),
        row("tokens per second after the first", *(_known(f.tokens_per_second, ".1f") for f in figures)),
    ]


def _plan_rows(meta: Mapping[str, Any], comparison: Comparison) -> list[tuple[str, str]]:
    task, sampling, early = meta["task"], meta["sampling"], comparison.early
    asked = [
        ("", "value"),
        ("task", f"{task['name']}, version {_known(task['version'])}"),
        ("questions", f"{comparison.questions:,}" + (f" of at most {early.planned:,}" if early else "")),
        ("budget", UNKNOWN if sampling["budget"] is None else count(sampling["budget"], "token")),
        ("temperature", _known(sampling["temperature"])),
        ("samples per question", _known(sampling["samples"])),
    ]
    for arm in ARMS:
        configured = meta["arms"][arm]
        model, backend, kernel = (_known(configured.get(field)) for field in ("model", "backend", "kernel"))
        asked.append((arm, f"{configured['name']}: model {model}, backend {backend}, kernel {kernel}"))
        if configured.get("args"):
            asked.append((f"{arm}, flags", " ".join(configured["args"])))
    return asked


def _changed(title: str, outcome: str, pairs: Iterable[Pair], *, gated: bool) -> Iterator[str]:
    """Yield the section of the lost or the gained pairs. Of a gated set it names the questions and nothing else."""
    chosen = [pair for pair in pairs if pair.outcome == outcome]
    if not chosen:
        yield f"## {title}"
        yield "None."
        return
    rows = []
    for pair in chosen:
        name = pair.question + (f", sample {pair.sample}" if pair.sample else "")
        answers = () if gated else (pair.target, _answer(pair, "baseline"), _answer(pair, "candidate"))
        rows.append((name, *answers))
    head = ("question",) if gated else ("question", "target", "baseline answer", "candidate answer")
    yield from _section(title, [head, *rows])


def _answer(pair: Pair, arm: str) -> str:
    grade = pair.baseline if arm == "baseline" else pair.candidate
    if grade.answer is not None:
        return grade.answer
    return {"truncated": "(truncated)", "error": "(error)"}.get(grade.verdict, "(answer not found)")


def _proof(figures: ArmFigures) -> str:
    if figures.proof.proven is None:
        return "path is not proven"
    return "proven" if figures.proof.proven else "NOT as planned"


def _flat(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in sorted(data.items()):
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", _known(value)


def _known(value: object, form: str = "") -> str:
    return UNKNOWN if value is None else format(value, form)


def _share(right: int, pairs: int) -> str:
    return f"{points(right / pairs)} % ({right} of {pairs})" if pairs else UNKNOWN


def _interval(table: Table) -> str:
    interval = table.interval
    return UNKNOWN if interval is None else f"{signed(interval.low)} to {signed(interval.high)}"


def _margin(table: Table) -> str:
    margin = table.smallest_margin
    return "none" if margin is None else f"{points(margin)} points"
