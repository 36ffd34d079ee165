"""Which runs say something of one release: one run of each task, all of one plan."""

from collections.abc import Iterator, Sequence
from typing import Any

from evalsuite.errors import UserError
from evalsuite.journal import Run
from evalsuite.policy import Policy
from evalsuite.records import ARMS
from evalsuite.sides import MACHINE


def task_of(run: Run) -> str:
    """Return the name of a run's task."""
    return str(run.meta["task"]["name"])


def check_tasks(runs: Sequence[Run], policy: Policy) -> None:
    """Refuse runs that are not one run of each task of the policy."""
    seen: dict[str, Run] = {}
    asked: dict[tuple[str, ...], Run] = {}
    for run in runs:
        task = task_of(run)
        if others := sorted({question.task for question in run.questions} - {task}):
            raise UserError(f"{run.path} is a run of {task} by run.json, and its questions are of {', '.join(others)}")
        prompts = tuple(sorted(question.prompt_sha256 for question in run.questions))
        first = asked.setdefault(prompts, run)
        if prompts and first is not run and task_of(first) != task:
            raise UserError(f"{first.path} and {run.path} ask the same questions as two tasks; expected each task once")
        if task in seen:
            raise UserError(f"{seen[task].path} and {run.path} are both runs of {task}; expected one run of each task")
        if task not in policy.tasks:
            raise UserError(f"{run.path} is a run of {task}, which the policy does not name; add [task.{task}] to it")
        seen[task] = run
    for task in policy.tasks:
        if task not in seen:
            raise UserError(f"the policy names {task}, but no run of it is given; add its run, or take it out")


def check_same_plan(one: Run, other: Run) -> None:
    """Refuse runs whose arms, sampling or environment differ: together they say nothing about one release."""
    for (field, ours), (_, theirs) in zip(_plan(one), _plan(other), strict=True):
        if ours != theirs:
            raise UserError(
                f"{one.path} and {other.path} are runs of different plans: {field} is {ours!r} and {theirs!r}; "
                "expected one baseline and one candidate for all tasks"
            )


def _plan(run: Run) -> Iterator[tuple[str, Any]]:
    # Not the budget: it is the task's, and differs from one to the next.
    for arm in ARMS:
        for field in ("name", "model", "model_sha256", "backend", "kernel", "args", "env", "url"):
            yield f"{field} of the {arm}", run.meta["arms"][arm].get(field)
    yield "attention package", (run.meta.get("attention") or {}).get("sha256")
    yield "temperature", run.meta["sampling"]["temperature"]
    for field in MACHINE:
        yield field, run.meta["environment"].get(field)
