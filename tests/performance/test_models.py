"""A dummy model has the shape asked for, and a real one's shape is read or refused."""

import json
import math
from pathlib import Path

import pytest

from evalsuite.errors import UserError
from evalsuite_performance.models import ModelShape, parse_shape, read_shape, write_model


def test_kv_bytes_are_those_of_the_published_model() -> None:
    assert ModelShape(heads=24, kv_heads=4, head_size=256, layers=16).kv_bytes == 64 * 1024


def test_a_dummy_model_has_the_shape_asked_for_and_room_for_the_prompt(tmp_path: Path) -> None:
    shape = parse_shape("24/4/256", layers=16)
    write_model(shape, tmp_path, positions=200_000)
    assert read_shape(tmp_path) == shape
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"]) == (3072, 8192)
    assert config["max_position_embeddings"] == 200_000


def test_only_layers_with_full_attention_count(tmp_path: Path) -> None:
    text = {"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 8,
            "vocab_size": 500, "layer_types": ["linear_attention", "full_attention"] * 4}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text}))
    assert read_shape(tmp_path) == ModelShape(heads=24, kv_heads=4, head_size=256, layers=4, vocabulary=500)


@pytest.mark.parametrize("text", ["24/4", "24/4/256/1", "a/b/c", "24/5/256", "24/4/250", "0/1/64", "", "24/0/64"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="shape"):
        parse_shape(text, layers=1)


@pytest.mark.parametrize("config", ["[]", "{}", "{", '{"num_attention_heads": 0}', '{"text_config": 3}'])
def test_a_configuration_without_a_shape_is_refused(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match="does not say the model's shape"):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"vocab_size": 100}, {"vocab_size": 101}, {"num_attention_heads": 0}, {"num_attention_heads": -9},
     {"num_key_value_heads": -3}, {"num_hidden_layers": -1}, {"head_dim": -64}, {"hidden_size": math.inf}],
)  # fmt: skip
def test_a_configuration_that_no_model_can_have_is_refused_in_one_line(
    changes: dict[str, float], tmp_path: Path
) -> None:
    config = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 102}))
    assert read_shape(tmp_path).vocabulary == 102
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 102} | changes))
    with pytest.raises(UserError, match="does not say the model's shape") as caught:
        read_shape(tmp_path)
    assert "\n" not in str(caught.value)
