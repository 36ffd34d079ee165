"""Shipped tasks, the files they read, and tasks of the user's own."""

import csv
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from evalsuite_tasks.common import generate, row

from evalsuite.errors import UserError
from evalsuite.tasks import DEFAULT_TASK, Task, list_tasks, load_task

GENERATED = ("capitals", "chain_sums", "word_problems")
GPQA = Path(__file__).parent / "data" / "gpqa_made_up.csv"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep a developer's own hub token out of the tests."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def prompts(task: Task) -> list[str]:
    return [task.messages[question.id][-1]["content"] for question in task.questions]


def table() -> list[list[str]]:
    with GPQA.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


# --- generated tasks ---


@pytest.mark.parametrize("name", GENERATED)
def test_generated_questions_are_the_same_whatever_was_loaded_or_drawn_before(name: str) -> None:
    first = load_task(name, limit=20)
    random.seed(99)
    load_task("capitals", limit=3, seed=5)
    state = random.getstate()
    assert load_task(name, limit=20) == first
    assert random.getstate() == state


@pytest.mark.parametrize("name", GENERATED)
def test_fewer_generated_questions_are_the_beginning_of_more(name: str) -> None:
    assert load_task(name, limit=60).questions[:7] == load_task(name, limit=7).questions


@pytest.mark.parametrize("name", GENERATED)
def test_another_seed_asks_other_questions(name: str) -> None:
    assert prompts(load_task(name, limit=10, seed=1)) != prompts(load_task(name, limit=10, seed=2))


@pytest.mark.parametrize(("name", "count"), [("capitals", 800), ("chain_sums", 1000), ("word_problems", 1000)])
def test_no_question_is_asked_twice_or_worked_in_its_own_prompt(name: str, count: int) -> None:
    task = load_task(name, limit=count)
    assert len(task.questions) == count
    assert len({question.id for question in task.questions}) == count
    assert len({question.prompt_sha256 for question in task.questions}) == count
    worked = {turn["content"] for turn in task.messages[task.questions[0].id][:-1] if turn["role"] == "user"}
    assert worked and not worked & set(prompts(task))


def test_a_generator_that_runs_out_says_how_many_it_has() -> None:
    message = refusal(lambda: load_task("capitals", limit=10**6))
    number = int(message.split(" has ")[1].split()[0])
    assert message == f"capitals has {number} different questions, 1000000 were asked for; lower --limit"
    assert len(load_task("capitals", limit=number).questions) == number

    def make(index: int) -> dict[str, str]:
        return row(prompt=f"What is {index % 5}?", target=str(index % 5), scoring={"kind": "number"})

    assert len(generate(make, count=5, name="echo")["test"]) == 5
    assert refusal(lambda: generate(make, count=6, name="echo")).startswith("echo has 5 different questions, 6 were")


@pytest.mark.parametrize("name", GENERATED)
def test_the_worked_examples_are_graded_right_by_the_rules_they_teach(name: str) -> None:
    from evalsuite.extraction import extract

    task = load_task(name, limit=1)
    *examples, last = task.messages[task.questions[0].id]
    assert last["role"] == "user"
    kind = task.questions[0].scoring["kind"]
    for asked, told in zip(examples[::2], examples[1::2], strict=True):
        assert (asked["role"], told["role"]) == ("user", "assistant")
        assert extract(told["content"], kind) == told["content"].rpartition("Answer: ")[2]


def test_sums_and_word_problems_have_the_targets_that_arithmetic_gives() -> None:
    task = load_task("chain_sums", limit=50)
    for question, prompt in zip(task.questions, prompts(task), strict=True):
        terms = prompt.split(": ")[1].removesuffix(" =").replace("- ", "-").replace("+ ", "").split()
        assert sum(map(int, terms)) == int(question.target)
    task = load_task("word_problems", limit=100)
    for question, prompt in zip(task.questions, prompts(task), strict=True):
        first, second = (int(word) for word in prompt.split() if word.isdigit())
        expected = {"buys": first + second, "gives": first - second, "fills": first * second}
        assert [value for verb, value in expected.items() if f" {verb} " in prompt] == [int(question.target)]


def test_every_country_is_asked_once_before_any_is_asked_again_and_then_shares_its_cluster() -> None:
    task = load_task("capitals")
    assert len({question.cluster for question in task.questions}) == len(task.questions)
    more = load_task("capitals", limit=400).questions
    countries = len({question.cluster for question in more})
    assert len(task.questions) <= countries < 400
    assert len({question.cluster for question in more[:countries]}) == countries


def test_capitals_names_no_capital_in_its_own_question() -> None:
    task = load_task("capitals", limit=400)
    for question, prompt in zip(task.questions, prompts(task), strict=True):
        country = prompt.split(", then name")[0].split(" of ", 1)[1]
        assert question.target in question.scoring["accept"]
        assert question.target != country


