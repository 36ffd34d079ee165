"""What forced decoding showed: derived from the evidence in RUN/forced, written beside it as text, JSON and plot."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from evalsuite import copies, drift, envelope, force, journal
from evalsuite.drift import Drift, Judgement, Step
from evalsuite.errors import UserError
from evalsuite.journal import Run
from evalsuite.progress import say
from evalsuite.receipts import find_faults
from evalsuite.records import SCHEMA, Forced, Response, response_of
from evalsuite.render import markdown_table, text_table
from evalsuite.report import rounded
from evalsuite.verdict import EXIT, Verdict
from evalsuite.wording import count

Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceReport:
    """What the forced decoding of a run shows, before it is written in any form."""

    meta: Mapping[str, Any]
    """force.json."""
    drifts: Mapping[str, Drift]
    """By role, each against the baseline; only right kernels with all their evidence."""
    missing: tuple[str, ...]
    """Right kernels without all their evidence, or with none to use: they did not start, say."""
    judgement: Judgement

    @property
    def headline(self) -> str:
        """One line that starts with the verdict."""
        arm, found = self.meta["arms"]["candidate"]["name"], self.judgement
        line = f"{found.verdict.value}: {arm} forced through {count(self.meta['tokens'], 'token')}: {found.reason}"
        if found.ratio is None:
            return line
        return (
            f"{line} (total variation {found.ratio.ratio:.2f} times that of {found.widest}, 95 % interval "
            f"{found.ratio.low:.2f} to {found.ratio.high:.2f}, at most {drift.TOLERANCE:g} allowed)"
        )

    @property
    def exit_code(self) -> int:
        """What the process that prints this ends with."""
        return EXIT[self.judgement.verdict]


def derive_if_there(run: Run) -> ForceReport | None:
    """Return what `derive` does, None for a run that was not forced."""
    return derive(run) if (run.path / force.FOLDER).exists() else None


def derive(run: Run) -> ForceReport:
    """Return what the evidence in the run's folder `forced` shows. Raises UserError where it is missing or foreign."""
    folder = run.path / force.FOLDER
    meta = force.read_plan(folder)
    evidence = {role: force.read_forced(folder / f"{role}.jsonl") for role in meta["arms"]}
    missing = [
        role
        for role, found in evidence.items()
        if role not in force.SIDES and (len(found) < meta["responses"] or any(map(_is_broken, found)))
    ]
    lacking = [
        f"{role} was planned and has no complete evidence; give the same `force` command again to ask what is left"
        for role in missing
        if len(evidence[role]) < meta["responses"] and not force.left_out(folder, role).exists()
    ]
    evidence = {role: found for role, found in evidence.items() if role not in missing}
    problems = [*_find_mixed_plans(run, meta), *_find_problems(run, meta, evidence)]
    drifts = {}
    if not problems:
        drifts = {
            role: drift.compare(evidence["baseline"], found, name=meta["arms"][role]["name"])
            for role, found in evidence.items()
            if role != "baseline"
        }
        right = [found for role, found in drifts.items() if role.startswith("right-")]
        judgement = drift.judge(
            drifts["candidate"],
            right,
            again=drifts["again"],
            clusters={question.id: question.cluster for question in run.questions},
        )
        if judgement.verdict is Verdict.PASS:
            doubts = [*copies.find_copies(evidence, meta["arms"], judgement.ratio), *lacking]
            judgement = _doubt(judgement, right, missing, doubts)
    else:
        unknown: dict[str, Any] = {field.name: None for field in fields(Judgement)}
        judgement = Judgement(**{**unknown, "verdict": Verdict.INVALID, "reason": problems[0]})
    return ForceReport(meta=meta, drifts=drifts, missing=tuple(missing), judgement=judgement)


def _doubt(passed: Judgement, right: Sequence[Drift], missing: Sequence[str], doubts: Sequence[str]) -> Judgement:
    """Return what a PASS comes to where its evidence is doubtful, or rests on one of several right kernels planned."""
    if doubts:
        return replace(passed, verdict=Verdict.INCONCLUSIVE, reason=doubts[0])
    if missing and passed.ratio is not None and len(drift.find_measured(right)) == 1:
        told = f"{passed.reason}, by one right kernel that nothing confirms, as {', '.join(missing)} has no evidence"
        return replace(passed, reason=told)
    return passed


