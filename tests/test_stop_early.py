"""A run that may stop early asks both arms alternately, in order, and ends with the question that settles it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalsuite import early, runner, settle
from evalsuite.arms import Arm
from evalsuite.errors import UserError
from evalsuite.journal import Run, load_run
from evalsuite.records import ARMS
from evalsuite.report import derive
from evalsuite.statistics import watch
from evalsuite.verdict import Verdict
from made_runs import make_meta
from stub_server import running, started
from test_runner import FIRST, asked, attached, both, kill_while_asking, make_plan, merge, questions_of

# httpcore leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.*:ResourceWarning")

PASS, FAIL, INCONCLUSIVE, INVALID, _ = Verdict
STOPS = {"stop_early": {"alpha": early.ALPHA}, "margin": 0.2}
PASSES_AT = watch([0] * 100, margin=0.2).noninferior_at or 0
FAILS_AT = watch([-1] * 100, margin=0.2).regression_at or 0


RIGHT = {"kind": "text", "accept": ["A é"]}


def early_plan(
    arms: Mapping[str, Arm], folder: Path, *, samples: int = 1, scoring: Mapping[str, Any] = RIGHT
) -> runner.Plan:
    """Return a plan of 40 questions that may stop early, to which the stub's words are right; both arms are stock."""
    plan = make_plan(arms, folder, questions=40, samples=samples)
    questions = [replace(question, scoring=scoring) for question in early.shuffle(plan.questions, plan.seed)]
    prompts = dict(zip([question.id for question in questions], plan.prompts.values(), strict=True))
    kernels = {side: {"kernel": None if arm.url else "stock", "url": arm.url} for side, arm in arms.items()}
    meta = merge(make_meta(questions), {"arms": kernels, "sampling": {"samples": samples}, **STOPS})
    return replace(plan, questions=questions, prompts=prompts, meta=meta)


def counts(folder: Path) -> list[int]:
    run = load_run(folder)
    return [len(run.responses[side]) for side in ARMS]


