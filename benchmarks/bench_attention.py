"""Time single-token attention on one GPU: split-KV against vLLM's FlashAttention 2 and 3, all on the same paged KV.

    python benchmarks/bench_attention.py --out results/DIR

Each kernel is captured in a CUDA graph that attends to the KV of 16 layers in turn, so that no layer finds its KV in
the L2 cache. The graphs are replayed alternately, and the median is taken. FlashAttention 2 runs twice: what its two
rows differ by is noise. Each kernel's output is compared with float64 first; an error above twice FlashAttention 2's
stops the run. The floor is the KV's bytes over the bandwidth that a large copy reaches on the same device.
"""

import argparse
import csv
import statistics
from pathlib import Path

import torch
from evalsuite_attention.decode import allocate_workspace, split_kv_decode
from evalsuite_attention.reference import paged_attention
from evalsuite_attention.segments import plan_decode

SHAPES = [(24, 4, 256, 784), (9, 3, 64, 16), (32, 8, 128, 16)]  # query heads, KV heads, head size, page size
CONTEXTS = [4096, 32768, 131072]
LAYERS = 16
REPLAYS = 40
COLUMNS = [
    "gpu", "vllm", "torch", "triton", "q_heads", "kv_heads", "head_size", "page_size", "context", "kernel",
    "segments", "microseconds", "relative_error", "kv_bytes", "gigabytes_per_second", "floor_microseconds",
    "copy_gigabytes_per_second",
]  # fmt: skip


