"""The hybrid in vLLM's CUDA build: pytest -m gpu tests/attention (EVALSUITE_MODEL names a small Llama checkpoint).

Each arm is one vLLM engine in a process of its own (`python test_gpu.py ARM`), all started together. `test_decode.py`
runs the kernels natively on the same machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if __name__ != "__main__" and not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU and vLLM's CUDA build", allow_module_level=True)

pytestmark = pytest.mark.gpu
MODEL = os.environ.get("EVALSUITE_MODEL", str(Path.home() / "smollm2"))
MAX_LEN = 2048
CHUNK = 1024  # tokens of a prompt that one step prefills
PROMPTS = {"short": 5, "page": 16, "long": 300, "chunked": 1500}  # name -> tokens
GENERATED = 33
BACKEND, SEGMENTS = "GGUF_PQ2_SINGLE_ATTN_BACKEND", "GGUF_PQ2_SINGLE_ATTN_SEGMENTS"
ARMS = {  # name -> (environment, vLLM's backend, FlashAttention version)
    "fa2": ({}, "FLASH_ATTN", 2),
    "hybrid": ({}, "CUSTOM", 2),
    "hybrid, FLASH_ATTN kept": ({BACKEND: "triton", SEGMENTS: "16"}, "FLASH_ATTN", 2),
    "hybrid-off": ({BACKEND: "flash"}, "FLASH_ATTN", 2),
    "hybrid on 3": ({}, "CUSTOM", 3),
}
HYBRID = ["hybrid", "hybrid, FLASH_ATTN kept"]


def serve(arm):
    """Ask everything of one arm and return answers and receipts as JSON values."""
    from vllm import LLM, SamplingParams

    _, backend, version = ARMS[arm]
    engine = LLM(
        model=MODEL,
        max_model_len=MAX_LEN,
        max_num_seqs=4,
        max_num_batched_tokens=CHUNK,
        attention_backend=backend,
        attention_config={"flash_attn_version": version},
        compilation_config={"cudagraph_capture_sizes": [1, 2, 4]},
        worker_extension_cls="evalsuite_attention.receipt.ReceiptExtension",
        enable_prefix_caching=False,
        async_scheduling=False,
        kv_cache_memory_bytes=2 << 30,
        gpu_memory_utilization=0.15,
    )

    def ask(*prompts, generated=(GENERATED,)):
        """Start the prompts together; return tokens, logprobs and the receipt."""
        [before] = engine.collective_rpc("evalsuite_take_receipt")
        limits = generated * len(prompts) if len(generated) == 1 else generated
        sampling = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, logprobs=1) for n in limits]
        outputs = engine.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
        [receipt] = engine.collective_rpc("evalsuite_take_receipt")
        answers = [
            {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [
                    probabilities[token].logprob
                    for token, probabilities in zip(
                        output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True
                    )
                ],
            }
            for output in outputs
        ]
        return {"answers": answers, "receipt": receipt, "before": before}

    prompts = {name: make_prompt(length) for name, length in PROMPTS.items()}
    result = {"confirm": engine.collective_rpc("evalsuite_confirm")[0], "single": {}, "again": {}, "prefill": {}}
    for rounds in ("single", "again"):
        for name, prompt in prompts.items():
            result[rounds][name] = ask(prompt)
    for name, prompt in prompts.items():
        result["prefill"][name] = ask(prompt, generated=(1,))
    result["one token"] = ask(make_prompt(1))
    result["two"] = ask(prompts["page"], prompts["long"])
    result["four"] = ask(prompts["short"], prompts["page"], prompts["long"], make_prompt(400))
    result["one left"] = ask(prompts["long"], prompts["short"], generated=(20, 30))
    return result


def make_prompt(length):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(100, 40000, (length,), generator=generator).tolist()


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Run all arms at once; return per arm its result, or what it wrote if it did not start."""
    folder = tmp_path_factory.mktemp("arms")
    base = {name: value for name, value in os.environ.items() if name not in (BACKEND, SEGMENTS)}
    # the engine in the process itself, so that prompts given together start together
    base |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
    running = {}
    for number, (arm, (environment, _, _)) in enumerate(ARMS.items()):
        command = [sys.executable, __file__, arm, str(folder / f"{number}.json")]
        with (folder / f"{number}.log").open("w") as log:
            process = subprocess.Popen(command, env=base | environment, stdout=log, stderr=log)
        running[arm] = process, folder / str(number)
    results = {}
    for arm, (process, path) in running.items():
        code = process.wait(timeout=500)
        results[arm] = (
            json.loads(path.with_suffix(".json").read_text()) if code == 0 else path.with_suffix(".log").read_text()
        )
    return results


