"""Put any two response files side by side, as if one run had made them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError
from evalsuite.journal import Run, check_mixed, load_meta, read_lines
from evalsuite.receipts import fingerprint
from evalsuite.records import ARMS, SCHEMA, Question, Response, question_from_json, response_from_json

_SAMPLING = ("budget", "temperature", "samples", "until")
"""What must be equal: with another budget or temperature the arms were asked another question."""

MACHINE = ("vllm", "torch", "triton", "gpu")
"""What of run.json's environment can move an answer: where two runs differ in it, more than their arms differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm's responses and what is known of how they came about."""

    file: Path
    meta: Mapping[str, Any] | None
    """run.json; None where there is none, as with an imported log."""
    arm: Mapping[str, Any]
    """As in run.json. Of an arm that is not named there, only the name of the file is known."""
    questions: tuple[Question, ...]
    responses: tuple[Response, ...]


def load_side(path: Path, position: str) -> Side:
    """Return one side of a comparison. `path` is a run directory, or a response file with questions.jsonl beside it.

    Of a directory, the arm that `position` ("baseline" or "candidate") names is taken. A file of another name beside a
    run.json is of the arm that its receipts name. Raises UserError for a file that is missing, foreign or inconsistent,
    and for one of no arm of the run.json beside it.
    """
    folder, file = (path, path / f"{position}.jsonl") if path.is_dir() else (path.parent, path)
    responses = tuple(read_lines(file, response_from_json))
    if not (folder / "questions.jsonl").exists():
        raise UserError(
            f"{folder} has no questions.jsonl; expected the one of the run beside {file.name}, copy it there"
        )
    questions = tuple(read_lines(folder / "questions.jsonl", question_from_json))
    check_mixed(file, questions, responses)
    meta = load_meta(folder) if (folder / "run.json").exists() else None
    arm: Mapping[str, Any] = {"name": str(file), "kernel": None}
    if meta:
        # Kept with the arm: another run may have been served by another attention package.
        arm = {**_find_arm(file, meta, responses), "attention": meta["attention"]}
    return Side(file=file, meta=meta, arm=arm, questions=questions, responses=responses)


def _find_arm(file: Path, meta: Mapping[str, Any], responses: Iterable[Response]) -> Mapping[str, Any]:
    """Return the arm of run.json that a file's name says, or that all its receipts say."""
    arms: Mapping[str, Mapping[str, Any]] = meta["arms"]
    if file.stem in ARMS:
        return arms[file.stem]
    stamps = {(response.receipt or {}).get("arm") for response in responses if response.error is None}
    found = [arm for arm in arms.values() if stamps == {fingerprint(arm)}]
    if not found:
        raise UserError(
            f"{file} is named after no arm and its receipts name none of {file.parent / 'run.json'}; expected "
            "baseline.jsonl or candidate.jsonl"
        )
    return found[0]


def join(baseline: Path, candidate: Path) -> Run:
    """Return a run whose arms are taken from two places, see `load_side`.

    Raises UserError for one file given twice, and for questions, prompts or sampling that differ: such responses are no
    pairs.
    """
    one, other = load_side(baseline, "baseline"), load_side(candidate, "candidate")
    if one.file.samefile(other.file):
        raise UserError(f"{one.file} is given twice; expected the responses of two arms")
    for side in (one, other):
        if side.meta and side.meta.get("stop_early"):
            raise UserError(
                f"{side.file} is of a run with --stop-early, whose length depends on what it found; expected runs of "
                "fixed length, judge that one by `evalsuite gate` or `report`"
            )
    _check_questions(one, other)
    differing = list(_differing_sampling(one, other))
    if differing:
        raise UserError(
            f"{one.file} and {other.file} were sampled differently: {'; '.join(differing)}; expected the same, run one "
            "of them again"
        )
    meta = one.meta or other.meta or {}
    samples = 1 + max((response.sample for side in (one, other) for response in side.responses), default=0)
    # Whether a set without run.json is gated is not known, so its answers are not shown.
    gated = any(side.meta is None or side.meta["task"]["gated"] for side in (one, other))
    return Run(
        path=one.file.parent,
        meta={
            "schema": SCHEMA,
            "task": {"version": None, **meta.get("task", {"name": one.questions[0].task}), "gated": gated},
            "sampling": meta.get("sampling", {"budget": None, "temperature": None, "samples": samples}),
            "arms": {"baseline": one.arm, "candidate": other.arm},
            "environment": meta.get("environment", {}),
            "questions_sha256": meta.get("questions_sha256"),
            "remarks": tuple(_remark(one, other)),
        },
        questions=one.questions,
        responses={"baseline": one.responses, "candidate": other.responses},
    )


def _check_questions(one: Side, other: Side) -> None:
    ours, theirs = ({question.id: question for question in side.questions} for side in (one, other))
    where = f"{one.file} and {other.file}"
    both = [key for key in ours if key in theirs]
    if not both:
        raise UserError(f"{where} share no question ({len(ours)} and {len(theirs)}); expected the same questions")
    only = [key for key in (*ours, *theirs) if (key in ours) != (key in theirs)]
    if only:
        raise UserError(
            f"{where} differ in {len(only)} questions, the first is {only[0]!r}; expected the same questions, run both "
            "with the same task, seed and --limit"
        )
    prompts = [key for key in both if ours[key].prompt_sha256 != theirs[key].prompt_sha256]
    if prompts:
        raise UserError(
            f"{where} asked {len(prompts)} of {len(both)} questions with different prompts, the first is "
            f"{prompts[0]!r}; expected equal prompts, run one again with the same task version and chat template"
        )
    scored = [key for key in both if ours[key] != theirs[key]]
    if scored:
        raise UserError(
            f"{where} score {len(scored)} of {len(both)} questions differently, the first is {scored[0]!r}; expected "
            "the same targets, run one of them again with the same task version"
        )


def _remark(one: Side, other: Side) -> Iterator[str]:
    """Yield what must be known of the comparison whatever its verdict."""
    if one.meta is None or other.meta is None:
        return
    ours, theirs = one.meta["environment"], other.meta["environment"]
    differing = [name for name in MACHINE if ours.get(name) != theirs.get(name)]
    if differing:
        told = "; ".join(f"{name} {ours.get(name)} and {theirs.get(name)}" for name in differing)
        yield f"the arms ran on different machines or versions ({told}): what differs need not be the arms"


def _differing_sampling(one: Side, other: Side) -> Iterator[str]:
    if one.meta is None or other.meta is None:
        return
    for field in _SAMPLING:
        ours, theirs = one.meta["sampling"][field], other.meta["sampling"][field]
        if ours != theirs:
            yield f"{field} {ours} and {theirs}"
