"""Two logs of lm-eval are compared only where they grade the same documents, asked with the same prompts."""

import json
import re

import pytest

from evalsuite import statistics
from evalsuite.cli import main
from evalsuite.errors import UserError
from evalsuite.report import derive, render_csv, render_text
from evalsuite.samples import is_samples, join_samples
from evalsuite.verdict import Verdict


def line(number, right, *, filter_name="none", metric="exact_match", **changes):
    """A line as lm-eval 0.4.13 writes it."""
    return {
        "doc_id": number,
        "doc": {"question": f"Question {number}?", "answer": "4"},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": f"Question {number}?", "arg_1": {"until": ["\n"]}}},
        "resps": [["The answer is 4" if right else "5"]],
        "filtered_resps": ["4" if right else "5"],
        "filter": filter_name,
        "metrics": [metric],
        "doc_hash": f"d{number}",
        "prompt_hash": f"p{number}",
        "target_hash": "t4",
        metric: float(right),
    } | changes


@pytest.fixture
def logs(tmp_path):
    """Write two logs, given as lists of lines; return their paths."""

    def write(*sides):
        paths = []
        for name, lines in zip(("base", "cand"), sides, strict=True):
            path = tmp_path / name / "samples_gsm8k_2026-01-31T12-00-00.123456.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(each) + "\n" for each in lines))
            paths.append(path)
        return paths

    return write


def side(grades, **changes):
    return [line(number, grade == "r", **changes) for number, grade in enumerate(grades)]


def test_logs_get_the_statistics_of_any_other_pairs(logs):
    one, other = logs(side("r" * 25 + "w" * 9 + "r" * 164), side("w" * 25 + "r" * 9 + "r" * 164))
    run, grades = join_samples(one, other)
    report = derive(run, margin=0.05, grades=grades)
    table = report.comparison.table
    assert (table.kept, table.lost, table.gained, table.missed) == (164, 25, 9, 0)
    assert table.test == statistics.mcnemar(lost=25, gained=9)
    assert report.decision.verdict is Verdict.FAIL
    assert report.meta["task"]["name"] == "gsm8k"
    text = render_text(report)
    assert "baseline: the path is not proven" in text and "candidate: the path is not proven" in text
    assert "Question 1?" not in render_csv(report) and "answer" not in render_csv(report).splitlines()[0]


def test_the_order_of_a_log_does_not_matter(logs):
    lines = side("rrrwwr")
    one, other = logs(lines, lines[::-1])
    run, grades = join_samples(one, other)
    assert derive(run, grades=grades).comparison.table.lost == 0


def test_documents_with_one_prompt_are_not_independent(logs):
    lines = [*side("rrr"), line(3, True, prompt_hash="p0")]
    run, grades = join_samples(*logs(lines, lines[::-1]))
    report = derive(run, margin=0.9, grades=grades)
    assert report.comparison.repeated_prompts == 1
    assert report.comparison.table.design_effect > 1


@pytest.mark.parametrize("metric", ["exact_match", "acc"])
def test_the_metric_that_says_right_or_wrong_is_read(logs, metric):
    run, grades = join_samples(*logs(side("rw", metric=metric), side("rr", metric=metric)))
    assert [grade.verdict for grade in grades["baseline"].values()] == ["right", "wrong"]
    assert run.questions[0].scoring["metric"] == metric


def test_one_of_several_filters_is_chosen(logs, capsys):
    lines = [*side("rrw", filter_name="strict-match"), *side("rrr", filter_name="flexible-extract")]
    one, other = logs(lines, lines[::-1])
    with pytest.raises(UserError, match=r"holds several filters \(flexible-extract, strict-match\); choose one"):
        join_samples(one, other)
    _, grades = join_samples(one, other, filter_name="strict-match")
    assert [grade.verdict for grade in grades["baseline"].values()] == ["right", "right", "wrong"]
    with pytest.raises(UserError, match="has no filter 'strict'; expected one of flexible-extract, strict-match"):
        join_samples(one, other, filter_name="strict")
    assert main(["compare", str(one), str(other), "--filter", "strict-match"]) == 0
    assert "2 kept" in capsys.readouterr().out


def changed(**changes):
    return [line(0, True), line(1, True, **changes), line(2, True, **changes)]


