"""Turn profiles into a table, files and a plot."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalsuite import environment, progress
from evalsuite.render import markdown_table, text_table
from evalsuite_performance.profiling import Profiled
from evalsuite_performance.traces import ATTENTION, FAMILIES

_TOP = 6  # names shown of each family


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was profiled, and of which model."""

    found: list[Profiled]
    model: str


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    times = [f"{family} (ms)" for family in FAMILIES]
    yield ("context", "arm", *times, "attention, share", "KV (MB)", "read at (GB/s)")
    for one in result.found:
        profile = one.profile
        yield (
            str(one.context),
            one.arm,
            *(f"{profile.families[family]:.3f}" for family in FAMILIES),
            f"{100 * profile.families[ATTENTION] / profile.total:.1f} %",
            f"{one.kv_bytes / 1e6:.1f}",
            f"{one.bandwidth / 1e9:.1f}",
        )


def _notes(result: Result) -> Iterator[str]:
    steps = ", ".join(sorted({str(one.profile.steps) for one in result.found}))
    yield f"Milliseconds per decode step of one request, means over {steps} steps of one response."
    if all(one.profile.on_gpu for one in result.found):
        yield (
            "Times of kernels on the GPU, overlaps counted once, and shares of their sum: neither the gaps between "
            "kernels nor what the GPU waits for the host is in it."
        )
    else:
        yield "Times of operators on the CPU with the profiler on, which makes them longer; no measure of speed."
    yield "KV: what the model's configuration says that a step reads; read at: that, over the time of attention."


def _parts(result: Result) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield for each profile what its families consist of: a heading and rows."""
    for one in result.found:
        rows: list[tuple[str, ...]] = [("family", "ms", "calls", "name")]
        for family in FAMILIES:
            items = one.profile.items[family]
            rows += [(family, f"{i.milliseconds:.4f}", f"{i.calls:g}", _short(i.name)) for i in items[:_TOP]]
            if others := items[_TOP:]:
                took = sum(item.milliseconds for item in others)
                rows.append((family, f"{took:.4f}", "", f"{len(others)} others"))
        yield f"{one.arm}, context {one.context}", rows


def _short(name: str) -> str:
    return name if len(name) <= 90 else name[:87] + "..."


def render_text(result: Result) -> str:
    """Return the table for a terminal, and what the families consist of at the longest context of each arm."""
    longest = max(one.context for one in result.found)
    parts = [
        "\n".join([heading, *text_table(rows)])
        for (heading, rows), one in zip(_parts(result), result.found, strict=True)
        if one.context == longest
    ]
    table = "\n".join(text_table(list(_rows(result))))
    return "\n\n".join([f"model: {result.model}", table, "\n".join(_notes(result)), *parts])


def render_markdown(result: Result, machine: Mapping[str, Any]) -> str:
    """Return all tables in Markdown, with what they were measured on."""
    on = machine["gpu"] or machine["cpu"]
    head = f"{result.model} on {on}, vLLM {machine['vllm']}, torch {machine['torch']}."
    parts = [block for heading, rows in _parts(result) for block in (f"## {heading}", markdown_table(rows))]
    return "\n\n".join(["# Profile", head, markdown_table(list(_rows(result))), *_notes(result), *parts]) + "\n"


def write(result: Result, folder: Path) -> None:
    """Write profile.csv, profile.json, profile.md and, where matplotlib is there, profile.svg. Raises OSError."""
    machine = environment.describe()
    constant = [result.model, machine["gpu"], machine["cpu"], machine["vllm"]]
    with (folder / "profile.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", "context", "family", "ms_per_step", "kv_bytes", "model", "gpu", "cpu", "vllm"])
        for one in result.found:
            for family in FAMILIES:
                took = round(one.profile.families[family], 6)
                writer.writerow([one.arm, one.context, family, took, one.kv_bytes, *constant])
    data = {
        "schema": 1,
        "model": result.model,
        "profiles": [asdict(one) | {"attention_bytes_per_second": one.bandwidth} for one in result.found],
        "attention": environment.attention_package(),
        "environment": machine,
    }
    text = json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n"
    (folder / "profile.json").write_text(text, encoding="utf-8")
    (folder / "profile.md").write_text(render_markdown(result, machine), encoding="utf-8")
    draw(result, folder / "profile.svg")


def draw(result: Result, file: Path) -> None:
    """Draw each profile as a bar of its families; say so where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        progress.say(f"{file.name} is not drawn: matplotlib is not installed; `pip install matplotlib`")
        return
    figure = Figure(figsize=(1.5 + 1.5 * len(result.found), 4), layout="constrained")
    axes = figure.subplots()
    names = [f"{one.arm}\n{one.context}" for one in result.found]
    below = [0.0] * len(names)
    for family in FAMILIES:
        times = [one.profile.families[family] for one in result.found]
        axes.bar(names, times, bottom=below, label=family)
        below = [low + time for low, time in zip(below, times, strict=True)]
    axes.set(ylabel="ms per decode step", xlabel="arm, tokens of the prompt")
    axes.legend()
    figure.savefig(file, metadata={"Date": None})
