"""A model is found where the user says, or it is said in one line what is missing."""

import json
from pathlib import Path

import pytest

from evalsuite import checkpoint
from evalsuite.errors import UserError


def make_checkpoint(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_folder_is_found_and_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model", str(tmp_path / "model")):
        assert checkpoint.find_checkpoint(name) == tmp_path / "model"


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/nowhere/at/all", "~/nowhere/at/all"])
def test_a_model_that_does_not_exist_is_one_clear_line(name: str) -> None:
    with pytest.raises(UserError, match=f"model {name} does not exist; expected a Hugging Face checkpoint"):
        checkpoint.find_checkpoint(name)


def test_a_folder_without_a_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        checkpoint.find_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["owner/missing", "two words/missing", "owner/na--me"])
def test_a_name_that_the_hub_does_not_give_is_one_clear_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that the hub's client finds malformed used to end in a traceback."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="the hub did not give it") as refused:
        checkpoint.find_checkpoint(name)
    assert "\n" not in str(refused.value)


def test_the_digest_follows_every_file_that_decides_an_answer(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    digests = {digest_anew(folder)}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        (folder / name).write_bytes(b"other")
        digests.add(digest_anew(folder))
    assert len(digests) == 5
    (folder / "README.md").write_text("no part of the model")
    assert digest_anew(folder) in digests


def digest_anew(folder: Path) -> str:
    checkpoint.digest.cache_clear()
    return checkpoint.digest(folder)


def test_the_digest_does_not_follow_the_folders_name(tmp_path: Path) -> None:
    one, two = make_checkpoint(tmp_path / "one"), make_checkpoint(tmp_path / "two")
    assert digest_anew(one) == digest_anew(two)


@pytest.mark.parametrize(
    ("config", "args", "expected"),
    [
        ({"max_position_embeddings": 8192}, (), 8192),
        ({"text_config": {"max_position_embeddings": 4096}}, (), 4096),
        ({}, (), None),
        ({"max_position_embeddings": 8192}, ("--max-model-len", "1024"), 1024),
        ({"max_position_embeddings": 8192}, ("--max-model-len=1024",), 1024),
        ({"max_position_embeddings": 8192}, ("--max_model_len", "1024"), 1024),
        ({"max_position_embeddings": 8192}, ("--max_model_len=1024", "--enforce-eager"), 1024),
        ({"max_position_embeddings": 8192}, ("--served-model-name", "a=b"), 8192),
    ],
)
def test_the_context_is_the_flags_or_else_the_checkpoints(
    tmp_path: Path, config: dict[str, object], args: tuple[str, ...], expected: int | None
) -> None:
    assert checkpoint.context_length(make_checkpoint(tmp_path / "model", **config), args) == expected


def test_a_context_that_is_no_number_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--max-model-len 32k is no whole number; write the number of tokens out"):
        checkpoint.context_length(make_checkpoint(tmp_path / "model"), ("--max-model-len", "32k"))


def test_the_cache_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkpoint.cache_folder() == tmp_path / "evalsuite"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert checkpoint.cache_folder() == Path.home() / ".cache" / "evalsuite"


def test_the_default_model_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "evalsuite").mkdir()
    made = make_checkpoint(tmp_path / "evalsuite" / checkpoint.DEFAULT_NAME)
    assert checkpoint.find_checkpoint(None) == made


def test_a_cache_that_cannot_be_written_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(UserError, match="the default model cannot be made in /proc/nowhere") as refused:
        checkpoint.default_checkpoint()
    assert "\n" not in str(refused.value)
