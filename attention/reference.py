"""Attention of one query token over a paged KV cache in plain PyTorch: the specification of every kernel here.

Shapes, everywhere in this package:

    query        [q_heads, head_size]                     one token; q_heads = group * kv_heads
    key_pages    [pages, page_size, kv_heads, head_size]  any strides; value_pages likewise
    page_table   [n] integer                              logical page -> physical page, n * page_size >= seq_len
    seq_len      int >= 1                                 KV positions to attend to, this step's token included
    partial      [q_heads, segments, head_size]           softmax(scores of the segment) @ V
    lse          [q_heads, segments]                      ln sum exp(scores of the segment): natural logarithm

Slots past `seq_len` are never read, so they may hold anything, NaN included. Scores are multiplied by `scale` after
the dot product, never the query before it: rounding a scaled bfloat16 query costs accuracy. `dtype` is the type that
everything is computed in; in float64 the functions are the truth, in a kernel's own type they measure what plain
PyTorch makes of it, which is what a kernel's tolerance is derived from.
"""

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    seq_len: int,
    *,
    scale: float,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return softmax(scale * q K^T) V over the first `seq_len` positions, [q_heads, head_size] in `dtype`."""
    scores, values = _scores_and_values(query, key_pages, value_pages, page_table, seq_len, scale, dtype)
    return (torch.softmax(scores, dim=-1) @ values).flatten(0, 1)


def segment_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    seq_len: int,
    *,
    scale: float,
    segments: int,
    tile: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return `partial` and `lse` of each of `segments` segments, limited as `segment_bounds` says.

    A segment without positions has lse -inf and a partial of zeros. `merge` makes the output of them.
    """
    scores, values = _scores_and_values(query, key_pages, value_pages, page_table, seq_len, scale, dtype)
    size = segment_size(seq_len, segments, tile)
    padding = segments * size - seq_len
    scores = torch.nn.functional.pad(scores, (0, padding), value=-torch.inf)
    scores = scores.unflatten(-1, (segments, size))  # [kv_heads, group, segments, size]
    values = torch.nn.functional.pad(values, (0, 0, 0, padding)).unflatten(1, (segments, size))

    lse = torch.logsumexp(scores, dim=-1)
    # exp(-inf - -inf) is NaN: an empty segment gets a finite reference so that its weights are exp(-inf) = 0
    reference = lse.masked_fill(lse == -torch.inf, 0.0)
    weights = torch.exp(scores - reference.unsqueeze(-1))
    partial = weights.transpose(1, 2) @ values  # [kv_heads, segments, group, head_size]
    return partial.transpose(1, 2).flatten(0, 1), lse.flatten(0, 1)


def merge(partial: Tensor, lse: Tensor) -> Tensor:
    """Merge the segments' partials into the output [q_heads, head_size].

    A segment holds the share exp(lse) / sum exp(lse) of the softmax's denominator, which is the weight of its
    partial. With one segment, or segments of equal lse, a plain average or a logarithm of another base gives the same,
    so neither error shows there. At least one segment must hold a position.
    """
    return (torch.softmax(lse, dim=-1).unsqueeze(-2) @ partial).squeeze(-2)


def segment_size(seq_len: int, segments: int, tile: int = 1) -> int:
    """Return the KV positions per segment: whole tiles, as few as let `segments` segments hold `seq_len`."""
    tiles = -(-seq_len // tile)
    return -(-tiles // segments) * tile


def segment_bounds(seq_len: int, segments: int, tile: int = 1) -> list[tuple[int, int]]:
    """Return the positions [start, stop) of each segment; every kernel of this package follows this rule.

    All segments but the last that holds anything have `segment_size` positions; those after it are empty
    (start == stop). The limits depend on nothing but the arguments, so neither does the order of sums.
    """
    size = segment_size(seq_len, segments, tile)
    starts = [min(segment * size, seq_len) for segment in range(segments)]
    return [(start, min(start + size, seq_len)) for start in starts]


def _scores_and_values(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    seq_len: int,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return scores [kv_heads, group, seq_len] and values [kv_heads, seq_len, head_size] in `dtype`."""
    kv_heads = key_pages.shape[2]
    keys = _gather(key_pages, page_table, seq_len).to(dtype)
    values = _gather(value_pages, page_table, seq_len).to(dtype)
    grouped = query.to(dtype).unflatten(0, (kv_heads, -1))  # query heads of a group are neighbours
    return (grouped @ keys.transpose(1, 2)) * scale, values


def _gather(pages: Tensor, page_table: Tensor, seq_len: int) -> Tensor:
    """Return the cache's first `seq_len` positions in logical order, [kv_heads, seq_len, head_size]."""
    used = page_table[: -(-seq_len // pages.shape[1])].long()
    return pages.permute(2, 0, 1, 3)[:, used].flatten(1, 2)[:, :seq_len]
