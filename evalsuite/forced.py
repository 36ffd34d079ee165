"""Forced decoding inside vLLM: a logits processor that makes a request generate the tokens it names.

`--logits-processors evalsuite.forced:ForcedTokens` puts it into a server; a request names its tokens in `vllm_xargs`.
Each token is then computed by a decode step of its own, as in free generation, and the logprobs that vLLM returns are
raw: taken before any processor. A request that names no tokens is left alone.

This module runs in the server, so it imports torch and vLLM; nothing else of evalsuite imports it.
"""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from evalsuite.client import FORCED


class ForcedTokens(LogitsProcessor):  # type: ignore[misc]  # vLLM is not there for mypy to read
    """Leave one token possible at each step of a request that names its tokens."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._requests: dict[int, tuple[list[int], list[int]]] = {}  # by row: tokens to force, tokens generated so far

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError, which the server answers with status 400, for tokens that are not as many as asked for."""
        tokens = read_tokens(sampling_params)
        if tokens is not None and len(tokens) != sampling_params.max_tokens:
            raise ValueError(f"{FORCED} names {len(tokens)} tokens, max_tokens is {sampling_params.max_tokens}")

    def is_argmax_invariant(self) -> bool:
        """Return False: vLLM skips invariant processors when it decodes greedily."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take note of requests that came, went or moved; vLLM appends to the list of generated tokens itself."""

        def begin(params: SamplingParams, _: list[int] | None, generated: list[int]) -> Any:
            tokens = read_tokens(params)
            return None if tokens is None else (tokens, generated)

        process_dict_updates(self._requests, batch_update, begin)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return `logits` [requests, vocabulary], changed in place."""
        for row, (tokens, generated) in self._requests.items():
            logits[row] = -torch.inf
            logits[row, tokens[len(generated)]] = 0.0
        return logits


def read_tokens(params: SamplingParams) -> list[int] | None:
    """Return the tokens that a request names, in decimal and separated by commas; None if it names none.

    Raises ValueError for what is no number.
    """
    named = (params.extra_args or {}).get(FORCED)
    return None if named is None else [int(token) for token in str(named).split(",")]
