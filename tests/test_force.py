"""Forced decoding: what is refused before a server starts, what makes its evidence worthless, and two real servers."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite import envelope, force, force_output
from evalsuite.arms import PRESETS
from evalsuite.cli import main
from evalsuite.errors import UserError
from evalsuite.journal import dump, load_run
from evalsuite.records import to_json as record_json
from evalsuite.verdict import Verdict
from made_forced import NOISE, RECORDED, edit_line, make_forced_run, refusal


def test_a_candidate_as_far_off_as_a_right_kernel_passes_and_all_files_are_written(tmp_path: Path) -> None:
    run = make_forced_run(tmp_path / "run")
    report = force_output.derive(run)
    force_output.write(run, report)
    assert report.judgement.verdict is Verdict.PASS
    assert report.headline.startswith("PASS: cpu-hybrid forced through 360 tokens")
    assert "The baseline repeats itself exactly in all 348 decode steps." in force_output.render_text(report)
    data = json.loads((run.path / "forced" / "drift.json").read_text())
    assert (data["verdict"], data["exit_code"], data["arms"]["again"]["decode"]["farthest"]) == ("PASS", 0, 0.0)
    assert (run.path / "forced" / "drift.md").read_text().startswith("# PASS")
    assert "right: cpu-unsplit" in (run.path / "forced" / "drift.svg").read_text()


def test_verdict_text_and_exit_code_agree_for_every_verdict(tmp_path: Path) -> None:
    noises = {"PASS": 0.02, "FAIL": 0.2, "INCONCLUSIVE": 0.04}
    for verdict, size in noises.items():
        run = make_forced_run(tmp_path / verdict, NOISE | {"candidate": size})
        report = force_output.derive(run)
        assert report.judgement.verdict.value == verdict
        assert report.exit_code == {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}[verdict]
        assert f"exit code {report.exit_code}" in force_output.render_text(report)
        assert f"\n{verdict}: " in force_output.render_text(report)


def test_a_baseline_that_does_not_repeat_itself_is_said(tmp_path: Path) -> None:
    report = force_output.derive(make_forced_run(tmp_path / "run", NOISE | {"again": 0.001}))
    assert "The baseline does not repeat itself: 348 of 348 decode steps differ" in force_output.render_text(report)


def test_a_right_kernel_without_evidence_is_left_out_and_named(tmp_path: Path) -> None:
    run = make_forced_run(tmp_path / "run")
    (run.path / "forced" / "right-cpu-unsplit.jsonl").unlink()
    report = force_output.derive(run)
    assert report.judgement.verdict is Verdict.INCONCLUSIVE
    assert "right-cpu-unsplit is left out" in force_output.render_text(report)


@pytest.mark.parametrize(
    ("file", "edit", "reason"),
    [
        ("candidate", lambda line: line["receipt"].update(split_kv=7), "candidate: 1 receipts do not show"),
        ("candidate", lambda line: line["receipt"].update(digest="other"), "served by attention package other"),
        ("candidate", lambda line: line["receipt"].update(fallback=30), "fell back to the stock kernel"),
        ("again", lambda line: line["receipt"].update(split_kv=7), "again: 1 receipts do not show"),
        ("candidate", lambda line: line.update(token_ids=[1] * 30), "made to generate other tokens"),
        ("candidate", lambda line: line.update(question="q001"), "11 of 12|12 of 12 responses"),
    ],
)
def test_evidence_that_does_not_hold_is_invalid(
    tmp_path: Path, file: str, edit: Callable[[dict[str, Any]], object], reason: str
) -> None:
    run = make_forced_run(tmp_path / "run")
    edit_line(run.path / "forced" / f"{file}.jsonl", edit)
    report = force_output.derive(run)
    assert (report.judgement.verdict, report.exit_code) == (Verdict.INVALID, 4)
    assert re.search(reason, report.judgement.reason)


def test_missing_responses_and_another_runs_evidence_are_invalid(tmp_path: Path) -> None:
    run = make_forced_run(tmp_path / "run")
    file = run.path / "forced" / "candidate.jsonl"
    file.write_text(file.read_text().split("\n", 1)[1])
    assert "11 of 12 responses" in force_output.derive(run).headline
    other = make_forced_run(tmp_path / "other")
    with (other.path / "baseline.jsonl").open("a") as journal:
        journal.write("\n")
    assert "not the one whose tokens were forced" in force_output.derive(other).headline


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}\n", "field 'question' is missing"),
        ('{"question":1}\n', "question is a int"),
        ("not json\n", "not a record"),
    ],
)
def test_a_foreign_line_is_named(tmp_path: Path, text: str, told: str) -> None:
    run = make_forced_run(tmp_path / "run")
    (run.path / "forced" / "candidate.jsonl").write_text(text)
    with pytest.raises(UserError, match=f"candidate.jsonl, line 1: .*{told}"):
        force_output.derive(run)


def test_runs_that_cannot_be_forced_are_refused_in_one_line(tmp_path: Path) -> None:
    run = make_forced_run(tmp_path / "run")
    assert "another attention package than the one installed" in refusal(run)
    arms = run.meta["arms"]
    attached = arms | {"baseline": arms["baseline"] | {"url": "http://host:1", "kernel": None}}
    assert "attached or imported" in refusal(replace(run, meta=run.meta | {"arms": attached}))
    without = tuple(replace(response, token_ids=None) for response in run.responses["baseline"])
    assert "12 responses of the baseline have no token ids" in refusal(
        replace(run, responses=run.responses | {"baseline": without})
    )
    lacking = replace(run, responses=run.responses | {"candidate": ()})
    assert "INVALID" in refusal(lacking)


def test_a_model_or_a_question_that_is_gone_is_named(tmp_path: Path) -> None:
    run = load_run(RECORDED)
    arms = {side: arm | {"model_sha256": "0" * 64} for side, arm in run.meta["arms"].items()}
    gone = replace(run, meta=run.meta | {"arms": arms})
    assert "name its folder with --model" in refusal(gone)
    moved = tuple(replace(question, prompt_sha256="0" * 64) for question in run.questions)
    sha256 = hashlib.sha256(dump([record_json(question) for question in moved]).encode()).hexdigest()
    other = replace(run, questions=moved, meta=run.meta | {"questions_sha256": sha256})
    assert "24 of 24 questions" in refusal(other)
    assert "runs the attention package" in refusal(run, right=["cpu-hybrid"])
    assert "unknown arm 'nobody'" in refusal(run, right=["nobody"])


def test_the_plan_takes_leading_responses_up_to_the_tokens_asked_for() -> None:
    run = load_run(RECORDED)
    plan = force.prepare(run, tokens=100)
    assert plan.meta["tokens"] >= 100 > plan.meta["tokens"] - len(plan.responses[-1].token_ids or ())
    assert list(plan.arms) == ["baseline", "again", "candidate", "right-cpu-unsplit", "right-cpu-all-cores"]
    assert [response.question for response in plan.responses] == [
        question.id for question in run.questions[: len(plan.responses)]
    ]
    whole = force.prepare(run)
    assert whole.meta["responses"] == 24


def test_wrong_usage_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["force", str(tmp_path)], ["force", str(tmp_path / "absent")]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
    for arguments in (["force"], ["force", "run", "--tokens", "0"], ["force", "run", "--top", "many"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_flags_that_forcing_needs_come_after_the_arms_own() -> None:
    arm = force.serving(PRESETS["cpu"], top=5)
    assert arm.args[: len(PRESETS["cpu"].args)] == PRESETS["cpu"].args
    assert arm.args[-4:] == ("--logits-processors", force.PROCESSOR, "--max-logprobs", "5")
    assert force.serving(PRESETS["cpu"], top=5, jobs=4) == arm
    side_by_side = force.serving(PRESETS["fa2"], top=5, jobs=3).args
    assert side_by_side[:3] == ("--gpu-memory-utilization", "0.30", "--kv-cache-memory-bytes")


def test_right_kernels_are_others_than_the_baselines_own() -> None:
    renamed = replace(PRESETS["fa2"], name="mine", args=(*PRESETS["fa2"].args, "--max-model-len", "4096"))
    assert [arm.name for arm in envelope.right_kernels(renamed)] == ["triton", "fa3"]
    triton = envelope.like(renamed, PRESETS["triton"])
    assert "4096" in triton.args and triton.args[-1] == "TRITON_ATTN" and triton.backend == "TRITON_ATTN"
    assert [arm.name for arm in envelope.right_kernels(PRESETS["triton"])] == ["fa2", "fa3"]


@pytest.mark.server
def test_real_servers_decode_the_recorded_tokens_and_the_baseline_repeats_itself(tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "run", ignore=shutil.ignore_patterns("forced"))
    command = [sys.executable, "-m", "evalsuite", "force", "run", "--tokens", "90", "--jobs", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 3), done.stderr  # two responses are few for an interval
    data = json.loads((tmp_path / "run" / "forced" / "drift.json").read_text())
    assert data["arms"]["again"]["decode"]["farthest"] == 0.0
    assert 0 < data["arms"]["candidate"]["decode"]["total_variation"] < 0.1
    assert data["arms"]["candidate"]["prefill"]["farthest"] == 0.0
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)  # nothing left to ask
    assert (again.returncode, again.stdout) == (done.returncode, done.stdout)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda plan: plan["arms"]["candidate"].update(kernel=None), "describes the candidate otherwise"),
        (lambda plan: plan["arms"]["again"].update(args=[]), "describes the again otherwise"),
        (lambda plan: plan["arms"]["right-cpu-unsplit"].update(kernel="split_kv"), "no arm of vLLM's own"),
        (lambda plan: plan["attention"].update(sha256="e" * 64), "another attention package"),
        (lambda plan: plan.update(tokens=10**9), "another number of tokens"),
        (lambda plan: plan.update(top=8), "another number of leading tokens"),
        (lambda plan: plan.update(responses=11), "12 of 11 responses"),
    ],
)
def test_a_plan_that_is_not_the_runs_own_is_invalid(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], reason: str
) -> None:
    run = make_forced_run(tmp_path / "run")
    edit_line(run.path / "forced" / "force.json", edit)
    report = force_output.derive(run)
    assert (report.judgement.verdict, report.exit_code) == (Verdict.INVALID, 4)
    assert reason in report.judgement.reason


@pytest.mark.parametrize("field", ["arms", "top", "tokens", "responses", "attention", "baseline_sha256"])
@pytest.mark.parametrize("value", [None, "x", [1], float("nan")])
def test_a_foreign_plan_is_one_clear_line(tmp_path: Path, field: str, value: object) -> None:
    if (field, value) in (("attention", None), ("baseline_sha256", "x")):
        return  # these are of the right type, and INVALID
    run = make_forced_run(tmp_path / "run")
    edit_line(run.path / "forced" / "force.json", lambda plan: plan.pop(field))
    with pytest.raises(UserError, match=r"force\.json"):
        force_output.derive(run)
    plan = json.loads((run.path / "forced" / "force.json").read_text()) | {field: value}
    (run.path / "forced" / "force.json").write_text(json.dumps(plan) + "\n")
    with pytest.raises(UserError, match=r"force\.json"):
        force_output.derive(run)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_logprobs", [-0.5, -0.4, -1.0, -2.0]),
        ("top_logprobs", [5.0, -1.0, -2.0, -3.0]),
        ("top_logprobs", [1e308, -1.0, -2.0, -3.0]),
        ("top_logprobs", ["x", -1.0, -2.0, -3.0]),
        ("top_logprobs", [-1.0]),
        ("top_logprobs", []),
        ("top_logprobs", None),
        ("top_ids", [0, 0, 1, 2]),
        ("top_ids", [None, 0, 1, 2]),
        ("top_ids", [[1], 0, 1, 2]),
        ("top_ids", ["x", 0, 1, 2]),
    ],
)
def test_a_step_that_is_no_distribution_is_one_clear_line(tmp_path: Path, name: str, value: object) -> None:
    run = make_forced_run(tmp_path / "run")
    edit_line(run.path / "forced" / "candidate.jsonl", lambda line: line[name].__setitem__(3, value))
    with pytest.raises(UserError, match=r"candidate\.jsonl, line 1"):
        force_output.derive(run)


def test_probabilities_that_are_no_numbers_fail_the_candidate_and_leave_a_right_kernel_out(tmp_path: Path) -> None:
    def poison(line: dict[str, Any]) -> None:
        line["top_logprobs"][5] = [None] * 4

    for role, verdict in (("candidate", "FAIL"), ("baseline", "INVALID"), ("again", "INVALID")):
        run = make_forced_run(tmp_path / role)
        edit_line(run.path / "forced" / f"{role}.jsonl", poison)
        assert force_output.derive(run).judgement.verdict.value == verdict
    run = make_forced_run(tmp_path / "right")
    edit_line(run.path / "forced" / "right-cpu-unsplit.jsonl", poison)
    assert force_output.derive(run).missing == ("right-cpu-unsplit",)


def test_report_ends_with_the_graver_verdict_of_the_run_and_of_forced_decoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for size, code, verdict in ((0.2, 1, "FAIL"), (0.04, 3, "INCONCLUSIVE"), (0.02, 0, "PASS")):
        run = make_forced_run(tmp_path / verdict, NOISE | {"candidate": size})
        assert main(["report", str(run.path)]) == code
        out = capsys.readouterr().out
        assert f"exit code {code}: " in out and f"forced decoding: {verdict}" in out.splitlines()[-1]
        assert json.loads((run.path / "comparison.json").read_text())["exit_code"] == code
    (run.path / "forced" / "force.json").unlink()  # as a crash before the plan was written leaves it
    assert main(["report", str(run.path)]) == 2
    assert "force" in capsys.readouterr().err
