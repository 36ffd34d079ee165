"""The file that `evalsuite capture` writes: real queries and KV pages of every full-attention layer at one context.

Tensors, in safetensors: "query" [layers, q_heads, head_size], "keys" and "values" [layers, pages, page_size, kv_heads,
head_size], pages in logical order, slots past the context zero; and "output", which the serving kernel made of them,
shaped like the query, and by which `replay` checks that they belong together. The metadata's one entry is a JSON
object, see `Capture`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.errors import UserError
from evalsuite_performance.layer_shape import LayerShape
from evalsuite_performance.options import MOST

if TYPE_CHECKING:
    import torch

KEY = "evalsuite_capture"
TENSORS = ("keys", "output", "query", "values")
TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}  # as safetensors and as PyTorch names them


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a capture's metadata says, checked against its tensors."""

    path: Path
    shape: LayerShape
    context: int
    layers: int
    scale: float  # multiplies q·k before the softmax
    details: dict[str, Any]
    """The metadata as stored: also "model" and "model_sha256", "arm", "classes" (layers per implementation), "vllm",
    "layer_names", "other_layers" (seen, but of another shape) and "sha256" of the tensors."""


def digest(tensors: "Mapping[str, Iterable[torch.Tensor]]") -> str:
    """Return the SHA-256 over names and bytes of the tensors, each given whole or as its layers, in order of name."""
    import torch

    total = hashlib.sha256()
    for name in TENSORS:
        total.update(f"{name}\0".encode())
        for layer in tensors[name]:
            total.update(layer.contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def save_capture(path: Path, tensors: "dict[str, torch.Tensor]", details: dict[str, Any]) -> dict[str, Any]:
    """Write a capture, and return its metadata."""
    from safetensors.torch import save_file

    _, page_size, kv_heads, head_size = tensors["keys"].shape[1:]
    layers, q_heads, _ = tensors["query"].shape
    described = details | {
        "schema": 1,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "page_size": page_size,
        "layers": layers,
        "dtype": str(tensors["query"].dtype).removeprefix("torch."),
        "sha256": digest(tensors),
    }
    save_file(tensors, path, metadata={KEY: json.dumps(described, sort_keys=True, allow_nan=False)})
    return described


def open_capture(path: Path) -> Capture:
    """Return what a capture holds, having read it once. Raises UserError for another, a damaged or an unfit file."""
    from safetensors import SafetensorError, safe_open

    wanted = "expected a file that `evalsuite capture` wrote"
    try:
        with safe_open(path, framework="pt") as file:
            stored = (file.metadata() or {}).get(KEY)
            if stored is None:
                raise UserError(f"{path} is no capture; {wanted}")
            capture = _read_details(path, stored)
            _check_tensors(capture, file)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; {wanted}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); {wanted}") from error
    return capture


def _read_details(path: Path, stored: str) -> Capture:
    """Return what the metadata says. Raises UserError where that is no shape, no scale, or nothing to report."""
    try:
        details = json.loads(stored)
        if details["schema"] != 1:
            raise UserError(f"{path} has schema {details['schema']}; this version reads 1: capture it again")
        json.dumps(details, ensure_ascii=False, allow_nan=False).encode()  # as a report will hold it
        names = ("q_heads", "kv_heads", "head_size", "page_size", "context", "layers")
        for name in names:
            if type(details[name]) is not int or not 1 <= details[name] <= MOST:
                raise ValueError(f"{name} is {details[name]!r}, not a whole number from 1 to {MOST}")
        if details["q_heads"] % details["kv_heads"]:
            raise ValueError(f"{details['q_heads']} query heads cannot share {details['kv_heads']} KV heads evenly")
        if details["dtype"] not in TYPES.values():
            raise ValueError(f"dtype is {details['dtype']!r}, none of {', '.join(TYPES.values())}")
        if type(details["scale"]) is not float or not 0 < details["scale"] < math.inf:
            raise ValueError(f"scale is {details['scale']!r}, not a number above 0")
        if not all(isinstance(details[name], str) for name in ("model", "sha256")):
            raise ValueError("model and sha256 are no text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: its metadata cannot be read ({type(error).__name__}: {error}); capture it again"
        ) from error
    return Capture(
        path=path,
        shape=LayerShape(**{name: details[name] for name in names[:4]}, dtype=details["dtype"]),
        context=details["context"],
        layers=details["layers"],
        scale=details["scale"],
        details=details,
    )


def _check_tensors(capture: Capture, file: Any) -> None:
    """Read an open safetensors file. Raises UserError where its tensors are not those that were written, or not finite.

    A layer is held at a time.
    """
    import torch

    path, shape = capture.path, capture.shape
    pages = (capture.layers, shape.pages(capture.context), shape.page_size, shape.kv_heads, shape.head_size)
    query = (capture.layers, shape.q_heads, shape.head_size)
    slices = {name: file.get_slice(name) for name in sorted(file.keys())}
    found = {name: (TYPES.get(each.get_dtype()), *each.get_shape()) for name, each in slices.items()}
    sizes = {"keys": pages, "output": query, "query": query, "values": pages}
    expected = {name: (shape.dtype, *size) for name, size in sizes.items()}
    if found != expected:
        raise UserError(f"{path} holds tensors {found}, but its metadata says {expected}; capture it again")

    def read(name: str) -> "Iterator[torch.Tensor]":
        for index in range(capture.layers):
            layer = slices[name][index]
            if not torch.isfinite(layer).all():
                raise UserError(f"{path}: {name} of layer {index} hold NaN or infinity, which no kernel can be held to")
            yield layer

    if digest({name: read(name) for name in TENSORS}) != capture.details["sha256"]:
        raise UserError(f"{path} holds other numbers than were captured (SHA-256); copy it anew, or capture it again")
