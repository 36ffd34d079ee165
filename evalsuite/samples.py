"""Read pairs of lm-eval's `samples_*.jsonl`, so that logs which already exist get the same statistics.

Such a log holds the grades that lm-eval gave. Nothing in it shows which kernel served, whether the budget ended a
response, or whether a request failed, so the path is not proven and truncation is not known.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError
from evalsuite.journal import Run
from evalsuite.pairing import Grades
from evalsuite.records import SCHEMA, Question, Response
from evalsuite.scoring import Grade

METRICS = ("exact_match", "acc")
"""The metrics that say right or wrong; the first that a log has is read."""
_NAMED = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[^_]*\.jsonl$")
"""The name that lm-eval gives a log: its task, and when it was written."""
_HASHES = ("doc_hash", "prompt_hash", "target_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one line of a log says."""

    filter: str
    metric: str
    right: bool
    hashes: tuple[str, ...]
    """Of the document, the prompt and the target."""
    response: str | None
    """What was graded: the response after the filter; None where the log does not hold it."""
    settings: Mapping[str, Any]
    """How the response was generated: the budget, the temperature and so on."""


def is_samples(path: Path) -> bool:
    """Return whether the file's first line is that of an lm-eval log of samples."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline()
    try:
        data = json.loads(first)
    except ValueError:
        return False
    return isinstance(data, dict) and "doc_id" in data


def join_samples(baseline: Path, candidate: Path, *, filter_name: str | None = None) -> tuple[Run, Grades]:
    """Return a run whose arms are two logs of one task, and lm-eval's grades of its responses.

    `filter_name` chooses among several filters. Raises UserError for one file given twice, for logs of two tasks, that
    hold several filters or unequal ones where none is chosen, for documents, prompts, targets or settings that differ,
    and for a response that both hold and grade otherwise.
    """
    if baseline.samefile(candidate):
        raise UserError(f"{baseline} is given twice; expected the logs of two arms")
    names = [match[1] for path in (baseline, candidate) if (match := _NAMED.match(path.name))]
    if len(set(names)) > 1:
        raise UserError(f"{baseline} and {candidate} are logs of {' and '.join(names)}; expected one task")
    one, other = (_load(path, filter_name) for path in (baseline, candidate))
    _check_same(baseline, one, candidate, other)
    task, clusters = _task_name(baseline), dict[str, str]()
    questions = tuple(
        Question(
            id=key,
            task=task,
            target="",
            prompt_sha256=sample.hashes[1],
            cluster=clusters.setdefault(sample.hashes[1], key),  # a set may hold a question twice
            scoring={"kind": "lm-eval log", "filter": sample.filter, "metric": sample.metric},
        )
        for key, sample in one.items()
    )
    grades = {
        arm: {
            (key, 0): Grade(verdict="right" if sample.right else "wrong", answer=None) for key, sample in side.items()
        }
        for arm, side in (("baseline", one), ("candidate", other))
    }
    run = Run(
        path=baseline.parent,
        meta={
            "schema": SCHEMA,
            # Whether the set is gated is not known, so nothing of its questions is shown but their numbers.
            "task": {"name": task, "version": None, "gated": True},
            "sampling": {"budget": None, "temperature": None, "samples": 1},
            "arms": {
                "baseline": {"name": str(baseline), "kernel": None},
                "candidate": {"name": str(candidate), "kernel": None},
            },
            "environment": {},
            "remarks": tuple(_remark(one, other)),
        },
        questions=questions,
        responses={arm: tuple(_response(key) for key, _ in side) for arm, side in grades.items()},
    )
    return run, grades


def _load(path: Path, filter_name: str | None) -> dict[str, Sample]:
    """Return the samples of one filter, by the number of their document."""
    found: dict[tuple[str, str], Sample] = {}
    for number, data in _lines(path):
        try:
            key, sample = str(data["doc_id"]), _sample(data)
        except KeyError as error:
            raise UserError(f"{path}, line {number}: {error} is missing; expected a log that lm-eval wrote") from error
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
        if (sample.filter, key) in found:
            raise UserError(f"{path}, line {number}: document {key} is logged twice; expected one line for each")
        found[sample.filter, key] = sample
    filters = sorted({name for name, _ in found})
    if filter_name is not None and filter_name not in filters:
        raise UserError(f"{path} has no filter {filter_name!r}; expected one of {', '.join(filters)}")
    if filter_name is None and len(filters) > 1:
        raise UserError(f"{path} holds several filters ({', '.join(filters)}); choose one with --filter NAME")
    chosen = filter_name or filters[0]
    return {key: sample for (name, key), sample in found.items() if name == chosen}


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                data = json.loads(line)
            except ValueError as error:
                raise UserError(
                    f"{path}, line {number}: not JSON ({error}); expected a log that lm-eval wrote"
                ) from error
            if not isinstance(data, dict):
                raise UserError(f"{path}, line {number}: not a JSON object; expected a log that lm-eval wrote")
            yield number, data


def _sample(data: Mapping[str, Any]) -> Sample:
    """Return what a line says. Raises KeyError for a missing field, ValueError for a metric that is not 0 or 1."""
    metric = next((name for name in METRICS if name in data), None)
    if metric is None:
        raise ValueError(f"the metrics are {data.get('metrics')}; expected {' or '.join(METRICS)}")
    if data[metric] not in (0, 1):
        raise ValueError(f"{metric} is {data[metric]!r}; expected 0 or 1, a question that is right or wrong")
    return Sample(
        filter=str(data.get("filter", "none")),
        metric=metric,
        right=data[metric] == 1,
        hashes=tuple(str(data[name]) for name in _HASHES),
        response=json.dumps(data["filtered_resps"], sort_keys=True) if "filtered_resps" in data else None,
        settings=_settings(data.get("arguments")),
    )


def _settings(arguments: Any) -> dict[str, Any]:
    """Return the arguments of generation: in each request of a line, what follows the prompt, where it is an object."""
    requests = arguments.values() if isinstance(arguments, dict) else ()
    found = [request.get("arg_1") for request in requests if isinstance(request, dict)]
    return {name: value for each in found if isinstance(each, dict) for name, value in each.items()}


def _check_same(baseline: Path, one: Mapping[str, Sample], candidate: Path, other: Mapping[str, Sample]) -> None:
    where = f"{baseline} and {candidate}"
    only = [key for key in (*one, *other) if (key in one) != (key in other)]
    if only:
        raise UserError(
            f"{where} differ in {len(only)} documents, the first is {only[0]}; expected the same, with the same --limit"
        )
    read = [(sample.filter, sample.metric) for side in (one, other) for sample in side.values()]
    if differing := [pair for pair in read if pair != read[0]]:
        raise UserError(
            f"{where} are graded differently: filter and metric {' '.join(read[0])} and {' '.join(differing[0])}; "
            "choose one with --filter NAME"
        )
    for place, what in enumerate(("documents", "prompts", "targets")):
        changed = [key for key in one if one[key].hashes[place] != other[key].hashes[place]]
        if changed:
            raise UserError(
                f"{where} have {len(changed)} of {len(one)} {what} that differ, the first is of document {changed[0]}; "
                "expected the same, run one again with the same task version and chat template"
            )
    for key, sample in one.items():
        ours, theirs = sample.settings, other[key].settings
        if ours != theirs:
            told = [
                f"{name} {ours.get(name)} and {theirs.get(name)}"
                for name in sorted({*ours, *theirs})
                if ours.get(name) != theirs.get(name)
            ]
            raise UserError(f"{where} were sampled differently: {'; '.join(told)}; expected the same, run one again")
    regraded = [key for key in _find_equal(one, other) if one[key].right != other[key].right]
    if regraded:
        raise UserError(
            f"{where} grade {len(regraded)} equal responses differently, the first is to document {regraded[0]}; "
            "expected one grader, score one of them again"
        )


def _find_equal(one: Mapping[str, Sample], other: Mapping[str, Sample]) -> list[str]:
    """Return the documents to which both logs hold the same response."""
    return [key for key in one if one[key].response is not None and one[key].response == other[key].response]


def _remark(one: Mapping[str, Sample], other: Mapping[str, Sample]) -> Iterator[str]:
    if len(_find_equal(one, other)) == len(one):
        yield "all responses are equal in both logs: one may be a copy, or a cache have answered for one of the arms"


def _task_name(path: Path) -> str:
    return re.sub(r"^samples_|_\d{4}-\d\d-\d\dT[^_]*$", "", path.stem)


def _response(key: str) -> Response:
    """Return a response of which nothing is known."""
    return Response(
        question=key,
        sample=0,
        text=None,
        prompt_tokens=None,
        token_ids=None,
        logprobs=None,
        runner_up_ids=None,
        runner_up_logprobs=None,
        finish_reason=None,
        stop_reason=None,
        tokens=None,
        seconds_to_first_token=None,
        seconds=None,
        seed=None,
        receipt=None,
        session=1,
    )
