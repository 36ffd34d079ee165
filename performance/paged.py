"""Queries and paged KV to replay attention on: made up, or from a capture; and whether they fit into memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.errors import UserError
from evalsuite_performance.layer_shape import LayerShape

if TYPE_CHECKING:
    import torch

    from evalsuite_performance.capture_file import Capture

MOST_LAYERS = 256  # rotated; with fewer bytes than this takes in all, a note says what the cache holds
CACHE_TIMES = 3  # the KV of all rotated layers is this many times the L2 cache
SPARE_PAGES = 3  # of a made-up cache, so that its page table is no permutation of all pages
OTHER_BYTES = 1 << 30  # workspaces, captured graphs, the device's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One decode step at one context: what every kernel reads, and where it writes.

    The layers share one page table, as those of a served model do. Caches are laid out as vLLM up to 0.25 has them.
    """

    shape: LayerShape
    context: int  # KV positions, this step's token included
    longest: int  # the longest context of the command, which a server would have been started for
    queries: "torch.Tensor"  # [layers, q_heads, head_size]
    caches: "Sequence[torch.Tensor]"  # of each layer, [pages, 2, page_size, kv_heads, head_size]
    table: "torch.Tensor"  # [n] int32, logical page -> physical page
    outputs: "torch.Tensor"  # [layers, q_heads, head_size], of the queries' type, or float32 on a CPU
    scale: float  # multiplies q·k before the softmax
    served: "torch.Tensor | None" = None  # the outputs that were captured with the queries

    @property
    def layers(self) -> int:
        return len(self.caches)

    def layer(self, index: int) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]":
        """Return query, key pages, value pages and output of a layer, as `evalsuite_attention.reference` has them."""
        keys, values = self.caches[index].unbind(1)
        return self.queries[index], keys, values, self.outputs[index]


