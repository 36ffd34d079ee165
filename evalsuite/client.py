"""Ask one question of a server that speaks the OpenAI API, streamed, and take everything it says."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from evalsuite.errors import UserError

TOKEN = "token_id:"
"""How vLLM names a token when asked to name tokens by id."""

FORCED = "evalsuite_forced"
"""Argument of a request that names the tokens to generate, see `forced`, which runs in the server."""

NO_REUSE = httpx.Limits(max_keepalive_connections=0)
"""A connection a request: a kept one may be closed by the server at the moment it is used again."""

_REFUSED = (400, 413, 422)  # statuses that speak of the request itself, not of the server, the key or the load
_MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError)  # what reading an unexpected answer raises


class RequestFailed(Exception):
    """A request brought no whole response: refused, cut off, timed out or not understood.

    `final` says that asking again would bring the same: the server understood the request and refuses it.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a question is asked with: token ids where a tokenizer is at hand, else chat messages."""

    messages: Sequence[Mapping[str, str]]
    token_ids: Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a response is generated."""

    budget: int
    temperature: float
    until: tuple[str, ...]


@dataclass(slots=True)
class _Stream:
    """A response as it grows."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    runner_up_ids: list[int] = field(default_factory=list)
    runner_up_logprobs: list[float | None] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: Mapping[str, Any] | None = None
    first: float | None = None


class Endpoint:
    """A server's address and what it understands.

    `extended` says that it takes vLLM's additions to the API (token ids, tokens named by id). Started servers do;
    an attached one is asked once.
    """

    def __init__(self, client: httpx.Client, *, model: str, extended: bool) -> None:
        self.client = client
        self.model = model
        self.extended = extended

    def call(self, method: str) -> Any:
        """Call a method of the worker extension; return what the first worker answers, after all agreed.

        Raises RequestFailed where the server refuses, or where its workers differ.
        """
        try:
            reply = self.client.post("/collective_rpc", json={"method": method, "timeout": 60})
            results = read_json(reply)["results"]
        except (httpx.HTTPError, *_MALFORMED) as error:
            raise RequestFailed(f"{method}: {type(error).__name__}: {error}") from error
        if not results or any(result != results[0] for result in results):
            raise RequestFailed(f"{method}: workers disagree: {results}")
        return results[0]

    def ask(self, prompt: Prompt, sampling: Sampling, *, seed: int) -> dict[str, Any]:
        """Ask one question; return the fields of a `records.Response` that the server decides.

        Raises RequestFailed where no whole response came.
        """
        start = time.perf_counter()
        stream = _Stream()
        path, body = self._request(prompt, sampling, seed)
        try:
            with self.client.stream("POST", path, json=body) as reply:
                if reply.status_code != 200:
                    reply.read()
                    raise RequestFailed(
                        f"HTTP {reply.status_code}: {reply.text[:500]}", final=reply.status_code in _REFUSED
                    )
                for event in read_events(reply):
                    self._take(stream, event, chat="messages" in body)
            return _finish(stream, start, extended=self.extended)
        except (httpx.HTTPError, *_MALFORMED) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error

    def force(self, prompt: Prompt, tokens: Sequence[int], *, top: int) -> dict[str, Any]:
        """Make a server with `forced.ForcedTokens` generate `tokens`; return the fields of a `records.Forced`.

        Raises RequestFailed where it did not, or named fewer than `top` tokens at a step.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt.token_ids or ()),
            "max_tokens": len(tokens),
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": top,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "vllm_xargs": {FORCED: ",".join(map(str, tokens))},
        }
        try:
            reply = self.client.post("/v1/completions", json=body)
            if reply.status_code != 200:
                raise RequestFailed(
                    f"HTTP {reply.status_code}: {reply.text[:500]}", final=reply.status_code in _REFUSED
                )
            data = reply.json()
            choice, prompt_tokens = data["choices"][0], int(data["usage"]["prompt_tokens"])
            leading = [_leading(step, top) for step in choice["logprobs"]["top_logprobs"]]
            generated = tuple(choice["token_ids"])
        except (httpx.HTTPError, *_MALFORMED) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error
        if generated != tuple(tokens):
            raise RequestFailed("it generated other tokens than it was made to", final=True)
        if any(len(step) != top for step in leading):
            raise RequestFailed(f"it named fewer than the {top} most probable tokens asked for", final=True)
        return {
            "prompt_tokens": prompt_tokens,
            "token_ids": generated,
            "top_ids": tuple(tuple(token for token, _ in step) for step in leading),
            "top_logprobs": tuple(tuple(value for _, value in step) for step in leading),
        }

    def _request(self, prompt: Prompt, sampling: Sampling, seed: int) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.budget,
            "temperature": sampling.temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.until:
            body["stop"] = list(sampling.until)
        if self.extended:
            body |= {"logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True}
        if prompt.token_ids is not None:
            return "/v1/completions", {**body, "prompt": list(prompt.token_ids)}
        if self.extended:
            body |= {"logprobs": True, "top_logprobs": 2}
        return "/v1/chat/completions", {**body, "messages": list(prompt.messages)}

    def _take(self, stream: _Stream, event: Mapping[str, Any], *, chat: bool) -> None:
        if event.get("error"):
            raise ValueError(f"the server reports {event['error']!r}")
        if event.get("usage"):
            stream.usage = event["usage"]
        for choice in event["choices"]:
            text = choice.get("delta", {}).get("content") if chat else choice["text"]
            if text or choice.get("token_ids"):
                stream.first = stream.first or time.perf_counter()
            stream.text.append(text or "")
            stream.token_ids += choice.get("token_ids") or ()
            if self.extended and choice.get("logprobs"):
                for step in _steps(choice["logprobs"], chat=chat):
                    _take_step(stream, *step)
            stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
            if choice.get("stop_reason") is not None:  # a token id, 0 included, or a stop string
                stream.stop_reason = choice["stop_reason"]


def read_json(reply: httpx.Response) -> Any:
    """Return what a reply holds; ValueError for another status than 200 or for no JSON, on one line."""
    if reply.status_code != 200:
        raise ValueError(f"HTTP {reply.status_code} {' '.join(reply.text[:200].split())}".rstrip())
    return reply.json()


def _lines(reply: httpx.Response) -> Iterator[bytes]:
    """Yield a stream's lines. httpx's own `iter_lines` also breaks at U+0085 and U+2028, which a text may hold."""
    rest = b""
    for part in reply.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


def read_events(reply: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a server-sent event stream; ValueError where it ends before it says [DONE]."""
    for line in _lines(reply):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise ValueError("the stream ended early")


_Leading = Mapping[str, float | None]


def _steps(logprobs: Mapping[str, Any], *, chat: bool) -> Iterator[tuple[str, float | None, _Leading]]:
    """Yield (token, its logprob, logprobs of the leading tokens) for each generated token."""
    if chat:
        for step in logprobs["content"]:
            yield step["token"], step["logprob"], {top["token"]: top["logprob"] for top in step["top_logprobs"]}
    else:
        yield from zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)


def _take_step(stream: _Stream, token: str, logprob: float | None, leading: _Leading) -> None:
    others = {other: value for other, value in leading.items() if other != token}
    runner_up, value = max(others.items(), key=lambda item: -math.inf if item[1] is None else item[1])
    stream.logprobs.append(logprob)
    stream.runner_up_ids.append(int(runner_up.removeprefix(TOKEN)))
    stream.runner_up_logprobs.append(value)


def _leading(step: _Leading, top: int) -> list[tuple[int, float | None]]:
    """Return the `top` most probable tokens of a step; servers add the chosen one where it is not among them."""

    def known(value: float | None) -> float | None:
        # Nine digits are all there is to a float32.
        return float(f"{value:.9g}") if value is not None and math.isfinite(value) else None

    found = [(int(token.removeprefix(TOKEN)), known(value)) for token, value in step.items()]
    return sorted(found, key=lambda item: -math.inf if item[1] is None else item[1], reverse=True)[:top]


def _numbers(values: Sequence[float | None]) -> tuple[float, ...] | None:
    """Return the values, None where one is no number: a kernel that computes NaN has still given a text to grade."""
    known = tuple(value for value in values if value is not None and math.isfinite(value))
    return known if len(known) == len(values) else None


def _finish(stream: _Stream, start: float, *, extended: bool) -> dict[str, Any]:
    if stream.finish_reason not in ("stop", "length"):
        raise RequestFailed(f"finish reason {stream.finish_reason!r}; expected 'stop' or 'length'")
    usage = stream.usage or {}
    tokens = usage.get("completion_tokens")
    if extended and not len(stream.token_ids) == len(stream.logprobs) == tokens:
        raise RequestFailed(
            f"{len(stream.token_ids)} token ids and {len(stream.logprobs)} logprobs for {tokens} tokens"
        )
    # Some servers send a character outside the BMP as two halves; half a character is no text and can't be stored.
    text = "".join(stream.text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    runner_up_logprobs = _numbers(stream.runner_up_logprobs) if extended else None
    return {
        "text": text,
        "prompt_tokens": usage.get("prompt_tokens"),
        "token_ids": tuple(stream.token_ids) if extended else None,
        "logprobs": _numbers(stream.logprobs) if extended else None,
        "runner_up_ids": tuple(stream.runner_up_ids) if runner_up_logprobs is not None else None,
        "runner_up_logprobs": runner_up_logprobs,
        "finish_reason": stream.finish_reason,
        "stop_reason": stream.stop_reason,
        "tokens": tokens,
        "seconds_to_first_token": None if stream.first is None else stream.first - start,
        "seconds": time.perf_counter() - start,
    }


def attach(url: str, *, model: str | None) -> Endpoint:
    """Return the endpoint of a running server. Raises UserError where `url` answers nonsense.

    An API key is read from OPENAI_API_KEY. `model` picks one of the models served there; None takes the only one.
    """
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(600, connect=10)
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=timeout, limits=NO_REUSE, trust_env=False)
    except (httpx.InvalidURL, ValueError) as error:
        raise UserError(f"{url} is no server address ({error}); expected http://HOST:PORT") from error
    try:
        served = [str(entry["id"]) for entry in read_json(client.get("/v1/models"))["data"]]
        if len(served) == 1 and (model is None or Path(model).is_dir()):  # a folder is our checkpoint, not its name
            model = served[0]
        if model not in served:
            raise UserError(f"{url} serves {', '.join(served) or 'no model'}; name one of them with --model")
        return Endpoint(client, model=model, extended=_is_extended(client, model))
    except (httpx.HTTPError, *_MALFORMED) as error:
        client.close()
        raise UserError(
            f"{url} does not answer as an OpenAI-compatible server ({type(error).__name__}: {error}); expected a list "
            f"of models at {url}/v1/models" + ("" if key else "; set OPENAI_API_KEY if it asks for a key")
        ) from error
    except UserError:
        client.close()
        raise


def _is_extended(client: httpx.Client, model: str) -> bool:
    """Return whether a server takes vLLM's additions to the API: asked once, with a response of one token."""
    probe = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "logprobs": True,
             "top_logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True}  # fmt: skip
    reply = client.post("/v1/chat/completions", json=probe)
    return reply.status_code not in _REFUSED and bool(read_json(reply)["choices"][0].get("token_ids"))
