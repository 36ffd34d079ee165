"""Turn measurements of speed into tables, files and a plot."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from evalsuite import arms as arms_module
from evalsuite import environment, progress
from evalsuite.arms import Arm
from evalsuite.render import markdown_table, text_table
from evalsuite_performance.break_even import Spread, break_even, describe, difference, sign, spread
from evalsuite_performance.measuring import Measurement

NOISE = "noise"
"""Marks a change that the scatter of the repetitions covers."""
NOTES = (
    'Medians; in brackets the range over the repetitions. Changes are against {baseline}; "{noise}" marks one whose '
    "ranges overlap. Of two equal arms, ranges of three repetitions lie apart once in ten times.",
    "Break-even: the output length, in tokens, from which (or until which) an arm answers sooner in all.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured, and on what."""

    measurements: Sequence[Measurement]
    baseline: str
    skipped: Mapping[str, str]
    """Arms that did not start, with the reason."""
    model: str
    arms: Mapping[str, Arm]
    """Those that served, with every flag."""


def _select(result: Result, arm: str, context: int, *, alone: bool) -> list[Measurement]:
    return [row for row in result.measurements if (row.arm, row.context, row.concurrency == 1) == (arm, context, alone)]


def _spreads(result: Result, arm: str, context: int) -> tuple[Spread, Spread]:
    """Return seconds to first token and seconds per token after it."""
    rows = _select(result, arm, context, alone=True)
    return (
        spread([row.seconds_to_first_token or 0.0 for row in rows]),
        spread([(row.decode_ms_per_token or 0.0) / 1e3 for row in rows]),
    )


def summarize(result: Result) -> list[dict[str, Any]]:
    """Return for each context and arm the spreads, the changes against the baseline and the break-even."""
    summary = []
    for context in sorted({row.context for row in result.measurements}):
        base_first, base_decode = _spreads(result, result.baseline, context)
        for arm in result.arms:
            first, decode = _spreads(result, arm, context)
            entry: dict[str, Any] = {
                "context": context,
                "arm": arm,
                "seconds_to_first_token": asdict(first),
                "decode_seconds_per_token": asdict(decode),
            }
            if arm != result.baseline:
                extra, saved = difference(first, base_first), difference(base_decode, decode)
                entry |= {
                    "first_token_change": first.median / base_first.median - 1,
                    "first_token_change_shown": sign(extra) != 0,
                    "decode_rate_change": base_decode.median / decode.median - 1,
                    "decode_rate_change_shown": sign(saved) != 0,
                    "break_even": asdict(break_even(extra, saved)) | {"text": describe(break_even(extra, saved))},
                }
            summary.append(entry)
    return summary


def summarize_throughput(result: Result) -> list[dict[str, Any]]:
    """Return for each context and arm the tokens per second of all requests at once."""
    return [
        {
            "context": context,
            "arm": arm,
            "concurrency": rows[0].concurrency,
            "tokens_per_second": asdict(spread([row.tokens / row.seconds for row in rows])),
            "split_kv_steps": [row.split_kv_steps for row in rows],
        }
        for context in sorted({row.context for row in result.measurements})
        for arm in result.arms
        if (rows := _select(result, arm, context, alone=False))
    ]


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    yield ("context", "arm", "first token (s)", "change", "decode (ms/token)", "rate", "break-even")
    for entry in summarize(result):
        first, decode = entry["seconds_to_first_token"], entry["decode_seconds_per_token"]
        changes = ("", "", "baseline")
        if entry["arm"] != result.baseline:
            changes = (
                _change(entry["first_token_change"], shown=entry["first_token_change_shown"]),
                _change(entry["decode_rate_change"], shown=entry["decode_rate_change_shown"]),
                entry["break_even"]["text"],
            )
        yield (
            str(entry["context"]),
            entry["arm"],
            _range(first, digits=4),
            changes[0],
            _range(decode, digits=3, scale=1e3),
            *changes[1:],
        )


