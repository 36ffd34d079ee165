"""What must never pass: a candidate whose plugin was not loaded, and one that was asked two questions at once.

Both are real vLLM servers on the CPU (about two minutes).
"""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite import report
from evalsuite.arms import PRESETS, to_json
from evalsuite.checkpoint import default_checkpoint
from evalsuite.client import Prompt, Sampling
from evalsuite.journal import Run
from evalsuite.records import Response
from evalsuite.server import serve
from evalsuite.verdict import Verdict
from made_runs import make_meta, make_question, make_response

pytestmark = pytest.mark.server


def test_a_candidate_whose_plugin_was_not_loaded_is_invalid(tmp_path: Path) -> None:
    # vLLM logs and skips a plugin that does not import, as it skips one that its allow list leaves out.
    (tmp_path / "arms.toml").write_text('[arm.broken]\nlike = "cpu-hybrid"\nenv = {VLLM_PLUGINS = "another"}\n')
    choice = ["--arms", "arms.toml", "--candidate", "broken", "--limit", "2", "--budget", "8", "--run", "run"]
    command = [sys.executable, "-m", "evalsuite", "run", *choice]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 4, done.stderr
    assert "INVALID" in done.stdout
    assert json.loads((tmp_path / "run" / "comparison.json").read_text())["verdict"] == "INVALID"


def test_a_candidate_that_was_asked_two_questions_at_once_is_invalid(tmp_path: Path) -> None:
    arm = replace(PRESETS["cpu-hybrid"], args=(*PRESETS["cpu-hybrid"].args, "--max-num-seqs", "2"))
    questions = tuple(make_question(number) for number in range(2))
    prompts = [Prompt(messages=(), token_ids=range(100, 140 + 10 * number)) for number in range(2)]
    told: dict[int, dict[str, Any]] = {}
    with serve(arm, default_checkpoint(), tmp_path / "log", lambda text: None) as serving:

        def ask(number: int) -> None:
            sampling = Sampling(budget=24, temperature=0.0, until=())
            told[number] = serving.endpoint.ask(prompts[number], sampling, seed=0)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receipt = serving.take_receipt()
    assert receipt and receipt["split_kv"] < receipt["layers"] * sum(told[n]["tokens"] - 1 for n in range(2))
    candidate = tuple(
        Response(question=question.id, sample=0, seed=0, session=1, receipt=receipt, **told[number])
        for number, question in enumerate(questions)
    )
    meta = make_meta(questions, attention={"sha256": receipt["digest"], "files": {}})
    meta["arms"]["candidate"] = {**meta["arms"]["candidate"], **to_json(arm, model_sha256=None)}
    baseline = tuple(make_response(question.id, "baseline", "r") for question in questions)
    run = Run(path=tmp_path, meta=meta, questions=questions, responses={"baseline": baseline, "candidate": candidate})
    result = report.derive(run, margin=0.5)
    assert result.decision.verdict is Verdict.INVALID
    assert any("do not show the arm's own kernel" in problem for problem in result.comparison.problems)
