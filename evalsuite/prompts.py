"""Turn chat messages into the token ids that both arms are asked with."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evalsuite.client import Prompt
from evalsuite.errors import UserError
from evalsuite.records import Question


def render(
    questions: Sequence[Question], messages: Mapping[str, Sequence[Mapping[str, str]]], checkpoints: Sequence[Path]
) -> tuple[list[Question], dict[str, Prompt]]:
    """Apply the chat template once per question; return the questions with their prompts' hashes, and the prompts.

    Where arms have different checkpoints, their templates and tokenizers must agree on every question (UserError).
    Without a checkpoint (attached servers only) the messages themselves are the prompt, and each server applies its
    own template.
    """
    if not checkpoints:
        return list(questions), {q.id: Prompt(messages=messages[q.id], token_ids=None) for q in questions}
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    rendered: list[list[tuple[str, list[int]]]] = []
    for folder in dict.fromkeys(checkpoints):
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
        except (OSError, ValueError) as error:
            line = str(error).strip().partition("\n")[0]
            raise UserError(f"{folder} has no tokenizer that loads ({line}); expected a whole checkpoint") from error
        if not tokenizer.chat_template:
            raise UserError(f"{folder} has no chat template; expected an instruction-tuned checkpoint that ships one")
        try:
            texts = [
                tokenizer.apply_chat_template(list(messages[q.id]), tokenize=False, add_generation_prompt=True)
                for q in questions
            ]
        except TemplateError as error:
            raise UserError(
                f"{folder}: its chat template refuses the task's messages ({error}); use roles that it knows"
            ) from error
        # The template has written the special tokens already.
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        rendered.append(list(zip(texts, ids, strict=True)))
    for other in rendered[1:]:
        differing = [q.id for q, ours, theirs in zip(questions, rendered[0], other, strict=True) if ours != theirs]
        if differing:
            raise UserError(
                f"the arms' checkpoints render {len(differing)} of {len(questions)} prompts differently (first: "
                f"{differing[0]}); pairs need equal prompts, so give both the same tokenizer and chat template"
            )
    hashed, prompts = [], {}
    for question, (text, ids) in zip(questions, rendered[0], strict=True):
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        hashed.append(replace(question, prompt_sha256=digest))
        prompts[question.id] = Prompt(messages=messages[question.id], token_ids=tuple(ids))
    return hashed, prompts


def refuse_too_long(questions: Sequence[Question], prompts: Mapping[str, Prompt], *, budget: int, limit: int) -> None:
    """Raise UserError where a prompt and its budget exceed the context of `limit` tokens."""
    sizes = {q.id: len(prompts[q.id].token_ids or ()) for q in questions}
    longest = max(sizes, key=lambda question: sizes[question])
    if sizes[longest] + budget > limit:
        over = sum(size + budget > limit for size in sizes.values())
        room = limit - sizes[longest]
        raise UserError(
            f"{over} of {len(sizes)} questions do not fit: the longest prompt ({longest}) has {sizes[longest]} tokens, "
            f"with a budget of {budget} that is {sizes[longest] + budget}, and the model's context has {limit}; "
            + (f"a budget of {room} fits all" if room > 0 else "no budget fits; use a model with a longer context")
        )
