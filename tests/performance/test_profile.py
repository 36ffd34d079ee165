"""Profile: every kernel in its family, every microsecond once, and only whole decode steps of one request."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from evalsuite.errors import UserError
from evalsuite_performance import profile, profile_output, profiling, traces
from evalsuite_performance.profiling import Profiled
from evalsuite_performance.traces import ATTENTION, FAMILIES, KERNELS, PROJECTIONS, REST, find_family, read_trace, split

STEP = "execute_context_0(0)_generation_1(1)"
PREFILL = "execute_context_1(4096)_generation_0(0)"


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (ATTENTION, "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<256, 64, 64, 4, false, false, ..."),
        (ATTENTION, "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<256, 64, 64, 4, ..."),
        (ATTENTION, "_ZN5flash32flash_fwd_splitkv_combine_kernelI23Flash_fwd_kernel_traitsILi128ELi64E"),
        (ATTENTION, "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<..."),
        (
            ATTENTION,
            "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>, cute::C<64> >, ...",
        ),
        (ATTENTION, "flash::prepare_varlen_num_blocks_kernel(int, int, int, int const*, ..."),
        (ATTENTION, "decode_segment_kernel"),
        (ATTENTION, "merge_kernel"),
        (ATTENTION, "kernel_unified_attention"),
        (ATTENTION, "kernel_unified_attention_3d"),
        (ATTENTION, "reduce_segments"),
        (ATTENTION, "void flashinfer::BatchDecodeWithPagedKVCacheKernel<..."),
        (PROJECTIONS, "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"),
        (PROJECTIONS, "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 16, 4, 1024, ..."),
        (PROJECTIONS, "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, ..."),
        (PROJECTIONS, "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn"),
        (PROJECTIONS, "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>"),
        (PROJECTIONS, "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, ..."),
        (PROJECTIONS, "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, ..."),
        (REST, "triton_red_fused_add_mm_rms_norm_unified_attention_0"),
        (REST, "triton_poi_fused_mul_silu_slice_1"),
        (REST, "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, ..."),
        (REST, "reshape_and_cache_kernel_flash"),
        (REST, "void vllm::rms_norm_kernel<c10::BFloat16, 8>"),
        (REST, "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, ..."),
        (REST, "Memcpy DtoH (Device -> Pinned)"),
        (REST, "a kernel that nobody knows"),
    ],
)
def test_a_kernel_is_of_its_family(family: str, name: str) -> None:
    assert find_family(name, KERNELS) == family


def test_the_names_of_our_own_kernels_are_those_in_the_attention_package() -> None:
    source = (Path(__file__).parents[2] / "attention" / "decode.py").read_text()
    kernels = re.findall(r"@triton\.jit(?:\([^)]*\))?\s*def (\w+)\(", source)
    launched = [name for name in kernels if name.endswith("_kernel")]
    assert launched
    assert {find_family(name, KERNELS) for name in launched} == {ATTENTION}


def event(cat: str, name: str, *, at: float, us: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": us, "tid": tid}


def gpu_trace(steps: int, *, layers: int) -> list[dict[str, Any]]:
    """Return a trace of steps of which each layer takes 10 + 5 us of attention, 20 of a projection, 1 of a norm."""
    found = []
    for step in range(steps):
        found.append(event("user_annotation", STEP, at=1e4 * step, us=500))
        found.append(event("gpu_user_annotation", STEP, at=1e4 * step, us=500))
        found.append(event("gpu_memcpy", "Memcpy DtoH", at=1e4 * step + 9e3, us=2))
        for layer in range(layers):
            at = 1e4 * step + 100 * layer
            found.append(event("kernel", "decode_segment_kernel", at=at, us=10, tid=7))
            found.append(event("kernel", "merge_kernel", at=at + 10, us=5, tid=7))
            found.append(event("kernel", "nvjet_tst", at=at + 20, us=20, tid=7))
            found.append(event("kernel", "triton_red_fused_mm", at=at + 40, us=1, tid=7))
            found.append(event("cpu_op", "aten::mm", at=at, us=99))
    return found


def test_times_of_kernels_are_added_up_per_step_and_operators_of_the_cpu_are_not() -> None:
    found = split(gpu_trace(3, layers=4), on_gpu=True)
    assert (found.steps, found.on_gpu) == (3, True)
    assert found.families == pytest.approx({ATTENTION: 0.060, PROJECTIONS: 0.080, REST: 0.006})
    assert found.total == pytest.approx(0.146)
    longest = found.items[ATTENTION][0]
    assert (longest.name, longest.milliseconds, longest.calls) == ("decode_segment_kernel", pytest.approx(0.040), 4)


def test_what_two_kernels_have_in_common_counts_once() -> None:
    """Programmatic dependent launch: the merge starts with the segments, waits for them, and then takes 3 us."""
    trace = [
        event("user_annotation", STEP, at=0, us=100),
        event("kernel", "merge_kernel", at=1, us=12, tid=7),
        event("kernel", "decode_segment_kernel", at=0, us=10, tid=7),
        event("gpu_memcpy", "Memcpy DtoH", at=2, us=4, tid=8),  # another stream's, hidden by the others
        event("kernel", "nvjet_tst", at=12, us=6, tid=7),
        event("kernel", "triton_red_fused_mm", at=30, us=2, tid=7),
    ]
    found = split(trace, on_gpu=True)
    assert found.families == pytest.approx({ATTENTION: 0.013, PROJECTIONS: 0.005, REST: 0.002})
    assert {item.name: item.milliseconds for item in found.items[ATTENTION]} == pytest.approx(
        {"decode_segment_kernel": 0.010, "merge_kernel": 0.003}
    )
    assert found.total == pytest.approx(0.020), "what the GPU was busy for"


def test_an_operator_that_another_one_calls_is_not_counted_twice() -> None:
    trace = [
        event("user_annotation", STEP, at=0, us=1000),
        event("cpu_op", "aten::linear", at=100, us=300),
        event("cpu_op", "aten::matmul", at=110, us=280),
        event("cpu_op", "aten::mm", at=120, us=270),
        event("cpu_op", "vllm::unified_attention_with_output", at=500, us=200),
        event("cpu_op", "aten::matmul", at=510, us=50),
        event("cpu_op", "aten::mm", at=520, us=40, tid=2),  # another thread's
        event("cpu_op", "aten::add", at=800, us=10),
    ]
    found = split(trace, on_gpu=False)
    assert found.families == pytest.approx({ATTENTION: 0.2, PROJECTIONS: 0.34, REST: 0.46})
    assert found.total == pytest.approx(1.0)


def test_what_the_cpu_does_between_steps_is_not_taken_from_them() -> None:
    trace = [
        event("user_annotation", STEP, at=0, us=1000),
        event("cpu_op", "vllm::unified_attention_with_output", at=100, us=300),
        event("cpu_op", "aten::linear", at=500, us=200),
        event("cpu_op", "aten::linear", at=1200, us=400),
    ]
    found = split(trace, on_gpu=False)
    assert found.families == pytest.approx({ATTENTION: 0.3, PROJECTIONS: 0.2, REST: 0.5})


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ([], "0 decode steps"),
        ([event("user_annotation", PREFILL, at=0, us=1), *gpu_trace(1, layers=1)], "context_1"),
        ([event("user_annotation", STEP.replace("1(1)", "2(2)"), at=0, us=1)], r"0 decode steps .* generation_2"),
        ([event("user_annotation", STEP, at=0, us=1), event("cpu_op", "aten::mm", at=0, us=1)], "no kernel of the GPU"),
    ],
)
def test_a_trace_that_does_not_hold_decode_steps_of_one_request_is_refused(trace: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace(" .* ", ".*")):
        split(trace, on_gpu=True)


def test_a_trace_of_the_real_profiler_is_read(tmp_path: Path) -> None:
    """As vLLM's worker writes it: `tensorboard_trace_handler` with gzip, one `record_function` a step."""
    import torch

    linear, x = torch.nn.Linear(256, 256), torch.ones(8, 256)
    handler = torch.profiler.tensorboard_trace_handler(str(tmp_path), worker_name="rank0", use_gzip=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], on_trace_ready=handler):
        for _ in range(3):
            with torch.profiler.record_function(STEP):
                torch.relu(linear(x))
    [file] = tmp_path.iterdir()
    assert file.name.endswith(".pt.trace.json.gz")
    found = split(read_trace(file), on_gpu=False)
    assert found.steps == 3
    assert [item.calls for item in found.items[PROJECTIONS]] == [1.0]
    assert found.families[ATTENTION] == 0
    assert 0 < found.families[PROJECTIONS] < found.total