def test_both_arms_are_asked_alternately_and_the_run_stops_for_pass_before_the_last_question(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    runner.run(early_plan(both(started(tmp_path, "--seen", str(seen))), tmp_path), tmp_path / "run")
    assert counts(tmp_path / "run") == [PASSES_AT, PASSES_AT]
    assert questions_of(asked(seen)) == [number for number in range(PASSES_AT) for _ in ARMS]
    assert {line["at_once"] for line in asked(seen)} == {1}
    report = derive(load_run(tmp_path / "run"), margin=0.2)
    assert report.decision.verdict is PASS
    assert f"after question {PASSES_AT} of 40" in report.decision.headline


def test_it_stops_for_fail_too(tmp_path: Path) -> None:
    """Thirty words for one: the budget cuts the candidate off."""
    with running() as one, running("--repeat", "30") as other:
        arms = {"baseline": attached(one), "candidate": attached(other)}
        runner.run(early_plan(arms, tmp_path), tmp_path / "run")
    assert counts(tmp_path / "run") == [FAILS_AT, FAILS_AT]
    assert derive(load_run(tmp_path / "run")).decision.verdict is FAIL


def test_without_the_flag_everything_is_asked_and_nothing_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running() as one, running("--repeat", "30") as other:
        plan = early_plan({"baseline": attached(one), "candidate": attached(other)}, tmp_path)
        fixed = replace(plan, meta={**plan.meta, "stop_early": None})
        runner.run(fixed, tmp_path / "run")
    assert counts(tmp_path / "run") == [40, 40]
    out, err = capsys.readouterr()
    assert out == ""
    assert not re.search(r"right|wrong|lost|value|verdict|PASS|FAIL|%|\b0\.", err.replace(str(tmp_path), "")), err


def test_several_samples_are_all_asked_before_a_question_counts(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with running("--seen", str(seen)) as url:
        runner.run(early_plan(both(attached(url)), tmp_path, samples=2), tmp_path / "run")
    assert counts(tmp_path / "run") == [2 * PASSES_AT] * 2
    assert questions_of(asked(seen))[:8] == [0, 0, 0, 0, 1, 1, 1, 1]


ONE_AT_A_TIME = """
import fcntl, sys
room = open({room!r}, "w")
try:
    fcntl.flock(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit("(EngineCore) ERROR ValueError: Free memory on device cuda:0 (1.2/23.6 GiB) is less than desired")
from stub_server import main
main()
"""


def test_where_two_servers_do_not_fit_the_baseline_goes_first_and_the_run_stops_at_the_same_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = tmp_path / "seen"
    arm = started(tmp_path, "--seen", str(seen))
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.write_text(ONE_AT_A_TIME.format(room=str(tmp_path / "room")))
    runner.run(early_plan(both(arm), tmp_path), tmp_path / "run")
    assert "both servers do not fit into memory" in capsys.readouterr().err
    assert counts(tmp_path / "run") == [40, PASSES_AT]
    assert questions_of(asked(seen)) == [*range(40), *range(PASSES_AT)]
    decision = derive(load_run(tmp_path / "run")).decision
    assert decision.verdict is PASS and f"after question {PASSES_AT} of 40" in decision.headline


def test_a_candidate_that_cannot_start_for_another_reason_costs_the_baseline_no_question(tmp_path: Path) -> None:
    arms = {"baseline": started(tmp_path), "candidate": started(tmp_path, "--misbehave", "crash")}
    with pytest.raises(UserError, match="no such backend"):
        runner.run(early_plan(arms, tmp_path), tmp_path / "run")
    assert counts(tmp_path / "run") == [0, 0]


@pytest.mark.parametrize("side", ARMS)
def test_a_run_that_is_killed_goes_on_and_stops_at_the_same_question(tmp_path: Path, side: str) -> None:
    """evalsuite gets SIGKILL while an arm serves its eighth question."""
    seen, folder = tmp_path / "seen", tmp_path / "run"
    hanging = started(tmp_path, "--seen", str(seen), "--misbehave", "hang", "--on", str(FIRST + 7), "--times", "1")
    arms = both(started(tmp_path)) | {side: hanging}
    script = (
        "from pathlib import Path\nfrom test_stop_early import early_plan, runner\nfrom evalsuite.arms import Arm\n"
        f"runner.run(early_plan({arms!r}, Path({str(tmp_path)!r})), Path({str(folder)!r}))"
    )
    below = kill_while_asking(script, seen, FIRST + 7)
    assert not psutil.wait_procs(below, timeout=10)[1]
    assert counts(folder) == [7 + (side == "candidate"), 7]

    runner.run(early_plan(arms, tmp_path), folder)
    assert counts(folder) == [PASSES_AT, PASSES_AT]
    assert {r.session for r in load_run(folder).responses[side]} == {1, 2}
    before = {path: path.read_bytes() for path in folder.iterdir()}
    runner.run(early_plan(arms, tmp_path), folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before, "a settled run starts no server"


def test_a_receipt_that_shows_another_kernel_stops_everything(tmp_path: Path) -> None:
    plan = early_plan(both(started(tmp_path)), tmp_path)
    for side, expected in (("candidate", [1, 1]), ("baseline", [1, 1])):
        other = replace(plan, meta=merge(plan.meta, {"arms": {side: {"kernel": "split_kv"}}}))
        runner.run(other, tmp_path / side)
        assert counts(tmp_path / side) == expected
        assert derive(load_run(tmp_path / side)).decision.verdict is INVALID


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"stop_early": None}, "stop_early is {'alpha': 0.05} there and None now"),
        ({"margin": 0.1}, "margin is 0.2 there and 0.1 now"),
    ],
)
def test_a_run_goes_on_under_the_rule_it_was_planned_with(
    tmp_path: Path, changed: dict[str, Any], expected: str
) -> None:
    plan = early_plan({}, tmp_path)
    with runner.open_run(plan, tmp_path / "run"):
        pass
    with (
        pytest.raises(UserError) as refused,
        runner.open_run(replace(plan, meta=plan.meta | changed), tmp_path / "run"),
    ):
        pass
    assert expected in str(refused.value)


def test_where_lm_eval_grades_the_evidence_is_looked_at_less_often(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(settle, "grade_responses", graded_as_right)
    with running() as url:
        runner.run(early_plan(both(attached(url)), tmp_path, scoring={"kind": "lm-eval"}), tmp_path / "run")
    assert counts(tmp_path / "run") == [20, 20]


def graded_as_right(run: Run, responses: Sequence[Any]) -> dict[tuple[str, int], Any]:
    from evalsuite.scoring import Grade

    return {(response.question, response.sample): Grade(verdict="right", answer="A") for response in responses}
