"""Forced decoding: every arm generates the baseline's recorded tokens and says what else it could have chosen.

Greedy text parts at the first near tie, after which two arms are no longer asked the same. Here they are: each step of
each arm continues the very tokens that the baseline wrote, through the *decode* kernel, as in free generation (logprobs
of a prompt would come from prefill, and test nothing), so that every step compares two whole distributions.

    RUN/forced/force.json          plan and environment, written first, never changed
    RUN/forced/baseline.jsonl      what the baseline says to its own tokens
    RUN/forced/again.jsonl         the baseline once more: the noise floor
    RUN/forced/candidate.jsonl
    RUN/forced/right-NAME.jsonl    kernels known to be right: what rounding does, see `drift`
    RUN/forced/right-NAME.left-out instead of it: its server did not start

One line a response, appended and fsynced as it arrives; the same command resumes. `force_output` derives the rest.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from evalsuite import arms as arms_module
from evalsuite import envelope, environment, journal, progress, prompts, report, runner, server
from evalsuite.arms import Arm
from evalsuite.checkpoint import digest, find_checkpoint
from evalsuite.client import Prompt, RequestFailed
from evalsuite.errors import UserError
from evalsuite.journal import Run
from evalsuite.receipts import fingerprint
from evalsuite.records import SCHEMA, Forced, Response, check_types, forced_from_json
from evalsuite.verdict import Verdict

FOLDER = "forced"
TOP = 8
"""Most probable tokens that are recorded at each step."""
_KV_BYTES = 4 << 30
PROCESSOR = "evalsuite.forced:ForcedTokens"


SIDES = {"baseline": "baseline", "again": "baseline", "candidate": "candidate"}
"""The arm of the run that each role is served as; the others are right kernels."""
_META: Mapping[str, tuple[type, ...]] = {
    "baseline_sha256": (str,), "tokens": (int,), "responses": (int,), "top": (int,), "arms": (dict,),
    "attention": (dict, type(None)),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is forced on whom."""

    meta: Mapping[str, Any]
    arms: Mapping[str, Arm]
    """By role: baseline, again, candidate, right-NAME."""
    checkpoints: Mapping[str, Path]
    responses: Sequence[Response]
    """The baseline's, in the order asked."""
    prompts: Mapping[str, Prompt]


def serving(arm: Arm, *, top: int, jobs: int = 1) -> Arm:
    """Return the arm with the server's flags that forced decoding needs, `jobs` servers at a time.

    Several that start on one GPU at once take each other's memory for their own unless the cache's size is given.
    """
    share = ("--gpu-memory-utilization", f"{0.9 / jobs:.2f}", "--kv-cache-memory-bytes", str(_KV_BYTES))
    side_by_side = share if jobs > 1 and arm.backend != "CPU_ATTN" else ()
    needed = ("--logits-processors", PROCESSOR, "--max-logprobs", str(top))
    return replace(arm, args=(*side_by_side, *arm.args, *needed))


def prepare(
    run: Run,
    *,
    tokens: int | None = None,
    top: int = TOP,
    right: Sequence[str] = (),
    arms_file: Path | None = None,
    models: Sequence[str] = (),
    data: Path | None = None,
) -> Plan:
    """Return the plan for a run: its baseline's leading responses, up to `tokens` tokens of them or all.

    Nothing is started or written yet. Raises UserError where the run cannot be forced: it is INVALID, an arm was
    attached, no token ids are recorded, its model, questions or attention package are not at hand.
    """
    _check_run(run)
    arms = {role: _arm_from_json(run.meta["arms"][side]) for role, side in SIDES.items()}
    baseline = arms["baseline"]
    known = arms_module.load_arms(arms_file)
    for arm in [*envelope.right_kernels(baseline), *(arms_module.find_arm(name, known) for name in right)]:
        if arm.url or arm.model or arm.kernel != "stock" or arm.backend in (None, "CUSTOM") or envelope.switches(arm):
            raise UserError(
                f"--right {arm.name} is attached, has a model of its own or runs the attention package; name an arm of "
                "vLLM's own kernels"
            )
        arms[f"right-{arm.name}"] = envelope.like(baseline, arm)
        if changed := envelope.find_other_flags(baseline.args, arms[f"right-{arm.name}"].args):
            raise UserError(
                f"--right {arm.name} changes {', '.join(changed)}, which is more than rounding; name an arm that "
                "differs from the baseline in its attention flags only"
            )
    checkpoints = _find_checkpoints(run, arms, models)
    rendered = _render(run, sorted({*checkpoints.values()}), data)
    responses = _choose(run, tokens)
    file = (run.path / "baseline.jsonl").read_bytes()
    meta = {
        "schema": SCHEMA,
        "baseline_sha256": hashlib.sha256(file).hexdigest(),
        "tokens": sum(len(response.token_ids or ()) for response in responses),
        "responses": len(responses),
        "top": top,
        "arms": {
            role: {**arms_module.to_json(arm, model_sha256=digest(checkpoints[role])), "model": checkpoints[role].name}
            for role, arm in arms.items()
        },
        "attention": environment.attention_package(),
        "environment": environment.describe(),
    }
    return Plan(meta=meta, arms=arms, checkpoints=checkpoints, responses=responses, prompts=rendered)


