"""Receipts: which kernel served which token, read from outside the engine.

Each hybrid backend opens a `Ledger` and counts into it. `ReceiptExtension` is mixed into vLLM's worker by
`--worker-extension-cls evalsuite_attention.receipt.ReceiptExtension`; its two methods are called by
`POST /collective_rpc` (with VLLM_SERVER_DEV_MODE=1) or `LLM.collective_rpc`. An arm without the hybrid loads this
module as well, never opens a ledger, and so reports zeros.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SPLIT_KV, FALLBACK, OTHER = range(3)
"""Indices into `Ledger.counts`."""


class Ledger:
    """Counts of one group of layers, in tensors on those layers' device so that a captured CUDA graph can add to them.

    counts     int64 [3]: attention calls of these layers by who served them. SPLIT_KV: split-KV. FALLBACK: the stock
               kernel, although the step had one request and one query token. OTHER: the stock kernel, for a prefill
               of more tokens or for several requests.
    positions  int32 [max_seq_len + 1]: how often split-KV served a KV length, this step's token included.
    layers     layers that can use split-KV; each adds itself while the model is built.
    segments   into how many segments these layers cut the history.

    The tensors are allocated once: a graph keeps their addresses. Warm-up and capture count too, so whoever wants exact
    counts takes a receipt first and drops it.
    """

    def __init__(self, *, segments: int, max_seq_len: int, device: torch.device | str) -> None:
        self.layers = 0
        self.segments = segments
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)
        self.positions = torch.zeros(max_seq_len + 1, dtype=torch.int32, device=device)

    def read(self) -> tuple[list[int], Tensor]:
        """Return the counts and the position log on the CPU, once everything launched so far has run."""
        return self.counts.tolist(), self.positions.to("cpu", copy=True)  # not the tensor that `reset` clears

    def reset(self) -> None:
        """Set every count to zero, in place."""
        self.counts.zero_()
        self.positions.zero_()


_ledgers: list[Ledger] = []


def open_ledger(*, segments: int, max_seq_len: int, device: torch.device | str) -> Ledger:
    """Return a new ledger that this process's receipts include from now on."""
    ledger = Ledger(segments=segments, max_seq_len=max_seq_len, device=device)
    _ledgers.append(ledger)
    return ledger


def take_receipt() -> dict[str, Any]:
    """Return the counts of all ledgers since the last call as JSON values, and set them to zero.

    "layers", "split_kv", "fallback" and "other" are integers as `Ledger` explains them. "positions" is
    [[start, stop, count], ...]: split-KV served each KV length n with start <= n < stop `count` times.
    """
    totals = [0, 0, 0]
    log = torch.zeros(max((len(ledger.positions) for ledger in _ledgers), default=1), dtype=torch.int64)
    for ledger in _ledgers:
        counts, positions = ledger.read()
        ledger.reset()
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        log[: len(positions)] += positions
    return {
        "layers": sum(ledger.layers for ledger in _ledgers),
        "split_kv": totals[SPLIT_KV],
        "fallback": totals[FALLBACK],
        "other": totals[OTHER],
        "positions": run_lengths(log),
    }


def run_lengths(counts: Tensor) -> list[list[int]]:
    """Return the runs of equal, nonzero counts as [start, stop, count], stop exclusive."""
    values, lengths = torch.unique_consecutive(counts, return_counts=True)
    stops = lengths.cumsum(0)
    runs = torch.stack([stops - lengths, stops, values], dim=1)
    return runs[values != 0].tolist()


def hash_files() -> dict[str, str]:
    """Return the SHA-256 of each Python file of this package by name, sorted."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def package_digest(files: dict[str, str]) -> str:
    """Return one SHA-256 for the package: what `sha256sum *.py | sha256sum` prints in its folder (LC_ALL=C)."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


# Taken when the worker starts: a file edited later is not the code that serves.
_FILES = hash_files()


class ReceiptExtension:
    """Methods that vLLM mixes into its worker; the names must clash with none of the worker's own."""

    vllm_config: Any  # the worker's

    def evalsuite_confirm(self) -> dict[str, Any]:
        """Return what the attention layers of this worker really run, as JSON values.

        Read from the layers' own implementation objects, not from the configuration that asked for them:
        "backends" and "backend_names" count layers per implementation class and per backend name;
        "flash_attn_version" is null unless all layers that have one agree. "max_num_batched_tokens" is the longest
        chunk of a prompt that one step prefills.
        """
        import vllm

        config = self.vllm_config.compilation_config
        layers = [layer for layer in config.static_forward_context.values() if hasattr(layer, "impl")]
        classes = Counter(f"{type(layer.impl).__module__}.{type(layer.impl).__qualname__}" for layer in layers)
        names = Counter(layer.get_attn_backend().get_name() for layer in layers)
        versions = {getattr(layer.impl, "vllm_flash_attn_version", None) for layer in layers} - {None}
        segments = {ledger.segments for ledger in _ledgers}
        return {
            "backends": dict(classes),
            "backend_names": dict(names),
            "flash_attn_version": versions.pop() if len(versions) == 1 else None,
            "cudagraph_mode": getattr(config.cudagraph_mode, "name", None),
            "max_num_batched_tokens": self.vllm_config.scheduler_config.max_num_batched_tokens,
            "digest": package_digest(_FILES),
            "files": _FILES,
            "segments": segments.pop() if len(segments) == 1 else None,
            "vllm": vllm.__version__,
        }

    def evalsuite_take_receipt(self) -> dict[str, Any]:
        """Return `take_receipt()` of this worker's process."""
        return take_receipt()
