"""Prompts of a chosen length: their tokens, counted by a real tokenizer, and where the facts lie in them."""

import re
from collections import Counter

import pytest
from evalsuite_tasks.longfacts import ANIMALS

from evalsuite.checkpoint import default_checkpoint
from evalsuite.errors import UserError
from evalsuite.extraction import extract
from evalsuite.prompts import render
from evalsuite.tasks import Task, load_task

FACT = re.compile(r"The code of the (\w+) is (\d+)\.|The (\w+) has (\d+) coins\.")


def prompts(task: Task) -> list[str]:
    return [task.messages[question.id][-1]["content"] for question in task.questions]


def facts(prompt: str) -> dict[str, int]:
    """Return the number that the text gives each animal. No animal is given two."""
    found = [(code or coins, int(number or amount)) for code, number, coins, amount in FACT.findall(prompt)]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_the_seed_decides_the_prompts_and_so_does_the_context() -> None:
    first = prompts(load_task("longfacts", limit=8, seed=1))
    assert first == prompts(load_task("longfacts", limit=8, seed=1, context=(1024,)))
    assert first == prompts(load_task("longfacts", limit=20, seed=1))[:8]
    assert not set(first) & set(prompts(load_task("longfacts", limit=8, seed=2)))
    assert not set(first) & set(prompts(load_task("longfacts", limit=8, seed=1, context=(2048,))))


@pytest.mark.parametrize(
    ("context", "count"), [(600, 120), (1024, 120), (4096, 40), (8192, 24), (32_768, 4), (131_072, 1)]
)
def test_prompt_and_budget_fill_the_context_and_never_exceed_it(context: int, count: int) -> None:
    task = load_task("longfacts", limit=count, context=(context,))
    _, rendered = render(task.questions, task.messages, [default_checkpoint()])
    tokens = [len(prompt.token_ids or ()) + task.budget for prompt in rendered.values()]
    assert len(tokens) == count
    assert 0.85 * context <= min(tokens) and max(tokens) <= context


def test_all_sentences_of_a_text_differ_and_only_facts_hold_numbers() -> None:
    for prompt in prompts(load_task("longfacts", limit=12, context=(8192,))):
        text = prompt.split("\n\n")[1]
        sentences = re.findall(r"[^.]+\.", text)
        assert len(set(sentences)) == len(sentences) > 400
        others = FACT.sub("", text)
        assert not re.search(r"\d", others) and not set(re.findall(r"\w+", others)) & set(ANIMALS)


def test_each_target_follows_from_facts_that_the_text_holds_once() -> None:
    task = load_task("longfacts")
    for question, prompt in zip(task.questions, prompts(task), strict=True):
        _, text, asked = prompt.split("\n\n")
        known, named = facts(text), re.findall(r"the (\w+) have|code of the (\w+)", asked)
        wanted = [known[coins or code] for coins, code in named]
        kind = question.id.partition("-")[0]
        if kind == "needle":
            assert question.target == str(*wanted) and len(re.findall(question.target, text)) == 1
        elif kind == "sum":
            assert question.target == str(sum(wanted)) and not re.search(rf"\b{question.target}\b", text)
        else:
            assert known[question.target] == max(wanted) and len(set(wanted)) == 2
            assert len(re.findall(rf"\b{question.target}\b", text)) == 1
        assert len(known) > len(wanted), "a fact of the same form that is not asked for"


def test_facts_lie_in_every_tenth_of_the_text_for_every_kind() -> None:
    task = load_task("longfacts", context=(4096,))
    places = Counter()
    for question, prompt in zip(task.questions, prompts(task), strict=True):
        _, text, asked = prompt.split("\n\n")
        kind, first, *_ = question.id.split("-")
        animal = re.findall(r"code of the (\w+)|coins does the (\w+)", asked)[0]
        place = next(found.start() for found in FACT.finditer(text) if set(animal) & set(found.groups()) - {""})
        assert int(first) / 100 == pytest.approx(place / len(text) - 0.05, abs=0.06), "the id says where it lies"
        places[kind, first] += 1
    assert len(places) == 3 * 10 and set(places.values()) == {3, 6}


def test_no_answer_is_known_beforehand_or_favoured() -> None:
    task = load_task("longfacts", limit=400, context=(600,))
    targets = Counter(question.target for question in task.questions if question.id.startswith("needle"))
    assert len(targets) >= 195  # of 200 draws among 90,000 codes
    named = [
        re.findall(r"coins does the (\w+)", prompt)[0] == question.target
        for question, prompt in zip(task.questions, prompts(task), strict=True)
        if question.id.startswith("larger")
    ]
    assert 30 < sum(named) < 70 and len(named) == 100


def test_the_worked_examples_are_graded_right_by_the_rules_they_teach() -> None:
    task = load_task("longfacts", limit=1)
    *examples, _ = task.messages[task.questions[0].id]
    for asked, told in zip(examples[::2], examples[1::2], strict=True):
        kind = "text" if "Who" in asked["content"] else "number"
        assert extract(told["content"], kind) == told["content"].rpartition("Answer: ")[2]
        known = facts(asked["content"])
        assert known and not set(known) & set(ANIMALS)
        assert all(str(number) in told["content"] for number in known.values())


@pytest.mark.parametrize("context", [0, -1, 100, 599, 131_073, 10**9, 1024.0, True])
def test_a_context_that_is_no_length_is_refused_in_one_line(context: object) -> None:
    with pytest.raises(UserError) as caught:
        load_task("longfacts", limit=1, context=(context,))  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"--context is {context}; expected a whole number of tokens from 600 to 131072 (prompt and budget)"
    )


@pytest.mark.parametrize("task", ["capitals", "gpqa", "lm-eval:gsm8k"])
def test_a_task_whose_prompts_have_their_own_length_refuses_a_context(task: str) -> None:
    with pytest.raises(UserError) as caught:
        load_task(task, limit=1, context=(1024,))
    assert str(caught.value) == f"--context does not go with {task}, whose prompts have their own length; leave it out"


def test_several_lengths_take_turns_and_meet_every_kind_and_place() -> None:
    task = load_task("longfacts", limit=160, context=(600, 1024))
    words = [len(prompt.split()) for prompt in prompts(task)]
    assert max(words[:40] + words[80:120]) < min(words[40:80] + words[120:])
    assert (
        len({question.id.rpartition("-")[0] for question in task.questions[:40]}) == 30
    )  # two of four kinds are needles
