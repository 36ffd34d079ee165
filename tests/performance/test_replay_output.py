"""What `evalsuite replay` prints and draws of a GPU's report. pytest tests/performance/test_replay_output.py"""

import re

from evalsuite.render import markdown_table
from evalsuite_performance.replay_output import draw, format_context, format_csv, format_markdown


def gpu_report(noise):
    """Return a report as a GPU would have it."""
    row = {
        "kernel": "FA2 auto", "skipped": None, "parts": 64, "relative_error": 2e-3, "wrong": False,
        "microseconds": 57.5, "gain": 1.0, "gain_lower_quartile": 0.99, "gain_upper_quartile": 1.01,
        "gigabytes_per_second": 2334.0, "copy_share": 0.55, "note": None,
    }  # fmt: skip
    again = row | {"kernel": "FA2 auto, again", "gain": 1 + noise, "note": "a | b"}
    refused = dict.fromkeys(row) | {"kernel": "FlashInfer", "skipped": "not installed", "wrong": False}
    result = {
        "context": 32768, "layers": 16, "kv_bytes": 134217728, "yardstick": "FA2 auto", "noise": noise,
        "noisy": abs(noise) > 0.01, "rows": [row, again, refused],
    }  # fmt: skip
    environment = dict.fromkeys(("gpu", "driver", "vllm", "torch", "triton", "cpu"), "x")
    return {
        "device": "cuda", "l2_bytes": 60 << 20, "copy_gigabytes_per_second": 4281.0, "command": "evalsuite replay",
        "shape": {"q_heads": 24, "kv_heads": 4, "head_size": 256, "page_size": 784, "dtype": "bfloat16"},
        "capture": None, "environment": environment, "contexts": [result],
    }  # fmt: skip


def test_noise_of_more_than_one_percent_is_said_above_the_table():
    quiet, noisy = gpu_report(-0.0098), gpu_report(-0.0102)
    assert "noise: FA2 auto against itself -0.98 %, within ±1 %" in format_context(quiet, quiet["contexts"][0])
    assert "NOISY: FA2 auto against itself differs by -1.0 %" in format_context(noisy, noisy["contexts"][0])
    assert "NOISY" in format_markdown(noisy) and "NOISY" not in format_markdown(quiet)


def marks(noise, *kernels):
    """Return the notes of a GPU's table with these kernels as name, microseconds and whether they are wrong."""
    report = gpu_report(noise)
    rows = report["contexts"][0]["rows"]
    for name, microseconds, wrong in kernels:
        rows.append(rows[0] | {"kernel": name, "microseconds": microseconds, "wrong": wrong})
    lines = format_context(report, report["contexts"][0]).splitlines()[-len(rows) :]
    return {row["kernel"]: line.split("e-03")[-1].strip() for row, line in zip(rows, lines, strict=True)}


def test_the_fastest_is_right_is_no_control_and_shares_its_mark_within_noise():
    fast = marks(0.001, ("averaged", 20.0, True), ("FA3", 40.39, False), ("ours", 40.0, False), ("slow", 40.41, False))
    assert fast["FA3"] == fast["ours"] == "fastest, within noise" and fast["averaged"] == "WRONG"
    assert fast["slow"] == fast["FA2 auto"] == ""
    assert marks(0.001, ("FA2 auto, again", 50.0, False), ("ours", 57.0, False))["FA2 auto, again"] == ""
    assert marks(0.001, ("ours", 40.0, False))["ours"] == "fastest"
    assert marks(0.011, ("ours", 40.0, False))["ours"] == ""


def test_the_table_shows_what_fa2_chose_and_what_was_skipped_and_the_plot_is_the_same_each_time(tmp_path):
    report = gpu_report(0.001)
    text = format_context(report, report["contexts"][0])
    head = ("kernel", "µs", "x FA2 auto", "GB/s", "of copy", "relative error", "note")
    rows = [
        ("FA2 auto: 64 splits", "57.5", "1.000", "2334", "55%", "2.00e-03", "fastest"),
        ("FA2 auto, again: 64 splits", "57.5", "1.001", "2334", "55%", "2.00e-03", "a | b"),
        ("FlashInfer", *"-----", "skipped: not installed"),
    ]
    assert [tuple(re.split("  +", line)) for line in text.splitlines()[-4:]] == [head, *rows]
    assert markdown_table([head, *rows]) in format_markdown(report)
    assert len(format_csv(report).splitlines()) == 4
    draw(report, tmp_path / "a.svg")
    draw(report, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
