"""The gate over several runs: the gravest verdict holds, and every output says the same as the exit code."""

import hashlib
import itertools
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from evalsuite import gate_output, statistics
from evalsuite.cli import main
from evalsuite.errors import UserError
from evalsuite.gate import decide_release, margin_for_all, measure_noise
from evalsuite.journal import dump
from evalsuite.policy import Policy, TaskPolicy
from evalsuite.records import to_json
from evalsuite.report import derive
from evalsuite.verdict import EXIT, Verdict
from made_runs import make_receipt, make_run, write_run

PASS, FAIL, INCONCLUSIVE, INVALID, _ = Verdict
MARGIN = 0.5


def named(task, pairs, **changes):
    run = make_run(pairs, **changes)
    questions = tuple(
        replace(question, task=task, prompt_sha256=hashlib.sha256(f"{task} {question.id}".encode()).hexdigest())
        for question in run.questions
    )
    asked = hashlib.sha256(dump([to_json(question) for question in questions]).encode()).hexdigest()
    meta = run.meta | {"task": run.meta["task"] | {"name": task}, "questions_sha256": asked}
    return replace(run, meta=meta, questions=questions)


def incomplete(run):
    return replace(run, responses=run.responses | {"candidate": run.responses["candidate"][1:]})


def made(task, verdict):
    """A run that says `verdict` at a margin of one half."""
    words = {PASS: "rr " * 8, FAIL: "rw " * 6 + "rr rr", INCONCLUSIVE: "rr rr", INVALID: "rr " * 8}[verdict]
    return incomplete(named(task, words)) if verdict is INVALID else named(task, words)


def policy(*tasks, margin=MARGIN, advisory=(), **options):
    return Policy(tasks={task: TaskPolicy(margin=margin, required=task not in advisory) for task in tasks}, **options)


def aa_run(task, pairs):
    """A run of the stock arm against itself."""
    run = named(task, pairs)
    arms = {arm: run.meta["arms"]["baseline"] for arm in ("baseline", "candidate")}
    served = tuple(
        replace(r, receipt=make_receipt("stock", prompt_tokens=r.prompt_tokens, tokens=r.tokens))
        for r in run.responses["candidate"]
    )
    return replace(run, meta=run.meta | {"arms": arms}, responses=run.responses | {"candidate": served})


def expected(verdicts, required, blocks):
    """The rule in words: INVALID anywhere; else FAIL, else INCONCLUSIVE, of a required task; else PASS."""
    demanded = [verdict for verdict, must in zip(verdicts, required, strict=True) if must]
    if INVALID in verdicts:
        return INVALID
    if FAIL in demanded:
        return FAIL
    if INCONCLUSIVE in demanded and (blocks or PASS not in demanded):
        return INCONCLUSIVE
    return PASS


RUNS = {(task, verdict): made(task, verdict) for task in "abc" for verdict in (PASS, FAIL, INCONCLUSIVE, INVALID)}


def combinations():
    for blocks in (True, False):
        for verdicts in itertools.product((PASS, FAIL, INCONCLUSIVE, INVALID), repeat=2):
            for required in ((True, True), (True, False)):
                yield verdicts, required, blocks
    yield (PASS, INCONCLUSIVE, FAIL), (True, True, False), False
    yield (INCONCLUSIVE, INCONCLUSIVE, PASS), (True, True, False), False
    yield (PASS, PASS, INVALID), (True, True, False), False


@pytest.mark.parametrize(("verdicts", "required", "blocks"), list(combinations()))
def test_the_gravest_blocking_verdict_holds_and_every_output_says_it(verdicts, required, blocks):
    tasks = "abc"[: len(verdicts)]
    advisory = [task for task, must in zip(tasks, required, strict=True) if not must]
    runs = [RUNS[task, verdict] for task, verdict in zip(tasks, verdicts, strict=True)]
    gate = decide_release(runs, policy(*tasks, advisory=advisory, inconclusive_blocks=blocks))
    assert {result.task: result.decision.verdict for result in gate.tasks} == dict(zip(tasks, verdicts, strict=True))
    wanted = expected(verdicts, required, blocks)
    assert gate.verdict is wanted and gate.exit_code == EXIT[wanted]
    check_outputs(gate)


