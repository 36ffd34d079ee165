"""The client takes everything a server says, or says in one line why it could not."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from evalsuite.client import Endpoint, Prompt, RequestFailed, Sampling, attach
from evalsuite.errors import UserError
from stub_server import WORDS, running

IDS = Prompt(messages=[{"role": "user", "content": "Which?"}], token_ids=(5, 6, 7))
CHAT = Prompt(messages=IDS.messages, token_ids=None)
SAMPLING = Sampling(budget=32, temperature=0.0, until=())


@pytest.fixture(scope="module")
def honest() -> Iterator[Endpoint]:
    """An endpoint that behaves."""
    with running() as url:
        endpoint = attach(url, model=None)
        with closing(endpoint.client):
            yield endpoint


def ask_misbehaving(how: str, *, prompt: Prompt = IDS, timeout: float = 30) -> dict[str, object]:
    with running("--misbehave", how) as url, httpx.Client(base_url=url, timeout=timeout) as client:
        return Endpoint(client, model="stub", extended=True).ask(prompt, SAMPLING, seed=1)


@pytest.mark.parametrize("prompt", [IDS, CHAT], ids=["token ids", "chat"])
def test_a_response_is_taken_whole_with_the_runner_up_of_each_token(honest: Endpoint, prompt: Prompt) -> None:
    told = honest.ask(prompt, SAMPLING, seed=1)
    seconds, first = told.pop("seconds"), told.pop("seconds_to_first_token")
    assert 0 < first <= seconds < 5
    assert told == {
        "text": "".join(WORDS),
        "prompt_tokens": 3 if prompt is IDS else 8,
        "token_ids": (1000, 1001, 1002, 1003, 1004),
        "logprobs": (-0.25, -3.0, -0.25, -0.25, -0.25),
        # At step 1 the generated token is the third: its runner-up is the most probable one of the other two.
        "runner_up_ids": (2000, 2001, 2002, 2003, 2004),
        "runner_up_logprobs": (-1.5, -0.5, -1.5, -1.5, -1.5),
        "finish_reason": "stop",
        "stop_reason": 0,
        "tokens": 5,
    }


def test_a_line_separator_within_a_text_does_not_end_the_event(honest: Endpoint) -> None:
    assert "\u2028" in honest.ask(IDS, SAMPLING, seed=1)["text"]


def test_a_response_that_the_budget_ends_says_so(honest: Endpoint) -> None:
    told = honest.ask(IDS, Sampling(budget=2, temperature=0.0, until=()), seed=1)
    assert (told["finish_reason"], told["tokens"], told["text"]) == ("length", 2, "Answer:")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("die", "RemoteProtocolError"),
        ("500", "HTTP 500"),
        ("429", "HTTP 429"),
        ("400", "HTTP 400"),
        ("number", "AttributeError"),
        ("garbled", "JSONDecodeError"),
        ("error", "the server reports"),
        ("no-done", "ended early"),
        ("abort", "finish reason 'abort'"),
        ("no-usage", "for None tokens"),
    ],
)
def test_a_server_that_misbehaves_fails_the_request_and_nothing_else(how: str, expected: str) -> None:
    with pytest.raises(RequestFailed, match=expected) as failure:
        ask_misbehaving(how)
    assert failure.value.final == (how == "400")
    assert "\n" not in str(failure.value)


def test_a_server_that_falls_silent_fails_the_request_after_the_timeout() -> None:
    start = time.monotonic()
    with pytest.raises(RequestFailed, match="ReadTimeout"):
        ask_misbehaving("hang", timeout=0.3)
    assert time.monotonic() - start < 5


def test_logprobs_that_are_no_numbers_leave_a_text_to_grade() -> None:
    """A kernel that computes NaN: vLLM sends null. The request used to fail, and the spoilt answer was not counted."""
    told = ask_misbehaving("nan")
    assert told["text"] == "".join(WORDS)
    assert told["tokens"] == len(WORDS)
    assert (told["logprobs"], told["runner_up_ids"], told["runner_up_logprobs"]) == (None, None, None)


def test_a_character_sent_in_halves_is_whole_and_half_a_character_is_replaced() -> None:
    told = ask_misbehaving("halves")
    assert told["text"] == "😀\ufffd"
    json.dumps(told, ensure_ascii=False).encode()


def test_every_logprob_is_finite(honest: Endpoint) -> None:
    told = honest.ask(IDS, SAMPLING, seed=1)
    assert all(map(math.isfinite, (*told["logprobs"], *told["runner_up_logprobs"])))


def test_a_server_without_vllms_additions_still_answers() -> None:
    with running("--plain") as url:
        endpoint = attach(url, model=None)
        with closing(endpoint.client):
            assert not endpoint.extended
            told = endpoint.ask(CHAT, SAMPLING, seed=1)
    assert told["text"] == "".join(WORDS)
    assert (told["tokens"], told["finish_reason"], told["token_ids"], told["logprobs"]) == (5, "stop", None, None)


def test_the_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("--api-key", "secret") as url:
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        attach(url, model=None).client.close()
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(UserError, match=r"HTTP 401.*; set OPENAI_API_KEY") as refused:
            attach(url, model=None)
    assert "\n" not in str(refused.value)


def test_of_several_models_one_must_be_named() -> None:
    with running("--served-model-name", "one", "two") as url:
        for name in (None, "three"):
            with pytest.raises(UserError, match="serves one, two; name one of them with --model"):
                attach(url, model=name)
        endpoint = attach(url, model="two")
        endpoint.client.close()
        assert endpoint.model == "two"


def test_a_checkpoint_folder_is_not_taken_for_a_served_name(tmp_path: Path) -> None:
    with running() as url:
        endpoint = attach(url, model=str(tmp_path))
        endpoint.client.close()
        assert endpoint.model == "stub"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1", "http://host:99999", "http://bad host"])
def test_an_address_without_a_server_is_one_clear_line(url: str) -> None:
    with pytest.raises(UserError, match="expected") as refused:
        attach(url, model=None)
    assert "\n" not in str(refused.value)
    assert url in str(refused.value)


@pytest.mark.parametrize("how", ["500", "429"])
def test_a_server_that_fails_while_attaching_is_one_clear_line(how: str) -> None:
    with running("--misbehave", how) as url, pytest.raises(UserError, match=f"HTTP {how}"):
        attach(url, model=None)
