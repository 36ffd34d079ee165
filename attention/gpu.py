"""The hybrid on NVIDIA GPUs: FlashAttention-2, except that split-KV in Triton serves single-request decode.

Under a full CUDA graph vLLM runs `HybridImpl.forward` once, at capture; replays repeat the launches. What it decides
must therefore be the same at capture and at replay. It is: the graph of one request and one token is captured apart
(`check_captured_sizes`), and whatever else the decision reads is fixed per layer. Counts are kept on the device for
the same reason.

vLLM imports this module only where the backend is chosen, with the configuration known (see `plugin`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from evalsuite_attention.decode import MAX_GROUP, Workspace, allocate_workspace, split_kv_decode
from evalsuite_attention.plugin import (
    BACKEND_VARIABLE,
    SEGMENTS_VARIABLE,
    check_vllm,
    chosen_backend,
    read_segments,
)
from evalsuite_attention.receipt import FALLBACK, OTHER, SPLIT_KV, Ledger, open_ledger
from evalsuite_attention.segments import HEAD_SIZES, Plan, plan_decode
from torch import Tensor
from vllm.config import CompilationConfig, VllmConfig, get_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)


class HybridBackend(FlashAttentionBackend):
    """FlashAttention-2 with split-KV for single-request decode; writes and reads the same cache."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM's layers look the name up among its backends

    @staticmethod
    def get_impl_cls() -> type["HybridImpl"]:
        return HybridImpl

    @staticmethod
    def get_builder_cls() -> type["HybridMetadataBuilder"]:
        return HybridMetadataBuilder

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False  # a token's kernel depends on whether another request is in the batch