def check_outputs(gate):
    assert gate.headline.startswith(f"{gate.verdict}: ")
    text, data = gate_output.render_text(gate), json.loads(gate_output.render_json(gate))
    assert text.splitlines()[-1].startswith(f"exit code {gate.exit_code}: ")
    assert gate.headline in text
    assert (data["verdict"], data["exit_code"], data["headline"]) == (gate.verdict, gate.exit_code, gate.headline)
    assert gate_output.render_markdown(gate).startswith(f"## {gate.verdict}: ")
    assert f"Exit code {gate.exit_code}: " in gate_output.render_markdown(gate)
    root = ElementTree.fromstring(gate_output.render_junit(gate))
    red = [case for case in root.iter("testcase") if case.find("failure") is not None or case.find("error") is not None]
    assert bool(red) is (gate.exit_code != 0)
    assert root.attrib["tests"] == str(len(gate.tasks))
    assert int(root.attrib["failures"]) + int(root.attrib["errors"]) == len(red)
    assert bool(int(root.attrib["errors"])) is (gate.verdict is INVALID)
    for case, result in zip(root.iter("testcase"), gate.tasks, strict=True):
        quiet = case.find("skipped") is None and case not in red
        assert quiet is (result.decision.verdict is PASS)


@pytest.mark.parametrize("verdict", [PASS, FAIL, INCONCLUSIVE, INVALID])
def test_a_gate_over_one_run_says_what_the_run_says(verdict):
    run = RUNS["a", verdict]
    gate = decide_release([run], margin_for_all([run], MARGIN))
    assert gate.tasks[0].decision == derive(run, margin=MARGIN).decision
    assert (gate.verdict, gate.headline) == (verdict, gate.tasks[0].decision.headline)
    check_outputs(gate)


@pytest.mark.parametrize(
    ("lost", "gained", "pairs", "margin", "verdict"),
    [
        (0, 0, 198, 0.01, INCONCLUSIVE),
        (0, 0, 10, 0.05, INCONCLUSIVE),
        (40, 40, 1319, 0.05, PASS),
        (25, 9, 198, 0.05, FAIL),
    ],
)
def test_the_gate_says_of_plain_counts_what_was_specified(lost, gained, pairs, margin, verdict):
    run = make_run("rw " * lost + "wr " * gained + "rr " * (pairs - lost - gained))
    assert decide_release([run], margin_for_all([run], margin)).verdict is verdict


def test_what_an_inconclusive_task_passes_with_is_said_in_the_first_line():
    gate = decide_release([RUNS["a", PASS], RUNS["b", INCONCLUSIVE]], policy("a", "b", inconclusive_blocks=False))
    assert gate.headline == (
        "PASS: 1 of 2 required tasks shown to lose less than the margin; INCONCLUSIVE, advisory by the policy: b"
    )


def test_which_task_regressed_is_asked_with_holms_correction():
    once = "rw " * 5 + "rr " * 95  # mid-p 1/64, by itself a regression at 0.02
    runs = [named("a", once), named("b", "rr " * 100)]
    assert decide_release(runs[:1], policy("a", alpha=0.02)).verdict is FAIL
    gate = decide_release(runs, policy("a", "b", alpha=0.02))
    first = gate.tasks[0]
    assert (first.regression_p, first.holm_p) == (pytest.approx(1 / 64), pytest.approx(1 / 32))
    assert gate.verdict is PASS
    assert any("a by itself would be a regression" in finding for finding in gate.findings)


def test_an_advisory_task_does_not_weaken_the_test_of_a_required_one():
    once = "rw " * 5 + "rr " * 95
    runs = [named("a", once), named("b", "rr " * 100)]
    assert decide_release(runs, policy("a", "b", alpha=0.02, advisory=["b"])).verdict is FAIL


def test_no_worse_on_every_task_needs_no_correction():
    # Alone each passes by its own 95 % interval, and so they do together.
    alone = "rr " * 75
    runs = [named(task, alone) for task in "abc"]
    assert all(decide_release([run], policy(run.meta["task"]["name"], margin=0.05)).verdict is PASS for run in runs)
    assert decide_release(runs, policy(*"abc", margin=0.05)).verdict is PASS