def count_layers(shape: LayerShape, context: int, *, least: int, cache_bytes: int) -> int:
    """Return how many layers to rotate: at least `least`, and as many as hold CACHE_TIMES the L2 cache in KV.

    A cache that drops what was used longest ago then holds nothing of a layer's KV when its turn comes again; how a
    GPU's L2 replaces is not published, so some of it may be left. Never more than MOST_LAYERS, unless `least` is.
    """
    wanted = -(-CACHE_TIMES * cache_bytes // shape.kv_bytes(context))
    return max(least, min(MOST_LAYERS, wanted))


def needed_bytes(shape: LayerShape, context: int, layers: int) -> int:
    """Return the device memory that a case takes with everything measured on it.

    Beside the caches that is what float64 makes of one KV head's keys and values while outputs are checked: four
    times their bytes, and a copy in their own type; five copies of all scores in float32, as the segments of a CPU
    make; and queries and outputs, in every type that they are held in.
    """
    pages = shape.pages(context) + SPARE_PAGES
    check = 5 * shape.kv_bytes(context) // shape.kv_heads * 2 // shape.element_bytes
    scores = 20 * shape.q_heads * context
    vectors = 20 * layers * shape.q_heads * shape.head_size
    return layers * shape.kv_bytes(pages * shape.page_size) + check + scores + vectors + OTHER_BYTES


def largest_context(shape: LayerShape, layers: int, free: int) -> int:
    """Return the largest context in whole pages whose `needed_bytes` are at most `free`; 0 if none is."""
    low, high = 0, 1
    while needed_bytes(shape, high * shape.page_size, layers) <= free:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if needed_bytes(shape, middle * shape.page_size, layers) <= free:
            low = middle
        else:
            high = middle
    return low * shape.page_size


def check_fits(shape: LayerShape, context: int, layers: int, free: int) -> None:
    """Raise UserError that names the largest context that fits, if this one does not."""
    needed = needed_bytes(shape, context, layers)
    if needed > free:
        raise UserError(describe_memory(shape, context, layers, free))


def describe_memory(shape: LayerShape, context: int, layers: int, free: int) -> str:
    """Return the line that says what does not fit and what does, or that this fits and memory went elsewhere."""
    largest = largest_context(shape, layers, free)
    if needed_bytes(shape, context, layers) <= free:
        fits = "so other processes, or many --segments, took it; give fewer, or a smaller --context"
    elif largest > 0:
        fits = f"the largest context that fits is {min(largest, context - 1)}"
    else:
        fits = "not even one page of each layer fits"
    return (
        f"out of memory: {layers} layers of {shape.heads} at context {context} need about "
        f"{needed_bytes(shape, context, layers) / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; {fits}"
    )


def free_bytes(device: str) -> int:
    """Return the free memory of a device: of the current GPU, or what Linux calls available."""
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    return 1 << 62 if kilobytes is None else kilobytes * 1024


def make_case(shape: LayerShape, context: int, *, longest: int, layers: int, device: str) -> Case:
    """Return a case of seeded numbers: the same on every machine of one kind, in pages of random order.

    They are normal, but for some keys, see `_weigh_ends`: in a long history of nothing but normal numbers one position
    more or less changes the output by less than rounding does. The page table goes on, out of a kernel's sight, with
    the spare pages, so that what is read past its end is a page of the cache as well.
    """
    import torch

    dtype = getattr(torch, shape.dtype)
    generator = torch.Generator(device).manual_seed(context)
    used = shape.pages(context)
    size = (used + SPARE_PAGES, 2, shape.page_size, shape.kv_heads, shape.head_size)
    queries = torch.randn(
        layers, shape.q_heads, shape.head_size, generator=generator, dtype=torch.float32, device=device
    )
    queries[..., 0] = 1
    caches = [torch.randn(size, generator=generator, dtype=dtype, device=device) for _ in range(layers)]
    table = torch.randperm(used + SPARE_PAGES, generator=generator, device=device).int()
    scale = shape.head_size**-0.5
    positions = (0, context - 1, context)
    ends = [(int(table[position // shape.page_size]), position % shape.page_size) for position in positions]
    for cache in caches:
        _weigh_ends(cache[:, 0], ends, context, scale)
    return Case(
        shape=shape,
        context=context,
        longest=longest,
        queries=queries.to(dtype),
        caches=caches,
        table=table[:used],
        outputs=_outputs(shape, layers, device),
        scale=scale,
    )


def _weigh_ends(keys: "torch.Tensor", ends: Sequence[tuple[int, int]], context: int, scale: float) -> None:
    """Give weight to the first and the last slot of every page of keys, and more to `ends`, given as page and slot.

    A key with nothing but a first number scores that times `scale` with every query, whose first number is 1. Of
    normal keys a score s has a mean exp(2 s) of exp(2), and values are independent: n positions add up to a length of
    e sqrt(n). The edges of a page together get the length of the page's, e sqrt(page_size / 2) each, and an end half
    that of all pages with their edges, e sqrt(2 context) / 2: without it the output changes by some 40 %.
    """
    edge, end = (1 + math.log(positions / 2) / 2 for positions in (keys.shape[1], context))
    edges = [(edge, keys[:, slot]) for slot in (0, -1)]
    for score, some in [*edges, *((end, keys[place]) for place in ends)]:
        some.zero_()
        some[..., 0] = score / scale


def load_case(capture: "Capture", *, layers: int, device: str) -> Case:
    """Return a case of captured queries and KV; layers beyond those captured repeat them in memory of their own."""
    import torch
    from safetensors import safe_open

    caches = []
    with safe_open(capture.path, framework="pt") as file:
        queries, keys, values = (file.get_slice(name) for name in ("query", "keys", "values"))
        for layer in range(layers):
            pair = [each[layer % capture.layers].to(device) for each in (keys, values)]
            caches.append(torch.stack(pair, dim=1))
        query, output = queries[:].to(device), file.get_tensor("output").to(device)
    order = torch.arange(layers, device=device) % capture.layers
    return Case(
        shape=capture.shape,
        context=capture.context,
        longest=capture.context,
        queries=query[order],
        caches=caches,
        table=torch.arange(capture.shape.pages(capture.context), dtype=torch.int32, device=device),
        outputs=_outputs(capture.shape, layers, device),
        scale=capture.scale,
        served=output[order],
    )


def _outputs(shape: LayerShape, layers: int, device: str) -> "torch.Tensor":
    import torch

    dtype = getattr(torch, shape.dtype) if device == "cuda" else torch.float32
    return torch.empty(layers, shape.q_heads, shape.head_size, dtype=dtype, device=device)
