"""Both arms are asked with the same token ids, made once; what cannot be asked is refused before anything starts."""

import hashlib
from pathlib import Path

import pytest

from evalsuite import prompts
from evalsuite.client import Prompt
from evalsuite.errors import UserError
from made_runs import make_question

TEMPLATE = (
    "<s>{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = ["<unk>", "<s>", "<", ">", "user", "assistant", "system", "one", "two"]
QUESTIONS = [make_question(0), make_question(1)]
MESSAGES = {
    "q000": [{"role": "user", "content": "one"}],
    "q001": [{"role": "system", "content": "two"}, {"role": "user", "content": "one two"}],
}


def make_checkpoint(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A tokenizer of nine words that writes a <s> of its own before each text, as Llama's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def test_the_chat_template_is_applied_once_and_its_hash_kept(tmp_path: Path) -> None:
    questions, rendered = prompts.render(QUESTIONS, MESSAGES, [make_checkpoint(tmp_path)])
    ids = rendered["q000"].token_ids
    assert ids is not None
    assert [WORDS[i] for i in ids] == ["<s>", "<", "user", ">", "one", "<", "assistant", ">"], "one <s>, not two"
    assert questions[0].prompt_sha256 == hashlib.sha256(b"<s><user> one <assistant>").hexdigest()
    assert questions[1].prompt_sha256 == hashlib.sha256(b"<s><system> two <user> one two <assistant>").hexdigest()
    assert [question.id for question in questions] == ["q000", "q001"]
    assert rendered["q001"].messages == MESSAGES["q001"]


def test_two_checkpoints_that_agree_are_asked_with_the_same_ids(tmp_path: Path) -> None:
    one, two = make_checkpoint(tmp_path / "one"), make_checkpoint(tmp_path / "two")
    assert prompts.render(QUESTIONS, MESSAGES, [one, two]) == prompts.render(QUESTIONS, MESSAGES, [one])


def test_checkpoints_whose_templates_differ_are_refused_with_the_first_question(tmp_path: Path) -> None:
    one = make_checkpoint(tmp_path / "one")
    two = make_checkpoint(tmp_path / "two", TEMPLATE.replace("<{{ message.role }}>", "{{ message.role[:4] }}"))
    with pytest.raises(UserError, match=r"render 2 of 2 prompts differently \(first: q000\)"):
        prompts.render(QUESTIONS, MESSAGES, [one, two])


def test_without_a_checkpoint_the_messages_are_the_prompt() -> None:
    questions, rendered = prompts.render(QUESTIONS, MESSAGES, [])
    assert questions == QUESTIONS
    assert rendered["q000"] == Prompt(messages=MESSAGES["q000"], token_ids=None)


def test_a_checkpoint_without_tokenizer_or_template_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bare = make_checkpoint(tmp_path / "bare", None)
    for folder, expected in ((tmp_path / "empty", "no tokenizer that loads"), (bare, "no chat template")):
        with pytest.raises(UserError, match=expected) as refused:
            prompts.render(QUESTIONS, MESSAGES, [folder])
        assert "\n" not in str(refused.value)


def test_a_template_that_refuses_a_role_is_one_clear_line(tmp_path: Path) -> None:
    """Gemma's template raises for a system message, and this used to end in a traceback."""
    strict = TEMPLATE.replace(
        "<{{", "{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{"
    )
    with pytest.raises(UserError, match=r"refuses the task's messages \(no system\)"):
        prompts.render(QUESTIONS, MESSAGES, [make_checkpoint(tmp_path, strict)])


def test_a_prompt_and_its_budget_may_fill_the_context_and_not_a_token_more() -> None:
    made = {q.id: Prompt(messages=(), token_ids=(1,) * size) for q, size in zip(QUESTIONS, (90, 100), strict=True)}
    prompts.refuse_too_long(QUESTIONS, made, budget=28, limit=128)
    with pytest.raises(UserError) as refused:
        prompts.refuse_too_long(QUESTIONS, made, budget=29, limit=128)
    assert str(refused.value) == (
        "1 of 2 questions do not fit: the longest prompt (q001) has 100 tokens, with a budget of 29 that is 129, and "
        "the model's context has 128; a budget of 28 fits all"
    )
    with pytest.raises(UserError, match="no budget fits"):
        prompts.refuse_too_long(QUESTIONS, made, budget=1, limit=100)
