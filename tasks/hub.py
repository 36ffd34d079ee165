"""Three public sets of the Hugging Face hub; `data` is a file with the hub's columns, for machines without network."""

from string import ascii_uppercase
from typing import Any

from evalsuite_tasks.common import as_splits, read_hub, read_rows, row

from evalsuite.errors import UserError
from evalsuite.values import read_number


def load_gsm8k(data: str | None = None, **_: Any) -> dict[str, Any]:
    """Return GSM8K's test split, 1,319 word problems whose answer is a whole number."""
    entries = read_rows(data, ("question", "answer")) if data else read_hub("openai/gsm8k", "main")
    return as_splits(_gsm8k_row(entry) for entry in entries)


def _gsm8k_row(entry: dict[str, Any]) -> dict[str, str]:
    question, answer = str(entry["question"]).strip(), str(entry["answer"])
    target = answer.rpartition("####")[2].strip().replace(",", "")
    if "####" not in answer or not read_number(target):
        raise UserError(f"gsm8k: the answer to {question[:60]!r} does not end in '#### N' with a number N")
    prompt = f'{question}\n\nThink step by step. Then end with a line "Answer: N", where N is a number.'
    return row(prompt=prompt, target=target, scoring={"kind": "number"})


def load_mmlu_pro(data: str | None = None, **_: Any) -> dict[str, Any]:
    """Return MMLU-Pro's test split, 12,032 questions with up to ten options."""
    columns = ("question_id", "question", "options", "answer")
    entries = read_rows(data, columns, unique=("question_id",)) if data else read_hub("TIGER-Lab/MMLU-Pro")
    return as_splits(_mmlu_pro_row(entry) for entry in entries)


def _mmlu_pro_row(entry: dict[str, Any]) -> dict[str, str]:
    options = entry["options"]
    if not isinstance(options, list) or not 2 <= len(options) <= 26:
        raise UserError(
            f"mmlu_pro, question {entry['question_id']}: options is {options!r}; expected a list of 2 to 26"
        )
    letters = ascii_uppercase[: len(options)]
    target = str(entry["answer"]).strip()
    if len(target) != 1 or target not in letters:
        raise UserError(f"mmlu_pro, question {entry['question_id']}: the answer {target!r} is none of {letters}")
    listed = "\n".join(f"{letter}) {str(option).strip()}" for letter, option in zip(letters, options, strict=True))
    prompt = (
        f"{str(entry['question']).strip()}\n\n{listed}\n\n"
        f'Think it through step by step. Then end with a line "Answer: X", where X is one of {", ".join(letters)}.'
    )
    scoring = {"kind": "mcq", "options": len(options)}
    return row(id=f"mmlu_pro-{entry['question_id']}", prompt=prompt, target=target, scoring=scoring)


def load_math500(data: str | None = None, **_: Any) -> dict[str, Any]:
    """Return MATH-500, 500 competition problems whose answer is an expression."""
    columns = ("problem", "answer", "unique_id")
    entries = read_rows(data, columns, unique=("unique_id",)) if data else read_hub("HuggingFaceH4/MATH-500")
    return as_splits(_math500_row(entry) for entry in entries)


def _math500_row(entry: dict[str, Any]) -> dict[str, str]:
    prompt = f"{str(entry['problem']).strip()}\n\nThink step by step. Then give the final answer inside \\boxed{{}}."
    return row(id=str(entry["unique_id"]), prompt=prompt, target=str(entry["answer"]).strip(), scoring={"kind": "math"})