def _check_run(run: Run) -> None:
    for side, arm in run.meta["arms"].items():
        if arm.get("url") or arm.get("kernel") is None:
            raise UserError(
                f"{run.path}: the {side} {arm['name']} was attached or imported; forced decoding needs a server that "
                "evalsuite starts"
            )
    decision = report.derive(run).decision
    if decision.verdict is Verdict.INVALID:
        raise UserError(f"{run.path} is {decision.headline}; expected a run whose evidence holds")
    lacking = sum(response.error is None and not response.token_ids for response in run.responses["baseline"])
    if lacking:
        raise UserError(f"{run.path}: {lacking} responses of the baseline have no token ids; run it again to get them")
    installed = environment.attention_package()
    if (installed or {}).get("sha256") != (run.meta["attention"] or {}).get("sha256"):
        raise UserError(
            f"{run.path} was served by another attention package than the one installed here; install that one, or "
            "run the questions again"
        )


def _arm_from_json(data: Mapping[str, Any]) -> Arm:
    try:
        checked = check_types(data, {"args": (list,), "env": (dict,), "flash_attn_version": (int, type(None))})
    except (KeyError, TypeError) as error:
        raise UserError(
            f"run.json does not say how {data['name']} was served ({error}); run the questions again"
        ) from error
    fields = ("name", "env", "backend", "flash_attn_version", "kernel")
    return Arm(args=tuple(map(str, checked["args"])), **{field: data[field] for field in fields})


def _find_checkpoints(run: Run, arms: Mapping[str, Arm], models: Sequence[str]) -> dict[str, Path]:
    """Return each role's checkpoint: of `models`, or of the embedded default, the one with the recorded digest."""
    folders = {digest(folder): folder for folder in map(find_checkpoint, models or (None,))}
    found = {}
    for role in arms:
        recorded = run.meta["arms"][SIDES.get(role, "baseline")]
        if recorded["model_sha256"] not in folders:
            raise UserError(
                f"the model of {run.path}'s {recorded['name']}, {recorded['model']} with digest "
                f"{str(recorded['model_sha256'])[:12]}, is not {', '.join(map(str, folders.values()))}; name its "
                "folder with --model"
            )
        found[role] = folders[recorded["model_sha256"]]
    return found


def _render(run: Run, folders: Sequence[Path], data: Path | None) -> dict[str, Prompt]:
    """Return the prompts of a run's questions, which a run directory does not hold, after their hashes agreed."""
    from evalsuite.tasks import load_task

    planned = run.meta["task"]
    folder = planned.get("include_path")
    task = load_task(
        planned["name"],
        limit=planned.get("limit"),
        data=data,
        include_path=None if folder is None else Path(folder),
        seed=planned["seed"],
        context=planned.get("context"),
    )
    questions, rendered = prompts.render(task.questions, task.messages, folders)
    hashes = {question.id: question.prompt_sha256 for question in questions}
    differing = [question.id for question in run.questions if hashes.get(question.id) != question.prompt_sha256]
    if differing:
        raise UserError(
            f"{len(differing)} of {len(run.questions)} questions of {run.path} are no longer asked the same way, the "
            f"first is {differing[0]!r}; expected the task, data and tokenizer of the run"
        )
    return rendered


