"""A server that speaks evalsuite's side of vLLM 0.32's API, answers at once, and misbehaves as told.

It holds no model: every response is `WORDS`. What goes over the wire is what vLLM's `completion/serving.py` and
`chat_completion/serving.py` stream. `tests/test_end_to_end.py` meets the real thing; this one is for what a real server
does too rarely, or too slowly, to be tested.

    python tests/stub_server.py --port 8000 --misbehave die --on 3 --times 1
"""

import argparse
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from evalsuite.arms import Arm

WORDS = ("Answer", ":", " A", "\u2028", "é")
"""One word is one token; vLLM sends U+2028 as it is, and a reader that takes it for a line's end loses the response."""
WARM_UP = [1] * 8
DIGEST = "d" * 64
LAYERS = 2
MAX_NUM_BATCHED_TOKENS = 2048
STOP, LENGTH = "stop", "length"
AT_START = ("crash", "unhealthy", "deaf", "wrong-backend", "disagree")
IN_RESPONSE = ("die", "never-again", "hang", "expire", "500", "429", "400", "number", "garbled", "error", "no-done",
               "no-usage", "abort", "nan", "halves")  # fmt: skip


class Stub(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The server: its options, and what it counted."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.at_once = 0
        self.split_kv = "GGUF_PQ2_SINGLE_ATTN_BACKEND" in os.environ
        self.positions: list[list[int]] = []
        if options.uds:
            self.address_family = socket.AF_UNIX
        super().__init__(options.uds or ("127.0.0.1", options.port), Handler)

    def misbehaviour(self, body: dict[str, Any]) -> str | None:
        """Note a request in `--seen`; return how to misbehave on it. `--times` counts over all starts."""
        asked = body.get("prompt") or [message["content"] for message in body["messages"]]
        options = self.options
        meant = asked != WARM_UP if options.on is None else options.on in map(str, asked)
        hit = options.misbehave in IN_RESPONSE and meant
        with self.lock:
            if options.seen:
                before = options.seen.read_text().splitlines() if options.seen.exists() else []
                hits = sum(json.loads(line)["hit"] for line in before)
                hit = hit and hits < options.times
                told = {"asked": asked, "seed": body.get("seed"), "at_once": self.at_once, "hit": hit, "keys": [*body]}
                with options.seen.open("a") as file:
                    file.write(json.dumps(told) + "\n")
        return options.misbehave if hit else None

    def receipt(self) -> dict[str, Any]:
        """Return the counts since the last call, as the attention package words them."""
        taken, self.positions = self.positions, []
        steps = sum(stop - start for start, stop, _ in taken)
        layers = LAYERS if self.split_kv else 0
        counts = {"layers": layers, "split_kv": layers * steps, "fallback": 0, "other": layers * len(taken)}
        return {**counts, "positions": [run for run in taken if run[0] < run[1]] if layers else []}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Stub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one write a chunk, not one for each of its parts

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer /health and /v1/models."""
        if self.path == "/health":
            if self.server.options.misbehave == "deaf":
                time.sleep(600)
            self._reply(503 if self.server.options.misbehave == "unhealthy" else 200, None)
        elif self.path == "/v1/models":
            if self._allowed():
                models = [{"id": name, "object": "model"} for name in self.server.options.served_model_name]
                self._reply(200, {"object": "list", "data": models})
        else:
            self._reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Answer a worker call or generate."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc":
            result = self._call(body["method"])
            workers = [result, {**result, "layers": 7}] if self.server.options.misbehave == "disagree" else [result]
            self._reply(200, {"results": workers})
        elif self.path not in ("/v1/completions", "/v1/chat/completions"):
            self._reply(404, {"detail": "Not Found"})
        elif self._allowed():
            with self.server.lock:
                self.server.at_once += 1
            try:
                self._generate(body)
            finally:
                with self.server.lock:
                    self.server.at_once -= 1

    def _allowed(self) -> bool:
        key = self.server.options.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self._reply(401, {"error": "Unauthorized"})
            return False
        return True

    def _call(self, method: str) -> dict[str, Any]:
        if method == "evalsuite_take_receipt":
            return self.server.receipt()
        backend = "WRONG" if self.server.options.misbehave == "wrong-backend" else "CPU_ATTN"
        names: dict[str, Any] = {"backends": {f"stub.{backend}": LAYERS}, "backend_names": {backend: LAYERS}}
        names["max_num_batched_tokens"] = MAX_NUM_BATCHED_TOKENS
        return {**names, "flash_attn_version": None, "cudagraph_mode": None, "digest": DIGEST, "vllm": "0.32.0"}

    def _reply(self, status: int, data: Any) -> None:
        content = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _generate(self, body: dict[str, Any]) -> None:
        how = self.server.misbehaviour(body)
        refused = {"500": 500, "429": 429, "400": 400}.get(how or "")
        if how == "expire":
            self.server.options.api_key, refused = "another", 401
        if self.server.options.plain and "return_token_ids" in body:
            refused = 400
        if refused:
            self._reply(refused, {"error": {"message": "as told", "code": refused}})
        elif body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            words = WORDS * self.server.options.repeat
            for data in stream(body, words[: body["max_tokens"]], how):
                event = f"data: {data}\n\n".encode()
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                self.wfile.flush()
                if how in ("die", "never-again"):
                    os._exit(1)
                if how == "hang":
                    time.sleep(600)
            self.wfile.write(b"0\r\n\r\n")
            prompt = len(body.get("prompt", WARM_UP))
            self.server.positions.append([prompt + 1, prompt + min(body["max_tokens"], len(words)), LAYERS])
        else:
            ids = {} if self.server.options.plain else {"token_ids": [1000]}
            message = {"role": "assistant", "content": WORDS[0]}
            self._reply(200, {"choices": [{"index": 0, "message": message, "finish_reason": LENGTH, **ids}]})


def stream(body: dict[str, Any], words: tuple[str, ...], how: str | None) -> Iterator[str]:
    """Yield the events of one response, token by token."""
    chat, extended = "messages" in body, "return_token_ids" in body
    frame = {"id": "stub", "object": "text_completion", "created": 0, "model": body["model"]}
    if chat:
        yield dump({**frame, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    if how == "halves":
        words = ("\ud83d", "\ude00", "\ud83d")
    for index, word in enumerate(words):
        if how in ("number", "garbled", "error") and index == 1:
            yield {"number": "5", "garbled": '{"choices": [', "error": '{"error": {"message": "engine", "code": 500}}'}[
                how
            ]
            continue
        last = index == len(words) - 1
        reason = (LENGTH if len(words) == body["max_tokens"] else STOP) if last else None
        if how == "abort" and last:
            reason = "abort"
        choice = {"index": 0, **({"delta": {"content": word}} if chat else {"text": word}), "finish_reason": reason}
        if extended:
            logprobs = chat_logprobs(index) if chat else completion_logprobs(index, nan=how == "nan")
            choice |= {"logprobs": logprobs, "stop_reason": 0 if reason == STOP else None, "token_ids": [1000 + index]}
        yield dump({**frame, "choices": [choice]}, ascii_only=how == "halves")
    if how != "no-usage":
        prompt = len(body.get("prompt", WARM_UP))
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + len(words), "completion_tokens": len(words)}
        yield dump({**frame, "choices": [], "usage": usage})
    if how != "no-done":
        yield "[DONE]"


def leading(index: int) -> dict[str, float]:
    """Return the logprobs that vLLM names at one step, the generated token's first.

    The generated token is the most probable one, but for step 1: there it is the third.
    """
    if index == 1:
        return {"token_id:1001": -3.0, "token_id:2001": -0.5, "token_id:3001": -1.0}
    return {f"token_id:{1000 + index}": -0.25, f"token_id:{2000 + index}": -1.5}


def completion_logprobs(index: int, *, nan: bool) -> dict[str, Any]:
    """Return `CompletionLogProbs` of one token. vLLM writes NaN as null."""
    top: dict[str, float | None] = dict.fromkeys(leading(index)) if nan else dict(leading(index))
    token = next(iter(top))
    return {"text_offset": [0], "token_logprobs": [top[token]], "tokens": [token], "top_logprobs": [top]}


def chat_logprobs(index: int) -> dict[str, Any]:
    """Return `ChatCompletionLogProbs` of one token; it names two tokens at most."""
    tops = [{"token": token, "logprob": value, "bytes": []} for token, value in leading(index).items()]
    return {"content": [{**tops[0], "top_logprobs": tops[:2]}]}


def dump(data: Any, *, ascii_only: bool = False) -> str:
    """Return JSON as pydantic writes it: not escaped."""
    return json.dumps(data, ensure_ascii=ascii_only, separators=(",", ":"))


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """Run the stub as a process of its own; yield its address."""
    process = subprocess.Popen([sys.executable, __file__, *flags], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def started(folder: Path, *flags: str, **changes: Any) -> Arm:
    """Return an arm that evalsuite starts as it starts vLLM, and whose Python finds this module in vLLM's place."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True, exist_ok=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").touch()
    (package / "api_server.py").write_text("from stub_server import main\n\nmain()\n")
    path = os.pathsep.join([str(folder), str(Path(__file__).parent)])
    values: dict[str, Any] = {"name": "stub", "args": flags, "backend": "CPU_ATTN", "env": {}} | changes
    return Arm(**values | {"env": {"PYTHONPATH": path, **values["env"]}})


def main() -> None:
    """Serve until a signal comes. Flags of vLLM that mean nothing here are ignored."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--uds")
    parser.add_argument("--port", type=int, default=0, help="0: a free one, printed on the first line")
    parser.add_argument("--served-model-name", nargs="+", default=["stub"])
    parser.add_argument("--misbehave", choices=(*AT_START, *IN_RESPONSE))
    parser.add_argument("--on", help="only for prompts that hold this token id, or this message")
    parser.add_argument("--times", type=float, default=float("inf"), help="only so often; needs --seen")
    parser.add_argument("--seen", type=Path, help="file that gets one line for each request")
    parser.add_argument("--plain", action="store_true", help="refuse vLLM's additions to the API")
    parser.add_argument("--api-key")
    parser.add_argument("--repeat", type=int, default=1, help="say WORDS so often")
    options, _ = parser.parse_known_args()
    died = options.misbehave == "never-again" and options.seen.exists() and '"hit": true' in options.seen.read_text()
    if died or options.misbehave == "crash":
        print("INFO loading\nValueError: no such backend in $ HOME\nINFO bye", flush=True)
        sys.exit(1)
    if options.uds:
        subprocess.Popen(["sleep", "600"])  # as vLLM's engine: a process of its own
    with Stub(options) as server:
        print(server.server_address[1] if not options.uds else "serving", flush=True)
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
