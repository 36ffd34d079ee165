"""Print how long the statistics take, against their limits, and how the early stop behaves.

    python benchmarks/bench_statistics.py

Exits with 1 if a limit is exceeded. Takes about half a minute.
"""

import math
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from evalsuite import planning, statistics
from evalsuite.statistics import _evidence

RUNS = 40_000
COMPARED = 100
"""Simulated runs that are also judged by `statistics.watch`, which must say the same."""
STOPS = {
    (0.01, 0.05): (2472, 4452),
    (0.01, 0.10): (4656, 8712),
    (0.01, 0.15): (6882, 13246),
    (0.01, 0.25): (11529, 22204),
    (0.02, 0.05): (705, 1176),
    (0.02, 0.10): (1200, 2238),
    (0.02, 0.15): (1755, 3339),
    (0.02, 0.25): (2925, 5565),
    (0.03, 0.05): (357, 557),
    (0.03, 0.10): (564, 1028),
    (0.03, 0.15): (812, 1497),
    (0.03, 0.25): (1308, 2551),
    (0.05, 0.05): (156, 231),
    (0.05, 0.10): (221, 383),
    (0.05, 0.15): (304, 579),
    (0.05, 0.25): (490, 946),
}
"""What the specification says of the early stop, by margin and discordance: median, and 80 % point; simulated, 8000."""
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


def false_passes(*, margin: float, discordance: float, questions: int) -> tuple[float, float]:
    """Return how often arms with a true loss equal to the margin pass: without and with the stop for a regression.

    All runs at once, with the bets and the outcomes of `statistics.watch`; the first runs are put to it as well.
    """
    alpha, prior = 0.05, _evidence.PRIOR_QUESTIONS
    rng = np.random.default_rng(0)
    discordant, excess = np.zeros(RUNS), np.full(RUNS, _evidence.PRIOR_EXCESS * prior)
    wealth = np.zeros((2, RUNS))  # of the bets for "below the margin", and for "a regression"
    reached_at = np.full((2, RUNS), questions + 1)
    compared = np.zeros((COMPARED, questions))
    for asked in range(questions):
        expected = (_evidence.PRIOR_DISCORDANCE * prior + discordant) / (prior + asked)
        best = statistics.best_bet(lost_rate=expected / 2, gained_rate=expected / 2, margin=margin)
        below_margin = np.minimum(best, _evidence.MOST_STAKED / (1 - margin))
        regression = np.minimum(np.maximum(excess, 0) / (prior + asked) / expected, _evidence.MOST_STAKED_ON_A_LOSS)
        draw = rng.random(RUNS)
        outcome = np.where(draw < (discordance + margin) / 2, -1.0, np.where(draw < discordance, 1.0, 0.0))
        wealth += np.log1p([below_margin * (outcome + margin), -regression * outcome])
        reached_at[(reached_at > questions) & (wealth >= -math.log(alpha))] = asked + 1
        discordant += np.abs(outcome)
        excess -= outcome
        compared[:, asked] = outcome[:COMPARED]
    for number, outcomes in enumerate(compared.tolist()):
        seen = statistics.watch(outcomes, margin=margin, alpha=alpha)
        wanted = [at or questions + 1 for at in (seen.noninferior_at, seen.regression_at)]
        if reached_at[:, number].tolist() != wanted:
            raise SystemExit(f"simulated run {number} ends at {reached_at[:, number]}, statistics.watch says {wanted}")
    below_margin_at, regression_at = reached_at
    shown = below_margin_at <= questions
    return float(shown.mean()), float((shown & (below_margin_at < regression_at)).mean())


def passes_at_the_margin() -> bool:
    """Print how often the early stop passes a loss equal to the margin; return whether it is at most 5 %."""
    print(
        f"\nstop early, true loss equal to the margin, 1319 questions, {RUNS:,} runs: share shown to lose less than the"
    )
    print("margin at any time, and share that passes because no regression was found before (at most 0.05 wanted)")
    fine = True
    for margin, discordance in ((0.05, 0.05), (0.05, 0.10), (0.05, 0.25)):
        shares = false_passes(margin=margin, discordance=discordance, questions=1319)
        errors = [math.sqrt(share * (1 - share) / RUNS) for share in shares]
        fine &= shares[0] <= 0.05 + 2 * errors[0]
        text = "   ".join(f"{share:.4f} +- {error:.4f}" for share, error in zip(shares, errors, strict=True))
        print(f"margin {margin:.0%}, discordance {discordance:3.0%}: {text}")
    return fine


def stops_without_a_difference() -> bool:
    """Print when the early stop passes equal arms; return whether that is what the specification says, within 5 %."""
    print("\nstop early, no true difference: questions until it passes, 8000 runs, beside those specified")
    print(f"{'margin':>7} {'discordance':>12} {'median':>8} {'specified':>10} {'':8} {'80 %':>8} {'specified':>10}")
    fine = True
    for (margin, discordance), specified in STOPS.items():
        stop = statistics.stopping(pairs=198, margin=margin, discordance=discordance, runs=8000)
        text = f"{margin:7.0%} {discordance:12.0%}"
        for found, wanted in zip((stop.median, stop.in_80_percent), specified, strict=True):
            text += f" {found:8} {wanted:10} {found / wanted - 1:+8.1%}"
            fine &= abs(found / wanted - 1) <= 0.05
        print(text)
    return fine


def main() -> int:
    checks = [timings(), passes_at_the_margin(), stops_without_a_difference()]
    return 0 if all(checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
