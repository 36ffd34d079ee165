"""The file that `evalsuite capture` writes: real queries and KV pages of every full-attention layer at one context.

Tensors, in safetensors: "query" [layers, q_heads, head_size], "keys" and "values" [layers, pages, page_size, kv_heads,
head_size], pages in logical order, slots past the context zero; and "output", which the serving kernel made of them,
shaped like the query, and by which `replay` checks that they belong together. The metadata's one entry is a JSON
object, see `Capture`.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.errors import UserError
from evalsuite_performance.layer_shape import LayerShape

if TYPE_CHECKING:
    import torch

KEY = "evalsuite_capture"
TENSORS = ("keys", "output", "query", "values")


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


def digest(tensors: "dict[str, torch.Tensor]") -> str:
    """Return the SHA-256 over names and bytes of the tensors, in order of name."""
    import torch

    total = hashlib.sha256()
    for name in TENSORS:
        total.update(f"{name}\0".encode())
        for layer in tensors[name]:
            total.update(layer.contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def save_capture(path: Path, tensors: "dict[str, torch.Tensor]", details: dict[str, Any]) -> dict[str, Any]:
    """Write a capture, and return its metadata; the file appears under its name only when it is whole."""
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
    part = path.with_name(f"{path.name}.part")
    save_file(tensors, part, metadata={KEY: json.dumps(described, sort_keys=True, allow_nan=False)})
    part.rename(path)
    return described


def open_capture(path: Path) -> Capture:
    """Return what a capture holds, without reading its tensors. Raises UserError for another or a damaged file."""
    from safetensors import SafetensorError, safe_open

    wanted = "expected a file that `evalsuite capture` wrote"
    try:
        with safe_open(path, framework="pt") as file:
            stored = (file.metadata() or {}).get(KEY)
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; {wanted}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); {wanted}") from error
    if stored is None:
        raise UserError(f"{path} is no capture; {wanted}")
    try:
        details = json.loads(stored)
        if details["schema"] != 1:
            raise UserError(f"{path} has schema {details['schema']}; this version reads 1: capture it again")
        names = ("q_heads", "kv_heads", "head_size", "page_size")
        shape = LayerShape(**{name: int(details[name]) for name in names}, dtype=str(details["dtype"]))
        context, layers, scale = int(details["context"]), int(details["layers"]), float(details["scale"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: its metadata cannot be read ({error!r}); {wanted}") from error
    pages = (layers, shape.pages(context), shape.page_size, shape.kv_heads, shape.head_size)
    query = (layers, shape.q_heads, shape.head_size)
    expected = {"keys": pages, "values": pages, "query": query, "output": query}
    if shapes != expected:
        raise UserError(f"{path} holds tensors {shapes}, but its metadata says {expected}; capture it again")
    return Capture(path=path, shape=shape, context=context, layers=layers, scale=scale, details=details)
