"""Two response files are compared only if the same was asked of both."""

import re
import shutil
from dataclasses import replace

import pytest

from evalsuite.errors import UserError
from evalsuite.receipts import fingerprint
from evalsuite.report import derive
from evalsuite.sides import join
from evalsuite.verdict import Verdict
from made_runs import make_meta, make_question, make_run, write_run


@pytest.fixture
def run(tmp_path):
    return write_run(make_run("rr " * 12 + "rw wr ww", path=tmp_path / "run"))


def rewrite(folder, run):
    shutil.rmtree(folder)
    return write_run(replace(run, path=folder))


def refused(one, other, *words):
    with pytest.raises(UserError) as caught:
        join(one, other)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert re.search(word, message), message


def test_a_directory_given_twice_is_the_run_itself(run):
    ours = derive(join(run, run))
    assert ours.decision.verdict is Verdict.NOT_DETECTED and ours.comparison.table.pairs == 15
    assert [arm.proof.proven for arm in ours.comparison.arms.values()] == [True, True]


def test_files_and_directories_are_the_same_evidence(run):
    assert join(run / "baseline.jsonl", run / "candidate.jsonl") == join(run, run)


def test_arms_of_two_runs_keep_the_digest_of_the_package_that_served_them(run, tmp_path):
    other = make_run("rr " * 12 + "ww ww wr", path=tmp_path / "other")
    other = replace(other, meta=other.meta | {"attention": {"sha256": "e" * 64, "files": {}}})
    served = tuple(
        replace(r, receipt=r.receipt | {"digest": "e" * 64}, seconds=r.seconds + 1)
        for r in other.responses["candidate"]
    )
    write_run(replace(other, responses=other.responses | {"candidate": served}))
    assert derive(join(run, tmp_path / "other")).decision.verdict is Verdict.NOT_DETECTED
    other = replace(other, path=tmp_path / "unproven", meta=other.meta)
    write_run(other)  # receipts that name another package than its run.json
    assert derive(join(run, other.path)).decision.verdict is Verdict.INVALID


def test_an_imported_log_is_compared_without_proof_and_without_showing_answers(run, tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        shutil.copy(run / "questions.jsonl", tmp_path / name)
    shutil.copy(run / "baseline.jsonl", tmp_path / "one" / "log.jsonl")
    shutil.copy(run / "candidate.jsonl", tmp_path / "other" / "log.jsonl")
    joined = join(tmp_path / "one" / "log.jsonl", tmp_path / "other" / "log.jsonl")
    report = derive(joined)
    assert [arm.proof.proven for arm in report.comparison.arms.values()] == [None, None]
    assert joined.meta["task"]["gated"] and not report.comparison.same_arms
    assert report.decision.verdict is Verdict.NOT_DETECTED


def test_one_file_given_twice_is_refused(run, tmp_path):
    refused(run / "baseline.jsonl", run / "baseline.jsonl", "given twice", "two arms")
    (tmp_path / "link.jsonl").symlink_to(run / "baseline.jsonl")
    shutil.copy(run / "questions.jsonl", tmp_path)
    refused(run / "baseline.jsonl", tmp_path / "link.jsonl", "given twice")


def test_a_copy_of_the_file_is_no_second_arm(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    shutil.copy(run / "baseline.jsonl", tmp_path / "copy" / "candidate.jsonl")
    assert derive(join(run, tmp_path / "copy")).decision.verdict is Verdict.INVALID


def test_other_questions_are_refused_with_how_many_and_which_first(run, tmp_path):
    fewer = write_run(make_run("rr " * 12, path=tmp_path / "fewer"))
    refused(run, fewer, "differ in 3 questions", "'q012'")
    other = make_run("rr rr", path=tmp_path / "other")
    questions = tuple(make_question(number) for number in (100, 101))
    responses = {
        arm: tuple(replace(r, question=q.id) for r, q in zip(other.responses[arm], questions, strict=True))
        for arm in other.responses
    }
    write_run(replace(other, questions=questions, responses=responses))
    refused(run, other.path, "share no question", "15 and 2")


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"prompt_sha256": "0" * 64}, "1 of 15 questions with different prompts, the first is 'q000'"),
        ({"target": "B"}, "score 1 of 15 questions differently, the first is 'q000'"),
    ],
)
def test_other_prompts_and_targets_are_refused_with_how_many_and_which_first(run, tmp_path, changes, told):
    other = make_run("rr " * 15, path=tmp_path / "other")
    write_run(replace(other, questions=(make_question(0, **changes), *other.questions[1:])))
    refused(run, other.path, told)