# --- files ---


def test_gpqa_reads_the_official_columns_and_hides_the_right_option_in_every_place() -> None:
    task = load_task("gpqa", data=GPQA)
    header, *lines = table()
    rows = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
    assert {question.id for question in task.questions} == set(rows)
    assert task.gated and task.budget == 2048
    assert len({question.target for question in task.questions}) > 1
    for question in task.questions:
        prompt = task.messages[question.id][-1]["content"]
        row = rows[question.id]
        assert prompt.startswith(row["Question"])
        assert f"\n{question.target}) {row['Correct Answer']}\n" in prompt
        assert question.scoring == {"kind": "mcq", "options": 4}
        assert question.cluster == question.id


def test_the_order_of_gpqas_options_follows_from_the_question_alone(tmp_path: Path) -> None:
    whole = load_task("gpqa", data=GPQA, seed=3)
    lines = table()
    part = tmp_path / "part.csv"
    with part.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([lines[0], *reversed(lines[4:])])
    random.seed(1)
    for question in load_task("gpqa", data=part).questions:
        assert question in whole.questions


def test_part_of_a_fixed_set_follows_from_its_seed_and_not_from_the_files_order(tmp_path: Path) -> None:
    lines = table()
    turned = tmp_path / "turned.csv"
    with turned.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([lines[0], *reversed(lines[1:])])
    assert load_task("gpqa", data=turned, limit=3) == load_task("gpqa", data=GPQA, limit=3)
    chosen = [
        [question.id for question in load_task("gpqa", data=GPQA, limit=3, seed=seed).questions] for seed in (1, 2)
    ]
    assert chosen[0] != chosen[1]


def edited(tmp_path: Path, edit: Callable[[list[list[str]]], object]) -> Path:
    lines = table()
    edit(lines)
    path = tmp_path / "edited.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    return path


