"""The shape of a model: read from a checkpoint, or chosen, with a model of dummy weights written for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError

VOCABULARY = 32000
_LEAST_POSITIONS = 65536
_KV_BYTES = 2
"""Bytes of one number in a bf16 or fp16 KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a model decides how much its attention reads."""

    heads: int
    """Query heads."""
    kv_heads: int
    head_size: int
    layers: int
    """Layers that keep KV for every token."""
    vocabulary: int = VOCABULARY

    def __str__(self) -> str:
        return f"{self.heads}/{self.kv_heads}/{self.head_size}, {self.layers} layers"

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that one token keeps, in all layers, at two bytes a number."""
        return 2 * self.layers * self.kv_heads * self.head_size * _KV_BYTES


def parse_shape(text: str, *, layers: int) -> ModelShape:
    """Return the shape written HEADS/KV_HEADS/HEAD_SIZE, as in 24/4/256. Raises UserError for any other text."""
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise UserError(f"shape {text!r} is none; expected HEADS/KV_HEADS/HEAD_SIZE, for instance 24/4/256")
    heads, kv_heads, head_size = map(int, parts)
    if heads % kv_heads:
        raise UserError(f"shape {text}: {heads} query heads cannot share {kv_heads} KV heads; expected a multiple")
    if head_size % 8:
        raise UserError(f"shape {text}: head size {head_size} suits no attention kernel; expected a multiple of 8")
    return ModelShape(heads=heads, kv_heads=kv_heads, head_size=head_size, layers=layers)


def write_model(shape: ModelShape, folder: Path, *, positions: int) -> None:
    """Write the config.json of a Llama of this shape; vLLM serves it with `--load-format dummy` and no tokenizer.

    Its other sizes keep the proportions of small Llamas: 24/4/256 has a hidden size of 3072, 9/3/64 one of 576.
    """
    hidden = shape.heads * min(shape.head_size, 128)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_size": hidden,
        "intermediate_size": (hidden * 8 // 3 + 63) // 64 * 64,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max(positions, _LEAST_POSITIONS),
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def read_shape(folder: Path) -> ModelShape:
    """Return the shape of a checkpoint from its config.json. Raises UserError where that does not say it."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        return ModelShape(
            heads=int(config["num_attention_heads"]),
            kv_heads=int(config.get("num_key_value_heads") or config["num_attention_heads"]),
            head_size=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
            layers=_attention_layers(config),
            vocabulary=int(config["vocab_size"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file} does not say the model's shape ({type(error).__name__}: {error}); expected heads, layers and "
            "vocabulary as Hugging Face configurations name them; name another with --model"
        ) from error


def _attention_layers(config: Mapping[str, Any]) -> int:
    """Return how many layers keep KV for every token; a hybrid model names the kind of each layer."""
    kinds = config.get("layer_types")
    if not kinds:
        return int(config["num_hidden_layers"])
    return sum(kind in ("full_attention", "attention") for kind in kinds)