def test_other_budgets_are_refused_by_name(run, tmp_path):
    other = make_run("rr " * 15, path=tmp_path / "other")
    sampling = other.meta["sampling"] | {"budget": 2048, "temperature": 0.6, "seed": 7}
    write_run(replace(other, meta=other.meta | {"sampling": sampling}))
    refused(run, other.path, "budget 96 and 2048; temperature 0.0 and 0.6; expected the same")


def test_files_that_are_none_of_ours_are_refused(run, tmp_path):
    (tmp_path / "text.jsonl").write_text("hello\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "foreign.jsonl").write_text('{"doc_id": 0}\n')
    shutil.copy(run / "baseline.jsonl", tmp_path / "lonely.jsonl")
    refused(run, tmp_path / "none.jsonl", "cannot be read")
    refused(run, tmp_path / "text.jsonl", "line 1: not a record")
    refused(run, tmp_path / "binary.jsonl", "binary.jsonl.*expected")
    refused(run, tmp_path / "foreign.jsonl", "field 'question' is missing")
    refused(run, tmp_path / "lonely.jsonl", "no questions.jsonl")


def test_an_answer_given_twice_or_to_no_question_is_refused(run):
    lines = (run / "candidate.jsonl").read_text()
    (run / "candidate.jsonl").write_text(lines + lines.splitlines()[3] + "\n")
    refused(run, run, "'q003', sample 0 is answered twice")
    (run / "candidate.jsonl").write_text(lines.replace('"q003"', '"q900"'))
    refused(run, run, "'q900' is not in questions.jsonl")


def test_a_run_json_of_another_schema_is_refused(run):
    rewrite(run, replace(make_run("rr"), meta=make_meta([]) | {"schema": 99}))
    refused(run, run, "schema 99, expected 1")


def test_a_renamed_file_is_of_the_arm_that_its_receipts_name(tmp_path):
    made = make_run("rr " * 15, path=tmp_path / "stamped")
    stamped = {
        side: tuple(replace(r, receipt=r.receipt | {"arm": fingerprint(arm)}) for r in made.responses[side])
        for side, arm in made.meta["arms"].items()
    }
    fallen = tuple(replace(r, receipt=r.receipt | {"fallback": 7}) for r in stamped["candidate"])
    folder = write_run(replace(made, responses=stamped | {"candidate": fallen}))
    (folder / "candidate.jsonl").rename(folder / "new.jsonl")
    report = derive(join(folder / "baseline.jsonl", folder / "new.jsonl"))
    assert report.decision.verdict is Verdict.INVALID and "fell back" in report.decision.headline
    assert report.comparison.arms["candidate"].name == "cpu-hybrid"


def test_a_renamed_file_whose_receipts_name_no_arm_is_refused(run):
    (run / "candidate.jsonl").rename(run / "new.jsonl")
    refused(run / "baseline.jsonl", run / "new.jsonl", "new.jsonl is named after no arm", "expected baseline.jsonl or")


def test_another_machine_or_version_is_said_right_below_the_verdict(run, tmp_path):
    other = make_run("rr " * 12 + "rw wr ww", path=tmp_path / "other")
    served = tuple(replace(r, seconds=r.seconds + 1) for r in other.responses["candidate"])
    environment = other.meta["environment"] | {"gpu": "NVIDIA A100", "vllm": "0.33.0"}
    other = replace(
        other,
        meta=other.meta | {"environment": environment},
        responses=other.responses | {"candidate": served},
    )
    reasons = derive(join(run, write_run(other))).decision.reasons
    assert reasons[0].startswith(
        "the arms ran on different machines or versions (vllm 0.32.0 and 0.33.0; gpu None and "
    )
    assert not any("different machines" in reason for reason in derive(join(run, run)).decision.reasons)
