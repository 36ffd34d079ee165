"""FlashAttention 2, with its own or a forced number of splits, and FlashAttention 3, as vLLM ships them."""

import math

from evalsuite_performance.candidate import Built, Refused, check_page, int32, require, sm_count
from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.paged import Case

FA2_MOST_SPLITS = 128  # flash_api.cpp checks it


def fa2_auto_splits(shape: LayerShape, context: int, sm_count: int) -> int:
    """Return the split count that FlashAttention 2 chooses for a decode step of one request.

    A split is a program per KV head; twice the multiprocessors may run at once. The fewest splits that fill the last
    wave to 85 % of the best filling win, among those that change the blocks per split. Source: `set_params_splitkv`
    and `num_splits_heuristic` in csrc/flash_attn/flash_api.cpp of vllm-project/flash-attention (617264c). It sees the
    longest context that it was launched for, not the actual one: a server's captured graph has one for all lengths.
    """
    if shape.q_heads == shape.kv_heads:
        return 1  # it splits only where it may swap the queries of a group for tokens
    block = 256 if shape.head_size <= 64 else 128 if shape.head_size <= 128 else 64
    blocks, slots = -(-context // block), 2 * sm_count
    if shape.kv_heads >= 0.8 * slots:
        return 1
    filling = {}
    for splits in range(1, min(FA2_MOST_SPLITS, slots, blocks) + 1):
        if splits == 1 or -(-blocks // splits) != -(-blocks // (splits - 1)):
            waves = shape.kv_heads * splits / slots
            filling[splits] = waves / math.ceil(waves)
    return next(splits for splits, share in filling.items() if share >= 0.85 * max(filling.values()))


def _check_flash(shape: LayerShape, version: int) -> None:
    """Raise Refused where FlashAttention 2 or 3 in vLLM does not take the shape or the device."""
    try:
        from vllm.vllm_flash_attn import fa_version_unsupported_reason
    except ImportError as error:
        raise Refused(f"vLLM's CUDA build is not installed ({error})") from error
    reason = fa_version_unsupported_reason(version)
    require(reason is None, str(reason))
    require(shape.dtype != "float32", "takes bfloat16 and float16, not float32")
    require(shape.head_size <= 256 and shape.head_size % 8 == 0, "takes head sizes to 256 that are multiples of 8")
    check_page(shape)


def build_fa2(case: Case, splits: int) -> Built:
    """Bind FlashAttention 2 with a forced number of splits, or 0 for its own choice.

    vLLM's Python function refuses to force; the operator below it does not. It is called for the automatic count as
    well, so that rows differ in nothing else.
    """
    import torch

    shape = case.shape
    _check_flash(shape, 2)
    require(splits <= FA2_MOST_SPLITS, f"takes at most {FA2_MOST_SPLITS} splits")
    require(splits <= 1 or shape.q_heads > shape.kv_heads, "splits only where query heads share a KV head")
    starts, lengths, unused, table = (
        int32(case, 0, 1),
        int32(case, case.context),
        int32(case, 0, 0),
        case.table[None],
    )
    attend = torch.ops._vllm_fa2_C.varlen_fwd

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        attend(
            query[None], keys, values, output[None], starts, unused, lengths,
            None,  # left padding
            table,
            None,  # ALiBi
            1, case.context,
            0.0,  # dropout
            case.scale,
            False,  # zero the output first
            True,  # causal
            -1, -1,  # no window
            0.0,  # soft cap
            False,  # return the softmax
            splits,
            None,
        )  # fmt: skip

    return Built(launch=launch, parts=splits or fa2_auto_splits(shape, case.context, sm_count()))


def build_fa3(case: Case) -> Built:
    """Bind FlashAttention 3 as vLLM's Python function calls it without scheduler metadata.

    A server's times differ in two ways. vLLM's metadata builder (`aot_schedule` in v1/attention/backends/flash_attn.py)
    computes the metadata once a step for all layers; here each layer's call launches the kernel that prepares them as
    well. And where a server captures full graphs it allows `flash_attn_max_num_splits_for_cuda_graph` splits at most
    (32 by default); here FA3's own choice has no such bound.
    """
    _check_flash(case.shape, 3)
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    starts, lengths, table = int32(case, 0, 1), int32(case, case.context), case.table[None]

    def launch(index: int) -> None:
        query, keys, values, output = case.layer(index)
        flash_attn_varlen_func(
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
            block_table=table,
            fa_version=3,
        )

    return Built(launch=launch)
