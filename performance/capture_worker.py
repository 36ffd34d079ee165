"""What `evalsuite capture` puts into vLLM's worker: it takes query, KV pages and output out of one decode step.

Mixed in by `--worker-extension-cls`. Tensors go from the worker's process into the file, never through an RPC.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one layer read and wrote, on the CPU."""

    query: "torch.Tensor"  # [q_heads, head_size]
    keys: "torch.Tensor"  # [pages, page_size, kv_heads, head_size]
    values: "torch.Tensor"
    output: "torch.Tensor"  # [q_heads, head_size]
    scale: float

    def kind(self) -> tuple[Any, ...]:
        """What layers of one file must have in common."""
        return self.query.shape, self.keys.shape, self.query.dtype, self.scale


class CaptureExtension:
    """Methods that vLLM mixes into its worker; the names must clash with none of the worker's own."""

    vllm_config: Any  # the worker's
    evalsuite_performance_taken: dict[str, Taken]

    def evalsuite_performance_arm(self, context: int) -> dict[str, int]:
        """Take from the next step of one request and one token at `context` KV positions, in every layer that can.

        Returns how many layers there are per implementation class. Layers that do not attend to the whole history, or
        keep it quantized, are left alone. The model must run eagerly: a replayed graph would not come by here.
        """
        taken = self.evalsuite_performance_taken = {}
        classes: dict[str, int] = {}
        for name, layer in self.vllm_config.compilation_config.static_forward_context.items():
            impl = getattr(layer, "impl", None)
            if impl is not None and attends_to_all(impl):
                impl.forward = _watch(impl.forward, name, context, taken)
                kind = f"{type(impl).__module__}.{type(impl).__qualname__}"
                classes[kind] = classes.get(kind, 0) + 1
        return classes

    def evalsuite_performance_save(self, path: str, details: dict[str, Any]) -> dict[str, Any] | None:
        """Write what was taken to `path` with `details`, and return its metadata; None if there is nothing.

        Layers that differ from the first in shape or scale are left out, and named in the metadata as "other_layers".
        """
        import torch

        from evalsuite_performance.capture_file import TENSORS, save_capture

        taken = self.evalsuite_performance_taken
        if not taken:
            return None
        first = next(iter(taken.values()))
        names = [name for name, each in taken.items() if each.kind() == first.kind()]
        tensors = {field: torch.stack([getattr(taken[name], field) for name in names]) for field in TENSORS}
        details = details | {
            "scale": first.scale,
            "layer_names": names,
            "other_layers": [name for name in taken if name not in names],
        }
        return save_capture(Path(path), tensors, details)


def attends_to_all(impl: Any) -> bool:
    """Say whether a layer's attention is the plain one, over its whole, unquantized history."""
    kind = getattr(impl, "attn_type", "decoder")
    return (
        getattr(kind, "value", kind) == "decoder"
        and getattr(impl, "sliding_window", None) in (None, -1, (-1, -1))
        and not getattr(impl, "logits_soft_cap", None)
        and getattr(impl, "alibi_slopes", None) is None
        and getattr(impl, "sinks", None) is None
        and getattr(impl, "kv_cache_dtype", "auto") in ("auto", "float16", "bfloat16", "float32")
    )


def _watch(forward: Callable[..., Any], name: str, context: int, taken: dict[str, Taken]) -> Callable[..., Any]:
    """Return a layer's `forward` that also takes what the wanted step reads and writes."""

    def watched(
        layer: Any,
        query: "torch.Tensor",
        key: "torch.Tensor",
        value: "torch.Tensor",
        kv_cache: "torch.Tensor",
        attn_metadata: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        wanted = _is_wanted(attn_metadata, context)
        own_query = query[0].to("cpu", copy=True) if wanted else None
        result = forward(layer, query, key, value, kv_cache, attn_metadata, *rest, **named)
        if own_query is not None:  # after the call, which may be what writes this token's KV
            keys, values = read_kv(layer, kv_cache, attn_metadata.block_table[0], context)
            output = named["output"] if "output" in named else rest[0]
            taken[name] = Taken(
                query=own_query,
                keys=keys,
                values=values,
                output=output[0].view(own_query.shape).to("cpu", copy=True),
                scale=float(layer.impl.scale),
            )
        return result

    return watched


def _is_wanted(metadata: Any, context: int) -> bool:
    """Say whether a step is one request and one token at `context` KV positions. None: vLLM measures its memory."""
    return (
        metadata is not None
        and metadata.num_actual_tokens == 1
        and hasattr(metadata, "seq_lens")
        and metadata.query_start_loc.shape[0] == 2
        and int(metadata.seq_lens[0]) == context
    )


def read_kv(
    layer: Any, kv_cache: "torch.Tensor", table: "torch.Tensor", context: int
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return a layer's keys and values of the first `context` positions, [pages, page_size, kv_heads, head_size].

    Pages are in logical order, on the CPU; slots past the context are zero. Raises RuntimeError for a cache whose
    layout is not known.
    """
    if kv_cache.device.type == "cpu":
        from evalsuite_attention.cpu import read_pages

        used = table[: -(-context // kv_cache.shape[2])]
        keys, values = read_pages(kv_cache, used, layer.isa)
    else:
        from evalsuite_attention.gpu import choose_view

        key_pages, value_pages = choose_view(layer.get_attn_backend())(kv_cache, layer.impl.head_size)
        used = table[: -(-context // key_pages.shape[1])].long()
        keys, values = key_pages[used], value_pages[used]
    keys, values = (each.to("cpu", copy=True).contiguous() for each in (keys, values))
    for each in (keys, values):
        each.view(-1, *each.shape[2:])[context:] = 0
    return keys, values
