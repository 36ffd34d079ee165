"""Paired times of replays, and the bandwidth that a copy reaches on the same device."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WARM_UP_ROUNDS = 3
COPY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One launch for each layer in turn: a captured CUDA graph or, on a CPU, a loop.

    A graph leaves the host out of the measured time, as a server does that captures its decode step. It reads tensors
    which only `launch` keeps alive.
    """

    launch: Callable[[int], None]
    layers: int
    graph: Any = None

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            for layer in range(self.layers):
                self.launch(layer)


def record(launch: Callable[[int], None], layers: int, device: str) -> Replay:
    """Return the replay of a kernel's launches, which on a GPU run once before they are captured."""
    if device != "cuda":
        return Replay(launch=launch, layers=layers)
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # whatever a first call compiles or allocates must not happen in the capture
        for layer in range(layers):
            launch(layer)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            launch(layer)
    return Replay(launch=launch, layers=layers, graph=graph)


def time_rounds(replays: Mapping[str, Replay], *, rounds: int, device: str) -> dict[str, list[float]]:
    """Return the milliseconds of each replay in each round.

    A round runs every replay once, every other round in reverse, so that each is followed and preceded by both of its
    neighbours, and whatever drifts meets all of them alike. On a GPU a round is queued as a whole, behind a replay that
    is not timed: no timed one waits for the host.
    """
    measure = _time_on_gpu if device == "cuda" else _time_on_cpu
    warm_up = WARM_UP_ROUNDS if device == "cuda" else 1
    times: dict[str, list[float]] = {name: [] for name in replays}
    for number in range(warm_up + rounds):
        names = list(replays) if number % 2 else list(replays)[::-1]
        for name, milliseconds in zip(names, measure([replays[name] for name in names]), strict=True):
            if number >= warm_up:
                times[name].append(milliseconds)
    return times


def _time_on_gpu(replays: Sequence[Callable[[], object]]) -> list[float]:
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in replays]
    replays[0]()
    for replay, (start, end) in zip(replays, pairs, strict=True):
        start.record()
        replay()
        end.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) for start, end in pairs]


def _time_on_cpu(replays: Sequence[Callable[[], object]]) -> list[float]:
    times = []
    for replay in replays:
        start = time.perf_counter()
        replay()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def copy_bandwidth(free: int) -> float:
    """Return the GB/s (1e9 bytes, read and written) of a large copy on the GPU, which has `free` bytes left."""
    import torch

    size = min(COPY_BYTES, free // 4)
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = _time_on_gpu([lambda: target.copy_(source)] * 15)[WARM_UP_ROUNDS:]
    return 2 * size / statistics.median(times) / 1e6
