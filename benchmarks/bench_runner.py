"""What the runner itself costs a question: a server that answers at once, the receipt, and a line that is on the disk.

    python benchmarks/bench_runner.py

The stub server's own time is included. Targets: a median of at most 5 ms for a response of 5 tokens, and for one of 500
less than 2 % of what a response of a real CPU run takes (the median of results/cpu-capitals, some 55 tokens).
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from evalsuite import runner, server
from evalsuite.client import Prompt, Sampling
from evalsuite.journal import Journal, load_run
from made_runs import make_question
from stub_server import WORDS, started

QUESTIONS = 300
TARGET_MS, TARGET_SHARE = 5.0, 0.02
CPU_RUN = Path(__file__).parent.parent / "results" / "cpu-capitals"


def measure(folder: Path, *, repeat: int) -> tuple[list[float], list[float], list[float]]:
    """Return, for each question, the milliseconds in all, of the request, and of the journal."""
    questions = [make_question(number) for number in range(QUESTIONS)]
    plan = runner.Plan(
        meta={},
        arms={},
        checkpoints={},
        model=None,
        questions=questions,
        prompts={q.id: Prompt(messages=(), token_ids=(100 + i,) * 200) for i, q in enumerate(questions)},
        sampling=Sampling(budget=len(WORDS) * repeat + 1, temperature=0.0, until=()),
        samples=1,
        seed=0,
    )
    arm = started(folder, "--repeat", str(repeat), env={"GGUF_PQ2_SINGLE_ATTN_BACKEND": "torch"})
    total, request, writing = [], [], []
    journal = Journal(folder / "baseline.jsonl")
    with server.serve(arm, folder, folder / "log", lambda text: None) as serving:
        for question in questions:
            start = time.perf_counter()
            response = runner.ask_once(plan, serving, question, 0, session=1)
            answered = time.perf_counter()
            journal.append(response)
            end = time.perf_counter()
            if response.error or response.seconds is None:
                raise RuntimeError(f"the stub failed: {response.error}")
            total.append(1000 * (end - start))
            request.append(1000 * response.seconds)
            writing.append(1000 * (end - answered))
    journal.close()
    return total, request, writing


def main() -> None:
    """Print the medians for a short and a long response."""
    print(f"{'tokens':>6}  {'median ms':>9}  {'95 % ms':>8}  {'request':>8}  {'receipt':>8}  {'journal':>8}")
    for repeat in (1, 100):
        # Beside the runs, not in a temporary folder: that one may be held in memory, where fsync costs nothing.
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            total, request, writing = measure(Path(folder), repeat=repeat)
        middle, asking, appending = map(statistics.median, (total, request, writing))
        high = statistics.quantiles(total, n=20)[-1]
        parts = f"{asking:8.2f}  {middle - asking - appending:8.2f}  {appending:8.2f}"
        print(f"{len(WORDS) * repeat:>6}  {middle:9.2f}  {high:8.2f}  {parts}")
        if repeat == 1:
            print(f"        {'within' if middle <= TARGET_MS else 'ABOVE'} the target of {TARGET_MS:.0f} ms")
        else:
            real = statistics.median(r.seconds or 0 for r in load_run(CPU_RUN).responses["baseline"])
            share = middle / 1000 / real
            within = "within" if share < TARGET_SHARE else "ABOVE"
            print(
                f"        {share:.2%} of the {real:.1f} s of a real response: {within} the target of {TARGET_SHARE:.0%}"
            )


if __name__ == "__main__":
    main()
