"""A run that stops early stops where its evidence says so, is judged by nothing else, and counts what it may count."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite import early, runner
from evalsuite.cli import main
from evalsuite.errors import UserError
from evalsuite.journal import Run, dump, load_run
from evalsuite.records import ARMS
from evalsuite.report import derive, render_json, render_markdown, render_text
from evalsuite.statistics import watch
from evalsuite.verdict import Decision, Verdict, decide
from made_runs import compared, make_question, make_run, make_sampled_run, write_run
from stub_server import running

# httpcore leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.*:ResourceWarning")

PASS, FAIL, INCONCLUSIVE, INVALID, _ = Verdict
STOPS = {"stop_early": {"alpha": early.ALPHA}, "margin": 0.2}
PASSES_AT = watch([0] * 100, margin=0.2).noninferior_at or 0
FAILS_AT = watch([-1] * 100, margin=0.2).regression_at or 0


def early_run(pairs: str, **changes: Any) -> Run:
    return make_run(pairs, **{**STOPS, **changes})


def cut(run: Run, *, baseline: int, candidate: int) -> Run:
    """Return the run with only so many responses."""
    kept = {"baseline": baseline, "candidate": candidate}
    return replace(run, responses={arm: run.responses[arm][: kept[arm]] for arm in ARMS})


def decided(run: Run, margin: float | None = 0.2, **options: Any) -> Decision:
    return decide(compared(run), margin=margin, **options)


def test_a_stopped_run_passes_and_says_at_which_question_and_with_what_evidence() -> None:
    run = cut(early_run("rr " * 60), baseline=PASSES_AT, candidate=PASSES_AT)
    decision = decided(run)
    assert decision.verdict is PASS and decision.exit_code == 0 and decision.reasons == ()
    value = 1 / watch([0] * PASSES_AT, margin=0.2).p_noninferior
    assert decision.headline == (
        f"PASS: a loss of 20.0 points or more is ruled out after question {PASSES_AT} of 60, e-value {value:.1f}, "
        "20 needed"
    )
    assert decided(cut(run, baseline=PASSES_AT - 1, candidate=PASSES_AT - 1)).verdict is INCONCLUSIVE


def test_a_stopped_run_fails_and_says_at_which_question_and_with_what_evidence() -> None:
    decision = decided(cut(early_run("rw " * 60), baseline=60, candidate=FAILS_AT))
    assert decision.verdict is FAIL and decision.exit_code == 1
    assert decision.headline.startswith(f"FAIL: regression detected after question {FAILS_AT} of 60: {FAILS_AT} lost")
    assert "20 needed" in decision.headline


def test_a_run_that_may_stop_early_is_not_judged_by_the_test_for_a_fixed_length() -> None:
    """A run that stops at the first p-value below 0.05 finds a regression in far more than 5 % of equal arms."""
    pairs = "rr " * 20 + "rw " * 4
    assert decided(make_run(pairs)).verdict is FAIL
    unsettled = decided(early_run("rr " * 6 + "rw " * 4 + "rr " * 6))
    assert unsettled.verdict is INCONCLUSIVE
    found = compared(early_run(pairs))
    for table in (found.table, found.worst_case, found.without_truncated):
        assert table.interval is None and table.test is None
    assert found.errors.test is None and found.truncation.test is None
    assert found.table.regression_p == watch([0] * 20 + [-1] * 4, margin=0.2).p_regression


def test_an_unfinished_run_says_how_far_it_is_and_what_to_do() -> None:
    decision = decided(cut(early_run("rr " * 60), baseline=60, candidate=5))
    assert decision.verdict is INCONCLUSIVE and decision.exit_code == 3
    assert "after 5 of 60 questions" in decision.headline
    assert decision.headline.endswith("give the same `run` command again to go on")


def test_only_questions_that_both_arms_have_finished_count() -> None:
    run = make_sampled_run(["rr rr"] * 30, **STOPS)
    found = compared(cut(run, baseline=60, candidate=41))
    assert found.early is not None
    assert len(found.early.outcomes) == 20
    assert found.table.pairs == 40 and not found.problems
    assert [figures.missing for figures in found.arms.values()] == [0, 0]


def test_a_gap_in_what_was_asked_is_no_evidence() -> None:
    run = cut(early_run("rr " * 20 + "rw " + "rr " * 20), baseline=41, candidate=41)
    spoiled = replace(run, responses={**run.responses, "candidate": run.responses["candidate"][:20]})
    assert decided(spoiled).verdict is PASS
    holed = tuple(r for r in run.responses["candidate"] if r.question != "q020")
    decision = decided(replace(run, responses={**run.responses, "candidate": holed}))
    assert decision.verdict is INVALID and "1 of 41 responses of the candidate are missing" in decision.headline


def test_an_outcome_is_the_mean_over_the_samples_of_a_question() -> None:
    found = compared(make_sampled_run(["rr rw", "rw rw", "wr rw", "wr wr"], **STOPS))
    assert found.early is not None and found.early.outcomes == (-0.5, -1, 0, 1)


def test_an_error_goes_against_the_candidate_for_pass_and_is_not_right_for_fail() -> None:
    found = compared(early_run("er ew re we ee")).early
    assert found is not None
    assert found.outcomes == (1, 0, -1, 0, 0)
    assert found.worst_outcomes == (0, -1, -1, 0, -1)
    assert found.failures == (1, 1, -1, -1, 0)
    unlucky = "rr " * 4 + "ew "
    assert decided(early_run("rr rr rr rr ww " * 20)).verdict is PASS
    assert decided(early_run(unlucky * 20)).verdict is INCONCLUSIVE, "a fifth of the baseline's answers is not known"


def test_a_candidate_that_fails_more_often_is_found_where_nothing_can_be_lost() -> None:
    decision = decided(early_run("we " * 10 + "rr " * 10))
    assert decision.verdict is FAIL and "the candidate failed to answer more often" in decision.headline


def test_without_answers_to_lose_nothing_is_shown() -> None:
    assert decided(early_run("ww " * 60)).verdict is INCONCLUSIVE
    assert decided(early_run("rr " * 12 + "ww " * 48)).verdict is INCONCLUSIVE, "20 % right, margin 20 points"
    assert decided(early_run("rr " * 13 + "ww " * 47)).verdict is PASS


def test_a_loss_below_the_margin_is_still_a_loss_unless_a_policy_accepts_it() -> None:
    run = early_run("rr rr rr rr rr rr rw " * 60)
    decision = decided(run, margin=0.3)
    assert decision.verdict is FAIL and "shown to be below the margin" in decision.headline
    accepted = decided(run, margin=0.3, accept_within_margin=True)
    assert accepted.verdict is PASS and accepted.reasons[0].startswith("regression detected")


def test_another_margin_is_weighed_anew_and_the_report_says_so() -> None:
    run = cut(early_run("rr " * 60), baseline=PASSES_AT, candidate=PASSES_AT)
    wider, narrower = decided(run, margin=0.4), decided(run, margin=0.05)
    assert wider.verdict is PASS and f"after question {watch([0] * 60, margin=0.4).noninferior_at} of" in wider.headline
    assert narrower.verdict is INCONCLUSIVE
    assert all("was planned, and stops, with a margin of 20.0 points" in d.reasons[0] for d in (wider, narrower))
    assert decided(run, margin=None) == decided(run, margin=0.2)
    with pytest.raises(UserError, match="margin is 0; expected one above 0"):
        decided(run, margin=0.0)


def test_the_level_of_a_regression_leaves_that_of_pass_alone() -> None:
    """A gate over several tasks lowers the level at which a regression counts, and PASS needs no correction."""
    run = cut(early_run("rr " * 60), baseline=PASSES_AT, candidate=PASSES_AT)
    assert decided(run, alpha=0.01).verdict is PASS
    lost = cut(early_run("rw " * 60), baseline=FAILS_AT, candidate=FAILS_AT)
    assert decided(lost, alpha=0.01).verdict is INCONCLUSIVE


@pytest.mark.parametrize("alpha", [0.28, 0.45, 0.6, 1.5, 0.0, -1.0, float("nan")])
def test_an_alpha_in_run_json_that_run_does_not_write_is_invalid(alpha: float) -> None:
    report = derive(early_run("rr " * 60, stop_early={"alpha": alpha}), margin=0.2)
    assert report.decision.verdict is INVALID and "stops early at alpha" in report.decision.headline
    assert "INVALID" in render_text(report) and "INVALID" in render_json(report)


@pytest.mark.parametrize("margin", [1e-300, 0.0, 1.0, float("nan")])
def test_a_margin_in_run_json_that_run_does_not_write_is_invalid(margin: float) -> None:
    report = derive(early_run("rr " * 60, margin=margin), margin=0.2)
    assert report.decision.verdict is INVALID and "stops early with margin" in report.decision.headline


def test_every_form_of_the_report_shows_the_evidence_and_no_statistic_for_a_fixed_length() -> None:
    run = cut(early_run("rr " * 60), baseline=PASSES_AT, candidate=PASSES_AT)
    report = derive(run, margin=0.2)
    markdown = render_markdown(report.meta, report.comparison, report.decision)
    for text in (render_text(report), markdown):
        assert "e-value of a loss below the margin (20 decide)" in text
        assert "90 % confidence sequence, valid whenever one stops" in text
        assert "Tango" not in text and "McNemar" not in text and "95 %" not in text
    assert f"{PASSES_AT} of at most 60" in markdown
    assert f'"noninferior_at": {PASSES_AT}' in render_json(report) and '"planned": 60' in render_json(report)
    assert '"evidence"' not in render_json(derive(make_run("rr " * 9)))


def test_arms_of_a_run_that_may_stop_early_are_not_compared_as_if_its_length_were_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(early_run("rr " * 5, path=tmp_path / "run"))
    assert main(["compare", str(path), str(path)]) == 2
    assert "is of a run with --stop-early" in capsys.readouterr().err


def test_the_order_is_shuffled_by_the_seed_alone() -> None:
    questions = [make_question(number) for number in range(50)]
    order = [question.id for question in early.shuffle(questions, 0)]
    assert order == [question.id for question in early.shuffle(reversed(questions), 0)]
    assert sorted(order) == [question.id for question in questions] != order
    assert order != [question.id for question in early.shuffle(questions, 1)]


def test_of_questions_that_share_a_cluster_one_is_asked() -> None:
    questions = [make_question(number, cluster=f"c{number // 3}") for number in range(9)]
    assert sorted(question.id for question in early.shuffle(questions, 0)) == ["q000", "q003", "q006"]


def test_to_stop_early_takes_a_margin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "--stop-early", "--run", str(tmp_path / "run")]) == 2
    assert "--stop-early has no --margin" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_plan_holds_the_rule_and_the_order(tmp_path: Path) -> None:
    with running() as url:
        settings = runner.Settings(task="capitals", baseline=url, candidate=url, limit=9, margin=0.1)
        plain, stops = runner.prepare(settings), runner.prepare(replace(settings, stop_early=True))
    assert plain.meta["stop_early"] is None
    assert stops.meta["stop_early"] == {"alpha": 0.05} and stops.meta["margin"] == 0.1
    assert [q.id for q in stops.questions] == [q.id for q in early.shuffle(plain.questions, 0)]
    with runner.open_run(stops, tmp_path / "run"):
        pass
    assert load_run(tmp_path / "run").questions == tuple(stops.questions)


def test_questions_jsonl_keeps_the_order_as_part_of_the_evidence(tmp_path: Path) -> None:
    run = write_run(early_run("rr " * 5 + "rw " * 5, path=tmp_path / "run"))
    lines = (run / "questions.jsonl").read_text().splitlines(keepends=True)
    (run / "questions.jsonl").write_text("".join(reversed(lines)))
    decision = derive(load_run(run)).decision
    assert decision.verdict is INVALID and dump(load_run(run).meta["margin"]) == "0.2"
    assert "questions.jsonl is not the one that run.json names" in decision.headline
