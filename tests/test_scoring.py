"""What a grade is: truncated, errors, and the scoring of lm-eval's own tasks."""

from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite.errors import UserError
from evalsuite.records import Question
from evalsuite.scoring import grade, grade_all
from evalsuite.tasks import load_task
from test_extraction import response
from test_harness import HELPER, own_task
from test_tasks import GPQA

QUESTION = Question(id="q", task="t", target="5", prompt_sha256="", cluster="q", scoring={"kind": "number"})


@pytest.mark.parametrize("text", ["Answer: 5", "", None])
def test_a_truncated_response_is_never_read(text: str | None) -> None:
    found = grade(QUESTION, response(text, finish_reason="length"))
    assert (found.verdict, found.answer) == ("truncated", None)


def test_a_failed_request_is_an_error_and_not_a_wrong_answer() -> None:
    assert grade(QUESTION, response(None, finish_reason=None, error="connection reset")).verdict == "error"
    assert grade(QUESTION, response("Answer: 5", finish_reason="abort")).verdict == "error"
    assert grade(QUESTION, response("Answer: 5", finish_reason="stop", error="too late")).verdict == "error"


def test_a_response_without_text_has_no_answer() -> None:
    assert grade(QUESTION, response(None)).verdict == "no_answer"


def test_a_log_that_does_not_know_why_a_response_ended_is_still_graded() -> None:
    assert grade(QUESTION, response("Answer: 5", finish_reason=None)).verdict == "right"


def test_any_accepted_spelling_is_right() -> None:
    question = replace(QUESTION, target="Kyiv", scoring={"kind": "text", "accept": ["Kyiv", "Kiev"]})
    assert grade(question, response("Answer: Kiev")).verdict == "right"
    assert grade(question, response("Answer: Lviv")).verdict == "wrong"


def test_grade_all_keeps_the_order_of_the_responses() -> None:
    texts = ["Answer: 5", "Answer: 6", "none", "Answer: 5"]
    grades = grade_all({"q": QUESTION}, [response(text) for text in texts])
    assert [found.verdict for found in grades] == ["right", "wrong", "no_answer", "right"]


@pytest.mark.parametrize("name", ["capitals", "chain_sums", "word_problems"])
def test_every_generated_target_is_graded_right_when_declared(name: str) -> None:
    for question in load_task(name, limit=200).questions:
        found = grade(question, response(f"So it is.\nAnswer: {question.target}"))
        assert found.verdict == "right", question


def test_every_gpqa_target_and_no_other_option_is_graded_right() -> None:
    for question in load_task("gpqa", data=GPQA).questions:
        verdicts = {letter: grade(question, response(f"Answer: {letter}")).verdict for letter in "ABCD"}
        assert verdicts == {letter: "right" if letter == question.target else "wrong" for letter in "ABCD"}


def test_shipped_task_files_score_the_same_through_lm_eval() -> None:
    from evalsuite import harness

    manager = harness.open_index(None, metadata={"questions": 2})
    task = harness.build(manager, "chain_sums", asked="chain_sums")
    doc = task.eval_docs[0]
    assert task.process_results(doc, [f"Answer: {doc['target']}"]) == {"exact_match": 1.0}
    assert task.process_results(doc, ["no idea"]) == {"exact_match": 0.0}


# --- tasks of the user's own ---


def test_ones_own_task_is_graded_by_its_own_filter_and_metric(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    task = load_task("adding", include_path=folder)
    questions = {question.id: question for question in task.questions}
    texts = {
        "adding-0": f"It is {task.questions[0].target}.",
        "adding-1": "It is 1000.",
        "adding-2": "I do not know",
        "adding-3": f"<think>{task.questions[3].target}",
        "adding-4": f"<think>1000</think>{task.questions[4].target}",
    }
    responses = [replace(response(text), question=identity) for identity, text in reversed(texts.items())]
    responses.append(replace(response(task.questions[0].target, finish_reason="length"), question="adding-0"))
    grades = grade_all(questions, responses, include_path=folder)
    assert [found.verdict for found in grades] == ["right", "no_answer", "no_answer", "wrong", "right", "truncated"]
    assert [found.answer for found in grades] == [
        task.questions[4].target,
        None,
        None,
        "1000",
        task.questions[0].target,
        None,
    ]


def test_ones_own_task_is_not_graded_against_other_questions(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    task = load_task("adding", include_path=folder)
    (folder / "helper.py").write_text(HELPER.format(count=5).replace("randrange(50)", "randrange(9)"))
    answered = [replace(response("7"), question="adding-0")]
    with pytest.raises(UserError, match="question 0 is no longer the one that was asked"):
        grade_all({question.id: question for question in task.questions}, answered, include_path=folder)


def test_a_metric_that_is_neither_right_nor_wrong_is_refused(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own", more="process_results: !function helper.half")
    helper = folder / "helper.py"
    helper.write_text(helper.read_text() + "def half(doc, results):\n    return {'exact_match': 0.5}\n")
    task = load_task("adding", include_path=folder)
    answered = [replace(response("7"), question="adding-0")]
    with pytest.raises(UserError, match=r"exact_match is 0\.5; expected 1"):
        grade_all({question.id: question for question in task.questions}, answered, include_path=folder)
