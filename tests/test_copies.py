"""Forced evidence is believed where it is a role's own, and right kernels where nothing but their attention differs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite import copies, force, force_output
from evalsuite.arms import PRESETS, to_json
from evalsuite.journal import Run, dump, load_run
from evalsuite.verdict import Verdict
from made_forced import NOISE, RECORDED, edit_line, make_forced_run, refusal


@pytest.mark.parametrize("left", [0, 5])
def test_a_planned_right_kernel_whose_evidence_is_gone_leaves_no_pass_unless_its_server_did_not_start(
    tmp_path: Path, left: int
) -> None:
    run = make_forced_run(tmp_path / "run", NOISE | {"right-other": 0.02})
    assert force_output.derive(run).headline.startswith("PASS")
    file = run.path / "forced" / "right-other.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:left]))
    if not left:
        file.unlink()
    report = force_output.derive(run)
    assert report.judgement.verdict is Verdict.INCONCLUSIVE
    assert "right-other was planned and has no complete evidence" in report.headline
    force.left_out(run.path / "forced", "right-other").write_text("its server did not start\n")
    report = force_output.derive(run)
    assert report.judgement.verdict is Verdict.PASS
    assert "by one right kernel that nothing confirms, as right-other has no evidence" in report.headline


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": ["--dtype", "float16", "--kv-cache-dtype", "fp8"]}, "differs from the baseline in --kv-cache-dtype"),
        ({"args": ["--dtype", "float16", "--dtype=float32"]}, "differs from the baseline in --dtype"),
        ({"args": []}, "differs from the baseline in --dtype"),
        ({"model_sha256": "0" * 64}, "has other weights"),
        ({"args": ["--dtype", "float16", "--attention-backend", "TRITON_ATTN", "--dtype", "float16"]}, None),
    ],
)
def test_a_right_kernel_differs_from_the_baseline_in_its_attention_only(
    tmp_path: Path, change: dict[str, Any], told: str | None
) -> None:
    run = make_forced_run(tmp_path / "run")

    def edit(plan: dict[str, Any]) -> None:
        plan["arms"]["right-cpu-unsplit"] = {**plan["arms"]["right-cpu-unsplit"], **change}

    edit_line(run.path / "forced" / "force.json", edit)
    report = force_output.derive(run)
    assert report.judgement.verdict is (Verdict.INVALID if told else Verdict.PASS)
    assert (told or "") in report.judgement.reason


def test_a_right_kernel_with_more_than_another_attention_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    arms = tmp_path / "arms.toml"
    arms.write_text('[arm.wide]\nlike = "cpu"\nargs = ["--kv-cache-dtype", "fp8"]\n')
    told = refusal(load_run(RECORDED), right=["wide"], arms_file=arms)
    assert "--right wide changes --kv-cache-dtype" in told


def copy_evidence(run: Run, source: str, *, every: int = 1, moved: float = 0.0, steps: int = 30) -> None:
    """Give the candidate another role's distributions: in one of `every` responses those of its first `steps`."""
    folder = run.path / "forced"
    theirs = [json.loads(line) for line in (folder / f"{source}.jsonl").read_text().splitlines()]
    ours = [json.loads(line) for line in (folder / "candidate.jsonl").read_text().splitlines()]
    for number, (line, other) in enumerate(zip(ours, theirs, strict=True)):
        if number % every == 0:
            values = [[value - moved for value in each] for each in other["top_logprobs"]]
            line["top_ids"][:steps], line["top_logprobs"][:steps] = other["top_ids"][:steps], values[:steps]
    (folder / "candidate.jsonl").write_text("".join(dump(line) + "\n" for line in ours))


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("baseline", {}, "in 348 of 348 decode steps candidate gives the distributions of baseline"),
        ("baseline", {"moved": 1e-7}, "nearer to the baseline than another kernel comes"),
        ("right-cpu-unsplit", {}, "in 348 of 348 decode steps candidate gives the distributions of right-cpu-unsplit"),
        ("baseline", {"steps": 20}, "in 228 of 348 decode steps"),
        ("baseline", {"steps": 6}, "in 60 of 348 decode steps"),
        ("baseline", {"every": 12}, "in most decode steps of 1 of 12 responses"),
        ("baseline", {"moved": 1e-4}, "nearer to the baseline than another kernel comes"),
    ],
)
def test_another_roles_distributions_under_the_candidates_receipts_are_not_believed(
    tmp_path: Path, source: str, options: dict[str, Any], told: str
) -> None:
    run = make_forced_run(tmp_path / "run")
    assert force_output.derive(run).judgement.verdict is Verdict.PASS
    copy_evidence(run, source, **options)
    judgement = force_output.derive(run).judgement
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert told in judgement.reason and "own evidence" in judgement.reason


@pytest.mark.parametrize(
    ("one", "other", "differing"),
    [
        ("fa2", "fa3", True), ("fa2", "triton", True), ("fa2", "hybrid", True), ("triton", "hybrid", True),
        ("fa2", "hybrid-off", False), ("fa2", "fa2", False), ("cpu", "cpu-hybrid", True),
    ],
)  # fmt: skip
def test_kernels_are_told_apart_by_backend_and_version(one: str, other: str, differing: bool) -> None:
    arms = [to_json(PRESETS[name], model_sha256=None) for name in (one, other)]
    assert copies.differ(*arms) is differing
    assert not copies.differ(arms[0], {**arms[0], "flash_attn_version": None})
    assert not copies.differ(arms[0], {**arms[0], "backend": None})


@pytest.mark.server
def test_a_right_kernel_whose_server_does_not_start_is_recorded_as_left_out(tmp_path: Path) -> None:
    plan = force.prepare(load_run(RECORDED), tokens=1)
    broken = replace(plan.arms["right-cpu-unsplit"], args=("--no-such-flag",))
    force.measure(replace(plan, arms={"right-cpu-unsplit": broken}), tmp_path / "forced")
    assert force.left_out(tmp_path / "forced", "right-cpu-unsplit").exists()
