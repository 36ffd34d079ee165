"""Text to prefill: made-up sentences of plain English, seeded, without end."""

import random
from collections.abc import Iterator

_PEOPLE = ("Anna", "the baker", "a sailor", "my neighbour", "the old teacher", "Tomas", "a young nurse", "the clerk")
_DEEDS = ("carried", "counted", "painted", "sold", "found", "repaired", "borrowed", "described")
_THINGS = ("baskets", "letters", "blue chairs", "clocks", "wooden boats", "apples", "maps of the coast", "lamps")
_PLACES = ("at the harbour", "in the library", "near the station", "behind the mill", "on the bridge", "in the garden")
_TIMES = ("on Monday", "before noon", "in the spring", "after the storm", "every evening", "a year later")


def sentences(seed: int) -> Iterator[str]:
    """Yield sentences of about a dozen words; one seed always gives the same."""
    chance = random.Random(seed)
    while True:
        subject, deed, thing, place, moment = (
            chance.choice(words) for words in (_PEOPLE, _DEEDS, _THINGS, _PLACES, _TIMES)
        )
        text = f"{subject} {deed} {chance.randrange(2, 1000)} {thing} {place} {moment}."
        yield text[0].upper() + text[1:]


def make_prompt(tokenizer: "object", tokens: int, *, seed: int = 0) -> list[int]:
    """Return the ids of exactly `tokens` tokens of such text, from a Hugging Face tokenizer."""
    source = sentences(seed)
    ids: list[int] = []
    while len(ids) < tokens:  # in pieces: a tokenizer takes long over one huge text
        piece = " ".join(next(source) for _ in range(100)) + "\n"
        ids += tokenizer.encode(piece, add_special_tokens=False)  # type: ignore[attr-defined]
    return ids[:tokens]
