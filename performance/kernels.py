"""The kernels that `evalsuite replay` compares, each bound to a case: one function that launches it for one layer.

A builder raises `Refused` with the reason where its kernel cannot serve the case. Heavy imports happen in builders, so
a backend that is not installed is refused like one that does not take the page size.
"""

from functools import partial
from typing import Any

from evalsuite_performance.candidate import Built, Candidate, Refused, check_page, int32, require, sm_count
from evalsuite_performance.flash_kernels import build_fa2, build_fa3
from evalsuite_performance.paged import Case

FLASHINFER_WORKSPACE = 256 << 20  # bytes
TRITON_ROWS = 4  # of vLLM's scratch: versions count sequences, or blocks of queries, against the limit for segments


def list_candidates(device: str, *, splits: tuple[int, ...], segments: tuple[int, ...]) -> list[Candidate]:
    """Return what to compare on a GPU or, in plain PyTorch, on a CPU; the first that runs is the yardstick."""
    if device != "cuda":
        return [
            Candidate(name="plain PyTorch, float32", build=partial(_build_plain, dtype="float32")),
            Candidate(name="plain PyTorch, bfloat16", build=partial(_build_plain, dtype="bfloat16"), held=False),
            *(
                Candidate(name=f"{count} segments merged", build=partial(_build_segments, segments=count))
                for count in segments
            ),
        ]
    return [
        Candidate(name="FA2 auto", build=partial(build_fa2, splits=0)),
        *(Candidate(name=f"FA2 {count} splits", build=partial(build_fa2, splits=count)) for count in splits),
        Candidate(name="FA3", build=build_fa3, note="prepares its schedule in every layer; a server does once a step"),
        *(
            Candidate(name=f"Triton {count} segments", build=partial(_build_triton, segments=count))
            for count in segments
        ),
        Candidate(name="FlashInfer", build=_build_flashinfer),
        Candidate(name="split-KV (ours)", build=_build_split_kv),
    ]


def _build_triton(case: Case, segments: int) -> Built:
    """Bind vLLM's Triton decode. It cuts the history into segments where it is given scratch for them."""
    import torch

    try:
        import vllm.envs as envs
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError as error:
        raise Refused(f"vLLM is not installed ({error})") from error
    shape = case.shape
    require(shape.head_size >= 32, "takes head sizes from 32")
    check_page(shape)
    require(segments & (segments - 1) == 0, "takes powers of two only")
    require(not envs.VLLM_BATCH_INVARIANT, "does not cut the history while VLLM_BATCH_INVARIANT is set")
    starts, lengths, table = int32(case, 0, 1), int32(case, case.context), case.table[None]
    padded = 1 << (shape.head_size - 1).bit_length()
    size = (TRITON_ROWS, shape.q_heads, segments)
    partial_sums = torch.empty(*size, padded, dtype=torch.float32, device=case.table.device)
    maxima, sums = (torch.empty(size, dtype=torch.float32, device=case.table.device) for _ in range(2))

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        unified_attention(
            q=query[None],
            k=keys,
            v=values,
            out=output[None],
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            seqused_k=lengths,
            max_seqlen_k=case.context,
            softmax_scale=case.scale,
            causal=True,
            window_size=(-1, -1),
            block_table=table,
            softcap=0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            seq_threshold_3D=TRITON_ROWS,
            num_par_softmax_segments=segments,
            softmax_segm_output=partial_sums,
            softmax_segm_max=maxima,
            softmax_segm_expsum=sums,
        )

    return Built(launch=launch, parts=segments)


def _build_flashinfer(case: Case) -> Built:
    """Bind FlashInfer's decode on tensor cores, as vLLM's FlashInfer backend calls it; it plans once per case."""
    import torch

    try:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper
    except ImportError as error:
        raise Refused(f"not installed ({error}); `pip install flashinfer-python`") from error
    shape, dtype = case.shape, case.queries.dtype
    pages = shape.pages(case.context)
    starts, last = int32(case, 0, pages), int32(case, case.context - (pages - 1) * shape.page_size)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(FLASHINFER_WORKSPACE, dtype=torch.uint8, device=case.table.device),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=starts.clone(),
        paged_kv_indices_buffer=case.table.clone(),
        paged_kv_last_page_len_buffer=last.clone(),
    )
    wrapper.plan(
        starts,
        case.table,
        last,
        shape.q_heads,
        shape.kv_heads,
        shape.head_size,
        shape.page_size,
        q_data_type=dtype,
        kv_data_type=dtype,
        sm_scale=case.scale,
    )

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        wrapper.run(query[None], (keys, values), out=output[None])

    return Built(launch=launch)


def _build_split_kv(case: Case) -> Built:
    """Bind this project's split-KV with the plan that a server for the command's longest context would have."""
    import torch

    try:
        from evalsuite_attention.decode import MAX_GROUP, allocate_workspace, split_kv_decode
    except ImportError as error:
        raise Refused(f"Triton is not installed ({error})") from error
    from evalsuite_attention.segments import HEAD_SIZES, plan_decode

    shape = case.shape
    sizes = ", ".join(map(str, HEAD_SIZES))
    require(shape.head_size in HEAD_SIZES, f"takes head sizes {sizes}, not {shape.head_size}")
    require(shape.q_heads <= MAX_GROUP * shape.kv_heads, f"takes at most {MAX_GROUP} query heads per KV head")
    require(shape.dtype != "float32", "takes bfloat16 and float16, not float32")
    check_page(shape)
    plan = plan_decode(
        sm_count=sm_count(),
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        max_seq_len=case.longest,
    )
    workspace = allocate_workspace(
        plan=plan, q_heads=shape.q_heads, head_size=shape.head_size, device=case.table.device
    )
    length = int32(case, case.context)
    count = torch.zeros(1, dtype=torch.int64, device=case.table.device)
    positions = torch.zeros(case.longest + 1, dtype=torch.int32, device=case.table.device)

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        split_kv_decode(
            query,
            keys,
            values,
            case.table,
            length,
            output,
            scale=case.scale,
            plan=plan,
            workspace=workspace,
            count=count,
            positions=positions,
        )

    return Built(launch=launch, parts=plan.segments)


def _build_plain(case: Case, dtype: str) -> Built:
    """Bind plain PyTorch: one softmax over the whole history."""
    import torch
    from evalsuite_attention.reference import paged_attention

    computed: Any = getattr(torch, dtype)

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        output.copy_(paged_attention(query, keys, values, case.table, case.context, scale=case.scale, dtype=computed))

    return Built(launch=launch, parts=1)


def _build_segments(case: Case, segments: int) -> Built:
    """Bind the specification of split-KV: partial softmax sums of segments, merged by log-sum-exp, in float32."""
    import torch
    from evalsuite_attention.reference import merge, segment_attention

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        partial_sums, lse = segment_attention(
            query,
            keys,
            values,
            case.table,
            case.context,
            scale=case.scale,
            segments=segments,
            dtype=torch.float32,
        )
        output.copy_(merge(partial_sums, lse))

    return Built(launch=launch, parts=segments)
