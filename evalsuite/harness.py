"""The only module that touches lm-eval: find a task, build it, take its prompts, score by its own filter and metric."""

import contextlib
import difflib
import hashlib
import io
import json
import logging
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError

BUILT_IN = "lm-eval:"
NOT_BINARY = frozenset(
    {"bleu", "chrf", "ter", "f1", "rouge1", "rouge2", "rougeL", "rougeLsum", "bert_score", "perplexity"}
)

WRONG_FILE = (ImportError, SyntaxError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError)
"""What a task file and its functions raise when they are wrong."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep lm-eval's and the hub's log lines, warnings and progress bars off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def pinned_random() -> Iterator[None]:
    """Give tasks that draw from the process's generator the same draws each time, and put its state back."""
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)


def shipped_folder() -> str:
    """Return where the shipped task files lie."""
    import evalsuite_tasks  # type: ignore[import-not-found,unused-ignore]

    return str(next(iter(evalsuite_tasks.__path__)))


def open_index(include_path: Path | None, *, built_in: bool = False, metadata: Mapping[str, Any] | None = None) -> Any:
    """Return lm-eval's task manager over the shipped tasks and `include_path`, or over its own with `built_in`."""
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"--include-path {include_path} is no folder; expected one with lm-eval task files (*.yaml)")
    paths = [] if built_in else [shipped_folder()]
    with quiet():
        from lm_eval.tasks import TaskManager

        return TaskManager(
            include_path=[*paths, *([str(include_path)] if include_path else [])],
            include_defaults=built_in,
            metadata=dict(metadata or {}),
        )


def entry_of(manager: Any, name: str, *, asked: str) -> Any:
    """Return the index entry of one task. Raises UserError with the nearest names, or with a group's members."""
    entry = manager.task_index.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, manager.all_subtasks, n=3, cutoff=0.5)
        prefix = BUILT_IN if asked.startswith(BUILT_IN) else ""
        hint = "did you mean " + ", ".join(prefix + other for other in near) + "?" if near else "see `evalsuite tasks`"
        if not prefix:
            hint += f" (tasks of lm-eval's own: {BUILT_IN}NAME)"
        raise UserError(f"no task is named {asked!r}; {hint}")
    if name not in manager.all_subtasks:
        members = (entry.cfg or {}).get("task") or sorted(entry.tags)
        prefix = BUILT_IN if asked.startswith(BUILT_IN) else ""
        named = [prefix + member for member in members if isinstance(member, str)][:5]
        raise UserError(f"{asked!r} is a group of tasks; ask for one of them: {', '.join(named) or 'see its file'}")
    _check_output_type((entry.cfg or {}).get("output_type", "generate_until"), asked)  # before its data are fetched
    return entry


def _check_output_type(output_type: str, asked: str) -> None:
    if output_type != "generate_until":
        raise UserError(
            f"{asked} can't be used: its output_type is {output_type}; expected generate_until, an answer in words"
        )


def build(manager: Any, name: str, *, asked: str, shipped: bool = False, data_hint: str = "") -> Any:
    """Return the built lm-eval task, its data loaded.

    Trouble with the hub is a UserError, and so is a wrong task file unless it is `shipped`: then it is a bug of ours.
    """
    wrong_file = () if shipped else WRONG_FILE
    with quiet(), pinned_random():
        from datasets.exceptions import DatasetsError
        from httpx import HTTPError
        from huggingface_hub.errors import HfHubHTTPError
        from jinja2 import TemplateError

        try:
            return manager.load(name)["tasks"][name]
        except UserError:
            raise
        except (DatasetsError, HTTPError, HfHubHTTPError, OSError) as error:
            raise UserError(f"{asked}: {_hub_trouble(error)}{data_hint}") from error
        except (*wrong_file, TemplateError) as error:
            if isinstance(error, IndexError):
                raise UserError(f"{asked} has no questions; expected at least one in its test split") from error
            line = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"{asked} can't be built ({line}); mend its file") from error


def _hub_trouble(error: Exception) -> str:
    line = first_line(error)
    if "gated" in line.lower() or "401" in line or "403" in line:
        return f"the hub refuses its data ({line}); accept its terms there and set HF_TOKEN"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | ConnectionError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    return f"its data can't be fetched ({line}); needs the Hugging Face hub once, later runs use the cache"


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, cut to 160 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def chat_requests(
    task: Any, *, limit: int | None, seed: int, asked: str
) -> list[tuple[Any, tuple[Mapping[str, str], ...]]]:
    """Return (lm-eval instance, chat messages) of each question, worked examples as turns of their own."""
    task.set_fewshot_seed(seed)
    with quiet(), pinned_random():
        from jinja2 import TemplateError

        try:
            task.build_all_requests(
                limit=limit,
                apply_chat_template=True,
                fewshot_as_multiturn=True,
                chat_template=lambda messages, add_generation_prompt=True: json.dumps(messages),
            )
        except (*WRONG_FILE, TemplateError) as error:
            line = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"{asked}: its prompts can't be built ({line}); mend its file") from error
    return [(instance, tuple(json.loads(instance.args[0]))) for instance in task.instances]


def check_foreign(task: Any, asked: str) -> tuple[str, str]:
    """Return the filter and the metric that grade a task of the user's or of lm-eval's own.

    Raises UserError for a task that two chat servers can't be compared on.
    """
    _check_output_type(task.OUTPUT_TYPE, asked)
    trouble = None
    if getattr(task, "UNSAFE_CODE", False):
        trouble = "it executes what the model writes; evalsuite does not"
    elif getattr(task, "MULTIMODAL", False):
        trouble = "it shows images or plays sound; evalsuite asks with text only"
    elif task.get_config("gen_prefix"):
        trouble = "it begins the answer for the model (gen_prefix), which a chat server can't continue"
    elif (task.get_config("repeats") or 1) > 1:
        trouble = f"it asks every question {task.get_config('repeats')} times (repeats); expected 1"
    metrics = [name for name in task.aggregation() if name not in NOT_BINARY]
    if trouble is None and not metrics:
        trouble = f"its metrics ({', '.join(task.aggregation()) or 'none'}) don't call an answer right or wrong"
    if trouble:
        raise UserError(f"{asked} can't be used: {trouble}")
    return task._filters[0].name, next((name for name in metrics if name == "exact_match"), metrics[0])


def doc_digest(doc: Any) -> str:
    """Return the SHA-256 of a question's data, by which scoring makes sure that it is still the same question."""
    return hashlib.sha256(json.dumps(doc, sort_keys=True, default=str).encode()).hexdigest()


def score(
    task: Any, answers: Sequence[tuple[Any, str]], *, filter_name: str, metric: str, asked: str
) -> list[tuple[bool, Any]]:
    """Return (right, what the filter made of the text) for each (instance, text), by the task's own rules."""
    graded = []
    for instance, text in answers:
        instance.resps, instance.filtered_resps = [text], {}
        task._instances = [instance]
        with quiet():
            task.apply_filters()
            found = instance.filtered_resps[filter_name]
            value = task.process_results(instance.doc, [found]).get(metric)
        if value not in (0, 1):
            raise UserError(f"{asked}: its metric {metric} is {value!r}; expected 1 (right) or 0 (wrong)")
        graded.append((bool(value), found))
    return graded