def main():
    import triton
    import vllm

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for attention.csv and attention.md")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copy {copy:.0f} GB/s", flush=True)
    fixed = {
        "gpu": torch.cuda.get_device_name(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gigabytes_per_second": round(copy, 1),
    }
    rows = []
    for shape in SHAPES:
        for context in CONTEXTS:
            for row in measure(shape, context, copy):
                rows.append(fixed | row)
                print(describe(row), flush=True)
    with (out / "attention.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (out / "attention.md").write_text(tabulate(rows))
    print(tabulate(rows))


def measure(shape, context, copy):
    """Return one row per kernel for one shape and context."""
    q_heads, kv_heads, head_size, page_size = shape
    layers = [make_layer(shape, context, seed) for seed in range(LAYERS)]
    output = torch.empty(q_heads, head_size, dtype=torch.bfloat16, device="cuda")
    kernels, segments = make_kernels(shape, context, output)
    query, keys, values, table = layers[0]
    exact = paged_attention(query, keys, values, table, context, scale=head_size**-0.5)
    errors, graphs = {}, {}
    for name, kernel in kernels.items():
        output.fill_(torch.nan)
        kernel(*layers[0])
        errors[name] = ((output.double() - exact).norm() / exact.norm()).item()
        if not errors[name] <= 2 * errors["FlashAttention 2"]:
            raise RuntimeError(f"{name} is wrong: relative error {errors[name]:.1e} at {shape}, context {context}")
        graphs[name] = capture(kernel, layers)
    times = replay_alternately(graphs)
    kv_bytes = 2 * context * kv_heads * head_size * 2
    return [
        {
            "q_heads": q_heads,
            "kv_heads": kv_heads,
            "head_size": head_size,
            "page_size": page_size,
            "context": context,
            "kernel": name,
            "segments": segments if name == "split-KV" else "",
            "microseconds": round(times[name], 2),
            "relative_error": f"{errors[name]:.3e}",
            "kv_bytes": kv_bytes,
            "gigabytes_per_second": round(kv_bytes / times[name] / 1e3),
            "floor_microseconds": round(kv_bytes / copy / 1e3, 2),
        }
        for name in kernels
    ]


def make_layer(shape, context, seed):
    """Return query, key pages, value pages and page table of one layer, laid out as in vLLM 0.24."""
    q_heads, kv_heads, head_size, page_size = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    used = -(-context // page_size)
    size = (used + 3, 2, page_size, kv_heads, head_size)
    cache = torch.randn(size, generator=generator, dtype=torch.bfloat16, device="cuda")
    query = torch.randn(q_heads, head_size, generator=generator, dtype=torch.bfloat16, device="cuda")
    table = torch.randperm(used + 3, generator=generator, device="cuda")[:used].int()
    return query, *cache.unbind(1), table


def make_kernels(shape, context, output):
    """Return name -> function(query, keys, values, table) that writes `output`, and the number of segments."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

    q_heads, kv_heads, head_size, _ = shape
    seq_len = torch.tensor([context], dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    plan = plan_decode(
        sm_count=torch.cuda.get_device_properties(0).multi_processor_count,
        kv_heads=kv_heads,
        head_size=head_size,
        max_seq_len=max(CONTEXTS),
    )
    workspace = allocate_workspace(plan=plan, q_heads=q_heads, head_size=head_size, device="cuda")
    count = torch.zeros(1, dtype=torch.int64, device="cuda")
    positions = torch.zeros(max(CONTEXTS) + 1, dtype=torch.int32, device="cuda")

    def split_kv(query, keys, values, table):
        split_kv_decode(
            query, keys, values, table, seq_len, output,
            scale=head_size**-0.5, plan=plan, workspace=workspace, count=count, positions=positions,
        )  # fmt: skip

    def flash_attention(version):
        def run(query, keys, values, table):
            flash_attn_varlen_func(
                q=query[None],
                k=keys,
                v=values,
                out=output[None],
                cu_seqlens_q=starts,
                max_seqlen_q=1,
                seqused_k=seq_len,
                max_seqlen_k=context,
                softmax_scale=head_size**-0.5,
                causal=True,
                block_table=table[None],
                fa_version=version,
            )

        return run

    kernels = {"FlashAttention 2": flash_attention(2), "FlashAttention 2, again": flash_attention(2)}
    if is_fa_version_supported(3):
        kernels["FlashAttention 3"] = flash_attention(3)
    return kernels | {"split-KV": split_kv}, plan.segments


def capture(kernel, layers):
    """Return a CUDA graph of one launch per layer."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kernel(*layers[0])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            kernel(*layer)
    return graph


def replay_alternately(graphs):
    """Return the median microseconds per launch of each graph."""
    times = {name: [] for name in graphs}
    for _ in range(REPLAYS + 3):
        for name, graph in graphs.items():
            times[name].append(time_on_device(graph.replay) / LAYERS * 1e3)
    return {name: statistics.median(values[3:]) for name, values in times.items()}


def copy_bandwidth():
    """Return the GB/s (1e9 bytes, read and written) of a copy of 4 GiB on the device."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = [time_on_device(lambda: target.copy_(source)) for _ in range(15)]
    return 2 * source.numel() / statistics.median(times[3:]) / 1e6


def time_on_device(function):
    """Return the milliseconds that `function` takes on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def describe(row):
    return (
        f"{row['q_heads']}/{row['kv_heads']}/{row['head_size']} page {row['page_size']:3} {row['context']:6} "
        f"{row['kernel']:24} {row['microseconds']:7.2f} us {row['gigabytes_per_second']:5} GB/s, "
        f"floor {row['floor_microseconds']:6.2f}, error {row['relative_error']}"
    )


def tabulate(rows):
    """Return a Markdown table, one line per shape and context."""
    names = list(dict.fromkeys(row["kernel"] for row in rows))
    lines = ["| heads, page | context | floor | " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) + 2)]
    cases = {}
    for row in rows:
        case = f"{row['q_heads']}/{row['kv_heads']}/{row['head_size']}, {row['page_size']}", row["context"]
        cases.setdefault(case, []).append(row)
    for (shape, context), group in cases.items():
        cells = [f"{row['microseconds']:.1f} ({row['relative_error']})" for row in group]
        lines.append(f"| {shape} | {context} | {group[0]['floor_microseconds']:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