# --- output ---


def result() -> profile_output.Result:
    found = split(gpu_trace(2, layers=16), on_gpu=True)
    one = Profiled(arm="hybrid", context=32768, kv_bytes=64 * 1024 * 32768, profile=found)
    return profile_output.Result(found=[one], model="dummy 24/4/256, 16 layers")


def test_bandwidth_is_the_kv_of_a_step_over_the_time_of_attention() -> None:
    one = result().found[0]
    assert one.profile.families[ATTENTION] == pytest.approx(0.240)
    assert one.bandwidth == pytest.approx(2147483648 / 0.240e-3)


def test_the_table_gives_families_share_and_bandwidth() -> None:
    shown = profile_output.render_text(result())
    row = re.split(r"\s{2,}", next(line for line in shown.splitlines() if line.startswith("32768")))
    assert row == ["32768", "hybrid", "0.240", "0.320", "0.018", "41.5 %", "2147.5", "8947.8"]
    assert "decode_segment_kernel" in shown, "what a family consists of can be seen"


def test_every_file_is_written(tmp_path: Path) -> None:
    profile_output.write(result(), tmp_path)
    lines = (tmp_path / "profile.csv").read_text().splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["hybrid", "32768", family, took] for family, took in zip(FAMILIES, ["0.24", "0.32", "0.018"], strict=True)
    ]
    data = json.loads((tmp_path / "profile.json").read_text())
    assert data["profiles"][0]["profile"]["families"][ATTENTION] == pytest.approx(0.24)
    assert (tmp_path / "profile.md").read_text().startswith("# Profile\n")
    assert "<svg" in (tmp_path / "profile.svg").read_text()


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--layers", "4"], "--layers has no --shape"),
        (["--arm", "https://example.org"], "is a running server"),
        (["--shape", "24"], "expected HEADS/KV_HEADS/HEAD_SIZE"),
        (["--model", "/nowhere"], "does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(arguments: list[str], told: str) -> None:
    parser = argparse.ArgumentParser()
    profile.add_parser(parser.add_subparsers())
    args = parser.parse_args(["profile", *arguments])
    with pytest.raises(UserError, match=told) as refused:
        args.call(args)
    assert "\n" not in str(refused.value)


def test_the_profiler_is_configured_as_vllm_takes_it() -> None:
    from vllm.config.profiler import ProfilerConfig

    config = ProfilerConfig(**profiling.profiler_config(Path("/tmp/traces")))
    assert config.torch_profiler_dir == "/tmp/traces"
    assert config.max_iterations > 0
    assert traces.FAMILIES == FAMILIES
