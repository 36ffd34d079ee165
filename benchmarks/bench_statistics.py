"""Print how long the statistics take, against their limits, and how the early stop behaves.

    python benchmarks/bench_statistics.py

Exits with 1 if a limit is exceeded. Takes about a minute.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from evalsuite import planning, statistics

STANDARD_ERROR = math.sqrt(0.05 * 0.95 / 2000)
COUNTS = {"lost": 12, "gained": 8, "pairs": 198}


def seconds(call: Callable[[], object], *, repeat: int) -> float:
    """Return the processor time of one call, the shortest of several, after one that is not counted."""
    call()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def import_seconds() -> float:
    """Return the processor time that a new interpreter takes to import the statistics, the shortest of five."""
    code = "import time; start = time.process_time(); import evalsuite.statistics; print(time.process_time() - start)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def timings() -> bool:
    """Print the timings; return whether all are within their limits."""
    rows: list[tuple[str, float | None, int, Callable[[], object]]] = [
        ("McNemar, all p-values", None, 100, lambda: statistics.mcnemar(lost=12, gained=8)),
        ("Tango interval", 1, 100, lambda: statistics.tango_interval(**COUNTS)),
        (
            "exact unconditional p, 198 pairs",
            200,
            20,
            lambda: statistics.exact_noninferiority_p(**COUNTS, margin=0.05),
        ),
        (
            "exact unconditional p, 1000 pairs",
            None,
            5,
            lambda: statistics.exact_noninferiority_p(lost=50, gained=50, pairs=1000, margin=0.03),
        ),
        (
            "rao_scott, 198 questions, 8 samples",
            None,
            20,
            lambda: statistics.rao_scott(baseline_right=[4] * 198, candidate_right=[3, 5] * 99, samples=8),
        ),
        ("watch, 198 questions", None, 20, lambda: statistics.watch([0, 0, 1, 0, -1, 0] * 33, margin=0.05)),
        (
            "confidence sequence, 198 questions",
            None,
            10,
            lambda: statistics.confidence_sequence([0, 0, 1, 0, -1, 0] * 33),
        ),
        (
            "plan, 198 questions, margin 5 %",
            1000,
            3,
            lambda: planning.plan(pairs=198, discordance=0.1, margin=0.05),
        ),
        (
            "plan, 12032 questions, margin 1 %",
            1000,
            3,
            lambda: planning.plan(pairs=12_032, discordance=0.1, margin=0.01),
        ),
    ]
    fine = True
    print(f"{'processor time':40} {'ms':>10} {'limit':>10}")
    for name, limit, repeat, call in rows:
        took = 1000 * seconds(call, repeat=repeat)
        fine &= limit is None or took <= limit
        print(f"{name:40} {took:10.3f} {limit if limit is not None else '':>10}")
    took = 1000 * import_seconds()
    print(f"{'import evalsuite.statistics':40} {took:10.3f} {50:>10}")
    return fine and took <= 50


def false_passes(*, margin: float, discordance: float, questions: int, runs: int = 2000) -> tuple[float, float]:
    """Return how often arms with a true loss equal to the margin pass: without and with the stop for a regression."""
    chances = [(discordance + margin) / 2, (discordance - margin) / 2, 1 - discordance]
    rng = np.random.default_rng(0)
    shown = passed = 0
    for _ in range(runs):
        evidence = statistics.watch(rng.choice([-1, 1, 0], size=questions, p=chances).tolist(), margin=margin)
        if evidence.noninferior_at is not None:
            shown += 1
            passed += evidence.regression_at is None or evidence.regression_at > evidence.noninferior_at
    return shown / runs, passed / runs


def main() -> int:
    fine = timings()
    print("\nstop early, true loss equal to the margin, 1319 questions, 2000 runs: share shown to lose less than the")
    print("margin at any time, and share that passes because no regression was found before")
    print(f"(at most 0.05 wanted; standard error of a share of 0.05: {STANDARD_ERROR:.4f})")
    for margin, discordance in ((0.05, 0.05), (0.05, 0.10), (0.05, 0.25)):
        shown, passed = false_passes(margin=margin, discordance=discordance, questions=1319)
        fine &= shown <= 0.05 + 3 * STANDARD_ERROR
        print(f"margin {margin:.0%}, discordance {discordance:3.0%}: {shown:.4f} {passed:.4f}")
    print("\nstop early, no true difference: questions until it passes, 2000 runs")
    print(f"{'margin':>7} {'discordance':>12} {'median':>8} {'80 %':>8}")
    for margin in (0.02, 0.03, 0.05):
        for discordance in planning.DISCORDANCES:
            stop = statistics.stopping(pairs=198, margin=margin, discordance=discordance, runs=2000)
            print(f"{margin:7.0%} {discordance:12.0%} {stop.median:8} {stop.in_80_percent:8}")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
