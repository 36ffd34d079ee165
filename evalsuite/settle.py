"""Look, while a run with --stop-early goes on, whether what it has settles it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.comparison import compare
from evalsuite.journal import Run
from evalsuite.pairing import grade_responses
from evalsuite.receipts import find_faults
from evalsuite.records import ARMS, Question, Response
from evalsuite.scoring import Grade
from evalsuite.verdict import Verdict, decide

LM_EVAL_LOOKS = 20
"""After how many questions one looks where lm-eval grades, which takes seconds each time. Looking less is as valid."""


def watch(
    meta: Mapping[str, Any], questions: Sequence[Question], answered: Mapping[str, list[Response]]
) -> Callable[[], bool]:
    """Return a function that says whether to stop: for PASS, for FAIL, or for a receipt that makes the run INVALID.

    It decides as `report` will, from `meta` (run.json) and all that `answered` holds by the time it is called.
    """
    grades: dict[str, dict[tuple[str, int], Grade]] = {side: {} for side in ARMS}
    checked = dict.fromkeys(ARMS, 0)
    every = LM_EVAL_LOOKS if questions[0].scoring["kind"] == "lm-eval" else 1

    def settled() -> bool:
        for side in ARMS:
            new, checked[side] = answered[side][checked[side] :], len(answered[side])
            if find_faults(new, meta["arms"][side], (meta["attention"] or {}).get("sha256")):
                return True
        finished = min(checked.values()) // meta["sampling"]["samples"]
        if not finished or (finished % every and finished < len(questions)):
            return False
        responses: dict[str, tuple[Response, ...]] = {side: tuple(answered[side]) for side in ARMS}
        run = Run(path=Path(), meta=meta, questions=tuple(questions), responses=responses)
        for side in ARMS:
            grades[side] |= grade_responses(run, responses[side][len(grades[side]) :])
        decision = decide(compare(run, grades), margin=meta["margin"], alpha=meta["stop_early"]["alpha"])
        return decision.verdict in (Verdict.PASS, Verdict.FAIL)

    return settled