def _throughput_rows(result: Result) -> Iterator[tuple[str, ...]]:
    yield ("context", "arm", "at once", "tokens/s in all", "decode steps by split-KV (receipts)")
    for entry in summarize_throughput(result):
        steps = entry["split_kv_steps"]
        served = f"{', '.join(map(str, steps))}; the others by the stock kernel" if any(steps) else "none"
        rate = _range(entry["tokens_per_second"], digits=1)
        yield (str(entry["context"]), entry["arm"], str(entry["concurrency"]), rate, served)


def _range(values: Mapping[str, float], *, digits: int, scale: float = 1.0) -> str:
    middle, low, high = (f"{values[key] * scale:.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} ({low}-{high})"


def _change(fraction: float, *, shown: bool) -> str:
    return f"{100 * fraction:+.1f} %" + ("" if shown else f", {NOISE}")


def _tables(result: Result) -> Iterator[list[tuple[str, ...]]]:
    yield list(_rows(result))
    throughput = list(_throughput_rows(result))
    if len(throughput) > 1:
        yield throughput


def _notes(result: Result) -> Iterator[str]:
    yield from (note.format(baseline=result.baseline, noise=NOISE) for note in NOTES)
    yield "Every response alone carries a receipt that shows the arm's own kernel at every decode step."
    yield from (f"Left out: {name}: {reason}" for name, reason in result.skipped.items())


def render_text(result: Result) -> str:
    """Return the tables for a terminal."""
    tables = ["\n".join(text_table(rows)) for rows in _tables(result)]
    return "\n\n".join([f"model: {result.model}", *tables, "\n".join(_notes(result))])


def render_markdown(result: Result) -> str:
    """Return the tables in Markdown, with what they were measured on."""
    machine = environment.describe()
    on = machine["gpu"] or machine["cpu"]
    head = f"{result.model} on {on}, vLLM {machine['vllm']}, torch {machine['torch']}."
    return "\n\n".join(["# Speed", head, *map(markdown_table, _tables(result)), *_notes(result)]) + "\n"


def render_json(result: Result) -> str:
    """Return everything as JSON."""
    data = {
        "schema": 1,
        "model": result.model,
        "baseline": result.baseline,
        "skipped": dict(result.skipped),
        "measurements": [asdict(row) for row in result.measurements],
        "summary": summarize(result),
        "throughput": summarize_throughput(result),
        "arms": {name: arms_module.to_json(arm, model_sha256=None) for name, arm in result.arms.items()},
        "attention": environment.attention_package(),
        "environment": environment.describe(),
    }
    return json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write(result: Result, folder: Path) -> None:
    """Write speed.csv, speed.json, speed.md and, where matplotlib is there, speed.svg. Raises OSError."""
    machine = environment.describe()
    constant = {"model": result.model, "gpu": machine["gpu"], "cpu": machine["cpu"], "vllm": machine["vllm"]}
    with (folder / "speed.csv").open("w", newline="", encoding="utf-8") as file:
        columns = [field.name for field in fields(Measurement)]
        writer = csv.DictWriter(file, [*columns, *constant], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) | constant for row in result.measurements)
    (folder / "speed.json").write_text(render_json(result), encoding="utf-8")
    (folder / "speed.md").write_text(render_markdown(result), encoding="utf-8")
    draw(result, folder / "speed.svg")


def draw(result: Result, file: Path) -> None:
    """Draw time to first token and decode time over the context, with ranges; say so where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        progress.say(f"{file.name} is not drawn: matplotlib is not installed; `pip install matplotlib`")
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = (("seconds_to_first_token", 1.0, "time to first token (s)"),
              ("decode_seconds_per_token", 1e3, "decode (ms per token)"))  # fmt: skip
    for axes, (key, scale, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for arm in result.arms:
            entries = [entry for entry in summarize(result) if entry["arm"] == arm]
            middle = [entry[key]["median"] * scale for entry in entries]
            below = [(entry[key]["median"] - entry[key]["low"]) * scale for entry in entries]
            above = [(entry[key]["high"] - entry[key]["median"]) * scale for entry in entries]
            positions = [entry["context"] for entry in entries]
            axes.errorbar(positions, middle, yerr=[below, above], marker="o", capsize=3, label=arm)
        axes.set(xlabel="tokens of the prompt", ylabel=label, ylim=(0, None))
        axes.legend()
    figure.savefig(file, metadata={"Date": None})