@pytest.fixture
def layers(arms):
    return arms["hybrid"]["single"]["long"]["receipt"]["layers"]


def tokens(asked):
    return [answer["tokens"] for answer in asked["answers"]]


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "hybrid on 3"])
def test_each_arm_starts_on_flash_attention_2_with_its_own_class(arms, arm):
    assert isinstance(arms[arm], dict), arms[arm][-3000:]
    confirm = arms[arm]["confirm"]
    assert confirm["flash_attn_version"] == 2
    stock = "vllm.v1.attention.backends.flash_attn.FlashAttentionImpl"
    assert set(confirm["backends"]) == {stock if arm == "fa2" else "evalsuite_attention.gpu.HybridImpl"}
    assert confirm["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_flash_attention_3_is_refused_with_the_option_that_sets_2(arms):
    assert isinstance(arms["hybrid on 3"], str)
    assert "--attention-config '{\"flash_attn_version\": 2}'" in arms["hybrid on 3"]


def test_segments_follow_the_rule_and_the_override(arms):
    from evalsuite_attention.segments import plan_decode

    sm_count = torch.cuda.get_device_properties(0).multi_processor_count
    rule = plan_decode(sm_count=sm_count, kv_heads=3, head_size=64, max_seq_len=MAX_LEN)
    assert arms["hybrid"]["confirm"]["segments"] == rule.segments
    assert arms["hybrid, FLASH_ATTN kept"]["confirm"]["segments"] == 16


@pytest.mark.parametrize("arm", HYBRID)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_receipt_of_one_request_is_layers_times_steps_at_each_position(arms, layers, arm, prompt):
    length = PROMPTS[prompt]
    for asked in (arms[arm]["single"][prompt], arms[arm]["again"][prompt]):
        assert asked["receipt"] == {
            "layers": layers,
            "split_kv": layers * (GENERATED - 1),
            "fallback": 0,
            "other": layers * -(-length // CHUNK),
            "positions": [[length + 1, length + GENERATED, layers]],
        }


@pytest.mark.parametrize("arm", HYBRID)
def test_a_prompt_of_one_token_is_served_like_a_decode(arms, layers, arm):
    receipt = arms[arm]["one token"]["receipt"]
    assert receipt["split_kv"] == layers * GENERATED and receipt["other"] == receipt["fallback"] == 0
    assert receipt["positions"] == [[1, 1 + GENERATED, layers]]


@pytest.mark.parametrize("arm", HYBRID)
@pytest.mark.parametrize("batch", ["two", "four"])
def test_batches_count_nothing_for_split_kv(arms, layers, arm, batch):
    receipt = arms[arm][batch]["receipt"]
    assert receipt["split_kv"] == receipt["fallback"] == 0 and receipt["positions"] == []
    assert receipt["other"] == layers * GENERATED


@pytest.mark.parametrize("arm", HYBRID)
def test_the_request_that_is_left_alone_goes_on_with_split_kv(arms, layers, arm):
    """5 prompt tokens, 30 generated; the other request generates 20 and leaves."""
    receipt = arms[arm]["one left"]["receipt"]
    assert receipt["split_kv"] == layers * 10
    assert receipt["positions"] == [[5 + 20, 5 + 30, layers]]


@pytest.mark.parametrize("arm", ["fa2", "hybrid-off"])
def test_arms_without_split_kv_have_empty_receipts(arms, arm):
    asked = [*arms[arm]["single"].values(), arms[arm]["one token"], arms[arm]["two"]]
    empty = {"layers": 0, "split_kv": 0, "fallback": 0, "other": 0, "positions": []}
    assert all(one["receipt"] == one["before"] == empty for one in asked)


def test_the_control_gives_the_same_bits_as_flash_attention_2(arms):
    for what in ("single", "again", "prefill"):
        for prompt in PROMPTS:
            assert arms["hybrid-off"][what][prompt]["answers"] == arms["fa2"][what][prompt]["answers"]


@pytest.mark.parametrize("arm", HYBRID)
def test_prefill_gives_the_same_bits_as_flash_attention_2(arms, arm):
    for prompt in PROMPTS:
        assert arms[arm]["prefill"][prompt]["answers"] == arms["fa2"]["prefill"][prompt]["answers"]


@pytest.mark.parametrize("arm", HYBRID)
@pytest.mark.parametrize("batch", ["two", "four"])
def test_batches_give_the_same_bits_as_flash_attention_2(arms, arm, batch):
    assert arms[arm][batch]["answers"] == arms["fa2"][batch]["answers"]


@pytest.mark.parametrize("arm", HYBRID)
def test_the_same_request_alone_gives_the_same_bits_again(arms, arm):
    for prompt in PROMPTS:
        assert arms[arm]["single"][prompt]["answers"] == arms[arm]["again"][prompt]["answers"]


@pytest.mark.parametrize("arm", HYBRID)
def test_a_hybrid_answer_begins_as_that_of_flash_attention_2(arms, arm):
    """The first token comes from the prefill; then sums differ in their last bits, and text may part later."""
    differing = 0
    for prompt in PROMPTS:
        ours, stock = arms[arm]["single"][prompt]["answers"][0], arms["fa2"]["single"][prompt]["answers"][0]
        assert ours["tokens"][0] == stock["tokens"][0] and ours["logprobs"][0] == stock["logprobs"][0]
        differing += ours["logprobs"] != stock["logprobs"]
    assert differing, "not one bit differs: was split-KV really run?"


def test_one_captured_graph_serves_every_length_and_counts_each_replay():
    from evalsuite_attention.decode import allocate_workspace, split_kv_decode
    from evalsuite_attention.reference import paged_attention
    from evalsuite_attention.segments import plan_decode
    from test_decode import Run, assert_as_accurate_as_plain_torch, expect, make_inputs

    longest, lengths = 3000, (1, 784, 785, 2999, 3000, 17)
    query, keys, values, table = make_inputs(head_size=256, kv_heads=4, group=6, page_size=784, seq_len=longest)
    plan = plan_decode(sm_count=132, kv_heads=4, head_size=256, max_seq_len=longest)
    workspace = allocate_workspace(plan=plan, q_heads=24, head_size=256, device="cuda")
    seq_len = torch.ones(1, dtype=torch.int32, device="cuda")
    count = torch.zeros(3, dtype=torch.int64, device="cuda")
    positions = torch.zeros(longest + 1, dtype=torch.int32, device="cuda")
    output = torch.empty_like(query)
    device_table = table.int().cuda()

    def launch():
        split_kv_decode(
            query, keys, values, device_table, seq_len, output,
            scale=1 / 16, plan=plan, workspace=workspace, count=count, positions=positions,
        )  # fmt: skip

    launch()
    torch.cuda.synchronize()
    count.zero_()
    positions.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):  # kernels of one launch may overlap the next
            launch()
    for length in lengths:
        seq_len.fill_(length)
        for poisoned in (workspace.partial, workspace.lse, output):
            poisoned.fill_(torch.nan)
        graph.replay()
        run = Run((query, keys, values, table), length, plan, 1 / 16, workspace, output)
        assert_as_accurate_as_plain_torch(run.output, *expect(paged_attention, run))
    assert count.tolist() == [3 * len(lengths), 0, 0]
    assert positions.nonzero().flatten().tolist() == sorted(lengths)
    assert (positions[list(lengths)] == 3).all()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(serve(sys.argv[1])))
