"""The Triton candidates as `replay` binds them, in Triton's CPU interpreter: vLLM's own decode and split-KV.

pytest tests/performance/test_kernels.py        (one fresh interpreter, ten seconds)
"""

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="test_replay_gpu.py runs them natively")

SCRIPT = """
import dataclasses, json, math, types
import torch
from triton.backends import backends
# vLLM's CPU build switches Triton off unless it finds a backend; the interpreter needs none
backends["cpu"] = types.SimpleNamespace(driver=types.SimpleNamespace(is_active=lambda: True))
from evalsuite_performance import kernels
from evalsuite_performance.candidate import Refused
from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.paged import make_case
from evalsuite_performance.trials import bind, exact_outputs, plain_outputs, relative_error

kernels.sm_count = lambda: 3  # the interpreter has none
shape = LayerShape(q_heads=6, kv_heads=2, head_size=64, page_size=48, dtype="float16")
case = make_case(shape, 130, longest=300, layers=2, device="cpu")
case = dataclasses.replace(case, outputs=case.outputs.half())
exact = exact_outputs(case)
report = {"plain": relative_error(plain_outputs(case, torch.float16), exact)}
odd = make_case(dataclasses.replace(shape, page_size=50), 130, longest=300, layers=1, device="cpu")
for candidate in kernels.list_candidates("cuda", splits=(8,), segments=(4, 6, 16)):
    found = []
    for each in (case, odd):
        try:
            replay, parts = bind(candidate, each, "cpu")
            case.outputs.fill_(math.nan)
            replay()
            found.append([parts, relative_error(case.outputs, exact)])
        except Refused as reason:
            found.append(str(reason))
    report[candidate.name] = found
print("REPORT", json.dumps(report))
"""


@pytest.fixture(scope="module")
def report():
    env = os.environ | {"TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rsplit("REPORT", 1)[1])


@pytest.mark.parametrize("name, parts", [("Triton 4 segments", 4), ("Triton 16 segments", 16), ("split-KV (ours)", 4)])
def test_triton_candidates_are_as_accurate_as_plain_torch_in_every_layer(report, name, parts):
    assert report[name][0][0] == parts
    assert report[name][0][1] <= 2 * report["plain"]


def test_page_sizes_and_segment_counts_that_a_kernel_does_not_take_are_refused_with_the_reason(report):
    reason = "takes pages of a multiple of 16 positions, not 50"
    assert report["Triton 4 segments"][1] == report["split-KV (ours)"][1] == reason
    assert report["Triton 6 segments"] == ["takes powers of two only", reason]


def test_backends_that_are_not_installed_are_refused_with_the_reason(report):
    for name in ("FA2 auto", "FA2 8 splits", "FA3"):
        assert report[name][0].startswith("vLLM's CUDA build is not installed")
    assert report["FlashInfer"][0].startswith("not installed")
