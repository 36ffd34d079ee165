"""Measure what the hybrid changes in serving: time to first token and decode time per token, against FlashAttention 2.

    python benchmarks/bench_serving.py --out results/DIR

The model has 16 layers of 24 query heads, 4 KV heads and head size 256, with dummy weights. Both arms are vLLM engines
of default settings in processes of their own, loaded at once; they are asked alternately, one request at a time.
Receipts are checked after every request, outside the measured time.
"""

import argparse
import asyncio
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTEXTS = [4096, 16384, 32768]  # tokens of the prompt
GENERATED = 512
REPETITIONS = 5
ARMS = {"fa2": "FLASH_ATTN", "hybrid": "CUSTOM"}  # name -> vLLM's backend
LAYERS = 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "vocab_size": 32000,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
COLUMNS = ["arm", "context", "repetition", "first_token_seconds", "decode_milliseconds_per_token", "generated"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for serving.csv and serving.md")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm:
        asyncio.run(serve(args.arm, args.model))
        return
    if not args.out:
        parser.error("name a folder: --out results/DIR")
    args.out.mkdir(parents=True, exist_ok=True)
    rows = measure(args.out)
    with (args.out / "serving.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = tabulate(rows)
    (args.out / "serving.md").write_text(table)
    print(table)


def measure(out):
    """Start both arms, ask them alternately, and return one row per generation."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL, sort_keys=True))
        arms = {arm: start(arm, folder, out) for arm in ARMS}
        try:
            for process in arms.values():
                read(process)  # ready
            for context in CONTEXTS:
                for repetition in range(REPETITIONS + 1):  # the first is a warm-up
                    for arm, process in arms.items():
                        process.stdin.write(json.dumps({"context": context}) + "\n")
                        process.stdin.flush()
                        row = {"arm": arm, "context": context, "repetition": repetition} | read(process)
                        print(row, flush=True)
                        if repetition:
                            rows.append(row)
        finally:
            for process in arms.values():
                process.stdin.close()
            for process in arms.values():
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
    return rows


def start(arm, model, out):
    """Return a process that serves one arm: one JSON line in per request, one out per answer."""
    settings = {"GGUF_PQ2_SINGLE_ATTN_BACKEND", "GGUF_PQ2_SINGLE_ATTN_SEGMENTS"}
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    with (out / f"serving-{arm}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, __file__, "--arm", arm, "--model", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment | {"VLLM_LOGGING_STREAM": "ext://sys.stderr"},
        )


def read(process):
    """Return the next answer of an arm; what else it prints is passed over."""
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError("an arm ended before it answered: see its log in the output folder")


async def serve(arm, model):
    """Answer requests from standard input with times, having checked each receipt."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=max(CONTEXTS) + 1024,
            max_num_seqs=4,
            attention_backend=ARMS[arm],
            attention_config={"flash_attn_version": 2},
            worker_extension_cls="evalsuite_attention.receipt.ReceiptExtension",
            enable_prefix_caching=False,
            kv_cache_memory_bytes=8 << 30,
            gpu_memory_utilization=0.3,
        )
    )
    sampling = SamplingParams(
        temperature=0,
        max_tokens=GENERATED,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE,
    )
    print(json.dumps({"ready": arm}), flush=True)
    for number, line in enumerate(sys.stdin):
        context = json.loads(line)["context"]
        prompt = {"prompt_token_ids": [100 + (i * 7919 + number) % 30000 for i in range(context)]}
        await engine.collective_rpc("evalsuite_take_receipt")
        begin = time.perf_counter()
        first = None
        async for output in engine.generate(prompt, sampling, str(number)):
            if first is None:
                first, already = time.perf_counter(), len(output.outputs[0].token_ids)
        last, generated = time.perf_counter(), len(output.outputs[0].token_ids)
        check(arm, context, (await engine.collective_rpc("evalsuite_take_receipt"))[0])
        answer = {
            "first_token_seconds": round(first - begin, 5),
            "decode_milliseconds_per_token": round((last - first) / (generated - already) * 1e3, 4),
            "generated": generated,
        }
        print(json.dumps(answer), flush=True)
    engine.shutdown()


def check(arm, context, receipt):
    """Raise RuntimeError unless the arm's own kernel served every decode step."""
    steps = LAYERS * (GENERATED - 1) if arm == "hybrid" else 0
    positions = [[context + 1, context + GENERATED, LAYERS]] if arm == "hybrid" else []
    if (receipt["split_kv"], receipt["fallback"], receipt["positions"]) != (steps, 0, positions):
        raise RuntimeError(f"{arm} at context {context}: {steps} launches were expected, the receipt says {receipt}")


def tabulate(rows):
    """Return a Markdown table of medians."""
    lines = [
        "| context | first token, fa2 (s) | hybrid (s) | change | decode, fa2 (ms/token) | hybrid (ms/token) | rate |",
        "| ---: |" + " ---: |" * 6,
    ]
    for context in CONTEXTS:
        first, decode = (
            [
                statistics.median(row[column] for row in rows if (row["arm"], row["context"]) == (arm, context))
                for arm in ARMS
            ]
            for column in ("first_token_seconds", "decode_milliseconds_per_token")
        )
        lines.append(
            f"| {context} | {first[0]:.4f} | {first[1]:.4f} | {first[1] / first[0] - 1:+.1%} "
            f"| {decode[0]:.3f} | {decode[1]:.3f} | {decode[0] / decode[1] - 1:+.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
