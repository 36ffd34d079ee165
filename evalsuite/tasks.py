"""Load what is asked: the shipped tasks, a user's lm-eval task files, or lm-eval's own tasks."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalsuite import harness
from evalsuite.errors import UserError
from evalsuite.records import Question

DEFAULT_TASK = "capitals"
Messages = tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Questions and how they are asked."""

    name: str
    version: str
    budget: int
    """Most tokens of a response, where the user names no other number."""
    gated: bool
    """Whether the owners ask that questions and responses stay unpublished."""
    questions: tuple[Question, ...]
    """Each with the hash of its messages; the hash of the rendered prompt is known once there is a chat template."""
    messages: Mapping[str, Messages]
    """Question id -> the chat that asks it, worked examples first."""
    until: tuple[str, ...]
    """Strings that end a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """One line of `evalsuite tasks`."""

    name: str
    about: str
    budget: int
    needs: str
    """`nothing`, `network`, or `hub token or --data FILE`."""


def list_tasks(include_path: Path | None = None) -> list[TaskSummary]:
    """Return the shipped tasks and those of `include_path`, by name. Nothing is loaded."""
    index = harness.open_index(include_path).task_index
    summaries = []
    for name in sorted(index):
        config = index[name].cfg or {}
        metadata = config.get("metadata") or {}
        if "task" in config and isinstance(config["task"], str):
            summaries.append(
                TaskSummary(
                    name=name,
                    about=metadata.get("about") or f"in {index[name].yaml_path}",
                    budget=_budget(config.get("generation_kwargs")),
                    needs=metadata.get("needs")
                    or ("nothing" if config.get("dataset_path") in (None, "json", "csv") else "network"),
                )
            )
    return summaries


def size_of(name: str) -> int:
    """Return how many questions a shipped task asks unless told otherwise. Nothing is loaded.

    Raises UserError for a name that no shipped task has.
    """
    if name.startswith(harness.BUILT_IN):
        raise UserError(f"the number of questions of {name} is not known without its data; give it with --questions N")
    metadata = harness.entry_of(harness.open_index(None), name, asked=name).cfg["metadata"]
    return int(metadata["questions"] if "questions" in metadata else metadata["size"])


def load_task(
    name: str,
    *,
    limit: int | None = None,
    data: Path | None = None,
    include_path: Path | None = None,
    seed: int = 0,
    context: Sequence[int] | None = None,
) -> Task:
    """Return the first `limit` questions of a task, or its usual number.

    Generated tasks follow from `seed`, question by question: fewer are the beginning of more. The questions of a fixed
    set come in an order that follows from their ids and `seed`, so that a part of it is a fair sample. `lm-eval:NAME`
    is a task of lm-eval's own, in its own order. `context` are the lengths in tokens of prompt and budget together, for
    tasks whose prompts can be as long as asked. Raises UserError for whatever is wrong with the request or the data.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit is {limit}; expected at least 1")
    own, built_in = name.removeprefix(harness.BUILT_IN), name.startswith(harness.BUILT_IN)
    manager = harness.open_index(include_path, built_in=built_in)
    entry = harness.entry_of(manager, own, asked=name)
    shipped = not built_in and Path(entry.yaml_path).parent == Path(harness.shipped_folder())
    if data is not None and not (shipped and entry.cfg["metadata"]["needs"] != "nothing"):
        raise UserError(f"--data does not go with {name}, which reads no file; leave it out")
    if context is not None and not (shipped and "context" in entry.cfg["metadata"]):
        raise UserError(f"--context does not go with {name}, whose prompts have their own length; leave it out")
    if shipped:
        return _load_shipped(entry.cfg, limit=limit, data=data, seed=seed, context=context)
    return _load_foreign(manager, own, asked=name, limit=limit, seed=seed)


