"""What the task files share: rows from a file or from the hub, generated questions, and lm-eval's scoring hook.

Every set has the same columns, so that one loader serves all: `id`, `prompt`, `target`, `cluster` and `scoring` (JSON,
see `evalsuite.scoring.grade`).
"""

import csv
import hashlib
import io
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError


def digest(*parts: object) -> str:
    """Return the SHA-256 of `parts`, which seeds every random choice: nothing depends on what was drawn before."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def generator(*parts: object) -> random.Random:
    """Return a generator of its own, seeded from `parts`."""
    return random.Random(int(digest(*parts), 16))


def row(
    *, prompt: str, target: str, scoring: Mapping[str, Any], id: str | None = None, cluster: str | None = None
) -> dict[str, str]:
    """Return one question as the columns above. Its id is its own hash unless the set gives one."""
    id = id or digest(prompt)[:16]
    return {
        "id": id,
        "prompt": prompt,
        "target": target,
        "cluster": cluster or id,
        "scoring": json.dumps(scoring, sort_keys=True),
    }


def as_splits(rows: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Return `rows` as the only split, the way lm-eval wants a custom dataset."""
    from datasets import Dataset

    return {"test": Dataset.from_list([dict(r) for r in rows])}


def generate(make: Callable[[int], dict[str, str]], *, count: int, name: str, patience: int = 2_000) -> dict[str, Any]:
    """Return the first `count` different questions among `make(0)`, `make(1)`, ...

    A smaller set is the beginning of a larger one. After `patience` repetitions in a row the generator counts as
    exhausted (UserError, with the number it can give).
    """
    rows: dict[str, dict[str, str]] = {}
    index = repeated = 0
    while len(rows) < count:
        made = make(index)
        index += 1
        repeated = repeated + 1 if made["prompt"] in rows else 0
        rows.setdefault(made["prompt"], made)
        if repeated == patience:
            raise UserError(f"{name} has {len(rows)} different questions, {count} were asked for; lower --limit")
    return as_splits(rows.values())


def read_rows(
    path: str | Path, columns: Sequence[str], *, unique: Sequence[str] = (), different: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a CSV, JSON or JSONL file, checked.

    Raises UserError naming column and row (the header of a CSV is row 1) for a missing column, an empty cell, half of a
    surrogate pair, a value that a column of `unique` holds twice, or one that a row has in two columns of `different`.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; expected a file with the columns {_names(columns)}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; expected a CSV, JSON or JSONL file") from None
    read = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_jsonl}.get(path.suffix.lower())
    if read is None:
        raise UserError(f"{path} ends in {path.suffix or 'nothing'}; expected .csv, .json or .jsonl")
    rows = read(path, text)
    if not rows:
        raise UserError(f"{path} has no questions; expected rows with the columns {_names(columns)}")
    seen: dict[tuple[str, str], int] = {}
    for number, entry in rows:
        for column in columns:
            if column not in entry:
                found = f"; found {_names(list(entry))}" if entry else ""
                raise UserError(f"{path}, row {number}: column {column!r} is missing{found}")
            value = entry[column]
            if value is None or value in ([], "") or (isinstance(value, str) and not value.strip()):
                raise UserError(f"{path}, row {number}: column {column!r} is empty; fill it or remove the row")
            if half := _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
                raise UserError(f"{path}, row {number}: column {column!r} holds {half[0]!r}, half a character; mend it")
        for column in unique:
            first = seen.setdefault((column, str(entry[column]).strip()), number)
            if first != number:
                raise UserError(f"{path}, row {number}: column {column!r} repeats row {first}; remove one of them")
        told: dict[str, str] = {}
        for column in different:
            first_column = told.setdefault(str(entry[column]).strip(), column)
            if first_column != column:
                raise UserError(
                    f"{path}, row {number}: column {column!r} repeats {first_column!r}; mend it or remove the row"
                )
    return [entry for _, entry in rows]


_SURROGATE = re.compile("[\ud800-\udfff]")


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))


def _read_csv(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = list(reader)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not a CSV file ({error})") from None
    if not lines:
        return []
    header = [name.strip() for name in lines[0]]
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) > len(header):
            raise UserError(f"{path}, row {number}: {len(cells)} cells under {len(header)} columns; quote the commas")
        if cells:
            rows.append((number, dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))))
    return rows


def _read_json(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read: {_beyond(error)}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} holds {type(entries).__name__}; expected a list of objects, one for each question")
    return list(enumerate(entries, start=1))


def _beyond(error: Exception) -> str:
    """Return which limit of Python's JSON reader was passed: that of depth or that of digits."""
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number in it has too many digits"


def _read_jsonl(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, row {number}: not JSON ({error.msg})") from None
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, row {number} can't be read: {_beyond(error)}") from None
            if not isinstance(entry, dict):
                raise UserError(f"{path}, row {number}: {type(entry).__name__}; expected an object")
            rows.append((number, entry))
    return rows


def read_hub(path: str, name: str | None = None, *, split: str = "test") -> list[dict[str, Any]]:
    """Return the rows of a set on the Hugging Face hub, or of its copy in the local cache."""
    from datasets import load_dataset

    return [dict(entry) for entry in load_dataset(path, name, split=split)]


def process_results(doc: Mapping[str, str], results: Sequence[str]) -> dict[str, float]:
    """Score one response for lm-eval, with the rules that evalsuite itself uses."""
    from evalsuite.scoring import judge

    verdict, _ = judge(results[0], json.loads(doc["scoring"]), doc["target"])
    return {"exact_match": float(verdict == "right")}
