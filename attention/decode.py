"""Split-KV decode in Triton: attention of one query token over a paged KV cache, as two kernels.

`decode_segment_kernel` attends to one segment of the history per program, `merge_kernel` merges the segments' partials
by log-sum-exp and counts what it did. `split_kv_decode` launches both. Shapes and words are those of `reference`, which
specifies the arithmetic.
"""

import os
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from evalsuite_attention.segments import Plan
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Triton's CPU interpreter, for tests: it keeps bfloat16 as raw bits, which it can convert but not multiply
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MAX_GROUP = 16  # query heads per KV head: rows of one product of the tensor cores
MERGE_BLOCK = 8192  # elements of the partials that one program of the merge holds
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["segments"])
def decode_segment_kernel(
    query_ptr,  # [q_heads, HEAD_SIZE]                     bfloat16 or float16
    key_ptr,  # [pages, PAGE_SIZE, kv_heads, HEAD_SIZE]    same dtype
    value_ptr,  # [pages, PAGE_SIZE, kv_heads, HEAD_SIZE]  same dtype
    table_ptr,  # [n] int32, logical page -> physical page
    seq_len_ptr,  # [1] int32, KV positions, this step's token included
    partial_ptr,  # [q_heads, segments, HEAD_SIZE]  float32, written
    lse_ptr,  # [q_heads, segments]                 float32, written
    scale,  # float32, multiplies q·k before the softmax
    segments,
    stride_query_head,  # strides in elements; the last dimension of every tensor is contiguous
    stride_key_page,
    stride_key_slot,
    stride_key_head,
    stride_value_page,
    stride_value_slot,
    stride_value_head,
    GROUP: tl.constexpr,  # query heads per KV head, at most BLOCK_GROUP
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,  # KV positions per page, a multiple of 16
    BLOCK_GROUP: tl.constexpr,  # MAX_GROUP
    BLOCK_HEAD: tl.constexpr,  # HEAD_SIZE, up to a power of two
    TILE: tl.constexpr,  # KV positions per load, a power of two from 16
    STAGES: tl.constexpr,  # depth of the software pipeline
    WIDEN: tl.constexpr,  # multiply in float32 (the interpreter)
    OVERLAP: tl.constexpr,  # launched as a programmatic dependent (compute capability 9.0 on)
):
    """Attend the query heads of one group to one segment of the history.

    Grid: (kv_heads, segments). Program (h, s) reads the KV positions of `reference.segment_bounds(seq_len, segments,
    TILE)[s]` of KV head h and writes, for each query head of the group, what `reference.segment_attention` says:

        partial = softmax(scale * q Kᵀ) V      over this segment alone
        lse     = ln Σ exp(scale * q · k)      natural logarithm; `merge_kernel` assumes it

    Guarantees
      * A segment's limits follow from seq_len, segments and TILE, so one length is always summed in one order.
      * A segment without positions writes nothing, and the merge never reads it.
      * Only slots below seq_len are read, so the others may hold anything, NaN included: a position past the end
        reads the last one again, and its score becomes -inf before the maximum is taken.
      * Sums are float32. Offsets are int64 before they meet a stride: physical page times stride passes 2**31 in caches
        of ordinary size.

    Names: i_ index, o_ offsets, m_ mask, b_ block value; each load is preceded by the shape it yields.
    """
    if OVERLAP:
        gdc_launch_dependents()  # the merge's programs may take their places now; they wait for this grid's end
    i_head = tl.program_id(0)
    i_segment = tl.program_id(1)
    o_group = tl.arange(0, BLOCK_GROUP)
    o_head = tl.arange(0, BLOCK_HEAD)
    o_tile = tl.arange(0, TILE)
    o_query = i_head * GROUP + o_group
    m_group = o_group < GROUP
    m_head = o_head < HEAD_SIZE
    key_head_ptr = key_ptr + i_head.to(tl.int64) * stride_key_head
    value_head_ptr = value_ptr + i_head.to(tl.int64) * stride_value_head

    if OVERLAP:
        gdc_wait()  # whoever wrote the query, the cache or the lengths has finished
    seq_len = tl.load(seq_len_ptr)
    last = seq_len - 1
    tiles = tl.cdiv(seq_len, TILE)
    per_segment = tl.cdiv(tiles, segments)
    first_tile = i_segment * per_segment
    end_tile = tl.minimum(first_tile + per_segment, tiles)
    if first_tile >= end_tile:
        return

    # [BLOCK_GROUP, BLOCK_HEAD]
    b_query = tl.load(
        query_ptr + o_query[:, None] * stride_query_head + o_head[None, :],
        mask=m_group[:, None] & m_head[None, :],
        other=0.0,
    )
    if WIDEN:
        b_query = b_query.to(tl.float32)
    b_max = tl.full((BLOCK_GROUP,), -float("inf"), tl.float32)  # of the scores so far, in base 2
    b_sum = tl.zeros((BLOCK_GROUP,), tl.float32)
    b_out = tl.zeros((BLOCK_GROUP, BLOCK_HEAD), tl.float32)
    # The page is loaded one iteration early: a load whose address comes from a load of the same iteration would take a
    # stage of the pipeline, and keys and values would be fetched one tile ahead whatever STAGES says.
    # [] if no tile straddles two pages, else [TILE]
    o_ahead = first_tile * TILE + (0 if PAGE_SIZE % TILE == 0 else o_tile)
    b_page = tl.load(table_ptr + tl.minimum(o_ahead, last) // PAGE_SIZE)
    for i_tile in tl.range(first_tile, end_tile, num_stages=STAGES):
        o_start = i_tile * TILE
        o_read = tl.minimum(o_tile, last - o_start)
        o_slot = (o_start % PAGE_SIZE + o_read) if PAGE_SIZE % TILE == 0 else (o_start + o_read) % PAGE_SIZE
        o_slot = o_slot.to(tl.int64)
        o_page = b_page.to(tl.int64)
        o_ahead += TILE
        b_page = tl.load(table_ptr + tl.minimum(o_ahead, last) // PAGE_SIZE)
        o_key = o_page * stride_key_page + o_slot * stride_key_slot
        o_value = o_page * stride_value_page + o_slot * stride_value_slot
        # [TILE, BLOCK_HEAD]
        b_key = tl.load(key_head_ptr + o_key[:, None] + o_head[None, :], mask=m_head[None, :], other=0.0)
        # [TILE, BLOCK_HEAD]
        b_value = tl.load(value_head_ptr + o_value[:, None] + o_head[None, :], mask=m_head[None, :], other=0.0)
        dtype = b_value.dtype
        if WIDEN:
            b_key = b_key.to(tl.float32)
            b_value = b_value.to(tl.float32)

        # [BLOCK_GROUP, TILE], scaled in float32: rounding a scaled query would cost accuracy
        b_score = tl.dot(b_query, tl.trans(b_key)) * (scale * LOG2_E)
        b_score = tl.where((o_start + o_tile < seq_len)[None, :], b_score, -float("inf"))
        b_new_max = tl.maximum(b_max, tl.max(b_score, 1))  # finite: every tile here holds a position
        b_weight = tl.exp2(b_score - b_new_max[:, None])
        b_shrink = tl.exp2(b_max - b_new_max)
        b_sum = b_sum * b_shrink + tl.sum(b_weight, 1)
        b_weight = b_weight.to(dtype)
        if WIDEN:
            b_weight = b_weight.to(tl.float32)
        b_out = tl.dot(b_weight, b_value, b_out * b_shrink[:, None])
        b_max = b_new_max

    o_row = o_query * segments + i_segment
    tl.store(
        partial_ptr + o_row[:, None] * HEAD_SIZE + o_head[None, :],
        b_out / b_sum[:, None],
        mask=m_group[:, None] & m_head[None, :],
    )
    tl.store(lse_ptr + o_row, (b_max + tl.log2(b_sum)) * LN_2, mask=m_group)


@triton.jit(do_not_specialize=["segments", "positions_size"])
def merge_kernel(
    partial_ptr,  # [q_heads, segments, HEAD_SIZE]  float32
    lse_ptr,  # [q_heads, segments]                 float32, natural logarithm
    seq_len_ptr,  # [1] int32
    output_ptr,  # [q_heads, HEAD_SIZE]             bfloat16 or float16, written
    count_ptr,  # [1] int64, one is added
    positions_ptr,  # [positions_size] int32, one is added at seq_len
    positions_size,
    segments,
    stride_output_head,
    HEAD_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # as `decode_segment_kernel` had it
    BLOCK_SEGMENTS: tl.constexpr,  # segments, up to a power of two
    BLOCK_HEAD: tl.constexpr,  # elements of the output per program
    OVERLAP: tl.constexpr,
):
    """Merge the partials of one query head, and count the launch.

    Grid: (q_heads, ceil(HEAD_SIZE / BLOCK_HEAD)). Program (h, b) writes the b-th block of query head h's output: the
    sum of its partials weighted by exp(lse) / Σ exp(lse), as `reference.merge` says. Segments without positions are
    not read. Program (0, 0) adds one to the count and one to the position log at seq_len. Both live in memory that
    outlasts the launch, so replays of a captured graph count like launches.
    """
    i_head = tl.program_id(0)
    i_block = tl.program_id(1)
    o_segment = tl.arange(0, BLOCK_SEGMENTS)
    o_head = i_block * BLOCK_HEAD + tl.arange(0, BLOCK_HEAD)
    m_head = o_head < HEAD_SIZE
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()

    seq_len = tl.load(seq_len_ptr)
    tiles = tl.cdiv(seq_len, TILE)
    m_segment = o_segment * tl.cdiv(tiles, segments) < tiles
    o_row = i_head * segments + o_segment
    # [BLOCK_SEGMENTS]
    b_lse = tl.load(lse_ptr + o_row, mask=m_segment, other=-float("inf"))
    # [BLOCK_SEGMENTS, BLOCK_HEAD]
    b_partial = tl.load(
        partial_ptr + o_row[:, None] * HEAD_SIZE + o_head[None, :], mask=m_segment[:, None] & m_head[None, :], other=0.0
    )
    b_weight = tl.exp2((b_lse - tl.max(b_lse, 0)) * LOG2_E)
    b_out = tl.sum(b_partial * b_weight[:, None], 0) / tl.sum(b_weight, 0)
    tl.store(output_ptr + i_head * stride_output_head + o_head, b_out.to(output_ptr.dtype.element_ty), mask=m_head)

    if (i_head == 0) & (i_block == 0):
        tl.atomic_add(count_ptr, 1, sem="relaxed")
        tl.atomic_add(positions_ptr + tl.minimum(seq_len, positions_size - 1), 1, sem="relaxed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What passes from the one kernel to the other. Layers run one after another, so they share it."""

    partial: Tensor  # [q_heads, segments, head_size] float32
    lse: Tensor  # [q_heads, segments] float32


def allocate_workspace(*, plan: Plan, q_heads: int, head_size: int, device: torch.device | str) -> Workspace:
    """Return a workspace for `split_kv_decode`; a captured graph keeps its addresses, so it must outlive the graph."""
    return Workspace(
        partial=torch.empty(q_heads, plan.segments, head_size, dtype=torch.float32, device=device),
        lse=torch.empty(q_heads, plan.segments, dtype=torch.float32, device=device),
    )


def split_kv_decode(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    seq_len: Tensor,
    output: Tensor,
    *,
    scale: float,
    plan: Plan,
    workspace: Workspace,
    count: Tensor,
    positions: Tensor,
) -> None:
    """Write attention of one query token into `output` [q_heads, head_size], and count it.

    Shapes are those of `reference`, except that `seq_len` is an int32 tensor of one element: it is read on the device,
    so a CUDA graph captured at one length serves every length that `page_table` covers. `count` (int64, its first
    element) and `positions[seq_len]` (int32) grow by one each time the kernels run. The last dimension of every tensor
    must be contiguous, the others may have any stride. Nothing is allocated.
    """
    q_heads, head_size = query.shape
    page_size, kv_heads = key_pages.shape[1:3]
    group = q_heads // kv_heads
    overlap = not INTERPRETED and _has_dependent_launch(query.device)
    launch = {"OVERLAP": overlap, "launch_pdl": True} if overlap else {"OVERLAP": False}
    decode_segment_kernel[(kv_heads, plan.segments)](
        query,
        key_pages,
        value_pages,
        page_table,
        seq_len,
        workspace.partial,
        workspace.lse,
        scale,
        plan.segments,
        query.stride(0),
        *key_pages.stride()[:3],
        *value_pages.stride()[:3],
        GROUP=group,
        HEAD_SIZE=head_size,
        PAGE_SIZE=page_size,
        BLOCK_GROUP=MAX_GROUP,
        BLOCK_HEAD=triton.next_power_of_2(head_size),
        TILE=plan.tile,
        STAGES=plan.stages,
        WIDEN=INTERPRETED,
        num_warps=plan.warps,
        **launch,
    )
    block_segments = triton.next_power_of_2(plan.segments)
    block_head = max(16, min(triton.next_power_of_2(head_size), MERGE_BLOCK // block_segments))
    merge_kernel[(q_heads, triton.cdiv(head_size, block_head))](
        workspace.partial,
        workspace.lse,
        seq_len,
        output,
        count,
        positions,
        positions.numel(),
        plan.segments,
        output.stride(0),
        HEAD_SIZE=head_size,
        TILE=plan.tile,
        BLOCK_SEGMENTS=block_segments,
        BLOCK_HEAD=block_head,
        num_warps=4,
        **launch,
    )


@cache
def _has_dependent_launch(device: torch.device) -> bool:
    """Say whether one kernel can be launched while the one before it still runs (programmatic dependent launch)."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