def stopped(task, word, number):
    """A run of 60 questions that stopped early, after `number` of them."""
    run = named(task, f"{word} " * 60, stop_early={"alpha": 0.05}, margin=0.2)
    return replace(run, responses={arm: responses[:number] for arm, responses in run.responses.items()})


def test_runs_that_stopped_early_pass_together_as_each_does_alone():
    evidence = statistics.watch([0] * 60, margin=0.2)
    runs = [stopped(task, "rr", evidence.noninferior_at) for task in "abc"]
    assert decide_release(runs[:1], policy("a", margin=0.2)).verdict is PASS
    gate = decide_release(runs, policy(*"abc", margin=0.2))
    assert gate.verdict is PASS and gate.pooled is None
    check_outputs(gate)


def test_a_run_that_stopped_early_regresses_among_others_only_by_holms_level():
    evidence = statistics.watch([-1] * 60, margin=0.2)
    runs = [stopped("a", "rw", evidence.regression_at), named("b", "rr " * 60)]
    assert decide_release(runs[:1], policy("a", margin=0.2)).verdict is FAIL
    gate = decide_release(runs, policy("a", "b", margin=0.2))
    assert gate.tasks[0].regression_p <= 0.05 < gate.tasks[0].holm_p
    assert gate.verdict is INCONCLUSIVE
    assert any("a by itself would be a regression" in finding for finding in gate.findings)


def test_only_the_policy_accepts_a_loss_within_the_margin():
    run = named("a", "rw " * 6 + "rr " * 94)
    accepting = Policy(tasks={"a": TaskPolicy(margin=0.15, accept_within_margin=True)})
    assert decide_release([run], policy("a", margin=0.15)).verdict is FAIL
    gate = decide_release([run], accepting)
    assert gate.verdict is PASS
    assert gate.headline.startswith(
        "PASS: a regression within the margin, which the policy accepts; these data rule out"
    )
    text = gate_output.render_text(gate)
    assert "6 lost and 0 gained" in text and "no regression detected" not in text
    check_outputs(gate)
    tight = Policy(tasks={"a": TaskPolicy(margin=0.10, accept_within_margin=True)})
    assert decide_release([run], tight).verdict is FAIL
    # Where errors could hide more than the margin, or the candidate fails more often, nothing is accepted.
    hidden = named("a", "rw " * 6 + "ee " * 9 + "rr " * 85)
    assert decide_release([hidden], accepting).verdict is FAIL
    failing = named("a", "rw " * 6 + "we " * 6 + "rr " * 188)
    assert decide_release([failing], accepting).verdict is FAIL
    # Nor where the baseline got so little right that no loss as large as the margin could show.
    hopeless = named("a", "rw " * 6 + "rr " * 4 + "ww " * 90)
    assert decide_release([hopeless], accepting).verdict is FAIL


def test_the_pooled_line_sums_the_required_tasks():
    runs = [named("a", "rw " * 3 + "rr " * 20), named("b", "rw " * 2 + "wr " + "rr " * 30), named("c", "rr rw")]
    gate = decide_release(runs, policy("a", "b", "c", advisory=["c"]))
    assert gate.pooled.counts == statistics.Counts(lost=5, gained=1, pairs=56)
    assert gate.pooled.difference == pytest.approx(-4 / 56)
    assert gate.pooled.regression_p == statistics.mcnemar(lost=5, gained=1).midp_one_sided
    assert gate.pooled.low < gate.pooled.difference < gate.pooled.high
    assert "all required" in gate_output.render_text(gate)
    assert json.loads(gate_output.render_json(gate))["pooled"]["counts"] == {"lost": 5, "gained": 1, "pairs": 56}


def test_a_regression_that_only_all_tasks_together_show_is_told():
    words = "rw " * 4 + "wr " + "rr " * 95
    gate = decide_release([named(task, words) for task in "abc"], policy(*"abc"))
    assert gate.verdict is PASS
    assert [finding for finding in gate.findings if "all required tasks together" in finding]


