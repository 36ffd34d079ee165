"""What forced decoding says of a run, the gate over it says too."""

import json
from dataclasses import replace

import pytest

from evalsuite import gate_output
from evalsuite.cli import main
from evalsuite.gate import decide_release, margin_for_all
from evalsuite.verdict import Verdict
from made_forced import NOISE, edit_line, make_forced_run
from test_gate import MARGIN, check_outputs, named, policy

PASS, FAIL, INCONCLUSIVE, INVALID, _ = Verdict


def forced_run(path, verdict):
    """A run that passes at a margin of one half, and whose forced decoding says `verdict`."""
    run = make_forced_run(path, NOISE | {"candidate": {FAIL: 0.2, INCONCLUSIVE: 0.04}.get(verdict, 0.02)})
    if verdict is INVALID:
        file = path / "forced" / "candidate.jsonl"
        file.write_text(file.read_text()[: file.stat().st_size // 2])
    return run


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("verdict", [PASS, FAIL, INCONCLUSIVE, INVALID])
def test_forced_decoding_that_does_not_pass_blocks_the_release_and_every_output_says_so(tmp_path, verdict, required):
    run = forced_run(tmp_path / "made", verdict)
    runs = [run] if required else [run, with_task_of(run, "a")]
    rules = policy(*(r.meta["task"]["name"] for r in runs), advisory=() if required else ("made",))
    gate = decide_release(runs, rules)
    assert gate.verdict is verdict
    check_outputs(gate)
    told = f"forced decoding of made: {verdict}: cpu-hybrid forced through 360 tokens: "
    assert [finding for finding in gate.findings if finding.startswith(told)]
    for text in (gate_output.render_text(gate), gate_output.render_junit(gate), gate_output.render_markdown(gate)):
        assert told in text
    data = json.loads(gate_output.render_json(gate))
    assert [task["forced"] for task in data["tasks"] if task["task"] == "made"] == [verdict]
    if gate.verdict is not PASS and required:
        assert gate.headline.startswith(f"{verdict}: forced decoding: cpu-hybrid")
        assert any("of the answers alone: PASS" in reason for reason in gate.tasks[0].decision.reasons)


def with_task_of(run, task):
    """A run of another task that goes with `run`."""
    other = named(task, "rr " * 8)
    return replace(other, meta=run.meta | {name: other.meta[name] for name in ("task", "questions_sha256")})


def test_the_graver_of_the_answers_and_of_forced_decoding_holds(tmp_path):
    run = forced_run(tmp_path / "made", FAIL)
    lacking = replace(run, responses=run.responses | {"candidate": run.responses["candidate"][1:]})
    gate = decide_release([lacking], margin_for_all([lacking], MARGIN))
    assert gate.verdict is INVALID and "responses" in gate.headline
    assert any(reason.startswith("forced decoding: FAIL") for reason in gate.tasks[0].decision.reasons)


def test_forced_evidence_that_cannot_be_read_is_no_pass(tmp_path, capsys):
    run = forced_run(tmp_path / "made", PASS)
    edit_line(run.path / "forced" / "force.json", lambda plan: plan.pop("arms"))
    assert main(["gate", str(run.path), "--margin", "0.5"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
