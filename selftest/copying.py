"""The questions of the self-test: lines of words and numbers to copy, which needs the prompt at every step."""

from random import Random
from typing import Any

WORDS = (
    *("apple", "bread", "chair", "drum", "eagle", "fence", "grape", "hammer", "island", "jacket", "kettle", "lemon"),
    *("mirror", "needle", "onion", "pencil", "quilt", "ribbon", "saddle", "table", "umbrella", "violin", "window"),
)


def load(**_: Any) -> dict[str, Any]:
    """Return a hundred lines, always the same."""
    from datasets import Dataset

    return {"test": Dataset.from_list([{"line": line(f"copying-{index}")} for index in range(100)])}


def line(seed: str) -> str:
    """Return three words, each with a number of three digits."""
    draw = Random(seed)
    return " ".join(f"{word} {draw.randrange(100, 1000)}" for word in draw.sample(WORDS, 3))
