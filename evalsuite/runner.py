"""Ask both arms the same questions, one request at a time, and keep every response."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite import arms as arms_module
from evalsuite import early, environment, journal, progress, prompts, server, settle
from evalsuite.arms import Arm
from evalsuite.checkpoint import context_length, digest, find_checkpoint
from evalsuite.client import Prompt, RequestFailed, Sampling
from evalsuite.errors import UserError
from evalsuite.receipts import fingerprint, plan_fingerprint
from evalsuite.records import ARMS, SCHEMA, Question, Response, response_of, seed_of, to_json

Ask = Callable[[Question], None]
Serve = Callable[[], AbstractContextManager[Ask]]

ATTEMPTS = 3
"""Times a question is asked before an error is recorded in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user asks for on the command line."""

    task: str
    baseline: str
    candidate: str
    model: str | None = None
    arms_file: Path | None = None
    limit: int | None = None
    data: Path | None = None
    include_path: Path | None = None
    context: tuple[int, ...] | None = None
    budget: int | None = None
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0
    margin: float | None = None
    stop_early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides what will be asked, and of whom."""

    meta: Mapping[str, Any]
    arms: Mapping[str, Arm]
    checkpoints: Mapping[str, Path | None]
    model: str | None
    questions: Sequence[Question]
    prompts: Mapping[str, Prompt]
    sampling: Sampling
    samples: int
    seed: int


def default_pair() -> tuple[str, str]:
    """Return the arms that are compared where none is named."""
    return ("fa2", "hybrid") if environment.nvidia_gpu() else ("cpu", "cpu-hybrid")


def prepare(settings: Settings) -> Plan:
    """Load task, arms and model, and check that every question fits. Nothing is started or written yet."""
    from evalsuite.tasks import load_task

    _check_settings(settings)
    known = arms_module.load_arms(settings.arms_file)
    arms = {
        "baseline": arms_module.find_arm(settings.baseline, known),
        "candidate": arms_module.find_arm(settings.candidate, known),
    }
    task = load_task(
        settings.task,
        limit=settings.limit,
        data=settings.data,
        include_path=settings.include_path,
        seed=settings.seed,
        context=settings.context,
    )
    budget = settings.budget or task.budget
    all_attached = all(arm.url for arm in arms.values())
    checkpoints = {
        side: None if arm.url else find_checkpoint(arm.model or settings.model) for side, arm in arms.items()
    }
    folders = [folder for folder in checkpoints.values() if folder]
    if all_attached and settings.model and Path(settings.model).is_dir():
        folders = [find_checkpoint(settings.model)]
    questions, rendered = prompts.render(task.questions, task.messages, folders)
    if settings.stop_early:
        questions = early.shuffle(questions, settings.seed)
    for side, arm in arms.items():
        folder = checkpoints[side]
        limit = context_length(folder, arm.args) if folder else None
        if limit is not None:
            prompts.refuse_too_long(questions, rendered, budget=budget, limit=limit)
    sampling = Sampling(budget=budget, temperature=settings.temperature, until=task.until)
    meta = {
        "schema": SCHEMA,
        "task": {
            "name": task.name,
            "version": task.version,
            "gated": task.gated,
            "seed": settings.seed,
            "limit": settings.limit,
            "context": None if settings.context is None else list(settings.context),
            "include_path": None if settings.include_path is None else str(settings.include_path.resolve()),
            "data": None if settings.data is None else settings.data.name,
            "data_sha256": None if settings.data is None else hashlib.sha256(settings.data.read_bytes()).hexdigest(),
        },
        "questions_sha256": _hash([to_json(question) for question in questions]),
        "sampling": {
            "budget": budget,
            "temperature": settings.temperature,
            "samples": settings.samples,
            "seed": settings.seed,
            "until": list(task.until),
        },
        "margin": settings.margin,
        "stop_early": {"alpha": early.ALPHA} if settings.stop_early else None,
        "arms": {side: _arm_meta(arm, checkpoints[side], settings.model) for side, arm in arms.items()},
        "stamped": True,  # each receipt names arm and plan
        "attention": environment.attention_package(),
        "environment": environment.describe(),
    }
    return Plan(
        meta=meta,
        arms=arms,
        checkpoints=checkpoints,
        model=settings.model,
        questions=questions,
        prompts=rendered,
        sampling=sampling,
        samples=settings.samples,
        seed=settings.seed,
    )


def _check_settings(settings: Settings) -> None:
    if settings.stop_early and settings.margin is None:
        raise UserError("--stop-early has no --margin; give the largest loss accepted, it decides when to stop")
    if settings.samples > 1 and settings.temperature == 0:
        raise UserError(
            f"{settings.samples} samples at temperature 0 are the same response {settings.samples} times; give "
            "--temperature above 0, or one sample"
        )


def _arm_meta(arm: Arm, folder: Path | None, model: str | None) -> dict[str, Any]:
    sha256 = None if folder is None else digest(folder)
    # The digest says which model it is; where it lay is this machine's business.
    return {**arms_module.to_json(arm, model_sha256=sha256), "model": folder.name if folder else arm.model or model}


