"""The stub server, with what `evalsuite speed` needs of vLLM besides: usage in every event, a pace, receipts that hold.

It is started in vLLM's place by `arms_file`. STUB_MS is its pace, in milliseconds per token.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stub_server
from evalsuite import environment


class Handler(stub_server.Handler):
    """Receipts of the attention package that is installed, not of a made-up one, and of whole responses only."""

    def _call(self, method: str) -> dict[str, Any]:
        while self.server.at_once:  # the stub counts a response once its last byte is written
            time.sleep(0.001)
        told = super()._call(method)
        if method == "evalsuite_confirm":
            told["backends"] = {f"evalsuite_attention.{name}": count for name, count in told["backends"].items()}
            told["digest"] = (environment.attention_package() or {})["sha256"]
        return told


def stream(body: dict[str, Any], words: tuple[str, ...], how: str | None) -> Iterator[str]:
    """Yield the stub's events, one every STUB_MS, each with the tokens so far."""
    count = 0
    for data in plain(body, words, how):
        if data.startswith("{") and json.loads(data)["choices"]:
            count += 1
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
            data = stub_server.dump({**json.loads(data), "usage": usage})
            time.sleep(float(os.environ.get("STUB_MS", "1")) / 1e3)
        yield data


def arms_file(folder: Path, **arms: dict[str, Any]) -> Path:
    """Write a file of arms that this server serves; `args`, `env`, `kernel` and `model` of each are given."""
    stub_server.started(folder)
    (folder / "vllm/entrypoints/openai/api_server.py").write_text("from speed_server import main\n\nmain()\n")
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (folder, here, here.parent)))
    lines = []
    for name, table in arms.items():
        env = {"PYTHONPATH": path, **table.get("env", {})}
        args, kernel = ["--repeat", "20", *table.get("args", [])], table.get("kernel", "stock")
        lines += [f"[arm.{name}]", 'backend = "CPU_ATTN"', f'kernel = "{kernel}"', f"args = {json.dumps(args)}"]
        lines += [f"model = {json.dumps(table['model'])}"] if "model" in table else []
        lines += [f"[arm.{name}.env]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in env.items()]
    file = folder / "arms.toml"
    file.write_text("\n".join(lines))
    return file


def main() -> None:
    """Serve as told on the command line."""
    stub_server.Handler = Handler  # type: ignore[misc]
    stub_server.stream = stream
    sys.exit(stub_server.main())


plain = stub_server.stream
