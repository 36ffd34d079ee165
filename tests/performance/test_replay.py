"""`evalsuite replay` without a GPU: the rules it measures by, what it refuses, and the reference implementations.

pytest tests/performance/test_replay.py        (a few seconds; the GPU's part is in test_replay_gpu.py)
"""

import argparse
import csv
import json
import math
import os
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from evalsuite_attention.reference import segment_attention

from evalsuite.errors import UserError
from evalsuite_performance.candidate import Built, Candidate, Refused
from evalsuite_performance.kernels import list_candidates
from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.paged import check_fits, count_layers, largest_context, make_case, needed_bytes
from evalsuite_performance.replay import add_parser
from evalsuite_performance.replay_output import format_context, format_markdown
from evalsuite_performance.timing import Replay, time_rounds
from evalsuite_performance.trials import (
    Row,
    Tried,
    add_times,
    allowed_error,
    compare_kernels,
    exact_outputs,
    judge,
    plain_outputs,
    relative_error,
)

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
    rows = list(csv.DictReader((out / "replay.csv").read_text().splitlines()))
    assert len(rows) == 10 and {(row["device"], row["gpu"], row["driver"]) for row in rows} == {("cpu", "", "")}
    assert (out / "replay.md").read_text() == format_markdown(report)
    assert not (out / "replay.svg").exists()


@pytest.mark.parametrize(
    "options, found",
    [
        (["--heads", "24"], "--heads 24 is no shape"),
        (["--heads", ""], "--heads  is no shape"),
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
     ("--segments", "16,1.5", "1.5"), ("--context", "1048577", "1048577"), ("--page", "²", "²"), ("--context", "", ""),
     ("--page", "", ""), ("--page", "9" * 5000, "9" * 20)],
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


def scaled(factor):
    """Return a builder of plain PyTorch whose outputs are multiplied."""

    def build(case):
        return Built(launch=lambda index: case.outputs[index].copy_(factor * plain_outputs(case, torch.float32)[index]))

    return build


@pytest.mark.parametrize("factor", [1.3, math.nan])
def test_a_wrong_yardstick_excuses_no_other_kernel_and_blames_none_that_is_right(factor):
    kernels = {"yardstick": factor, "right": 1.0, "far off": 1.5, "off": 1.0001}
    candidates = [Candidate(name=name, build=scaled(each)) for name, each in kernels.items()]
    result = compare_kernels(make_small(), candidates, device="cpu", rounds=1, copy=None)
    assert [row["kernel"] for row in result["rows"] if row["wrong"]] == ["yardstick", "far off", "off"]


@pytest.mark.parametrize("dtype, least", [(torch.float32, 5.36e-7), (torch.bfloat16, 3.90e-3)])
def test_a_lucky_yardstick_does_not_make_the_rounding_of_others_wrong(dtype, least):
    case = make_small()
    lucky = plain_outputs(case, dtype).double()  # what plain PyTorch gives, taken as exact
    allowed = allowed_error(case, dtype, lucky)
    assert allowed == pytest.approx(least, rel=0.01)

    def tried(error):
        candidate = Candidate(name="any", build=averaged)
        return Tried(candidate=candidate, row=Row(kernel="any", relative_error=error), replay=None)

    assert not judge(tried(0.99 * least), tried(0.0), allowed).wrong
    assert judge(tried(1.02 * least), tried(0.0), allowed).wrong
    assert not judge(tried(1.8 * least), tried(0.95 * least), allowed).wrong


@pytest.mark.parametrize("context, page", [(1, 16), (47, 16), (4096, 16), (32 * 784, 784), (131072, 16), (131072, 784)])
def test_one_position_too_few_or_too_many_and_a_wrong_page_show_at_every_context(context, page):
    shape = LayerShape(q_heads=2, kv_heads=1, head_size=16, page_size=page)
    case = make_case(shape, context, longest=context, layers=1, device="cpu")
    exact = exact_outputs(case)
    pages = len(case.table)
    beyond = case.table.as_strided((pages + 1,), (1,))  # as a kernel would read past the end
    mistakes = {length: replace(case, context=length, table=beyond) for length in (context - 1, context + 1) if length}
    errors = {what: relative_error(exact_outputs(each), exact) for what, each in mistakes.items()}
    allowed = allowed_error(case, torch.bfloat16, exact)
    assert min(errors.values()) > 20 * allowed, errors
    wrong = case.table.clone()
    wrong[pages // 2] = beyond[-1]
    assert relative_error(exact_outputs(replace(case, table=wrong)), exact) > (10 if pages < 1000 else 1) * allowed
    if context % page and pages > 1:  # a part of the last page is read in place of the whole first one
        swapped = case.table.flip(0)
        assert relative_error(exact_outputs(replace(case, table=swapped)), exact) > 20 * allowed


@without_gpu
def test_a_gpu_that_pytorch_cannot_use_is_named_and_is_not_in_the_table(monkeypatch, tmp_path, capsys):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert run("--heads", "6/2/64", "--page", 48, "--context", 20, "--segments", 1, "--out", tmp_path) == 0
    printed = capsys.readouterr()
    found = r"PyTorch \S+ (is built without CUDA|finds no CUDA device) and cannot use the NVIDIA H200: "
    assert re.match(found, printed.err)
    assert "H200" not in printed.out + (tmp_path / "replay.csv").read_text()


@without_gpu
def test_a_folder_whose_name_is_no_text_holds_the_results(monkeypatch, tmp_path):
    folder = tmp_path / "bad\udcff"
    options = ("--heads", "6/2/64", "--page", "48", "--context", "20", "--segments", "1", "--out", str(folder))
    monkeypatch.setattr("sys.argv", ["evalsuite", "replay", *options])
    assert run(*options) == 0
    assert str(folder) in json.loads((folder / "replay.json").read_text())["command"]
    assert r"bad\udcff" in (folder / "replay.md").read_text()


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


def refuse_memory(index):
    raise torch.OutOfMemoryError("CUDA out of memory")


@without_gpu
@pytest.mark.parametrize("launch", [refuse_memory, lambda index: torch.empty(1 << 60, dtype=torch.uint8)])
def test_memory_that_runs_out_is_one_line_and_what_was_measured_before_is_kept(launch, monkeypatch, tmp_path):
    def exhaust(case):
        return averaged(case) if case.context == 100 else Built(launch=launch)

    greedy = [Candidate(name="greedy", build=exhaust)]
    monkeypatch.setattr("evalsuite_performance.kernels.list_candidates", lambda *_, **__: greedy)
    with pytest.raises(UserError, match=r"^out of memory: 2 layers .* free; so other processes, or many --segments"):
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


def test_relative_error_is_that_of_the_worst_layer():
    exact = torch.ones(3, 2, 4, dtype=torch.float64)
    outputs = exact.clone()
    outputs[1] *= 1.5
    assert relative_error(outputs, exact) == 0.5
    outputs[2, 0, 0] = math.nan
    assert math.isnan(relative_error(outputs, exact))
