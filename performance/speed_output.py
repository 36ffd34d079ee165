"""Turn measurements of speed into tables, files and a plot."""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from evalsuite import arms as arms_module
from evalsuite import environment, progress
from evalsuite.arms import Arm
from evalsuite.render import markdown_table, text_table
from evalsuite_performance.break_even import break_even, describe, difference, spread
from evalsuite_performance.measuring import Measurement

NOTES = (
    "Medians of the repetitions. Changes are against {baseline}, geometric means of the ratios within a round; in "
    "brackets the 95 % interval by Student's t, which takes two repetitions. Of equal arms one in twenty leaves out 0.",
    "Break-even: the output length, in tokens, from which (or until which) an arm answers sooner in all, by the mean "
    "differences within a round and the ends of their intervals.",
    "Every response alone carries a receipt: split-KV arms show it at every decode step, the others at none.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured, and on what."""

    measurements: list[Measurement]
    """Of whole contexts: every arm, every repetition."""
    baseline: str
    skipped: Mapping[str, str]
    """Arms that did not start, with the reason."""
    model: str
    arms: Mapping[str, Arm]
    """Those that served, with every flag."""


def _select(result: Result, arm: str, context: int, *, alone: bool) -> list[Measurement]:
    return [row for row in result.measurements if (row.arm, row.context, row.concurrency == 1) == (arm, context, alone)]


def _times(result: Result, arm: str, context: int) -> tuple[list[float], list[float]]:
    """Return seconds to first token and seconds per token after it, of each repetition."""
    rows = _select(result, arm, context, alone=True)
    times = [(row.seconds_to_first_token, row.decode_ms_per_token) for row in rows]
    return [first for first, _ in times if first is not None], [ms / 1e3 for _, ms in times if ms is not None]


def summarize(result: Result) -> list[dict[str, Any]]:
    """Return for each context and arm the spreads, the changes against the baseline and the break-even."""
    summary = []
    for context in sorted({row.context for row in result.measurements}):
        base_first, base_decode = _times(result, result.baseline, context)
        for arm in result.arms:
            first, decode = _times(result, arm, context)
            entry: dict[str, Any] = {
                "context": context,
                "arm": arm,
                "seconds_to_first_token": asdict(spread(first)),
                "decode_seconds_per_token": asdict(spread(decode)),
            }
            if arm != result.baseline:
                found = break_even(difference(first, base_first), difference(base_decode, decode))
                entry |= {
                    "first_token_change": _ratio(first, base_first),
                    "decode_rate_change": _ratio(base_decode, decode),
                    "break_even": asdict(found) | {"text": describe(found)},
                }
            summary.append(entry)
    return summary


def _ratio(minuends: Sequence[float], subtrahends: Sequence[float]) -> dict[str, float | None]:
    """Return by what fraction the first are more than the second, with its interval, which one pair does not give.

    Of the logarithms, so that an interval for twice as fast is as good as one for twice as slow.
    """
    change = difference(*([math.log(value) for value in values] for values in (minuends, subtrahends)))
    return {name: math.expm1(end) if math.isfinite(end) else None for name, end in asdict(change).items()}


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
                _change(entry["first_token_change"]),
                _change(entry["decode_rate_change"]),
                entry["break_even"]["text"],
            )
        yield (
            str(entry["context"]),
            entry["arm"],
            f"{first['median']:.4f}",
            changes[0],
            f"{decode['median'] * 1e3:.3f}",
            *changes[1:],
        )


def _throughput_rows(result: Result) -> Iterator[tuple[str, ...]]:
    yield ("context", "arm", "at once", "tokens/s, prefill included", "decode steps by split-KV (receipts)")
    for entry in summarize_throughput(result):
        steps = entry["split_kv_steps"]
        served = f"{', '.join(map(str, steps))}; the others by the stock kernel" if any(steps) else "none"
        rate = "{median:.1f} ({low:.1f}-{high:.1f})".format(**entry["tokens_per_second"])
        yield (str(entry["context"]), entry["arm"], str(entry["concurrency"]), rate, served)


def _change(change: Mapping[str, float | None]) -> str:
    ends = [f"{100 * end:+.1f}" for end in change.values() if end is not None]
    return f"{ends[0]} %" if len(ends) == 1 else "{} % ({} to {})".format(*ends)


def _tables(result: Result) -> Iterator[list[tuple[str, ...]]]:
    yield list(_rows(result))
    throughput = list(_throughput_rows(result))
    if len(throughput) > 1:
        yield throughput


def _notes(result: Result) -> Iterator[str]:
    yield from (note.format(baseline=result.baseline) for note in NOTES)
    yield from (f"Left out: {name}: {reason}" for name, reason in result.skipped.items())


def render_text(result: Result) -> str:
    """Return the tables for a terminal."""
    tables = ["\n".join(text_table(rows)) for rows in _tables(result)]
    return "\n\n".join([f"model: {result.model}", *tables, "\n".join(_notes(result))])


def render_markdown(result: Result, machine: Mapping[str, Any]) -> str:
    """Return the tables in Markdown, with what they were measured on."""
    on = machine["gpu"] or machine["cpu"]
    head = f"{result.model} on {on}, vLLM {machine['vllm']}, torch {machine['torch']}."
    return "\n\n".join(["# Speed", head, *map(markdown_table, _tables(result)), *_notes(result)]) + "\n"


def render_json(result: Result, machine: Mapping[str, Any]) -> str:
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
        "environment": machine,
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
    (folder / "speed.json").write_text(render_json(result, machine), encoding="utf-8")
    (folder / "speed.md").write_text(render_markdown(result, machine), encoding="utf-8")
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
