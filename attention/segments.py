"""Into how many segments a decode step cuts the KV history, and how a program walks through its segment.

The answer follows from the device and the model alone, never from the step: a captured CUDA graph has a fixed grid,
and a sequence of one length must be summed in the same order every time, whatever ran before it.
"""

from dataclasses import dataclass

MAX_SEGMENTS = 1024  # the merge holds the LSE of all segments of a query head in one block


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How split-KV decode is launched; `reference.segment_bounds(seq_len, segments, tile)` are the segments' limits."""

    segments: int  # programs per KV head
    tile: int  # KV positions per step of a program's loop, a power of two from 16
    stages: int  # depth of the software pipeline: tiles in flight, plus the one in use
    warps: int  # warps per program


# head size -> (programs per SM, tile, stages, warps): measured on an H200 over 4K, 32K and 128K, see results/README.md;
# 96 takes what its padded size has. All these programs fit on an SM at once, so the grid is one full wave.
_MEASURED = {
    64: (3, 64, 3, 4),
    96: (4, 32, 4, 4),
    128: (4, 32, 4, 2),
    256: (4, 16, 3, 1),
}
HEAD_SIZES = tuple(_MEASURED)


def plan_decode(*, sm_count: int, kv_heads: int, head_size: int, max_seq_len: int, segments: int | None = None) -> Plan:
    """Return the plan for a layer of `kv_heads` KV heads on a GPU of `sm_count` multiprocessors.

    A program serves one KV head and one segment. There are as many segments as keep every multiprocessor busy with
    one full wave of programs: with fewer the memory is idle, with more a second wave starts late and the merge reads
    more. There are never more than tiles in `max_seq_len`, nor than MAX_SEGMENTS. `segments` overrides the rule.

    Raises ValueError for a head size that is not in HEAD_SIZES or an override outside 1 ... MAX_SEGMENTS.
    """
    if head_size not in _MEASURED:
        raise ValueError(f"head size {head_size} is not supported: use one of {', '.join(map(str, HEAD_SIZES))}")
    per_sm, tile, stages, warps = _MEASURED[head_size]
    if segments is None:
        wave = per_sm * sm_count // kv_heads
        segments = max(1, min(wave, -(-max_seq_len // tile), MAX_SEGMENTS))
    elif not 1 <= segments <= MAX_SEGMENTS:
        raise ValueError(f"{segments} segments is outside 1 ... {MAX_SEGMENTS}")
    return Plan(segments=segments, tile=tile, stages=stages, warps=warps)
