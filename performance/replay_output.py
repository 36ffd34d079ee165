"""What `evalsuite replay` prints and writes, all of it made from the report that replay.json holds."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from evalsuite.progress import say
from evalsuite.render import markdown_table, text_table
from evalsuite_performance.trials import NOISE


def format_heading(report: dict[str, Any]) -> str:
    """Return the line above all tables: what was replayed, on what."""
    shape, environment = report["shape"], report["environment"]
    parts = [
        f"{shape['q_heads']} query heads, {shape['kv_heads']} KV heads, head size {shape['head_size']}, pages of "
        f"{shape['page_size']}, {shape['dtype']}"
    ]
    if report["capture"]:
        parts.append(f"captured from {report['capture']['model']}")
    if report["device"] == "cuda":
        gpu, driver = environment["gpu"], environment["driver"]
        parts.append(f"{gpu} (driver {driver}), vLLM {environment['vllm']}")
        parts.append(f"a copy reaches {report['copy_gigabytes_per_second']:.0f} GB/s")
    else:
        parts.append(f"{environment['cpu'] or 'CPU'}, without a GPU")
    return "; ".join(parts)


def format_context(report: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the lines of one context: what was read, the noise, and a table of all kernels."""
    lines = ["", f"context {result['context']}: {_describe_kv(report, result)}", _describe_noise(report, result), ""]
    return "\n".join([*lines, *text_table(_rows(report, result))])


def format_markdown(report: dict[str, Any]) -> str:
    """Return the whole report as Markdown."""
    blocks = ["# Attention alone", f"`{report['command']}`", format_heading(report) + "."]
    for result in report["contexts"]:
        blocks.append(f"## Context {result['context']}")
        blocks.append(f"{_describe_kv(report, result)}; {_describe_noise(report, result)}.")
        blocks.append(markdown_table(_rows(report, result)))
    return "\n\n".join(blocks) + "\n"