class HybridMetadataBuilder(FlashAttentionMetadataBuilder):
    """FlashAttention's own, held to what version 2 may capture; checks that the graph which split-KV needs is there."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: VllmConfig, kv_cache_spec: Any) -> AttentionCGSupport:
        # The parent decides when its module is imported, for the version that the GPU would get by default: on Hopper
        # that is 3, which may be captured for mixed batches. Version 2 may not.
        return AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_captured_sizes(self.vllm_config.compilation_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKV:
    """What all layers of one shape share: they run one after another."""

    plan: Plan
    workspace: Workspace
    ledger: Ledger
    counts: tuple[Tensor, ...]  # views of the ledger's counts, by index


class HybridImpl(FlashAttentionImpl):
    """Attention of one layer: a step of one request and one query token goes to split-KV, every other to the parent.

    Such a step is a decode, except for a prompt of one token, or one whose prefix is cached but for a token: its
    prefill looks the same and is served and counted the same. Layers that split-KV does not cover always go to the
    parent and are not counted.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_vllm("cuda")
        super().__init__(*args, **kwargs)
        if self.vllm_flash_attn_version != 2:
            raise RuntimeError(
                f"the hybrid attention backend is built on FlashAttention 2, but vLLM chose version "
                f"{self.vllm_flash_attn_version}: start it with --attention-config '{{\"flash_attn_version\": 2}}'"
            )
        config = get_current_vllm_config()
        record_settings(config)
        self.view_cache = choose_view(FlashAttentionBackend)
        self.split_kv: SplitKV | None = None
        if chosen_backend() != "flash" and covers(self, config):
            self.split_kv = share_split_kv(
                self.num_heads, self.num_kv_heads, self.head_size, config.model_config.max_model_len, read_segments()
            )
            self.counts_other = self.split_kv.ledger.layers == 0
            self.split_kv.ledger.layers += 1

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: FlashAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Write attention into `output` [tokens, q_heads, head_size] and return it; see the parent for the rest."""
        shared = self.split_kv
        if shared is None or attn_metadata is None:  # None: vLLM measures memory
            served_by = None
        elif not is_single_decode(attn_metadata):
            served_by = OTHER
        elif not is_causal_decode(attn_metadata) or output_scale is not None or output_block_scale is not None:
            served_by = FALLBACK
        else:
            served_by = SPLIT_KV

        if served_by == SPLIT_KV:
            split_kv_decode(
                query[0],
                *self.view_cache(kv_cache, self.head_size),
                attn_metadata.block_table[0],
                attn_metadata.seq_lens,
                output[0],
                scale=self.scale,
                plan=shared.plan,
                workspace=shared.workspace,
                count=shared.counts[SPLIT_KV],
                positions=shared.ledger.positions,
            )
            return output
        if served_by == FALLBACK:
            shared.counts[FALLBACK].add_(1)
        elif served_by == OTHER and self.counts_other:
            # one launch per step, for all layers at once: they read the same metadata and decide alike
            shared.counts[OTHER].add_(shared.ledger.layers)
        return super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
        )


def is_single_decode(metadata: FlashAttentionMetadata) -> bool:
    """Say whether a step is one request with one query token, which for a captured graph is settled at capture."""
    return metadata.num_actual_tokens == 1 and metadata.query_start_loc.shape[0] == 2 and metadata.max_query_len == 1


def is_causal_decode(metadata: FlashAttentionMetadata) -> bool:
    """Say whether the token attends to its whole history and nothing else. Some fields exist in some versions only."""
    special = ("mm_prefix_range_tensor", "mm_prefix_query_range_tensor", "rswa_prefix_lens")
    return (
        metadata.causal is True
        and not getattr(metadata, "use_cascade", False)
        and all(getattr(metadata, name, None) is None for name in special)
    )


def covers(impl: FlashAttentionImpl, config: VllmConfig) -> bool:
    """Say whether split-KV computes what this layer asks for. MLA never gets here: vLLM refuses it for this backend."""
    return (
        impl.attn_type == AttentionType.DECODER
        and impl.sliding_window == (-1, -1)
        and impl.alibi_slopes is None
        and impl.logits_soft_cap == 0
        and impl.sinks is None
        and impl.kv_cache_dtype in ("auto", "float16", "bfloat16")
        and impl.head_size in HEAD_SIZES
        and impl.num_heads <= MAX_GROUP * impl.num_kv_heads
        and impl.dcp_world_size == impl.pcp_world_size == 1
        and config.speculative_config is None
    )


@cache
def share_split_kv(q_heads: int, kv_heads: int, head_size: int, max_seq_len: int, segments: int | None) -> SplitKV:
    """Return the plan, workspace and ledger for layers of one shape, allocated on the first call."""
    plan = plan_decode(
        sm_count=current_platform.num_compute_units(),
        kv_heads=kv_heads,
        head_size=head_size,
        max_seq_len=max_seq_len,
        segments=segments,
    )
    device = current_platform.device_type
    ledger = open_ledger(segments=plan.segments, max_seq_len=max_seq_len, device=device)
    return SplitKV(
        plan=plan,
        workspace=allocate_workspace(plan=plan, q_heads=q_heads, head_size=head_size, device=device),
        ledger=ledger,
        counts=ledger.counts.unbind(),
    )


def choose_view(backend: type[FlashAttentionBackend]) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """Return the function that views this vLLM's cache as key and value pages.

    Up to 0.25 a layer's cache is [pages, 2, page_size, kv_heads, head_size]; from 0.26 it is [pages, kv_heads,
    page_size, 2 * head_size]; from 0.29 the method that gave its shape is gone. Raises RuntimeError for another shape.
    """
    get_shape = getattr(backend, "get_kv_cache_shape", None)
    if get_shape is None:
        return view_packed
    shape = tuple(get_shape(7, 16, 3, 32))
    if shape == (7, 2, 16, 3, 32):
        return view_stacked
    if shape == (7, 3, 16, 64):
        return view_packed
    raise RuntimeError(
        f"the hybrid attention backend does not know a KV cache of shape {shape} for 7 pages of 16 slots, 3 heads of "
        f"size 32: unset {BACKEND_VARIABLE}, or use vLLM's own backend"
    )


def view_stacked(kv_cache: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Return key and value pages [pages, page_size, kv_heads, head_size] of a cache that stacks them."""
    key_pages, value_pages = kv_cache.unbind(1)
    return key_pages, value_pages


def view_packed(kv_cache: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Return key and value pages [pages, page_size, kv_heads, head_size] of a cache with both side by side."""
    key_pages, value_pages = kv_cache.transpose(1, 2).split(head_size, dim=-1)
    return key_pages, value_pages


def check_captured_sizes(config: CompilationConfig) -> None:
    """Raise RuntimeError if single-token steps would run in a CUDA graph captured for more, where split-KV is not."""
    if config.cudagraph_mode.has_full_cudagraphs() and 1 not in config.cudagraph_capture_sizes:
        raise RuntimeError(
            f"the hybrid attention backend needs a CUDA graph of one token, but vLLM captures "
            f"{config.cudagraph_capture_sizes}: add 1 to --cudagraph-capture-sizes"
        )


def record_settings(config: VllmConfig) -> None:
    """Put this package's settings where vLLM's compile cache takes its identity from; it knows no foreign variables."""
    config.additional_config["evalsuite_attention"] = {
        BACKEND_VARIABLE: chosen_backend(),
        SEGMENTS_VARIABLE: read_segments(),
    }
