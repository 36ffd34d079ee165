"""The table of cases, and what must hold whatever a response says."""

import json
from pathlib import Path

import pytest

from evalsuite.extraction import extract, visible_text
from evalsuite.records import Question, Response
from evalsuite.scoring import grade
from evalsuite.values import number_text, read_number, same_expression, same_number, same_words

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "extraction_cases.jsonl").read_text().splitlines()
]
KINDS = ("mcq", "number", "math", "text")


def response(text: str | None, *, finish_reason: str | None = "stop", error: str | None = None) -> Response:
    return Response(
        question="q",
        sample=0,
        text=text,
        prompt_tokens=1,
        token_ids=None,
        logprobs=None,
        runner_up_ids=None,
        runner_up_logprobs=None,
        finish_reason=finish_reason,
        stop_reason=None,
        tokens=1,
        seconds_to_first_token=None,
        seconds=None,
        seed=None,
        receipt=None,
        session=1,
        error=error,
    )


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_each_case_of_the_table_gets_its_answer_and_verdict(case: dict) -> None:
    scoring = {key: case[key] for key in ("kind", "options", "accept") if key in case}
    question = Question(id="q", task="t", target=case["target"], prompt_sha256="", cluster="q", scoring=scoring)
    found = grade(question, response(case["response"], finish_reason=case["finish_reason"]))
    assert (found.verdict, found.answer) == (case["verdict"], case["answer"])


def test_the_table_has_ids_of_its_own_and_cases_without_an_answer_for_every_kind() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)
    for kind in KINDS:
        of_kind = [case for case in CASES if case["kind"] == kind]
        assert sum(case["verdict"] == "no_answer" for case in of_kind) >= 5
        assert sum(case["verdict"] == "right" for case in of_kind) >= 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", " \n", "</think>", "<think>", "<think>Answer: B", "}{", "\\boxed{", "Answer:"])
def test_a_response_without_substance_has_no_answer(kind: str, text: str) -> None:
    assert extract(text, kind, 4) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_text_has_no_answer(kind: str) -> None:
    assert extract(None, kind, 4) is None


@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
@pytest.mark.parametrize(
    "form", ["Answer: {}", "The answer is ({}).", "**Answer: {}**", "\\boxed{{{}}}", "{}", "({}) x"]
)
def test_every_letter_is_found_in_every_form_and_only_among_the_options(letter: str, form: str) -> None:
    text = form.format(letter)
    assert extract(text, "mcq", 10) == letter
    assert extract(text, "mcq", "ABCDEFGHIJ".index(letter)) is None or letter == "A"


@pytest.mark.parametrize("letter", "BCD")
def test_whatever_follows_a_declared_option_leaves_it(letter: str) -> None:
    others = "\nA) one\nB) two\nC) three\nD) four\nA is tempting, but wrong. Not B, not C, not D."
    assert extract(f"Answer: {letter}{others}", "mcq", 4) == letter


def test_only_the_text_after_the_last_closed_thought_is_visible() -> None:
    assert visible_text("<think>a</think>b<think>c</think> d ") == "d"
    assert visible_text("<think>a</think>b<think>c") == ""
    assert visible_text("a</think>b") == "b"


@pytest.mark.parametrize(
    "text",
    [
        "the answer is the answer is " * 2_000,
        "1 + 2 = 3 and 4 is 5 " * 2_000,
        "\\boxed{" * 3_000 + "}" * 3_000,
        "\\text{" * 1_500 + "}" * 1_500,
        "Answer: " + "7" * 9_000,
        "Answer: 1e999999999",
        "Answer: 1/0",
        "Answer: B. " * 2_000,
        "* a *b " * 5_000,
        "\\boxed{" + "7" * 9_000 + "}",
        "\\boxed{" + "1,234" * 2_000 + "}",
        "\\boxed{" + "\\frac{1}{2}" * 1_000 + "}",
        "\\boxed{" + "\\frac{-" * 2_000 + "}" * 2_000 + "}",
        "\\boxed{" + "2\\sqrt{a" * 2_000 + "}" * 2_000 + "/2}",
        "Answer: B if " * 2_000,
        "<answer>" * 2_000,
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_stuck_in_a_loop_is_read_without_an_error(kind: str, text: str) -> None:
    answer = extract(text, kind, 4)
    assert answer is None or len(answer) <= 500
    if kind == "math":
        assert not same_expression(answer or "", "5")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("29.00", "29"),
        ("1,234", "1234"),
        ("-0.50", "-0.5"),
        (".5", "0.5"),
        ("3/4", "0.75"),
        ("2/3", "2/3"),
        ("007", "7"),
    ],
)
def test_a_number_has_one_canonical_form(text: str, canonical: str) -> None:
    assert read_number(text) == canonical
    assert same_number(canonical, text)


def test_numbers_are_compared_exactly() -> None:
    assert not same_number("0.3333", "1/3")
    assert not same_number("29", "29.001")
    assert same_number("0.1", "0.10")


def test_a_target_that_is_no_number_is_an_error_of_the_task() -> None:
    with pytest.raises(ValueError, match="not a number"):
        same_number("5", "five")


@pytest.mark.parametrize("digits", ["0", "1", "-1", "12.5", "-0.001", "1/3", "-22/7"])
def test_canonical_numbers_read_back_as_themselves(digits: str) -> None:
    from fractions import Fraction

    assert number_text(Fraction(digits)) == digits


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(1,2)", "(2,1)"),
        ("x^2", "x_2"),
        ("1,234", "1,2,3,4"),
        ("\\frac{1}{23}", "\\frac{12}{3}"),
        ("12", "1 \\cdot 2"),
        ("2\\frac{1}{2}", "\\frac{21}{2}"),
        ("\\frac{1}{2}3", "\\frac{1}{23}"),
        ("\\frac{6}{3}4", "24"),
        ("2 3", "23"),
    ],
)
def test_different_expressions_differ(one: str, other: str) -> None:
    assert not same_expression(one, other)


def test_words_are_the_same_whatever_their_accents_and_case() -> None:
    assert same_words("brasília", "Brasilia")
    assert same_words("Port au Prince", "Port-au-Prince")
    assert not same_words("Georgetown", "George Town")