def format_csv(report: dict[str, Any]) -> str:
    """Return one line per context and kernel; cells of what is not known, or had no part in it, are empty."""
    shape, environment = report["shape"], report["environment"]
    fixed = {"device": report["device"]}
    fixed |= {name: environment[name] if report["device"] == "cuda" else None for name in ("gpu", "driver")}
    fixed |= {name: environment[name] for name in ("vllm", "torch", "triton")}
    fixed |= {name: shape[name] for name in ("q_heads", "kv_heads", "head_size", "page_size", "dtype")}
    fixed |= {"copy_gigabytes_per_second": report["copy_gigabytes_per_second"]}
    lines = []
    for result in report["contexts"]:
        per_context = {name: result[name] for name in ("context", "layers", "kv_bytes", "noise")}
        lines += [fixed | per_context | row for row in result["rows"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write(folder: Path, report: dict[str, Any]) -> None:
    """Write replay.json and, made from it, replay.csv, replay.md and the plot replay.svg into a folder."""
    text = json.dumps(report, indent=2, sort_keys=True, allow_nan=False)
    (folder / "replay.json").write_text(text + "\n", encoding="utf-8")
    (folder / "replay.csv").write_text(format_csv(report), encoding="utf-8")
    markdown = format_markdown(report)
    (folder / "replay.md").write_text(markdown, encoding="utf-8", errors="backslashreplace")  # a path may be no text
    draw(report, folder / "replay.svg")


def draw(report: dict[str, Any], file: Path) -> None:
    """Draw the time of each kernel per context, and that of a copy of its bytes; say so where matplotlib is missing.

    Nothing is drawn of a CPU: times of the reference implementations are nothing to look at.
    """
    results = [result for result in report["contexts"] if result["yardstick"] and report["device"] == "cuda"]
    if not results:
        return
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        say(f"{file.name} is not drawn: matplotlib is not installed; `pip install matplotlib`")
        return
    with rc_context({"svg.hashsalt": "evalsuite", "font.size": 8}):
        figure = Figure(figsize=(4 * len(results) + 1, 4), layout="constrained")
        for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
            rows = [row for row in result["rows"] if row["skipped"] is None][::-1]
            names = [_name(row) for row in rows]
            colours = ["tab:orange" if "ours" in row["kernel"] else "tab:blue" for row in rows]
            axes.barh(names, [row["microseconds"] for row in rows], color=colours)
            copy = result["kv_bytes"] / report["copy_gigabytes_per_second"] / 1e3
            axes.axvline(copy, color="black", linestyle="--", linewidth=1)
            axes.set_title(f"context {result['context']}")
            axes.set_xlabel("µs per layer (dashed: copy bandwidth)")
        figure.suptitle(f"Attention of one decode step, {report['environment']['gpu']}")
        figure.savefig(file, metadata={"Date": None})


def _describe_kv(report: dict[str, Any], result: dict[str, Any]) -> str:
    total = result["kv_bytes"] * result["layers"]
    text = f"{result['kv_bytes'] / 1e6:.1f} MB of KV a layer, {result['layers']} layers"
    cache = report["l2_bytes"]
    if cache is not None:
        text += " in turn"
        if total < 2 * cache:
            text += f", in all less than twice the L2 cache ({cache / 1e6:.0f} MB), which so serves part of the reads"
    return text


def _describe_noise(report: dict[str, Any], result: dict[str, Any]) -> str:
    if report["device"] != "cuda":
        return "correctness only: the times are those of the reference implementation on a CPU, and mean nothing else"
    if result["noise"] is None:
        return "no kernel ran" if result["yardstick"] is None else "no noise control"
    name, percent = result["yardstick"], 100 * result["noise"]
    if result["noisy"]:
        return f"NOISY: {name} against itself differs by {percent:+.1f} %, more than {NOISE * 100:.0f} %; run it again"
    return f"noise: {name} against itself {percent:+.2f} %, within ±{NOISE * 100:.0f} %"


def _name(row: dict[str, Any]) -> str:
    """Return a kernel's name with what it chose itself; forced counts are in the name."""
    if row["parts"] is None or any(part.isdigit() for part in row["kernel"].split()) or "plain" in row["kernel"]:
        return str(row["kernel"])
    word = "split" if "FA2" in row["kernel"] else "segment"
    return f"{row['kernel']}: {row['parts']} {word}{'s' if row['parts'] != 1 else ''}"


def _fastest(result: dict[str, Any]) -> dict[str, str]:
    """Return what is said of the fastest kernel, and of those that noise cannot tell from it, by name.

    Nothing on a noisy table. What is wrong is no candidate, nor is the control.
    """
    times = {
        row["kernel"]: row["microseconds"]
        for row in result["rows"]
        if row["microseconds"] is not None and not row["wrong"] and row["kernel"] != f"{result['yardstick']}, again"
    }
    if result["noisy"] or not times:
        return {}
    near = [name for name, time in times.items() if time <= (1 + NOISE) * min(times.values())]
    return dict.fromkeys(near, "fastest" if len(near) == 1 else "fastest, within noise")


def _rows(report: dict[str, Any], result: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a context's table, its head first."""
    on_gpu = report["device"] == "cuda"
    header = ["kernel", "µs" if on_gpu else "µs (reference on a CPU)", "relative error", "note"]
    if on_gpu:
        header[2:2] = [f"x {result['yardstick'] or 'yardstick'}", "GB/s", "of copy"]
    fastest = _fastest(result) if on_gpu else {}
    rows = [header]
    for row in result["rows"]:
        if row["skipped"] is not None:
            rows.append([row["kernel"], *["-"] * (len(header) - 2), f"skipped: {row['skipped']}"])
            continue
        error = "NaN" if row["relative_error"] is None else f"{row['relative_error']:.2e}"
        verdict = "WRONG" if row["wrong"] else fastest.get(row["kernel"])
        note = "; ".join(filter(None, (verdict, row["note"])))
        cells = [_name(row), f"{row['microseconds']:.1f}", error, note]
        if on_gpu:
            cells[2:2] = [
                f"{row['gain']:.3f}", f"{row['gigabytes_per_second']:.0f}", f"{row['copy_share']:.0%}"
            ]  # fmt: skip
        rows.append(cells)
    return rows
