"""The tables of serving and of a decode step in the results are those of the recorded files."""

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[1] / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
CONTEXTS = (4096, 16384, 32768)


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def span(values: dict[str, float], digits: int, scale: float = 1.0) -> str:
    middle, low, high = (f"{scale * values[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} ({low}-{high})"


def rate(entry: dict[str, Any], key: str) -> str:
    return f"{100 * entry[key]:+.1f} %" + ("" if entry[f"{key}_shown"] else ", noise")


def step(arm: str, context: int) -> dict[str, float]:
    profiles = read("h200-profile/profile.json")["profiles"]
    [found] = [one for one in profiles if (one["arm"], one["context"]) == (arm, context)]
    families: dict[str, float] = found["profile"]["families"]
    return families


def test_the_serving_table_holds_the_recorded_figures() -> None:
    for entry in read("h200-speed/speed.json")["summary"]:
        first = f"{entry['seconds_to_first_token']['median']:.4f}"
        decode = span(entry["decode_seconds_per_token"], 3, 1e3)
        changes = ["", "", "baseline"]
        if entry["arm"] != "fa2":
            changes = [*(rate(entry, key) for key in ("first_token_change", "decode_rate_change"))]
            changes.append(entry["break_even"]["text"])
        cells = [str(entry["context"]), entry["arm"], first, changes[0], decode, *changes[1:]]
        assert "| " + " | ".join(cells).replace("|  |", "| |") + " |" in PAGE


def test_the_decode_rates_of_all_kept_runs_are_those_recorded() -> None:
    summary = read("h200-speed/speed.json")["summary"]
    rates = [rate(entry, "decode_rate_change") for entry in summary if entry["arm"] == "hybrid"]
    assert f"| the table above | {' | '.join(rates)} |" in PAGE
    printed = (RESULTS / "h200-speed-first/speed.txt").read_text().splitlines()
    [cells] = [line for line in PAGE.splitlines() if line.startswith("| `h200-speed-first` |")]
    for context, cell in zip(CONTEXTS, cells.split(" | ")[1:], strict=True):
        [line] = [line for line in printed if line.split()[:2] == [str(context), "hybrid"]]
        assert f"  {cell.strip(' |')}  " in line
    sums = [sum(step("fa2", context).values()) / sum(step("hybrid", context).values()) - 1 for context in CONTEXTS]
    shown = " | ".join(f"{100 * gain:+.1f} %" for gain in sums)
    assert f"| sum of the kernels of a step (next section) | {shown} |" in PAGE


def test_the_throughput_table_holds_the_recorded_figures() -> None:
    throughput = read("h200-speed/speed.json")["throughput"]
    for context in CONTEXTS:
        rates = [span(entry["tokens_per_second"], 1) for entry in throughput if entry["context"] == context]
        assert f"| {context} | {' | '.join(rates)} |" in PAGE
    steps = [entry["split_kv_steps"] for entry in throughput if entry["arm"] == "hybrid"]
    assert steps == [[0] * 3, [2] * 3, [4] * 3]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("arm", ["fa2", "hybrid"])
def test_the_table_of_a_step_holds_the_recorded_figures(arm: str, context: int) -> None:
    times = step(arm, context)
    [one] = [
        one for one in read("h200-profile/profile.json")["profiles"] if (one["arm"], one["context"]) == (arm, context)
    ]
    cells = [str(context), arm, *(f"{time:.3f}" for time in times.values()), f"{sum(times.values()):.3f}"]
    cells += [f"{times['attention'] / sum(times.values()):.1%}".replace("%", " %"), f"{one['kv_bytes'] / 1e6:.1f}"]
    cells += [f"{one['attention_bytes_per_second'] / 1e9:.1f}"]
    assert f"| {' | '.join(cells)} |" in PAGE


def test_attention_of_a_step_is_that_of_its_replay_within_six_percent() -> None:
    for entry in read("h200-replay/24-4-256/replay.json")["contexts"]:
        alone = {row["kernel"]: row["microseconds"] for row in entry["rows"]}
        if entry["context"] in CONTEXTS:
            for arm, kernel in (("fa2", "FA2 auto"), ("hybrid", "split-KV (ours)")):
                served = 1e3 * step(arm, entry["context"])["attention"] / 16
                assert served == pytest.approx(alone[kernel], rel=0.06)
                assert f"{served:.1f}" in PAGE


def test_what_the_page_says_of_steps_holds() -> None:
    left = [step("hybrid", context)["attention"] / step("fa2", context)["attention"] for context in CONTEXTS]
    assert f"leaves {100 * left[0]:.0f} to {100 * left[-1]:.0f} % of it" in PAGE
    for entry in read("h200-speed/speed.json")["summary"]:
        if entry["arm"] != "triton":
            served, kernels = entry["decode_seconds_per_token"]["median"] * 1e3, step(entry["arm"], entry["context"])
            waits = served - sum(kernels.values())
            assert 2.05 < served < 2.35
            assert abs(waits) < 0.02 if (entry["arm"], entry["context"]) == ("fa2", 32768) else waits > 0.1
