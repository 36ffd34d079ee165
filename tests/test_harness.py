"""Tasks of the user's own, read and asked the way lm-eval would."""

import random
from pathlib import Path

import pytest

from evalsuite.tasks import list_tasks, load_task
from test_tasks import refusal

OWN = """
task: {name}
custom_dataset: !function helper.load
test_split: test
output_type: {output_type}
doc_to_text: "What is {{{{a}}}} + {{{{b}}}}?"
doc_to_target: "{{{{a + b}}}}"
description: "Add."
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 32}}
filter_list:
  - name: number
    filter:
      - {{function: regex, regex_pattern: '(-?\\d+)'}}
      - {{function: take_first}}
metric_list:
  - {{metric: {metric}, aggregation: mean, higher_is_better: true}}
metadata: {{version: 2.5}}
{more}
"""
HELPER = """
import random
from datasets import Dataset
def load(**_):
    draws = [(random.randrange(50), random.randrange(50)) for _ in range({count})]
    return {{"test": Dataset.from_list([{{"a": a, "b": b}} for a, b in draws])}}
"""


def own_task(
    folder: Path, *, output_type: str = "generate_until", metric: str = "exact_match", more: str = "", count: int = 5
) -> Path:
    folder.mkdir(exist_ok=True)
    text = OWN.format(name="adding", output_type=output_type, metric=metric, more=more)
    (folder / "adding.yaml").write_text(text)
    (folder / "helper.py").write_text(HELPER.format(count=count))
    return folder


def test_a_task_file_of_the_users_own_is_asked_as_lm_eval_would(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    task = load_task("adding", include_path=folder, limit=3)
    assert (task.version, task.budget, task.until, task.gated) == ("2.5", 32, ("\n\n",), False)
    assert [question.id for question in task.questions] == ["adding-0", "adding-1", "adding-2"]
    system, user = task.messages["adding-0"]
    assert system["role"] == "system" and system["content"].startswith("Add.")
    first, second = (int(word.strip("?")) for word in user["content"].split() if word.strip("?").isdigit())
    assert task.questions[0].target == str(first + second)
    assert {key: task.questions[1].scoring[key] for key in ("kind", "task", "doc", "filter", "metric")} == {
        "kind": "lm-eval",
        "task": "adding",
        "doc": 1,
        "filter": "number",
        "metric": "exact_match",
    }


def test_a_task_that_draws_from_the_process_generator_asks_the_same_each_time(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    random.seed(1)
    first = load_task("adding", include_path=folder)
    random.seed(2)
    state = random.getstate()
    assert load_task("adding", include_path=folder) == first
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"output_type": "loglikelihood", "metric": "acc"},
            "output_type is loglikelihood; expected generate_until",
        ),
        ({"output_type": "multiple_choice", "metric": "acc"}, "output_type is multiple_choice"),
        ({"metric": "bleu"}, "(bleu) don't call an answer right or wrong"),
        ({"more": "repeats: 8"}, "asks every question 8 times"),
        ({"more": "gen_prefix: 'The sum is'"}, "begins the answer for the model"),
        ({"more": "unsafe_code: true"}, "executes what the model writes"),
        ({"count": 0}, "adding has no questions"),
        ({"more": "doc_to_target: !function helper.none"}, "can't be built (AttributeError"),
        ({"more": "doc_to_text: '{{ 1 / 0 }}'"}, "can't be built (ZeroDivisionError"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, options: dict, expected: str) -> None:
    folder = own_task(tmp_path / "own", **options)
    assert expected in refusal(lambda: load_task("adding", include_path=folder))


def test_a_limit_beyond_ones_own_task_is_refused_with_its_size(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    assert "but adding has 5 questions" in refusal(lambda: load_task("adding", include_path=folder, limit=6))


def test_a_group_is_refused_with_its_members(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    (folder / "sums.yaml").write_text("group: sums\ntask: [adding]\n")
    assert refusal(lambda: load_task("sums", include_path=folder)) == (
        "'sums' is a group of tasks; ask for one of them: adding"
    )


def test_an_include_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    assert "is no folder" in refusal(lambda: load_task("adding", include_path=tmp_path / "none"))
    assert "is no folder" in refusal(lambda: list_tasks(tmp_path / "none"))


def test_the_users_own_tasks_are_listed_beside_the_shipped_ones(tmp_path: Path) -> None:
    folder = own_task(tmp_path / "own")
    (own,) = (task for task in list_tasks(folder) if task.name == "adding")
    assert (own.budget, own.about) == (32, f"in {folder / 'adding.yaml'}")


def test_loading_writes_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_task("capitals", limit=2)
    load_task("adding", include_path=own_task(tmp_path / "own"))
    assert capfd.readouterr() == ("", "")