def _choose(run: Run, tokens: int | None) -> list[Response]:
    order = {question.id: at for at, question in enumerate(run.questions)}
    chosen: list[Response] = []
    for response in sorted(run.responses["baseline"], key=lambda response: (order[response.question], response.sample)):
        if response.error is None:
            chosen.append(response)
            if tokens is not None and sum(len(each.token_ids or ()) for each in chosen) >= tokens:
                break
    if not chosen:
        raise UserError(f"{run.path}: the baseline has no response to force")
    return chosen


def measure(plan: Plan, folder: Path, *, jobs: int = 1) -> None:
    """Ask every role what its evidence lacks, `jobs` servers at a time.

    A right kernel whose server does not start here is left out, which a line says; any other raises UserError.
    """
    mend = f"remove {folder} to begin anew"
    with (
        journal.open_folder(folder, name="force.json", meta=plan.meta, mend=mend),
        ThreadPoolExecutor(jobs) as pool,
    ):
        failed = Event()
        for done in [pool.submit(_measure_role, plan, folder, role, jobs, failed) for role in plan.arms]:
            done.result()


def _measure_role(plan: Plan, folder: Path, role: str, jobs: int, failed: Event) -> None:
    if failed.is_set():  # another role: what has not begun must not begin
        return
    file, arm = folder / f"{role}.jsonl", serving(plan.arms[role], top=plan.meta["top"], jobs=jobs)
    have = {(forced.question, forced.sample) for forced in read_forced(file)}
    todo = [response for response in plan.responses if (response.question, response.sample) not in have]
    if not todo:
        return
    left_out(folder, role).unlink(missing_ok=True)
    stamp, out = fingerprint(plan.meta["arms"][role]), journal.Journal(file)
    try:
        with (
            server.serve(arm, plan.checkpoints[role], folder / f"{role}.log", progress.announce) as up,
            progress.asking(f"{role} ({arm.name})", total=len(plan.responses), done=len(have)) as step,
        ):
            for response in todo:
                prompt = plan.prompts[response.question]
                out.append(ask(up, response, prompt, top=plan.meta["top"], stamp=stamp))
                step()
    except server.NotStarted as error:
        if role in SIDES:
            failed.set()
            raise
        journal.write_once(left_out(folder, role), "its server did not start\n")
        progress.say(f"{role} is left out: {error}")
    except UserError:
        failed.set()
        raise
    finally:
        out.close()


def left_out(folder: Path, role: str) -> Path:
    """Return the file that says of a right kernel that its server did not start."""
    return folder / f"{role}.left-out"


def ask(
    up: server.Server | server.Attached, response: Response, prompt: Prompt, *, top: int, stamp: str | None = None
) -> Forced:
    """Return what a server says to each token of a recorded response. Raises UserError after `runner.ATTEMPTS` tries.

    `stamp` is the fingerprint of the arm, which the receipt then names.
    """
    tokens = response.token_ids or ()
    problem = ""
    for attempt in range(runner.ATTEMPTS):
        if attempt:
            up.restart()
        try:
            told = up.endpoint.force(prompt, tokens, top=top)
            receipt = {**(up.take_receipt() or {}), **({} if stamp is None else {"arm": stamp})}
            return Forced(question=response.question, sample=response.sample, receipt=receipt, **told)
        except RequestFailed as failure:
            problem = str(failure)
            if failure.final:
                break
    raise UserError(
        f"arm {up.arm.name} cannot be forced through {response.question!r} ({problem[:300]}); see its log, then give "
        "the same command again"
    )


def read_plan(folder: Path) -> dict[str, Any]:
    """Return force.json of a run's folder `forced`. Raises UserError where it is missing or foreign."""
    file = folder / "force.json"
    meta = journal.read_plan(file)
    try:
        check_types(meta, _META)
        for role in (*SIDES, *meta["arms"]):
            arm = check_types(meta["arms"], {role: (dict,)})[role]
            check_types(
                arm, {"name": (str,), "kernel": (str, type(None)), "backend": (str, type(None)), "args": (list,)}
            )
    except (KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{file}: {what}; expected the file that `evalsuite force` wrote") from error
    return meta


def read_forced(file: Path) -> list[Forced]:
    """Return an arm's evidence, none where there is no file yet. Raises UserError naming a line that is foreign."""
    return list(journal.read_lines(file, forced_from_json)) if file.exists() else []
