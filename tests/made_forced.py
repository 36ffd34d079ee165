"""A run with forced decoding, in the real format, whose roles lie as far apart as asked."""

import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite import force
from evalsuite.errors import UserError
from evalsuite.journal import Run, dump
from evalsuite.records import Forced
from evalsuite.records import to_json as record_json
from made_runs import DIGEST, make_receipt, make_response, make_run, write_run

RECORDED = Path(__file__).parent.parent / "results" / "cpu-capitals"
NOISE = {"baseline": 0.0, "again": 0.0, "candidate": 0.02, "right-cpu-unsplit": 0.02}


def make_forced_run(path: Path, noise: dict[str, float] = NOISE, **changes: Any) -> Run:
    """Write a run of twelve pairs and its folder `forced`, where `noise` moves each role's logprobs at random."""
    run, tokens = make_run("rr " * 12, path=path, **changes), tuple(range(30))
    fixed: dict[str, Any] = {"prompt_tokens": 50, "tokens": 30, "token_ids": tokens}
    both = {
        side: tuple(make_response(question.id, side, "r", **fixed) for question in run.questions)
        for side in ("baseline", "candidate")
    }
    responses = both["baseline"]
    run = replace(run, responses=both)
    write_run(run)
    arms = {role: run.meta["arms"]["candidate" if role == "candidate" else "baseline"] for role in noise}
    meta = {"schema": 1, "top": 4, "tokens": 360, "responses": 12, "arms": arms, "attention": {"sha256": DIGEST},
            "baseline_sha256": hashlib.sha256((path / "baseline.jsonl").read_bytes()).hexdigest()}  # fmt: skip
    (path / "forced").mkdir()
    (path / "forced" / "force.json").write_text(dump(meta) + "\n")
    for seed, (role, size) in enumerate(noise.items()):
        draw = random.Random(seed)
        lines = []
        for response in responses:
            steps = [
                sorted(
                    ((math.log(p) + draw.gauss(0, size), token) for token, p in enumerate((0.5, 0.2, 0.1, 0.05))),
                    reverse=True,
                )
                for _ in tokens
            ]
            lines.append(
                Forced(
                    question=response.question,
                    sample=0,
                    prompt_tokens=50,
                    token_ids=tokens,
                    top_ids=tuple(tuple(token for _, token in step) for step in steps),
                    top_logprobs=tuple(tuple(value for value, _ in step) for step in steps),
                    receipt=make_receipt(arms[role]["kernel"], prompt_tokens=50, tokens=30),
                )
            )
        (path / "forced" / f"{role}.jsonl").write_text("".join(dump(record_json(line)) + "\n" for line in lines))
    return run


def edit_line(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    first, rest = file.read_text().split("\n", 1)
    data = json.loads(first)
    edit(data)
    file.write_text(dump(data) + "\n" + rest)


def refusal(run: Run, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        force.prepare(run, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
