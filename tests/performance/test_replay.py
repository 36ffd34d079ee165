"""`evalsuite replay` without a GPU: the rules it measures by, what it refuses, and the reference implementations.

pytest tests/performance/test_replay.py        (a few seconds; the GPU's part is in test_replay_gpu.py)
"""

import argparse
import csv
import json
import math
import re
from functools import partial

import pytest
import torch
from evalsuite_attention.reference import paged_attention, segment_attention

from evalsuite.errors import UserError
from evalsuite.render import markdown_table
from evalsuite_performance.candidate import Built, Candidate, Refused
from evalsuite_performance.capture_file import open_capture, save_capture
from evalsuite_performance.flash_kernels import fa2_auto_splits
from evalsuite_performance.kernels import list_candidates
from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.paged import check_fits, count_layers, largest_context, load_case, make_case, needed_bytes
from evalsuite_performance.replay import add_parser
from evalsuite_performance.replay_output import draw, format_context, format_csv, format_markdown
from evalsuite_performance.timing import Replay, time_rounds
from evalsuite_performance.trials import Row, add_times, compare_kernels, exact_outputs, relative_error

SMALL = LayerShape(q_heads=6, kv_heads=2, head_size=64, page_size=48)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what happens where there is no GPU")


def run(*options):
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["replay", *map(str, options)])
    return args.call(args)


def make_small(context=200, layers=2):
    return make_case(SMALL, context, longest=context, layers=layers, device="cpu")


def capture_file(path, *, context=200, said=None, layers=3, shift=0):
    """Write a capture of made-up tensors, whose context is said to be `said`, and return its path.

    Each layer's output is that of the layer `shift` before it.
    """
    pages = SMALL.pages(context)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(layers, SMALL.q_heads, SMALL.head_size, generator=generator).bfloat16()
    size = (2, layers, pages, SMALL.page_size, SMALL.kv_heads, SMALL.head_size)
    keys, values = torch.randn(size, generator=generator).bfloat16()
    table = torch.arange(pages)
    outputs = [paged_attention(*each, table, context, scale=0.25) for each in zip(query, keys, values, strict=True)]
    output = torch.stack(outputs).bfloat16().roll(shift, dims=0)
    details = {"context": said or context, "scale": 0.25, "model": "made-up"}
    save_capture(path, {"query": query, "keys": keys, "values": values, "output": output}, details)
    return path


