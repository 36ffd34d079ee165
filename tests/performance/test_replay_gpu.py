"""`evalsuite replay` on an NVIDIA GPU with vLLM's CUDA build: pytest -m gpu tests/performance."""

import argparse
import json

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU and vLLM's CUDA build", allow_module_level=True)

from evalsuite_performance.kernels import list_candidates
from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.paged import make_case
from evalsuite_performance.replay import add_parser
from evalsuite_performance.trials import compare_kernels

pytestmark = pytest.mark.gpu


def run(out, *options):
    """Run the command; return its exit code and its report."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["replay", "--out", str(out), *options])
    return args.call(args), json.loads((out / "replay.json").read_text())


@pytest.mark.parametrize("shape, page", [("24/4/256", "784"), ("9/3/64", "16")])
def test_every_kernel_is_right_and_forced_counts_run(tmp_path, shape, page):
    options = ("--heads", shape, "--page", page, "--context", "1000,4096", "--splits", "3,129", "--segments", "16,24")
    code, report = run(tmp_path, *options)
    assert code == 0
    for result in report["contexts"]:
        rows = {row["kernel"]: row for row in result["rows"]}
        assert result["yardstick"] == "FA2 auto" and result["noise"] is not None
        for name in ("FA2 auto", "FA2 3 splits", "Triton 16 segments", "split-KV (ours)", "FA2 auto, again"):
            assert rows[name]["skipped"] is None and not rows[name]["wrong"], rows[name]
            assert 0 < rows[name]["relative_error"] < 1e-2
            assert rows[name]["gain_lower_quartile"] <= rows[name]["gain"] <= rows[name]["gain_upper_quartile"]
        assert rows["FA2 129 splits"]["skipped"] == "takes at most 128 splits"
        assert rows["Triton 24 segments"]["skipped"] == "takes powers of two only"


def test_a_captured_graph_writes_what_the_same_kernels_write_with_new_numbers():
    """Each launch writes its own layer's output: NaN is put there between the graph's capture and its replay."""
    shape = LayerShape(q_heads=24, kv_heads=4, head_size=256, page_size=784)
    case = make_case(shape, 3000, longest=3000, layers=4, device="cuda")
    candidates = list_candidates("cuda", splits=(8,), segments=(32,))
    result = compare_kernels(case, candidates, device="cuda", rounds=2, copy=4000.0)
    assert not any(row["wrong"] for row in result["rows"])
    assert torch.isfinite(case.outputs).all()


def test_a_page_size_that_no_kernel_takes_is_listed_by_each(tmp_path):
    shape = LayerShape(q_heads=24, kv_heads=4, head_size=256, page_size=50)
    case = make_case(shape, 300, longest=300, layers=2, device="cuda")
    candidates = list_candidates("cuda", splits=(8,), segments=(32,))
    result = compare_kernels(case, candidates, device="cuda", rounds=2, copy=4000.0)
    skipped = {row["kernel"]: row["skipped"] for row in result["rows"]}
    for name in ("FA2 auto", "FA2 8 splits", "Triton 32 segments", "split-KV (ours)"):
        assert skipped[name] == "takes pages of a multiple of 16 positions, not 50"
