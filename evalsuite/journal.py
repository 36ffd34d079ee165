"""The run directory: written as the run goes, readable at any moment, never rewritten.

    run.json          plan and environment, written first, never changed
    questions.jsonl   one question a line, no prompts
    baseline.jsonl    one response a line, appended and fsynced as it arrives
    candidate.jsonl

A line is complete when it ends in a newline. A crash can leave one unfinished last line; it is cut off before the next
append, and its question is asked again.
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.errors import UserError
from evalsuite.records import (
    ARMS,
    SCHEMA,
    Forced,
    Question,
    Response,
    check_types,
    question_from_json,
    response_from_json,
    to_json,
)

T = TypeVar("T")

_UNPLANNED = ("environment.git_commit", "environment.git_dirty")  # what may differ when a run is resumed

_NONE = type(None)
_ARM = {"name": (str,), **dict.fromkeys(("kernel", "backend", "model_sha256", "url"), (str, _NONE))}
_META: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "": {"questions_sha256": (str,), "environment": (dict,), "attention": (dict, _NONE)},
    "task": {"name": (str,), "gated": (bool,), "seed": (int,)},
    "sampling": {"budget": (int,), "temperature": (int, float), "samples": (int,), "seed": (int,), "until": (list,)},
    "arms.baseline": _ARM,
    "arms.candidate": _ARM,
}
"""What must be in run.json, by the path of its object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory's evidence, as read."""

    path: Path
    meta: Mapping[str, Any]
    questions: tuple[Question, ...]
    responses: Mapping[str, tuple[Response, ...]]
    """`baseline` and `candidate`; an arm that has not been asked yet is empty."""


def dump(data: object) -> str:
    """Return `data` as one line of JSON: keys sorted, NaN refused (ValueError)."""
    return json.dumps(data, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def parse(text: str | bytes) -> Any:
    """Return what JSON holds. Raises ValueError for NaN and for numbers without end, which evalsuite never writes."""
    return json.loads(text, parse_constant=_number, parse_float=_number)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def read_lines(path: Path, build: Callable[[Any], T]) -> Iterator[T]:
    """Yield `build(object)` for each whole line of a JSONL file. Raises UserError naming a line that is foreign."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); expected a JSONL file of evalsuite") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield build(parse(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{path}, line {number}: not a record of evalsuite ({what}); expected one JSON object a line as "
                "`evalsuite run` writes them"
            ) from error


def read_responses(path: Path) -> list[Response]:
    """Return the responses of an arm's file, none where there is no file yet."""
    return list(read_lines(path, response_from_json)) if path.exists() else []


def read_plan(file: Path) -> dict[str, Any]:
    """Return what a run.json or force.json holds. Raises UserError where it is absent or none of this schema."""
    try:
        meta = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{file.parent} is no run directory ({file.name}: {error.strerror}); expected one of `run`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON ({error}); expected the file that evalsuite wrote") from error
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        found = meta.get("schema") if isinstance(meta, dict) else type(meta).__name__
        raise UserError(f"{file} has schema {found!r}, expected {SCHEMA}; read it with the evalsuite that wrote it")
    return meta


def load_meta(path: Path) -> dict[str, Any]:
    """Return run.json of the run directory `path`. Raises UserError where that is no run directory."""
    file = path / "run.json"
    meta = read_plan(file)
    try:
        for path_in_file, types in _META.items():
            part = meta
            for key in path_in_file.split(".") if path_in_file else ():
                part = check_types(part, {key: (dict,)})[key]
            check_types(part, types)
        check_types({"margin": None, **meta}, {"margin": (int, float, _NONE)})
        if meta.get("stop_early") is not None:
            check_types(meta["stop_early"], {"alpha": (float,)})
            check_types(meta, {"margin": (float,)})
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file}: {what}; expected the file that `evalsuite run` wrote") from error
    return meta


def load_run(path: Path) -> Run:
    """Return the run in directory `path`. Raises UserError for a file that is missing, foreign or inconsistent."""
    meta = load_meta(path)
    questions = tuple(read_lines(path / "questions.jsonl", question_from_json))
    responses: dict[str, tuple[Response, ...]] = {}
    for arm in ARMS:
        file = path / f"{arm}.jsonl"
        responses[arm] = tuple(read_responses(file))
        check_mixed(file, questions, responses[arm])
    return Run(path=path, meta=meta, questions=questions, responses=responses)


def check_mixed(file: Path, questions: Iterable[Question], responses: Iterable[Response]) -> None:
    """Raise UserError where a response is to a question that was not asked, or to one that is answered already."""
    known, seen = {question.id for question in questions}, set()
    for response in responses:
        key = (response.question, response.sample)
        if response.question not in known:
            raise UserError(f"{file}: question {response.question!r} is not in questions.jsonl; files were mixed")
        if key in seen:
            raise UserError(f"{file}: question {response.question!r}, sample {response.sample} is answered twice")
        seen.add(key)


@contextmanager
def open_folder(folder: Path, *, name: str, meta: Mapping[str, Any], mend: str) -> Iterator[None]:
    """Create a folder whose plan is the file `name` or check that it is this plan's, and hold it for this process.

    Raises UserError otherwise, whose line ends with `mend`.
    """
    lock = None
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_plan(folder, name, meta, mend)
        except BlockingIOError as error:
            raise UserError(f"{folder} is being written by another evalsuite; wait for it, or {mend}") from error
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error.strerror}); {mend}") from error
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _write_plan(folder: Path, name: str, meta: Mapping[str, Any], mend: str) -> None:
    if not (folder / name).exists():
        if any(file.name != f"{name}.part" for file in folder.iterdir()):  # such a part is left by a crash
            raise UserError(f"{folder} holds other files and no {name}; {mend}")
        write_once(folder / name, dump(meta) + "\n")
    differing = list(_differences(read_plan(folder / name), meta))
    if differing:
        field, old, new = differing[0]
        raise UserError(
            f"{folder} belongs to another plan: {field} is {old!r} there and {new!r} now ({len(differing)} field(s) "
            f"differ); {mend}"
        )


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new and path not in _UNPLANNED:
        yield path, old, new


def write_once(path: Path, text: str) -> None:
    """Write a file so that it is either absent or whole."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    # A new file's name is on the disk once its folder is.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write questions.jsonl."""
    write_once(path, "".join(dump(to_json(question)) + "\n" for question in questions))


class Journal:
    """Append responses to one arm's file; what `append` returned from is on the disk."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending and cut off an unfinished last line. Raises UserError where it can't be written.

        Unbuffered: bytes that the disk had no room for must not be tried again later, behind another line.
        """
        self.path = path
        try:
            self._file = path.open("a+b", buffering=0)
            self._file.seek(0)
            self._file.truncate(self._file.read().rfind(b"\n") + 1)
            _sync_folder(path.parent)
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); expected a file of evalsuite") from error

    def append(self, response: Response | Forced) -> None:
        """Write one response and wait until the disk has it. Raises UserError when it has no room."""
        line = (dump(to_json(response)) + "\n").encode()
        start = self._file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(start)
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); make room on the disk and give the same command "
                "again: every response before this one is kept"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