def asked(**settings):
    return {"gen_args_0": {"arg_0": "Question?", "arg_1": {"until": ["\n"]} | settings}}


SAMPLED = "were sampled differently: max_gen_toks None and 64; temperature None and 0.7; expected the same"


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (side("rrr"), side("r"), "differ in 2 documents, the first is 1;"),
        (side("rrr"), changed(doc_hash="x"), "have 2 of 3 documents that differ, the first is of document 1;"),
        (side("rrr"), changed(prompt_hash="x"), "have 2 of 3 prompts that differ, the first is of document 1;"),
        (side("rrr"), changed(target_hash="x"), "have 2 of 3 targets that differ, the first is of document 1;"),
        (side("rrr"), side("rrr", filter_name="x"), "filter and metric none exact_match and x exact_match"),
        (side("rrr"), side("rrr", metric="acc"), "filter and metric none exact_match and none acc"),
        (side("rr") + side("r"), side("rr"), "line 3: document 0 is logged twice"),
        (side("r", metric="bleu"), side("r"), "line 1: the metrics are ['bleu']; expected exact_match or acc"),
        ([line(0, True, exact_match=0.5)], side("r"), "line 1: exact_match is 0.5; expected 0 or 1"),
        ([line(0, True, exact_match=None)], side("r"), "line 1: exact_match is None; expected 0 or 1"),
        ([line(0, True), {"doc_id": 1, "exact_match": 1}], side("r"), "line 2: 'doc_hash' is missing"),
        ([line(0, True), []], side("r"), "line 2: not a JSON object"),
        (side("rww"), changed(filtered_resps=["5"]), "grade 2 equal responses differently, the first is to document 1"),
        (side("rrr"), changed(arguments=asked(max_gen_toks=64, temperature=0.7)), SAMPLED),
        (side("rrr"), changed(arguments={}), "were sampled differently: until ['\\n'] and None; expected the same"),
    ],
)
def test_logs_that_are_no_pair_are_refused_in_one_line(logs, one, other, message, capsys):
    paths = logs(one, other)
    assert main(["compare", *map(str, paths)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.strip().splitlines()) == 1


def test_logs_that_lm_eval_named_after_two_tasks_are_refused(logs):
    one, other = logs(side("rw"), side("rr"))
    other = other.rename(other.with_name("samples_gsm8k_cot_2026-02-01T12-00-00.654321.jsonl"))
    with pytest.raises(UserError, match="are logs of gsm8k and gsm8k_cot; expected one task"):
        join_samples(one, other)
    own = other.rename(other.with_name("samples_gsm8k_cot.jsonl"))  # such a name may say anything
    join_samples(one, own)


def test_that_all_responses_are_equal_is_said_right_below_the_verdict(logs):
    lines = side("rrwr")
    for other, told in (
        (lines, True),
        (lines[::-1], True),
        ([*lines[:3], line(3, True, filtered_resps=["four"])], False),
    ):
        run, grades = join_samples(*logs(lines, other))
        decision = derive(run, margin=0.5, grades=grades).decision
        assert decision.reasons[0].startswith("all responses are equal in both logs: one may be a copy") is told


def test_a_log_that_breaks_off_is_refused_by_line(logs):
    one, other = logs(side("rr"), side("rr"))
    one.write_text(one.read_text()[:-20])
    with pytest.raises(UserError, match=re.escape(f"{one}, line 2: not JSON")):
        join_samples(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda one, other: [one, one], "is given twice"),
        (lambda one, other: [one, other / "nowhere"], "one is a samples log of lm-eval; expected two"),
    ],
)
def test_one_log_is_no_pair(logs, arguments, message, capsys):
    one, other = logs(side("rr"), side("rr"))
    assert main(["compare", *map(str, arguments(one, other))]) == 2
    assert message in capsys.readouterr().err


def test_a_filter_is_refused_where_there_is_none_to_choose(tmp_path, capsys):
    assert main(["compare", str(tmp_path), str(tmp_path), "--filter", "none"]) == 2
    assert "--filter goes with samples logs" in capsys.readouterr().err


def test_only_a_log_of_lm_eval_is_taken_for_one(tmp_path):
    assert not is_samples(tmp_path)
    for text in ("", "{", "[]", '{"question": "q1"}\n'):
        (tmp_path / "file.jsonl").write_text(text)
        assert not is_samples(tmp_path / "file.jsonl")