def test_noise_is_set_beside_the_result_and_a_discordant_one_is_a_finding():
    run, quiet = named("a", "rw wr " + "rr " * 18), aa_run("a", "rr " * 20)
    gate = decide_release([run], margin_for_all([run], MARGIN), noise=[quiet])
    line = "a: discordant 2 of 20 pairs (10.0 %); of cpu against itself (A/A) 0 of 20 pairs (0.0 %)"
    assert gate_output.render_text(gate).splitlines()[0] == line
    assert gate.findings == ()
    noisy = decide_release([run], margin_for_all([run], MARGIN), noise=[aa_run("a", "rw " + "rr " * 19)])
    assert noisy.verdict is gate.verdict
    (finding,) = noisy.findings
    assert "cpu differs from itself on a" in finding and "1 of 20 pairs discordant (5.0 %)" in finding
    assert f"finding: {finding}" in gate_output.render_text(noisy)
    assert json.loads(gate_output.render_json(noisy))["noise"] == [
        {"task": "a", "arm": "cpu", "discordant": 1, "pairs": 20, "discordance": 0.05}
    ]


def sampled(run, **changes):
    return replace(run, meta=run.meta | {"sampling": run.meta["sampling"] | changes})


def with_arm(run, **changes):
    arms = run.meta["arms"] | {"baseline": run.meta["arms"]["baseline"] | changes}
    return replace(run, meta=run.meta | {"arms": arms})


GOOD = RUNS["a", PASS]


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (named("a", "rr"), "compares cpu with cpu-hybrid; expected an A/A run"),
        (incomplete(aa_run("a", "rr rr")), "measures no noise, as it is INVALID: 1 of 2 responses"),
        (aa_run("b", "rr"), "is an A/A run of b; expected the task of a run that is gated"),
        (sampled(aa_run("a", "rr"), budget=97), "budget is 96 and 97"),
    ],
    ids=["arms", "invalid", "task", "budget"],
)
def test_what_is_no_noise_of_the_run_is_refused(noise, message):
    with pytest.raises(UserError, match=re.escape(message)):
        decide_release([GOOD], policy("a"), noise=[noise])


def test_noise_of_another_arm_is_refused():
    other = aa_run("a", "rr")
    arms = {arm: configured | {"model": "/models/large"} for arm, configured in other.meta["arms"].items()}
    with pytest.raises(UserError, match="measures another arm"):
        decide_release([GOOD], policy("a"), noise=[replace(other, meta=other.meta | {"arms": arms})])


def test_names_that_a_user_wrote_break_no_output():
    task = "lm-eval:<b>|\x1b[31m\n&"
    gate = decide_release([named(task, "rr " * 8), RUNS["a", FAIL]], policy(task, "a"))
    check_outputs(gate)
    for text in (gate_output.render_text(gate), gate_output.render_junit(gate), gate_output.render_markdown(gate)):
        assert "\x1b" not in text
    assert "<b>" not in gate_output.render_markdown(gate)


def test_the_command_writes_junit_and_appends_to_the_step_summary(tmp_path, monkeypatch, capsys):
    folders = [
        str(write_run(replace(RUNS[task, verdict], path=tmp_path / task)))
        for task, verdict in (("a", PASS), ("b", FAIL))
    ]
    rules, junit, summary = tmp_path / "policy.toml", tmp_path / "gate.xml", tmp_path / "summary.md"
    rules.write_text("[task.a]\nmargin = 0.5\n[task.b]\nmargin = 0.5\nrequired = false\n")
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["gate", *folders, "--policy", str(rules), "--junit", str(junit)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("exit code 0")
    assert ElementTree.parse(junit).getroot().attrib == {"tests": "2", "failures": "0", "errors": "0", "skipped": "1"}
    assert summary.read_text().startswith("before\n## PASS: ")
    rules.write_text(rules.read_text().replace("false", "true"))
    assert main(["gate", *folders, "--policy", str(rules), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["exit_code"] == 1
    assert summary.read_text().count("\n## FAIL: ") == 1


def test_an_output_that_cannot_be_written_comes_before_any_verdict(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    folder = str(write_run(replace(GOOD, path=tmp_path / "a")))
    assert main(["gate", folder, "--margin", "0.5", "--junit", str(tmp_path / "no" / "gate.xml")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "--junit" in err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary.md"))
    assert main(["gate", folder, "--margin", "0.5"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "$GITHUB_STEP_SUMMARY" in err


def test_an_arm_that_always_agrees_with_itself_measures_no_noise():
    assert measure_noise(aa_run("a", "rr ww rr")).discordance == 0
