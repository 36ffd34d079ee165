"""Runs with known answers, in the real format: every test that needs one makes it here."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalsuite.comparison import Comparison, compare
from evalsuite.early import shuffle
from evalsuite.journal import Run, dump, write_once, write_questions
from evalsuite.records import ARMS, SCHEMA, Question, Response, seed_of, to_json
from evalsuite.scoring import Grade, grade

LAYERS = 30
DIGEST = "d" * 64
STOCK = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl"
HYBRID = "evalsuite_attention.cpu.HybridImpl"
SERVED = {"backend_names": {"CPU_ATTN": LAYERS}, "digest": DIGEST, "max_num_batched_tokens": 2048}
KERNELS = {"baseline": "stock", "candidate": "split_kv"}
TEXTS = {"r": "Answer: A", "w": "Answer: B", "n": "I cannot tell.", "t": "Answer: A, because"}


def make_question(number: int, **changes: Any) -> Question:
    """A question of four options whose answer is A."""
    name = f"q{number:03d}"
    values = {
        "id": name,
        "task": "made",
        "target": "A",
        "prompt_sha256": hashlib.sha256(name.encode()).hexdigest(),
        "cluster": name,
        "scoring": {"kind": "mcq", "options": 4},
    }
    return Question(**(values | changes))


def make_receipt(kernel: str, *, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """What the attention package counts while a response is served, if all goes as planned."""
    if kernel == "stock":
        counts = {"layers": 0, "split_kv": 0, "fallback": 0, "other": 0, "positions": []}
        return counts | {"backends": {STOCK: LAYERS}, **SERVED}
    start, stop = prompt_tokens + (prompt_tokens > 1), prompt_tokens + tokens
    return {
        "layers": LAYERS,
        "split_kv": LAYERS * (stop - start),
        "fallback": 0,
        "other": LAYERS * (prompt_tokens > 1),
        "positions": [[start, stop, LAYERS]] if start < stop else [],
        "backends": {HYBRID: LAYERS},
        **SERVED,
    }


def make_response(question: str, arm: str, letter: str, *, sample: int = 0, **changes: Any) -> Response:
    """A response that is graded right (r), wrong (w), no_answer (n), truncated (t) or error (e)."""
    number = int(hashlib.sha256(f"{question} {arm} {sample}".encode()).hexdigest()[:6], 16)
    prompt, tokens = 40 + number % 7, 96 if letter == "t" else 20 + number % 11
    served = letter != "e"
    values = {
        "question": question,
        "sample": sample,
        "text": TEXTS.get(letter),
        "prompt_tokens": 40 + int(question[1:]) % 7 if served else None,
        "token_ids": None,
        "logprobs": None,
        "runner_up_ids": None,
        "runner_up_logprobs": None,
        "finish_reason": {"t": "length", "e": None}.get(letter, "stop"),
        "stop_reason": None,
        "tokens": tokens if served else None,
        "seconds_to_first_token": 0.05 if served else None,
        "seconds": 1 + number / 1e7 if served else None,
        "seed": seed_of(0, question, sample),
        "session": 1,
        "receipt": None,
        "error": None if served else "HTTP 500",
    }
    values |= changes
    if served and "receipt" not in changes:
        prompt, tokens = values["prompt_tokens"], values["tokens"]
        values["receipt"] = make_receipt(KERNELS[arm], prompt_tokens=prompt, tokens=tokens)
    return Response(**values)


def make_meta(questions: Sequence[Question], **changes: Any) -> dict[str, Any]:
    """A run.json of a stock arm against a split-KV arm."""
    arms = {
        arm: {
            "name": name,
            "model": "/models/small",
            "model_sha256": "m" * 64,
            "args": ["--dtype", "float16"],
            "env": {},
            "url": None,
            "backend": "CPU_ATTN",
            "kernel": KERNELS[arm],
        }
        for arm, name in (("baseline", "cpu"), ("candidate", "cpu-hybrid"))
    }
    return {
        "schema": SCHEMA,
        "task": {"name": "made", "version": 1, "seed": 0, "limit": None, "gated": False},
        "questions_sha256": hashlib.sha256(dump([to_json(q) for q in questions]).encode()).hexdigest(),
        "sampling": {"budget": 96, "temperature": 0.0, "samples": 1, "seed": 0, "until": []},
        "arms": arms,
        "attention": {"sha256": DIGEST, "files": {}},
        "environment": {"evalsuite": "0.1.0", "git_commit": None, "gpu": None, "vllm": "0.32.0"},
    } | changes


def _make_questions(count: int, **meta: Any) -> tuple[Question, ...]:
    questions = [make_question(number) for number in range(count)]
    return tuple(shuffle(questions, 0) if meta.get("stop_early") else questions)


def make_run(pairs: str, *, path: Path = Path("nowhere"), **changes: Any) -> Run:
    """A run of one question per word of `pairs`: "rr rw" is one kept and one lost pair. Nothing is written."""
    words = pairs.split()
    questions = _make_questions(len(words), **changes)
    responses = {
        arm: tuple(make_response(question.id, arm, word[side]) for question, word in zip(questions, words, strict=True))
        for side, arm in enumerate(ARMS)
    }
    return Run(path=path, meta=make_meta(questions, **changes), questions=questions, responses=responses)


def grades_of(run: Run) -> dict[str, dict[tuple[str, int], Grade]]:
    """The grade of each response, by arm."""
    questions = {question.id: question for question in run.questions}
    return {arm: {(r.question, r.sample): grade(questions[r.question], r) for r in run.responses[arm]} for arm in ARMS}


def compared(run: Run) -> Comparison:
    """What a run says about its arms."""
    return compare(run, grades_of(run))


def make_sampled_run(rows: Sequence[str], **changes: Any) -> Run:
    """A run of several samples a question: each row holds one word per sample."""
    questions = _make_questions(len(rows), **changes)
    responses = {
        arm: tuple(
            make_response(question.id, arm, word[side], sample=sample)
            for question, row in zip(questions, rows, strict=True)
            for sample, word in enumerate(row.split())
        )
        for side, arm in enumerate(ARMS)
    }
    meta = make_meta(questions, **changes)
    meta["sampling"] |= {"samples": len(rows[0].split()), "temperature": 0.7}
    return Run(path=Path("nowhere"), meta=meta, questions=questions, responses=responses)


def write_run(run: Run) -> Path:
    """Write a run's directory in the runner's format; return its path."""
    run.path.mkdir(parents=True)
    write_once(run.path / "run.json", dump(run.meta) + "\n")
    write_questions(run.path / "questions.jsonl", run.questions)
    for arm in ARMS:
        lines = [dump(to_json(response)) + "\n" for response in run.responses[arm]]
        (run.path / f"{arm}.jsonl").write_text("".join(lines), encoding="utf-8")  # without the runner's fsyncs
    return run.path