def drop_column(lines: list[list[str]]) -> None:
    for line in lines:
        del line[3]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (drop_column, "row 2: column 'Correct Answer' is missing; found 'Record ID', 'Subdomain', 'Question'"),
        (lambda lines: lines[3].__setitem__(5, "  "), "row 4: column 'Incorrect Answer 2' is empty"),
        (lambda lines: lines[2].__delitem__(slice(5, None)), "row 3: column 'Incorrect Answer 2' is empty"),
        (lambda lines: lines[5].__setitem__(0, lines[1][0]), "row 6: column 'Record ID' repeats row 2"),
        (lambda lines: lines[5].__setitem__(2, lines[1][2]), "row 6: column 'Question' repeats row 2"),
        (
            lambda lines: lines[3].__setitem__(5, lines[3][3]),
            "row 4: column 'Incorrect Answer 2' repeats 'Correct Answer'",
        ),
        (lambda lines: lines[3].__setitem__(6, lines[3][4] + " "), "'Incorrect Answer 3' repeats 'Incorrect Answer 1'"),
        (lambda lines: lines[2].extend(["more", "cells"]), "row 3: 9 cells under 7 columns"),
        (lambda lines: lines.__delitem__(slice(1, None)), "has no questions"),
        (lambda lines: lines.clear(), "has no questions"),
    ],
)
def test_a_wrong_csv_is_refused_with_its_column_and_row(
    tmp_path: Path, edit: Callable[[list[list[str]]], object], expected: str
) -> None:
    path = edited(tmp_path, edit)
    message = refusal(lambda: load_task("gpqa", data=path))
    assert expected in message and str(path) in message


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("latin.csv", "Question\ncaf\u00e9".encode("latin-1"), "is not UTF-8 (byte 12)"),
        ("open.csv", b'Question\n"never closed', "not a CSV file"),
        ("set.txt", b"x", "expected .csv, .json or .jsonl"),
        ("set.json", b"{", "not JSON"),
        ("set.json", b'{"Question": 1}', "expected a list of objects"),
        ("set.jsonl", b'{"Question": 1}\n[]', "row 2: list; expected an object"),
        ("set.jsonl", b'{"Question": 1}\n{', "row 2: not JSON"),
        ("set.json", b"[" * 100_000, "nested too deep"),
        ("set.jsonl", b"[" * 100_000, "row 1 can't be read: it is nested too deep"),
        ("set.json", b'[{"Question": ' + b"7" * 5_000 + b"}]", "too many digits"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in refusal(lambda: load_task("gpqa", data=path))


def test_half_a_surrogate_pair_is_refused_with_its_column_and_row(tmp_path: Path) -> None:
    sound = {"question_id": 1, "question": "Which \N{GRINNING FACE}?", "options": ["x", "y"], "answer": "A"}
    assert len(load_task("mmlu_pro", data=written(tmp_path, [sound])).questions) == 1
    for column, value in (("question", "Why \ud800?"), ("options", ["x", "\udfff"])):
        path = written(tmp_path, [sound, {**sound, column: value}])
        message = refusal(partial(load_task, "mmlu_pro", data=path))
        assert f"row 2: column {column!r} holds" in message
        message.encode()


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(lambda: load_task("gpqa", data=tmp_path / "none.csv"))
    assert "can't be read" in refusal(lambda: load_task("gpqa", data=tmp_path))


def test_data_for_a_task_that_reads_none_is_refused() -> None:
    assert refusal(lambda: load_task("capitals", data=GPQA)).startswith("--data does not go with capitals")


def written(tmp_path: Path, rows: list[dict]) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_hubs_other_sets_are_read_with_the_hubs_columns(tmp_path: Path) -> None:
    path = written(tmp_path, [{"question": "How many?", "answer": "500 * 2 = 1,000\n#### 1,000"}])
    (question,) = load_task("gsm8k", data=path).questions
    assert (question.target, question.scoring) == ("1000", {"kind": "number"})
    path = written(tmp_path, [{"question_id": 7, "question": "Which?", "options": list("xyzuv"), "answer": "E"}])
    task = load_task("mmlu_pro", data=path)
    assert (task.questions[0].target, task.questions[0].scoring) == ("E", {"kind": "mcq", "options": 5})
    assert "\nE) v\n" in prompts(task)[0] and "one of A, B, C, D, E." in prompts(task)[0]
    path = written(tmp_path, [{"problem": "Half?", "answer": "\\frac{1}{2}", "unique_id": "test/algebra/1.json"}])
    (question,) = load_task("math500", data=path).questions
    assert (question.id, question.target) == ("test/algebra/1.json", "\\frac{1}{2}")
    assert not load_task("math500", data=path).gated


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("gsm8k", {"question": "How many?", "answer": "5"}, "does not end in '#### N'"),
        ("gsm8k", {"question": "How many?", "answer": "#### five"}, "does not end in '#### N'"),
        ("mmlu_pro", {"question_id": 7, "question": "Q", "options": ["x", "y"], "answer": "C"}, "'C' is none of AB"),
        ("mmlu_pro", {"question_id": 7, "question": "Q", "options": "xy", "answer": "A"}, "expected a list of 2 to 26"),
        ("math500", {"problem": "Half?", "answer": "1"}, "row 1: column 'unique_id' is missing"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused(tmp_path: Path, name: str, row: dict, expected: str) -> None:
    path = written(tmp_path, [row])
    assert expected in refusal(lambda: load_task(name, data=path))


def test_a_question_that_a_set_holds_twice_is_one_cluster(tmp_path: Path) -> None:
    same = {"question": "How many?", "answer": "#### 5"}
    task = load_task("gsm8k", data=written(tmp_path, [same, same, {"question": "And now?", "answer": "#### 5"}]))
    assert len({question.id for question in task.questions}) == 3
    assert len({question.cluster for question in task.questions}) == 2


# --- limits, names, gates ---


def test_a_limit_beyond_a_fixed_set_is_refused_with_its_size() -> None:
    assert "but gpqa has 8 questions" in refusal(lambda: load_task("gpqa", data=GPQA, limit=9))
    assert len(load_task("gpqa", data=GPQA, limit=8).questions) == 8


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    assert refusal(lambda: load_task("capitals", limit=limit)) == f"--limit is {limit}; expected at least 1"


def test_an_unknown_task_is_refused_with_the_nearest_names() -> None:
    assert "did you mean gpqa?" in refusal(lambda: load_task("gpqq"))
    assert "see `evalsuite tasks`" in refusal(lambda: load_task("xxxxxxxx"))


def test_gpqa_without_a_token_is_refused_before_anything_is_fetched() -> None:
    message = refusal(lambda: load_task("gpqa"))
    assert "no token is set" in message and "HF_TOKEN" in message and "--data FILE" in message


def test_the_list_names_every_shipped_task_its_budget_and_what_it_needs(tmp_path: Path) -> None:
    listed = {task.name: task for task in list_tasks()}
    assert set(listed) == {*GENERATED, "longfacts", "gpqa", "gsm8k", "mmlu_pro", "math500"}
    assert all(listed[name].needs == "nothing" for name in GENERATED)
    assert listed["gpqa"].needs == "hub token or --data FILE"
    assert listed["gpqa"].budget == 2048
    assert listed[DEFAULT_TASK].needs == "nothing"
    assert listed[DEFAULT_TASK].budget == load_task(DEFAULT_TASK, limit=1).budget
