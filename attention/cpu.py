"""The hybrid on vLLM's CPU build: its stock kernel, except that split-KV serves single-request decode.

Split-KV is `reference` in float32, so this backend shows and tests the dispatch, the receipts and the effect of another
order of sums; it is no faster than the stock kernel.
"""

from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.config import get_current_vllm_config
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from . import receipt
from .plugin import BACKEND_VARIABLE, read_segments
from .reference import merge, segment_attention

DEFAULT_SEGMENTS = 8


class HybridBackend(CPUAttentionBackend):
    """Takes the place of CPU_ATTN and keeps its name, which vLLM's layers look up."""

    @staticmethod
    def get_impl_cls() -> type["HybridImpl"]:
        return HybridImpl

    @staticmethod
    def get_builder_cls() -> type["HybridMetadataBuilder"]:
        return HybridMetadataBuilder


class HybridMetadataBuilder(CPUAttentionMetadataBuilder):
    """Checks at start that `read_pages` knows the cache's layout."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not is_quantized_kv_cache(self.kv_cache_dtype):  # split-KV never reads a quantized cache
            check_layout(self.isa, self.dtype, self.block_size, self.num_kv_heads, self.head_dim)


class HybridImpl(CPUAttentionBackendImpl):
    """Attention of one layer: a step of one request and one query token goes to split-KV, every other to the parent.

    Such a step is a decode, except for a prompt of one token, whose prefill looks the same and is served and counted
    the same. Layers that split-KV does not cover always go to the parent and are not counted.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config()
        self.uses_split_kv = (
            self.attn_type == AttentionType.DECODER
            and self.sliding_window == -1
            and self.alibi_slopes is None
            and self.logits_soft_cap == 0
            and self.sinks is None
            and not self.is_fp8_kv_cache
            and config.speculative_config is None
        )
        if self.uses_split_kv:
            self.ledger = receipt.open_ledger(
                segments=read_segments() or DEFAULT_SEGMENTS,
                max_seq_len=config.model_config.max_model_len,
                device="cpu",
            )
            self.ledger.layers = 1

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Write attention into `output` [tokens, q_heads, head_size] and return it; see the parent for the rest."""
        served_by = self._choose(attn_metadata, output_scale, output_block_scale)
        if served_by is not None:
            self.ledger.counts[served_by] += 1
        if served_by != receipt.SPLIT_KV:
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        seq_len = int(attn_metadata.seq_lens[0])
        self.ledger.positions[seq_len] += 1
        pages = -(-seq_len // kv_cache.shape[2])
        partial, lse = segment_attention(
            query[0],
            *read_pages(kv_cache, attn_metadata.block_table[0, :pages], layer.isa),
            torch.arange(pages),
            seq_len,
            scale=self.scale,
            segments=self.ledger.segments,
            dtype=torch.float32,
        )
        output[0].copy_(merge(partial, lse))
        return output

    def _choose(self, metadata: CPUAttentionMetadata | None, *output_scales: Tensor | None) -> int | None:
        """Return who serves this call, an index into `Ledger.counts`; None if the parent does and it does not count."""
        if not self.uses_split_kv or metadata is None:  # None while vLLM measures its memory
            return None
        if metadata.num_actual_tokens != 1 or metadata.query_start_loc.shape[0] != 2:  # the starts, and the end
            return receipt.OTHER
        if not metadata.causal or any(scale is not None for scale in output_scales):
            return receipt.FALLBACK
        return receipt.SPLIT_KV


def read_pages(kv_cache: Tensor, page_table: Tensor, isa: str) -> tuple[Tensor, Tensor]:
    """Return the keys and values of the pages in `page_table` [n], each [n, page_size, kv_heads, head_size].

    The shape of vLLM's CPU cache, [pages, kv_heads, page_size, 2 * head_size], does not say how its memory is used:
    in each page and head come first all keys, then all values, and both are packed for the kernels of `isa`.
    """
    used = kv_cache.index_select(0, page_table)
    n, kv_heads, page_size, width = used.shape
    head_size = width // 2
    keys, values = used.view(n, kv_heads, 2, page_size * head_size).unbind(2)
    if isa == "amx":  # tiles of 16 positions by 2 dimensions, and of 16 dimensions by 2 positions
        keys = keys.unflatten(-1, (page_size // 16, head_size // 2, 16, 2)).permute(0, 2, 4, 1, 3, 5)
        values = values.unflatten(-1, (head_size // 16, page_size // 2, 16, 2)).permute(0, 3, 5, 1, 2, 4)
        shape = (n, page_size, kv_heads, head_size)
        return keys.reshape(shape), values.reshape(shape)
    keys = keys.unflatten(-1, (head_size, page_size)).permute(0, 3, 1, 2)
    values = values.unflatten(-1, (page_size, head_size)).permute(0, 2, 1, 3)
    return keys, values


def check_layout(isa: str, dtype: torch.dtype, page_size: int, kv_heads: int, head_size: int) -> None:
    """Raise RuntimeError unless `read_pages` returns what vLLM's own kernel writes into a small cache."""
    written = torch.rand(2, page_size, kv_heads, head_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    cache = torch.zeros(2, kv_heads, page_size, 2 * head_size, dtype=dtype)
    packed_keys, packed_values = cache.view(2, kv_heads, 2 * page_size, head_size).chunk(2, dim=2)
    slots = torch.arange(page_size, 2 * page_size)  # all of page 1
    ops.cpu_attn_reshape_and_cache(*written, packed_keys, packed_values, slots, isa)
    if not torch.equal(torch.cat(read_pages(cache, torch.tensor([1]), isa)), written):
        raise RuntimeError(
            f"vLLM's {isa!r} kernels pack the KV cache in a way that split-KV does not know "
            f"({dtype}, page size {page_size}, head size {head_size}): unset {BACKEND_VARIABLE}"
        )
