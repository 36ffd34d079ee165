"""The CPU hybrid inside vLLM: what it serves, what it counts, and that its answers are the stock kernel's.

pytest tests/attention/test_cpu.py        (two servers in process, 30 layers each)
"""

import json

import pytest
import torch
from evalsuite_attention.receipt import FALLBACK, OTHER, SPLIT_KV, package_digest

from evalsuite.checkpoint import default_checkpoint

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs vLLM's CPU build"),
]
LAYERS = 30
PROMPT = [504, 2365, 18, 563, 253, 1165] * 25  # 150 tokens: two pages
SHORT = PROMPT[:9]
ZEROS = {"layers": 0, "split_kv": 0, "fallback": 0, "other": 0, "positions": []}

SERVE = """
import json, sys
from vllm import LLM, SamplingParams

prompt, short = json.loads(sys.argv[2])
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=512, enable_prefix_caching=False,
          async_scheduling=False, worker_extension_cls="evalsuite_attention.receipt.ReceiptExtension")

def ask(*requests):
    prompts = [{"prompt_token_ids": tokens} for tokens, _ in requests]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=0, logprobs=1) for _, n in requests]
    outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    tokens = [list(output.token_ids) for output in outputs]
    logprobs = [[step[token].logprob for step, token in zip(output.logprobs, output.token_ids)] for output in outputs]
    receipt, = llm.collective_rpc("evalsuite_take_receipt")
    return {"tokens": tokens, "logprobs": logprobs, "receipt": receipt}

def prefill(tokens, start):
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    output = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)[0]
    llm.collective_rpc("evalsuite_take_receipt")
    return [output.prompt_logprobs[i][tokens[i]].logprob for i in range(start, len(tokens))]

confirm, = llm.collective_rpc("evalsuite_confirm")
start, = llm.collective_rpc("evalsuite_take_receipt")
alone = ask((prompt, 32))
report = {
    "confirm": confirm,
    "start": start,
    "alone": alone,
    "again": ask((prompt, 32)),
    "prefilled": prefill(prompt + alone["tokens"][0], len(prompt)),
    "one_token": ask((prompt, 1)),
    "one_token_prompt": ask((prompt[:1], 4)),
    "two": ask((prompt, 4), (short, 8)),
}
"""
PRINT = """
print("REPORT", json.dumps(report))
"""
DISPATCH = """
from dataclasses import replace
import torch
from evalsuite_attention import cpu
from vllm.config import set_current_vllm_config
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

def covers(window=None, cap=None, alibi=None, sinks=None, cache="auto", kind="decoder"):
    impl = cpu.HybridImpl(9, 64, 0.125, 3, alibi, window, cache, cap, kind, None, sinks)
    return impl.uses_split_kv

with set_current_vllm_config(llm.llm_engine.vllm_config):
    report["covers"] = {
        "plain": covers(),
        "sliding window": covers(window=16),
        "soft cap": covers(cap=30.0),
        "alibi": covers(alibi=[0.5] * 9),
        "sinks": covers(sinks=torch.zeros(9)),
        "quantized cache": covers(cache="fp8"),
        "encoder": covers(kind="encoder"),
    }
    impl = cpu.HybridImpl(9, 64, 0.125, 3, None, None, "auto")

one = CPUAttentionMetadata(
    num_actual_tokens=1, max_query_len=1, query_start_loc=torch.tensor([0, 1]), max_seq_len=9,
    seq_lens=torch.tensor([9]), block_table=torch.zeros(1, 4), slot_mapping=torch.zeros(1), scheduler_metadata=None,
)
report["choices"] = {
    "one token of one request": impl._choose(one, None, None),
    "memory measured": impl._choose(None, None, None),
    "two tokens": impl._choose(replace(one, num_actual_tokens=2, max_query_len=2), None, None),
    "two requests": impl._choose(replace(one, num_actual_tokens=2, query_start_loc=torch.arange(3)), None, None),
    "not causal": impl._choose(replace(one, causal=False), None, None),
    "output quantized": impl._choose(one, torch.ones(1), None),
}
"""
LAYOUTS = """

for size in [(32, 1, 64), (128, 3, 64), (64, 2, 96), (32, 4, 256)]:
    cpu.check_layout("amx", torch.bfloat16, *size)  # packing needs no AMX
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        cpu.check_layout("vec", dtype, *size)
cpu.check_layout("vec16", torch.bfloat16, 16, 2, 80)
read = cpu.read_pages
cpu.read_pages = lambda cache, table, isa: read(cache, table, "vec")
try:
    cpu.check_layout("amx", torch.bfloat16, 32, 1, 64)
except RuntimeError as error:
    report["refusal"] = str(error)
"""