def _load_shipped(
    config: Mapping[str, Any], *, limit: int | None, data: Path | None, seed: int, context: Sequence[int] | None
) -> Task:
    name, metadata = config["task"], config["metadata"]
    generated = "questions" in metadata
    gated = bool(metadata.get("gated"))
    if gated and data is None:
        _require_token(name)
    options: dict[str, Any] = {"seed": seed, "data": None if data is None else str(data)}
    if generated:
        options["questions"] = limit or metadata["questions"]
    if context is not None:
        options["context"] = list(context)
    manager = harness.open_index(None, metadata=options)
    hint = "" if generated else "; or give the set as a file with --data"
    task = harness.build(manager, name, asked=name, shipped=True, data_hint=hint)
    asked = harness.chat_requests(task, limit=None, seed=seed, asked=name)
    if not generated:
        asked.sort(key=lambda pair: hashlib.sha256(f"{seed}/{pair[0].doc['id']}".encode()).digest())
    questions: list[Question] = []
    messages: dict[str, Messages] = {}
    clusters: dict[str, str] = {}
    for instance, chat in asked:
        doc, digest = instance.doc, _digest(chat)
        identity = doc["id"] if doc["id"] not in messages else f"{doc['id']}-{len(messages)}"
        messages[identity] = chat
        questions.append(
            Question(
                id=identity,
                task=name,
                target=doc["target"],
                prompt_sha256=digest,
                cluster=clusters.setdefault(digest, doc["cluster"]),  # a set may hold a question twice
                scoring=json.loads(doc["scoring"]),
            )
        )
    return _first(
        limit,
        Task(
            name=name,
            version=str(metadata["version"]),
            budget=_budget(config["generation_kwargs"]),
            gated=gated,
            questions=tuple(questions),
            messages=messages,
            until=tuple(config["generation_kwargs"]["until"]),
        ),
    )


def _load_foreign(manager: Any, name: str, *, asked: str, limit: int | None, seed: int) -> Task:
    task = harness.build(manager, name, asked=asked)
    filter_name, metric = harness.check_foreign(task, asked)
    requests = harness.chat_requests(task, limit=limit, seed=seed, asked=asked)
    questions, messages = [], {}
    clusters: dict[str, str] = {}
    for instance, chat in requests:
        identity, digest = f"{name}-{instance.doc_id}", _digest(chat)
        messages[identity] = chat
        target = task.doc_to_target(instance.doc)
        scoring = {
            "kind": "lm-eval",
            "task": asked,
            "doc": instance.doc_id,
            "doc_sha256": harness.doc_digest(instance.doc),
            "filter": filter_name,
            "metric": metric,
        }
        questions.append(
            Question(
                id=identity,
                task=asked,
                target=target if isinstance(target, str) else json.dumps(target, default=str),
                prompt_sha256=digest,
                cluster=clusters.setdefault(digest, identity),  # a set may hold a question twice
                scoring=scoring,
            )
        )
    options = requests[0][0].args[1]
    until = options.get("until") or ()
    return _first(
        limit,
        Task(
            name=asked,
            version=str(task.VERSION),
            budget=_budget(options),
            gated=False,
            questions=tuple(questions),
            messages=messages,
            until=(until,) if isinstance(until, str) else tuple(until),
        ),
    )


def _first(limit: int | None, task: Task) -> Task:
    if limit is None or limit == len(task.questions):
        return task
    if limit > len(task.questions):
        raise UserError(
            f"--limit is {limit}, but {task.name} has {len(task.questions)} questions; lower it or leave it out"
        )
    kept = task.questions[:limit]
    return replace(task, questions=kept, messages={question.id: task.messages[question.id] for question in kept})


def _require_token(name: str) -> None:
    with harness.quiet():
        from huggingface_hub import get_token
    if not (os.environ.get("HF_TOKEN") or get_token()):
        raise UserError(
            f"{name} is gated on the Hugging Face hub and no token is set; accept its terms there and set HF_TOKEN, "
            "or give the official CSV with --data FILE"
        )


def _budget(options: Mapping[str, Any] | None) -> int:
    """Return the most tokens of a response that a task file names, else lm-eval's own default."""
    options = options or {}
    return int(options.get("max_gen_toks") or options.get("max_tokens") or options.get("max_new_tokens") or 256)


def _digest(chat: Messages) -> str:
    return hashlib.sha256(json.dumps(list(chat), sort_keys=True).encode()).hexdigest()