def _hash(data: object) -> str:
    return hashlib.sha256(journal.dump(data).encode()).hexdigest()


def default_folder(plan: Plan) -> Path:
    """Return runs/TASK-HASH: the same command finds the same run again."""
    planned = {key: value for key, value in plan.meta.items() if key != "environment"}
    name = str(plan.meta["task"]["name"]).replace(":", "-").replace("/", "-")
    return Path("runs") / f"{name}-{_hash(planned)[:10]}"


@contextmanager
def open_run(plan: Plan, folder: Path) -> Iterator[None]:
    """Create the run directory or check that it is this plan's, and hold it for this process alone."""
    mend = "name another directory with --run"
    with journal.open_folder(folder, name="run.json", meta=plan.meta, mend=mend):
        if not (folder / "questions.jsonl").exists():
            journal.write_questions(folder / "questions.jsonl", plan.questions)
        yield


def run(plan: Plan, folder: Path) -> None:
    """Ask each arm every question that its journal lacks, or with `stop_early` as many as settle the matter."""
    with open_run(plan, folder):
        answered: dict[str, list[Response]] = {side: journal.read_responses(folder / f"{side}.jsonl") for side in ARMS}
        session = 1 + max((r.session for done in answered.values() for r in done), default=0)
        arms: dict[str, Serve] = {
            side: partial(_serve, plan, folder, side, answered[side], session=session) for side in ARMS
        }
        for side in ARMS:
            if plan.arms[side].url and len(answered[side]) < len(plan.questions) * plan.samples:
                with server.serve(plan.arms[side], None, folder, progress.announce, plan.model):
                    pass  # an address that does not answer ends the run before hours of the other arm
        if plan.meta.get("stop_early"):
            _ask_until_settled(plan, arms, settle.watch(plan.meta, plan.questions, answered))
            return
        for side in ARMS:
            with arms[side]() as ask:
                for question in plan.questions:
                    ask(question)


@contextmanager
def _serve(plan: Plan, folder: Path, side: str, answered: list[Response], *, session: int) -> Iterator[Ask]:
    """Serve an arm, unless nothing is left to ask, and yield a function that asks a question that `answered` lacks."""
    planned = {(question.id, sample) for question in plan.questions for sample in range(plan.samples)}
    todo = planned - {(response.question, response.sample) for response in answered}
    if not todo:
        yield lambda question: None
        return
    arm, log = plan.arms[side], folder / f"{side}.log"
    stamp = fingerprint(plan.meta["arms"][side])
    out = journal.Journal(folder / f"{side}.jsonl")
    try:
        with (
            server.serve(arm, plan.checkpoints[side], log, progress.announce, plan.model) as serving,
            progress.asking(f"{side} ({arm.name})", total=len(planned), done=len(planned) - len(todo)) as step,
        ):

            def ask(question: Question) -> None:
                for sample in range(plan.samples):
                    if (question.id, sample) in todo:
                        response = ask_once(plan, serving, question, sample, session=session)
                        if response.receipt is not None:
                            response = replace(response, receipt={**response.receipt, "arm": stamp})
                        out.append(response)
                        answered.append(response)
                        todo.remove((question.id, sample))
                        step()

            yield ask
    finally:
        out.close()


def _ask_until_settled(plan: Plan, arms: Mapping[str, Serve], settled: Callable[[], bool]) -> None:
    """Ask both arms question by question until `settled`.

    Both servers are up at once. Where the second finds no memory beside the first, the baseline is asked everything
    before the candidate starts; the run stops after the same question either way.
    """
    if settled():
        return
    with ExitStack() as up:
        ask_baseline = up.enter_context(arms["baseline"]())
        try:
            ask_candidate = up.enter_context(arms["candidate"]())
        except server.OutOfMemory:
            progress.say("both servers do not fit into memory at once, so the baseline is asked everything first")
            for question in plan.questions:
                ask_baseline(question)
                if settled():
                    return
            up.close()
            ask_candidate = up.enter_context(arms["candidate"]())
        for question in plan.questions:
            ask_baseline(question)
            ask_candidate(question)
            if settled():
                return


def ask_once(
    plan: Plan, serving: server.Server | server.Attached, question: Question, sample: int, *, session: int
) -> Response:
    """Return the response to one question, or the error that stood after `ATTEMPTS` tries, each on a fresh server."""
    seed = seed_of(plan.seed, question.id, sample)
    fixed: dict[str, Any] = {"question": question.id, "sample": sample, "seed": seed, "session": session}
    error = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            progress.say(f"{serving.arm.name}: {question.id} failed ({error[:200]}); asking again on a fresh server")
            serving.restart()
        try:
            told = serving.endpoint.ask(plan.prompts[question.id], plan.sampling, seed=seed)
            receipt = serving.take_receipt()
            if receipt is not None:
                receipt = {**receipt, "plan": plan_fingerprint(plan.meta)}
            return Response(**fixed, **told, receipt=receipt)
        except RequestFailed as failure:
            error = str(failure)
            if failure.final:
                break
            time.sleep(0.2)
    progress.say(f"{serving.arm.name}: {question.id} is recorded as an error ({error[:200]})")
    return response_of(**fixed, error=error)
