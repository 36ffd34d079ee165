"""Generated questions whose answer is a number: word problems of our own, and sums from the reasoning-gym package."""

from functools import partial
from typing import Any

from evalsuite_tasks.common import generate, generator, row

NAMES = ("Ann", "Ben", "Carla", "David", "Ella", "Farid", "Grace", "Hugo", "Iris", "Jonas", "Kofi", "Lena")
THINGS = ("apples", "stamps", "marbles", "books", "shells", "coins", "pencils", "cards", "buttons", "cups")


def load_word_problems(questions: int, seed: int = 0, **_: Any) -> dict[str, Any]:
    """Return `questions` different word problems about two numbers."""
    return generate(partial(word_problem, seed), count=questions, name="word_problems")


def word_problem(seed: int, index: int) -> dict[str, str]:
    """Return word problem `index`, which needs one sum, difference or product."""
    draw = generator("word_problems", seed, index)
    name, things = draw.choice(NAMES), draw.choice(THINGS)
    first, second = draw.randint(2, 40), draw.randint(2, 12)
    match draw.choice(("more", "fewer", "boxes")):
        case "more":
            prompt = f"{name} has {first} {things} and buys {second} more. How many {things} does {name} have now?"
            target = first + second
        case "fewer":
            prompt = f"{name} has {first + second} {things} and gives {second} of them away. "
            prompt += f"How many {things} does {name} have left?"
            target = first
        case _:
            each = draw.randint(2, 9)
            prompt = f"{name} fills {second} boxes with {each} {things} each. How many {things} are there in all?"
            target = second * each
    return row(prompt=prompt, target=str(target), scoring={"kind": "number"})


def load_chain_sums(questions: int, seed: int = 0, **_: Any) -> dict[str, Any]:
    """Return `questions` different sums of two or three small numbers, as reasoning-gym words them."""
    from reasoning_gym import create_dataset

    start = int.from_bytes(generator("chain_sums", seed).randbytes(4))
    sums = create_dataset(
        "chain_sum", seed=start, size=10**6, min_terms=2, max_terms=3, min_digits=1, max_digits=2, allow_negation=False
    )

    def make(index: int) -> dict[str, str]:
        entry = sums[index]
        return row(prompt=entry["question"], target=entry["answer"], scoring={"kind": "number"})

    return generate(make, count=questions, name="chain_sums")
