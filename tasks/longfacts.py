"""Long prompts of a chosen length: invented facts in a generated text, of which each question needs one or two.

Nothing can be known beforehand, and the answer is short: what is tested is how well decode steps read a long history.
The kinds of question take turns, and the facts lie in every tenth of the text, from its beginning to its end.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from evalsuite_tasks.common import digest, generate, generator, row

from evalsuite.errors import UserError

SHORTEST, LONGEST = 600, 131_072
BUDGET = 64  # as in longfacts.yaml
TOKENS_PER_WORD = 1.14
"""Of the text. SmolLM2's tokenizer makes 1.08: one of each word, as most do, and one of each full stop."""
AROUND = 400
"""Tokens of all else: worked examples, chat template, facts and question. SmolLM2's tokenizer makes 370 at most."""
KINDS = ("needle", "larger", "needle", "sum")
PLACES = 10
OTHERS = 1
"""Facts of the same form that the question does not need."""

WHEN = (
    *("On Monday", "On Tuesday", "On Friday", "On Sunday", "In the morning", "In the evening", "After lunch"),
    *("Before dinner", "Last week", "Last winter", "Late at night", "During the storm", "After the meeting"),
    *("In early spring", "Before the holiday", "At the end of the day", "One summer"),
)
WHAT_KIND = ("old", "young", "tall", "quiet", "tired", "happy", "angry", "busy", "careful", "kind", "rich", "proud")
WHO = (
    *("farmer", "teacher", "doctor", "driver", "painter", "sailor", "singer", "writer", "guard", "nurse", "judge"),
    *("pilot", "cook", "student", "soldier", "hunter", "dancer", "lawyer"),
)
DID = (
    *("found", "lost", "sold", "bought", "painted", "carried", "cleaned", "moved", "opened", "forgot", "ordered"),
    *("wanted", "returned", "dropped", "repaired", "borrowed"),
)
COLOR = ("red", "blue", "green", "white", "black", "brown", "yellow", "gray")
THING = (
    *("table", "chair", "box", "lamp", "book", "wheel", "blanket", "basket", "mirror", "clock", "coat", "bag"),
    *("bottle", "ring", "door", "boat", "drum", "map", "hat", "brush"),
)
WHERE = (
    *("near the river", "behind the church", "at the market", "in the garden", "by the old bridge", "in the kitchen"),
    *("at the station", "under the trees", "beside the road", "in the library", "on the hill", "close to the school"),
    *("at the harbor", "in the village", "outside the hotel", "in front of the shop"),
)
ANIMALS = (
    *("tiger", "wolf", "horse", "rabbit", "snake", "eagle", "bear", "lion", "monkey", "fox", "whale", "camel"),
    *("elephant", "dolphin", "turtle", "spider", "owl", "duck", "sheep", "pig", "frog", "mouse", "shark", "bee"),
)


def load(questions: int, seed: int = 0, context: Sequence[int] = (1024,), **_: Any) -> dict[str, Any]:
    """Return `questions` different questions whose prompts, with the budget, fill a context of `context` tokens.

    Several lengths take turns after each kind of question has had its facts in every tenth of the text.
    """
    wrong = [length for length in context if type(length) is not int or not SHORTEST <= length <= LONGEST]
    if wrong or not context:
        raise UserError(
            f"--context is {wrong[0] if wrong else 'empty'}; expected a whole number of tokens from {SHORTEST} to "
            f"{LONGEST} (prompt and budget)"
        )
    return generate(partial(question, seed, context), count=questions, name="longfacts")


def question(seed: int, contexts: Sequence[int], index: int) -> dict[str, str]:
    """Return question `index`."""
    context = contexts[index // (len(KINDS) * PLACES) % len(contexts)]
    draw = generator("longfacts", seed, context, index)
    kind = KINDS[index % len(KINDS)]
    needed = 1 if kind == "needle" else 2
    animals = draw.sample(ANIMALS, needed + OTHERS)
    first, second, *_ = animals
    if kind == "needle":
        numbers = draw.sample(range(10_000, 100_000), len(animals))
        facts = [f"The code of the {animal} is {number}." for animal, number in zip(animals, numbers, strict=True)]
        asked, target = f"What is the code of the {first}?", str(numbers[0])
    else:
        numbers = draw.sample(range(31, 60), len(animals))  # no sum of two is one of them
        facts = [f"The {animal} has {number} coins." for animal, number in zip(animals, numbers, strict=True)]
        asked = f"How many coins does the {first} have, and how many coins does the {second} have? "
        if kind == "sum":
            asked, target = asked + "How many is that together?", str(numbers[0] + numbers[1])
        else:
            asked, target = asked + "Who has more?", first if numbers[0] > numbers[1] else second
    lines = text(draw, round((context - BUDGET - AROUND) / TOKENS_PER_WORD))
    place = index // len(KINDS) % PLACES
    places = [(place + number * (PLACES // 2)) % PLACES for number in range(needed)]
    for fact, tenth in zip(facts, places, strict=False):
        lines.insert(round((tenth + draw.random()) / PLACES * len(lines)), fact)
    for fact in facts[needed:]:
        lines.insert(draw.randrange(len(lines) + 1), fact)
    prompt = f"Read this text.\n\n{' '.join(lines)}\n\n{asked}"
    return row(
        id="-".join([kind, *(f"{tenth * 100 // PLACES:02}" for tenth in places), digest(prompt)[:12]]),
        prompt=prompt,
        target=target,
        scoring={"kind": "number"} if kind != "larger" else {"kind": "text", "accept": [target, f"the {target}"]},
    )


def text(draw: Random, words: int) -> list[str]:
    """Return different sentences that have `words` words in all, the last one to its end."""
    sentences: dict[str, None] = {}
    while words > 0:
        sentence = say(draw)
        if sentence not in sentences:
            sentences[sentence] = None
            words -= len(sentence.split())
    return list(sentences)


def say(draw: Random) -> str:
    """Return a sentence that holds no number and no name."""
    when, kind, who, did = (draw.choice(words) for words in (WHEN, WHAT_KIND, WHO, DID))
    return f"{when} the {kind} {who} {did} a {draw.choice(COLOR)} {draw.choice(THING)} {draw.choice(WHERE)}."
