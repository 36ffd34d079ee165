"""GPQA diamond: 198 graduate-level questions. Its owners ask that the questions stay unpublished."""

from typing import Any

from evalsuite_tasks.common import as_splits, generator, read_hub, read_rows, row

COLUMNS = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3", "Record ID")
LETTERS = "ABCD"


def load(data: str | None = None, **_: Any) -> dict[str, Any]:
    """Return the questions of the official CSV at `data`, or of the hub."""
    if data is None:
        entries = read_hub("Idavidrein/gpqa", "gpqa_diamond", split="train")
    else:
        entries = read_rows(data, (*COLUMNS, "Subdomain"), unique=("Record ID", "Question"), different=COLUMNS[1:5])
    return as_splits(as_row(entry) for entry in entries)


def as_row(entry: dict[str, Any]) -> dict[str, str]:
    """Return one question. The order of its options follows from its own text, whatever else was loaded before."""
    question, *options = (str(entry[column]).strip() for column in COLUMNS[:5])
    order = generator("gpqa", question).sample(range(4), 4)
    listed = "\n".join(f"{letter}) {options[place]}" for letter, place in zip(LETTERS, order, strict=True))
    prompt = (
        f"{question}\n\n{listed}\n\n"
        'Think it through step by step. Then end with a line "Answer: X", where X is A, B, C or D.'
    )
    return row(
        id=str(entry["Record ID"]).strip(),
        prompt=prompt,
        target=LETTERS[order.index(0)],
        scoring={"kind": "mcq", "options": 4},
    )
