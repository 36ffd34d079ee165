"""A gate takes one run of each task, all of one plan, and no A/A run."""

import re
from dataclasses import replace

import pytest

from evalsuite.errors import UserError
from evalsuite.gate import decide_release
from evalsuite.verdict import Verdict
from test_gate import GOOD, aa_run, named, policy, sampled, with_arm

PASS = Verdict.PASS


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([GOOD, GOOD], "are both runs of a; expected one run of each task"),
        ([GOOD, named("b", "rr"), named("c", "rr")], "is a run of c, which the policy does not name"),
        ([GOOD], "the policy names b, but no run of it is given"),
        ([GOOD, with_arm(named("b", "rr"), model="/models/large")], "model of the baseline is"),
        ([GOOD, named("b", "rr", attention={"sha256": "e" * 64})], "attention package is"),
        ([GOOD, named("b", "rr", environment={"vllm": "0.33.0"})], "vllm is '0.32.0' and '0.33.0'"),
    ],
    ids=["twice", "unnamed", "no-run", "model", "attention", "vllm"],
)
def test_runs_that_do_not_go_together_are_refused(runs, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        decide_release(runs, policy("a", "b"))
    assert "\n" not in str(caught.value)


def test_each_task_may_have_its_own_budget():
    runs = [GOOD, sampled(named("b", "rr"), budget=2048)]
    assert decide_release(runs, policy("a", "b", inconclusive_blocks=False)).verdict is PASS


def test_an_aa_run_decides_no_release():
    run = aa_run("a", "rr " * 20)
    with pytest.raises(UserError, match="is an A/A run: an A/A run decides no release; give it as --noise"):
        decide_release([run], policy("a"))


def test_one_run_under_two_names_is_refused():
    renamed = replace(GOOD, meta=GOOD.meta | {"task": GOOD.meta["task"] | {"name": "b"}})
    with pytest.raises(UserError, match=r"is a run of b by run\.json, and its questions are of a"):
        decide_release([GOOD, renamed], policy("a", "b"))
    questions = tuple(replace(question, task="b") for question in GOOD.questions)
    with pytest.raises(UserError, match="ask the same questions as two tasks"):
        decide_release([GOOD, replace(renamed, questions=questions)], policy("a", "b"))