@pytest.mark.parametrize(
    "q_heads, kv_heads, head_size, sms, chosen",
    [  # contexts 256, 1k, 2k, 4k, 8k, 32k, 128k; computed with the C++ formula
        (32, 8, 128, 132, [2, 8, 16, 32, 32, 29, 28]),
        (16, 2, 128, 132, [2, 8, 16, 32, 64, 128, 114]),
        (9, 3, 64, 132, [1, 4, 8, 16, 32, 64, 74]),
        (32, 8, 128, 108, [2, 8, 16, 16, 22, 24, 23]),
        (32, 8, 128, 58, [2, 8, 8, 11, 13, 13, 13]),
        (8, 8, 128, 132, [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_fa2s_own_split_count_is_what_its_source_computes(q_heads, kv_heads, head_size, sms, chosen):
    shape = LayerShape(q_heads=q_heads, kv_heads=kv_heads, head_size=head_size, page_size=16)
    contexts = [256, 1024, 2048, 4096, 8192, 32768, 131072]
    assert [fa2_auto_splits(shape, context, sms) for context in contexts] == chosen


@without_gpu
def test_without_a_gpu_the_references_run_agree_and_are_marked(tmp_path, capsys):
    out = tmp_path / "made" / "here"
    assert run("--heads", "6/2/64", "--page", 48, "--context", "200,47", "--segments", "1,7,300", "--out", out) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and printed.err.startswith("no NVIDIA GPU here")
    assert printed.out.count("correctness only") == 2
    report = json.loads((out / "replay.json").read_text())
    assert [result["context"] for result in report["contexts"]] == [47, 200]
    for result in report["contexts"]:
        names = [row["kernel"] for row in result["rows"]]
        assert names == [
            "plain PyTorch, float32", "plain PyTorch, bfloat16",
            "1 segments merged", "7 segments merged", "300 segments merged",
        ]  # fmt: skip
        assert all(row["relative_error"] < (1e-2 if "bfloat16" in row["kernel"] else 1e-6) for row in result["rows"])
        assert not any(row["wrong"] or row["skipped"] for row in result["rows"])
        assert all(row["copy_share"] is None and row["gain"] is None for row in result["rows"])
        assert result["noise"] is None
    assert len(list(csv.DictReader((out / "replay.csv").read_text().splitlines()))) == 10
    assert (out / "replay.md").read_text() == format_markdown(report)
    assert not (out / "replay.svg").exists()


@pytest.mark.parametrize(
    "options, found",
    [
        (["--heads", "24"], "--heads 24 is no shape"),
        (["--heads", "24/0/256"], "--heads 24/0/256 is no shape"),
        (["--heads", "24/5/256"], "--heads 24/5/256: 24 query heads cannot share 5 KV heads"),
        (["--heads", "24/4/250"], "--heads 24/4/250: head size 250 suits no attention kernel"),
        (["--out", "/proc/no"], "/proc/no cannot be written"),
        (["--kv", "/no/such.safetensors"], "does not exist"),
    ],
)
def test_wrong_options_are_one_line_that_says_what_to_do(options, found):
    with pytest.raises(UserError, match="^.*" + found.replace("/", "\\/") + ".*$") as caught:
        run(*options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "option, text, found",
    [("--page", "-16", "-16"), ("--context", "4096,,", ""), ("--context", "4k", "4k"), ("--splits", "0", "0"),
     ("--segments", "16,1.5", "1.5"), ("--context", "1048577", "1048577"), ("--page", "²", "²")],
)  # fmt: skip
def test_what_is_no_number_is_named_with_its_option_and_what_was_expected(option, text, found, capsys):
    with pytest.raises(SystemExit) as caught:
        run(option, text)
    assert caught.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f"argument {option}: {found!r} is not a whole number from 1 to 1048576")


def test_too_large_a_context_is_refused_with_the_largest_that_fits():
    with pytest.raises(UserError, match=r"^out of memory: .* the largest context that fits is [1-9][0-9]*$"):
        run("--heads", "4096/4096/256", "--page", 16, "--context", 1 << 20)


@pytest.mark.parametrize("free", [1 << 31, 1 << 34, 143 << 30])
def test_the_largest_context_fits_and_a_page_more_does_not(free):
    shape = LayerShape(q_heads=24, kv_heads=4, head_size=256, page_size=784)
    largest = largest_context(shape, 16, free)
    assert needed_bytes(shape, largest, 16) <= free < needed_bytes(shape, largest + 784, 16)
    check_fits(shape, largest, 16, free)
    with pytest.raises(UserError, match=f"the largest context that fits is {largest}$"):
        check_fits(shape, largest + 784, 16, free)
    with pytest.raises(UserError, match="not even one page"):
        check_fits(shape, 784, 16, 1 << 20)


def test_as_many_layers_are_rotated_as_push_a_layer_out_of_the_cache():
    shape = LayerShape(q_heads=9, kv_heads=3, head_size=64, page_size=16)
    cache = 50 << 20
    assert count_layers(shape, 131072, least=16, cache_bytes=cache) == 16
    layers = count_layers(shape, 4096, least=16, cache_bytes=cache)
    assert (layers - 1) * shape.kv_bytes(4096) < 3 * cache <= layers * shape.kv_bytes(4096)
    assert count_layers(shape, 1, least=16, cache_bytes=cache) == 256
    assert count_layers(shape, 1, least=300, cache_bytes=cache) == 300


def test_a_round_times_every_replay_once_and_every_other_round_in_reverse():
    order = []
    replays = {name: Replay(launch=partial(lambda name, _: order.append(name), name), layers=1) for name in "abc"}
    times = time_rounds(replays, rounds=3, device="cpu")
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}
    assert "".join(order) in ("cbaabccbaabc", "abccbaabccba")


def test_the_control_is_timed_in_the_middle_of_a_round_and_is_the_last_row():
    """At the end that is the yardstick's mirror, a bias of the ends would cancel in the control, not in the gains."""
    order = []

    def bind(name):
        return lambda case: Built(launch=lambda index: order.append(name))

    candidates = [Candidate(name=name, build=bind(name)) for name in "abcd"]
    result = compare_kernels(make_small(layers=1), candidates, device="cpu", rounds=3, copy=100.0)
    assert [row["kernel"] for row in result["rows"]] == ["a", "b", "c", "d", "a, again"]
    assert "".join(order) == "abcda" + 2 * "dcabaabacd"
    assert result["noise"] == round(result["rows"][-1]["gain"] - 1, 5)


def test_a_gain_is_stored_with_its_quartiles_over_the_rounds():
    times = {"first": [1.0] * 5, "other": [0.5, 0.1, 0.25, 0.4, 0.2]}  # 2, 2.5, 4, 5 and 10 times as fast
    row = add_times(Row(kernel="other"), times, "first", make_small(), 100.0)
    assert (row.gain_lower_quartile, row.gain, row.gain_upper_quartile) == (2.5, 4.0, 5.0)


def averaged(case):
    """Bind the classic mistake: partials averaged instead of merged by log-sum-exp."""

    def launch(index):
        query, keys, values, output = case.layer(index)
        partial_sums, _ = segment_attention(
            query, keys, values, case.table, case.context, scale=case.scale, segments=4, dtype=torch.float32
        )
        output.copy_(partial_sums.mean(1))

    return Built(launch=launch)


def refuse(error):
    """Bind nothing, for this reason."""

    def build(case):
        raise error

    return build


def measure_small(*more):
    case = make_small()
    return compare_kernels(
        case, [*list_candidates("cpu", splits=(), segments=(5,)), *more], device="cpu", rounds=1, copy=None
    )


def test_a_kernel_that_averages_or_writes_nothing_is_wrong():
    result = measure_small(
        Candidate(name="averaged", build=averaged),
        Candidate(name="silent", build=lambda case: Built(launch=lambda index: None)),
    )
    rows = {row["kernel"]: row for row in result["rows"]}
    assert [name for name, row in rows.items() if row["wrong"]] == ["averaged", "silent"]
    assert rows["silent"]["relative_error"] is None and rows["averaged"]["relative_error"] > 1e-3
    report = {"device": "cpu", "l2_bytes": None}
    lines = format_context(report, result).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("WRONG")] == ["averaged", "silent"]


@without_gpu
def test_a_wrong_output_is_exit_code_1(monkeypatch, capsys):
    wrong = Candidate(name="averaged", build=averaged)
    listed = list_candidates("cpu", splits=(), segments=(5,))
    monkeypatch.setattr("evalsuite_performance.kernels.list_candidates", lambda *_, **__: [*listed, wrong])
    assert run("--heads", "6/2/64", "--page", 48, "--context", 200) == 1
    assert "WRONG" in capsys.readouterr().out


def test_what_cannot_run_is_listed_with_its_reason_and_a_failing_device_is_not():
    result = measure_small(
        Candidate(name="absent", build=refuse(Refused("not installed"))),
        Candidate(name="picky", build=refuse(RuntimeError("page size must be 64\nstack"))),
    )
    assert {row["kernel"]: row["skipped"] for row in result["rows"] if row["skipped"]} == {
        "absent": "not installed",
        "picky": "RuntimeError: page size must be 64",
    }
    for error in (torch.OutOfMemoryError("no memory"), torch.AcceleratorError("illegal access")):
        with pytest.raises(type(error)):
            measure_small(Candidate(name="broken", build=refuse(error)))


@without_gpu
def test_memory_that_runs_out_is_one_line_and_what_was_measured_before_is_kept(monkeypatch, tmp_path):
    def exhaust(case):
        if case.context > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return averaged(case)

    greedy = [Candidate(name="greedy", build=exhaust)]
    monkeypatch.setattr("evalsuite_performance.kernels.list_candidates", lambda *_, **__: greedy)
    with pytest.raises(UserError, match=r"^out of memory: 2 layers .* the largest context that fits is 199$"):
        run("--heads", "6/2/64", "--page", 48, "--context", "100,200", "--out", tmp_path)
    report = json.loads((tmp_path / "replay.json").read_text())
    assert [result["context"] for result in report["contexts"]] == [100]


@without_gpu
def test_a_shape_that_no_kernel_serves_is_an_error_below_the_table(monkeypatch, capsys):
    refused = [Candidate(name="only", build=refuse(Refused("takes another shape")))]
    monkeypatch.setattr("evalsuite_performance.kernels.list_candidates", lambda *_, **__: refused)
    with pytest.raises(UserError, match="no kernel here serves 6/2/64 in pages of 48"):
        run("--heads", "6/2/64", "--page", 48, "--context", 200)
    assert "skipped: takes another shape" in capsys.readouterr().out


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


def test_a_capture_is_replayed_from_its_own_numbers_and_repeated_beyond_its_layers(tmp_path):
    capture = open_capture(capture_file(tmp_path / "c.safetensors"))
    assert capture.shape == SMALL and (capture.context, capture.layers, capture.scale) == (200, 3, 0.25)
    case = load_case(capture, layers=5, device="cpu")
    assert torch.equal(case.caches[4], case.caches[1]) and torch.equal(case.queries[4], case.queries[1])
    assert case.caches[4].data_ptr() != case.caches[1].data_ptr()
    exact = exact_outputs(case)
    query, keys, values, _ = case.layer(1)
    flat_keys, flat_values = (each.flatten(0, 1)[:200, 1].double() for each in (keys, values))
    weights = torch.softmax(query[3:].double() @ flat_keys.T * 0.25, dim=-1)
    assert relative_error((weights @ flat_values)[None], exact[1:2, 3:]) < 1e-12


@without_gpu
def test_a_capture_decides_shape_page_and_context(tmp_path, capsys):
    path = capture_file(tmp_path / "c.safetensors")
    assert run("--kv", path, "--heads", "6/2/64", "--page", 48, "--context", 200) == 0
    assert "captured from made-up" in capsys.readouterr().out
    for option, value in (("--heads", "6/3/64"), ("--page", 16), ("--context", 100)):
        with pytest.raises(UserError, match=f"was captured with --heads 6/2/64 --page 48 --context 200, but {option}"):
            run("--kv", path, option, value)


@without_gpu
def test_a_capture_whose_output_is_not_what_its_kv_gives_is_refused(tmp_path):
    path = capture_file(tmp_path / "c.safetensors", shift=1)
    with pytest.raises(UserError, match=r"^the output that was captured .* capture it again$"):
        run("--kv", path)


def test_files_that_are_no_capture_are_refused(tmp_path):
    from safetensors.torch import save_file

    text, bare = tmp_path / "text.safetensors", tmp_path / "bare.safetensors"
    text.write_text("no tensors")
    save_file({"query": torch.zeros(1)}, bare)
    for path, found in (
        (text, "cannot be read as safetensors"),
        (bare, "is no capture"),
        (capture_file(tmp_path / "a.safetensors", said="many"), "metadata cannot be read"),
    ):
        with pytest.raises(UserError, match=found):
            open_capture(path)
    with pytest.raises(UserError, match="but its metadata says"):
        open_capture(capture_file(tmp_path / "b.safetensors", said=97, context=96))


def test_relative_error_is_that_of_the_worst_layer():
    exact = torch.ones(3, 2, 4, dtype=torch.float64)
    outputs = exact.clone()
    outputs[1] *= 1.5
    assert relative_error(outputs, exact) == 0.5
    outputs[2, 0, 0] = math.nan
    assert math.isnan(relative_error(outputs, exact))