def _find_mixed_plans(run: Run, meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the plan of the evidence is not one for this run."""
    for role, side in force.SIDES.items():
        planned = {**run.meta["arms"][side], "model": None}
        if {**meta["arms"][role], "model": None} != planned:
            yield f"force.json describes the {role} otherwise than run.json the {side}"
    if meta["responses"] < 1:
        yield "force.json plans no response"
    if (meta["attention"] or {}).get("sha256") != (run.meta["attention"] or {}).get("sha256"):
        yield "force.json names another attention package than run.json"
    for role, arm in meta["arms"].items():
        if role in force.SIDES:
            continue
        baseline = meta["arms"]["baseline"]
        if arm["kernel"] != "stock" or not arm["backend"]:
            yield f"{role} is no arm of vLLM's own kernels"
        if changed := envelope.find_other_flags(baseline["args"], arm["args"]):
            yield f"{role} differs from the baseline in {', '.join(changed)}, which is more than its attention"
        if arm.get("model_sha256") != baseline.get("model_sha256"):
            yield f"{role} has other weights than the baseline"
    if hashlib.sha256((run.path / "baseline.jsonl").read_bytes()).hexdigest() != meta["baseline_sha256"]:
        yield "baseline.jsonl is not the one whose tokens were forced"


def _find_problems(run: Run, meta: Mapping[str, Any], evidence: Mapping[str, Sequence[Forced]]) -> Iterator[str]:
    """Yield why the evidence shows nothing: it is incomplete, or no receipt proves it."""
    recorded = {(response.question, response.sample): response for response in run.responses["baseline"]}
    first = [(forced.question, forced.sample) for forced in evidence["baseline"]]
    for role, found in evidence.items():
        keys = [(forced.question, forced.sample) for forced in found]
        if len(set(keys)) != meta["responses"] or len(keys) != len(set(keys)):
            yield (
                f"{role} has {len(keys)} of {meta['responses']} responses; give the same `force` command again to ask "
                "what is left"
            )
            continue
        if set(keys) != set(first) or not set(keys) <= recorded.keys():
            yield f"{role} was asked other questions than the baseline"
            continue
        asked = [(recorded[key].token_ids, recorded[key].prompt_tokens) for key in keys]
        if asked != [(forced.token_ids, forced.prompt_tokens) for forced in found]:
            yield f"{role} was made to generate other tokens than the baseline's"
        if sum(len(forced.token_ids) for forced in found) != meta["tokens"]:
            yield f"{role} holds another number of tokens than the {meta['tokens']} planned"
        if any(len(ids) != meta["top"] for forced in found for ids in forced.top_ids):
            yield f"{role} names another number of leading tokens than the {meta['top']} planned"
        if role != "candidate" and any(map(_is_broken, found)):
            yield f"{role} holds probabilities that are no finite numbers"
        arm = meta["arms"][role]
        faults = find_faults([as_response(forced) for forced in found], arm, (meta["attention"] or {}).get("sha256"))
        if faults:
            yield f"{role}: {len(faults)} receipts do not show the arm's own kernel; the first: {faults[0][1]}"


def _is_broken(forced: Forced) -> bool:
    return any(None in logprobs for logprobs in forced.top_logprobs)


def as_response(forced: Forced) -> Response:
    """Return forced evidence as the response that its receipt is held against."""
    return response_of(
        question=forced.question,
        sample=forced.sample,
        prompt_tokens=forced.prompt_tokens,
        tokens=len(forced.token_ids),
        receipt=forced.receipt,
    )


def write(run: Run, report: ForceReport) -> None:
    """Write drift.json, drift.md and, with matplotlib, drift.svg into the folder of the evidence."""
    folder = run.path / force.FOLDER
    try:
        journal.write_once(folder / "drift.json", render_json(report))
        journal.write_once(folder / "drift.md", render_markdown(report))
        if report.drifts:
            _plot(report, folder / "drift.svg")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); make room or mend rights") from error


def render_text(report: ForceReport) -> str:
    """Return the tables and the verdict for a terminal."""
    lines = [line for title, rows in _tables(report) for line in (title, *text_table(rows), "")]
    return "\n".join([*lines, *_notes(report), report.headline, f"exit code {report.exit_code}"])


def render_markdown(report: ForceReport) -> str:
    """Return drift.md; its first line is the verdict."""
    blocks = [f"# {report.headline}", *_notes(report)]
    for title, rows in _tables(report):
        blocks += [f"## {title}", markdown_table(rows)]
    return "\n\n".join(blocks) + "\n"


def _notes(report: ForceReport) -> Iterator[str]:
    for role in report.missing:
        yield f"{role} is left out: it has no complete evidence."
    if not report.drifts:
        return
    again = report.drifts["again"]
    differing = sum(step.total_variation > 0 for step in again.steps)
    yield (
        f"The baseline repeats itself exactly in all {count(len(again.steps), 'decode step')}."
        if not differing
        else f"The baseline does not repeat itself: {differing} of {len(again.steps)} decode steps differ, by a mean "
        f"total variation of {_number(again.mean)}. At one request at a time that is a finding: its kernels sum in an "
        "order that changes from run to run."
    )
    if report.judgement.spikes:
        yield (
            f"The candidate lies beyond {drift.TOLERANCE:g} times the farthest step of any right kernel in "
            f"{count(report.judgement.spikes, 'step')}; {drift.SPIKES} would fail it."
        )


def _tables(report: ForceReport) -> Iterator[tuple[str, Rows]]:
    head = ("arm", "steps", "total variation, mean", "upper bound", "largest", "KL, mean", "same first choice",
            "first token (prefill)")  # fmt: skip
    rows: Rows = [head]
    for role, found in report.drifts.items():
        prefill = max((step.total_variation for step in found.prefill.values()), default=0.0)
        rows.append((_label(role, found), *_figures(found.steps), _number(prefill)))
    if report.drifts:
        yield "Distance from the baseline, decode steps", rows
        lengths = sorted({length for found in report.drifts.values() for length in drift.by_length(found)})
        table: Rows = [("arm", *(f"{start} to {stop - 1}" for start, stop in lengths))]
        for role, found in report.drifts.items():
            steps = drift.by_length(found)
            cells = (_mean(steps.get(length, []), "total_variation") for length in lengths)
            table.append((_label(role, found), *cells))
        yield "Total variation by KV length", table


def _label(role: str, found: Drift) -> str:
    return f"{role} ({found.name})" if not role.startswith("right-") else role.replace("right-", "right: ")


def _figures(steps: Sequence[Step]) -> tuple[str, ...]:
    same = fmean(step.same_top for step in steps) if steps else nan
    return (
        str(len(steps)),
        _mean(steps, "total_variation"),
        _mean(steps, "total_variation_most"),
        _number(max((step.total_variation for step in steps), default=0.0)),
        _mean(steps, "kl"),
        f"{same:.1%}",
    )


def _mean(steps: Sequence[Step], name: str) -> str:
    return _number(fmean(getattr(step, name) for step in steps)) if steps else "-"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}"


def render_json(report: ForceReport) -> str:
    """Return drift.json: every figure, by arm, by KV length and by response. Floats have six significant digits."""
    found = report.judgement
    data = {
        "schema": SCHEMA,
        "verdict": found.verdict.value,
        "exit_code": report.exit_code,
        "headline": report.headline,
        "reason": found.reason,
        "ratio": None if found.ratio is None else asdict(found.ratio),
        "widest": found.widest,
        "spikes": found.spikes,
        "tolerance": drift.TOLERANCE,
        "tokens": report.meta["tokens"],
        "top": report.meta["top"],
        "missing": list(report.missing),
        "arms": {role: _arm_json(each) for role, each in report.drifts.items()},
    }
    return json.dumps(rounded(data), sort_keys=True, allow_nan=False, indent=1) + "\n"


def _arm_json(found: Drift) -> dict[str, Any]:
    return {
        "name": found.name,
        "decode": _steps_json(found.steps),
        "prefill": _steps_json(tuple(found.prefill.values())),
        "by_length": [
            {"start": start, "stop": stop, **_steps_json(steps)}
            for (start, stop), steps in drift.by_length(found).items()
        ],
        "by_response": [
            {"question": question, "sample": sample, **_steps_json(steps)}
            for (question, sample), steps in found.decode.items()
        ],
    }


def _steps_json(steps: Sequence[Step]) -> dict[str, Any]:
    names = ("total_variation", "total_variation_most", "kl")
    means = {name: fmean(getattr(step, name) for step in steps) if steps else None for name in names}
    return {
        "steps": len(steps),
        **means,
        "farthest": max((step.total_variation for step in steps), default=None),
        "same_top": sum(step.same_top for step in steps),
    }


def _plot(report: ForceReport, file: Path) -> None:
    """Draw total variation over KV length, and how it is distributed over steps."""
    try:
        import matplotlib
    except ImportError:
        say(f"{file.name} is not drawn: matplotlib is not installed (`pip install matplotlib`, then `report`)")
        return
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "evalsuite", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for role, found in report.drifts.items():
            if not found.farthest:
                continue  # nothing to see on a logarithmic axis
            style = {"label": _label(role, found), "linewidth": 2.0 if role == "candidate" else 1.0}
            steps = drift.by_length(found)
            middle = [fmean(step.kv_length for step in each) for each in steps.values()]
            left.plot(middle, [fmean(s.total_variation for s in each) for each in steps.values()], marker="o", **style)
            ranked = sorted(step.total_variation for step in found.steps)
            right.plot(ranked, [(at + 1) / len(ranked) for at in range(len(ranked))], **style)
        left.set(xlabel="KV length", ylabel="total variation, mean of steps", yscale="log")
        left.set_xscale("log", base=2)
        right.set(xlabel="total variation of a step", ylabel="share of steps", xscale="log")
        if left.lines:
            left.legend()
        figure.savefig(file, format="svg", metadata={"Date": None})
