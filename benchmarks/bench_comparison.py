"""Print what it costs to compare: a million graded pairs, and each step from a run's files to its report.

    python benchmarks/bench_comparison.py

Exits with 1 if comparing the million pairs, from paired tables to text and JSON, takes more than 3 s or 1 GB.
Takes about 15 s.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from evalsuite import render, report, samples
from evalsuite.comparison import compare, count_incidence, tabulate
from evalsuite.journal import load_run
from evalsuite.pairing import Pair, grade_responses
from evalsuite.records import ARMS
from evalsuite.scoring import Grade
from evalsuite.verdict import decide
from made_runs import make_run, write_run

T = TypeVar("T")
MILLION = 1_000_000
QUESTIONS = 20_000
MOST_SECONDS, MOST_GB = 3.0, 1.0
WORDS = "rr " * 12 + "ww " * 5 + "rw wr tt "
"""Of 20 pairs one is lost, one gained and one truncated."""


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return the processor seconds of one call, and what it returned."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def gigabytes() -> float:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def compare_a_million() -> bool:
    """Print what tables, verdict, text and JSON of a million graded pairs cost; return whether it is within limits."""
    run = make_run(WORDS)
    small = compare(run, {arm: grade_responses(run, run.responses[arm]) for arm in ARMS})
    grades = {letter: Grade(verdict=verdict, answer="A") for letter, verdict in
              (("r", "right"), ("w", "wrong"), ("t", "truncated"))}  # fmt: skip
    words = WORDS.split()
    pairs = tuple(
        Pair(
            question=(name := f"q{number}"),
            sample=0,
            cluster=name,
            target="A",
            baseline=grades[words[number % 20][0]],
            candidate=grades[words[number % 20][1]],
            baseline_tokens=20,
            candidate_tokens=20,
            baseline_seconds=1.0,
            candidate_seconds=1.0,
        )
        for number in range(MILLION)
    )
    made = gigabytes()

    def conclude() -> str:
        comparison = replace(
            small,
            pairs=pairs,
            questions=MILLION,
            table=tabulate(pairs),
            worst_case=tabulate(pairs, worst_case=True),
            without_truncated=tabulate([pair for pair in pairs if not pair.has("truncated")]),
            truncation=count_incidence(pairs, "truncated"),
            errors=count_incidence(pairs, "error"),
        )
        result = report.Report(meta=run.meta, comparison=comparison, decision=decide(comparison, margin=0.01))
        return report.render_text(result) + report.render_json(result)

    took, _ = timed(conclude)
    print(f"{MILLION:,} graded pairs, to text and JSON: {took:.2f} s (limit {MOST_SECONDS:g}),", end=" ")
    print(f"{gigabytes():.2f} GB (limit {MOST_GB:g}), of which the pairs themselves {made:.2f}")
    return took <= MOST_SECONDS and gigabytes() <= MOST_GB


def step_by_step(folder: Path) -> None:
    """Print what each step from files to report costs a pair, two responses with receipts."""
    path = write_run(make_run(WORDS * (QUESTIONS // 20), path=folder / "run"))
    read, run = timed(lambda: load_run(path))
    graded, grades = timed(lambda: {arm: grade_responses(run, run.responses[arm]) for arm in ARMS})
    compared, comparison = timed(lambda: compare(run, grades))
    result = report.Report(meta=run.meta, comparison=comparison, decision=decide(comparison, margin=0.01))
    marked, markdown = timed(lambda: render.render_markdown(run.meta, comparison, result.decision))
    steps = {
        "read both arms": read,
        "grade": graded,
        "check receipts, pair, compare": compared,
        "pairs.csv": timed(lambda: report.render_csv(result))[0],
        "report.md (a line for each lost or gained pair)": marked,
        "report.html": timed(lambda: render.render_html(markdown, title=""))[0],
        "lm-eval logs, read and compared": logs(folder),
    }
    print(f"\nof a run of {QUESTIONS:,} questions, microseconds a pair")
    for name, took in steps.items():
        print(f"{name:50} {1e6 * took / QUESTIONS:8.1f}")


def logs(folder: Path) -> float:
    """Return the seconds to compare two logs of lm-eval with prompts of 2,000 characters."""
    paths = []
    for arm in ARMS:
        paths.append(folder / f"samples_{arm}.jsonl")
        lines = (
            {"doc_id": number, "doc_hash": f"{number:064}", "prompt_hash": f"{number:064}", "target_hash": "",
             "arguments": {"gen_args_0": {"arg_0": "x" * 2000}}, "filter": "none", "exact_match": number % 2}
            for number in range(QUESTIONS)
        )  # fmt: skip
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    took, (run, grades) = timed(lambda: samples.join_samples(*paths))
    return took + timed(lambda: report.derive(run, grades=grades))[0]


def main() -> int:
    fine = compare_a_million()
    with tempfile.TemporaryDirectory() as folder:
        step_by_step(Path(folder))
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