def serve(run_python, code, **env):
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", **env}
    return run_python(code + PRINT, str(default_checkpoint()), json.dumps([PROMPT, SHORT]), **settings)


@pytest.fixture(scope="module")
def stock(run_python):
    return serve(run_python, SERVE)


@pytest.fixture(scope="module")
def hybrid(run_python):
    return serve(run_python, SERVE + DISPATCH + LAYOUTS, GGUF_PQ2_SINGLE_ATTN_BACKEND="torch")


def test_stock_arm_reports_zeros_and_its_own_classes(stock):
    for case in ("alone", "again", "one_token", "one_token_prompt", "two"):
        assert stock[case]["receipt"] == ZEROS
    confirm = stock["confirm"]
    assert confirm["backends"] == {"vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl": LAYERS}
    assert confirm["backend_names"] == {"CPU_ATTN": LAYERS}
    assert confirm["segments"] is None and confirm["flash_attn_version"] is None


def test_confirm_names_the_hybrid_class_that_every_layer_runs(hybrid):
    confirm = hybrid["confirm"]
    assert confirm["backends"] == {"evalsuite_attention.cpu.HybridImpl": LAYERS}
    assert confirm["backend_names"] == {"CPU_ATTN": LAYERS}
    assert confirm["segments"] == 8
    assert {"plugin.py", "cpu.py", "reference.py"} <= set(confirm["files"])
    assert confirm["digest"] == package_digest(confirm["files"])
    assert hybrid["start"] == {**ZEROS, "layers": LAYERS}


def test_split_kv_serves_every_decode_step_of_a_request_that_is_alone(hybrid):
    expected = {
        "layers": LAYERS,
        "split_kv": LAYERS * 31,
        "fallback": 0,
        "other": LAYERS,  # the prefill
        "positions": [[151, 182, LAYERS]],
    }
    assert hybrid["alone"]["receipt"] == expected
    assert hybrid["again"]["receipt"] == expected  # nothing is left over from the request before
    assert hybrid["again"]["tokens"] == hybrid["alone"]["tokens"]
    assert hybrid["again"]["logprobs"] == hybrid["alone"]["logprobs"]


def test_a_response_of_one_token_has_no_decode_step(hybrid):
    assert hybrid["one_token"]["receipt"] == {**ZEROS, "layers": LAYERS, "other": LAYERS}


def test_prefill_of_a_one_token_prompt_is_served_and_counted_like_a_decode_step(hybrid):
    expected = {**ZEROS, "layers": LAYERS, "split_kv": LAYERS * 4, "positions": [[1, 5, LAYERS]]}
    assert hybrid["one_token_prompt"]["receipt"] == expected


def test_steps_of_two_requests_go_to_the_stock_kernel_and_count_as_other(hybrid):
    """Both are prefilled together and decode together for three steps; the shorter then goes on alone for four."""
    assert hybrid["two"]["receipt"] == {
        "layers": LAYERS,
        "split_kv": LAYERS * 4,
        "fallback": 0,
        "other": LAYERS * 4,
        "positions": [[len(SHORT) + 4, len(SHORT) + 8, LAYERS]],
    }


def test_logprobs_differ_from_the_stock_arm_by_no_more_than_its_own_rounding(stock, hybrid):
    """Stock decode against stock prefill of the same tokens is the same mathematics in another order of sums."""
    assert hybrid["alone"]["tokens"] == stock["alone"]["tokens"]
    decoded = torch.tensor(stock["alone"]["logprobs"][0], dtype=torch.float64)
    rounding = (torch.tensor(stock["prefilled"], dtype=torch.float64) - decoded).square().mean().sqrt()
    difference = (torch.tensor(hybrid["alone"]["logprobs"][0], dtype=torch.float64) - decoded).square().mean().sqrt()
    assert 0 < difference <= 2 * rounding


def test_layers_with_anything_special_are_left_to_the_stock_kernel(hybrid):
    assert [name for name, covered in hybrid["covers"].items() if covered] == ["plain"]


def test_a_call_is_counted_by_who_serves_it(hybrid):
    assert hybrid["choices"] == {
        "one token of one request": SPLIT_KV,
        "memory measured": None,
        "two tokens": OTHER,
        "two requests": OTHER,
        "not causal": FALLBACK,
        "output quantized": FALLBACK,
    }


def test_layouts_are_read_as_the_kernels_write_them_and_others_are_refused(hybrid):
    """The layouts that vLLM's kernels write here were read back; a reader of the wrong one was refused."""
    assert hybrid["refusal"] == (
        "vLLM's 'amx' kernels pack the KV cache in a way that split-KV does not know "
        "(torch.bfloat16, page size 32, head size 64): unset GGUF_PQ2_SINGLE_ATTN_BACKEND"
    )
