"""The shape of a model: read from a checkpoint, or chosen, with a model of dummy weights written for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError
from evalsuite_performance.layer_shape import LayerShape, parse_heads

VOCABULARY = 32000
_LEAST_POSITIONS = 65536
_LEAST_VOCABULARY = 102  # prompts are made of token ids from 100 on, more than one


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
        layer = LayerShape(q_heads=self.heads, kv_heads=self.kv_heads, head_size=self.head_size, page_size=1)
        return self.layers * layer.kv_bytes(1)


def parse_shape(text: str, *, layers: int) -> ModelShape:
    """Return the shape that `--shape` describes as in 24/4/256. Raises UserError for any other text."""
    heads, kv_heads, head_size = parse_heads("--shape", text)
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
        shape = ModelShape(
            heads=int(config["num_attention_heads"]),
            kv_heads=int(config.get("num_key_value_heads") or config["num_attention_heads"]),
            head_size=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
            layers=_attention_layers(config),
            vocabulary=int(config["vocab_size"]),
        )
        if min(shape.heads, shape.kv_heads, shape.head_size) < 1 or shape.layers < 0:
            raise ValueError(f"it gives {shape}")
        if shape.vocabulary < _LEAST_VOCABULARY:
            raise ValueError(f"a vocabulary of {shape.vocabulary} is too small, expected {_LEAST_VOCABULARY} or more")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UserError(
            f"{file} does not say the model's shape ({type(error).__name__}: {error}); expected heads, layers and "
            "vocabulary as Hugging Face configurations name them; name another with --model"
        ) from error
    return shape


def _attention_layers(config: Mapping[str, Any]) -> int:
    """Return how many layers keep KV for every token; a hybrid model names the kind of each layer."""
    kinds = config.get("layer_types")
    if not kinds:
        return int(config["num_hidden_layers"])
    return sum(kind in ("full_attention", "attention") for kind in kinds)
