"""The tables of serving and of a decode step in the results are those of the recorded files."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from evalsuite_performance.break_even import difference

RESULTS = Path(__file__).parents[1] / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
CONTEXTS = (4096, 16384, 32768)


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def span(values: dict[str, float], digits: int, scale: float = 1.0) -> str:
    middle, low, high = (f"{scale * values[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} ({low}-{high})"


def percent(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"


def rate(entry: dict[str, Any], key: str) -> str:
    return percent(*(entry[key][end] for end in ("mean", "low", "high")))


def step(arm: str, context: int) -> dict[str, float]:
    profiles = read("h200-profile/profile.json")["profiles"]
    [found] = [one for one in profiles if (one["arm"], one["context"]) == (arm, context)]
    families: dict[str, float] = found["profile"]["families"]
    return families


def test_the_serving_table_holds_the_recorded_figures() -> None:
    for entry in read("h200-speed/speed.json")["summary"]:
        first = f"{entry['seconds_to_first_token']['median']:.4f}"
        decode = f"{1e3 * entry['decode_seconds_per_token']['median']:.3f}"
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
    printed = (RESULTS / "h200-speed-first/speed.txt").read_text()
    found = re.findall(r"^context (\d+), \d: (\w+): first token \S+ s, then (\S+) ms/token$", printed, re.MULTILINE)
    rates = []
    for context in CONTEXTS:
        base, mine = (
            [float(time) for where, name, time in found if (where, name) == (str(context), arm)]
            for arm in ("fa2", "hybrid")
        )
        logs = difference([math.log(time) for time in base], [math.log(time) for time in mine])
        rates.append(percent(*(math.expm1(end) for end in (logs.mean, logs.low, logs.high))))
    assert f"| `h200-speed-first` | {' | '.join(rates)} |" in PAGE
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


def test_attention_of_a_step_is_set_beside_its_replay() -> None:
    entries = {entry["context"]: entry["rows"] for entry in read("h200-replay/24-4-256/replay.json")["contexts"]}
    told = []
    for arm, kernel in (("fa2", "FA2 auto"), ("hybrid", "split-KV (ours)")):
        told += [f"{1e3 * step(arm, context)['attention'] / 16:.1f}" for context in (4096, 32768)]
        told += [
            f"{row['microseconds']:.1f}"
            for context in (4096, 32768)
            for row in entries[context]
            if row["kernel"] == kernel
        ]
    expected = (
        "Attention takes {} and {} µs a layer with fa2 at 4K and 32K, where its replay takes {} and {}, and {} and {} "
        "with the hybrid, where the replay takes {} and {}."
    )
    assert expected.format(*told) in " ".join(PAGE.split())


def test_what_the_page_says_of_steps_holds() -> None:
    left = [step("hybrid", context)["attention"] / step("fa2", context)["attention"] for context in CONTEXTS]
    assert f"leaves {100 * left[0]:.0f} to {100 * left[-1]:.0f} % of it" in PAGE
    served = [
        1e3 * entry["decode_seconds_per_token"]["median"]
        for entry in read("h200-speed/speed.json")["summary"]
        if entry["arm"] != "triton"
    ]
    assert f"The served steps above take {min(served):.1f} to {max(served):.1f} ms." in PAGE


def test_the_small_model_shows_no_difference() -> None:
    for entry in read("h200-speed-smollm2/speed.json")["summary"]:
        if entry["arm"] == "hybrid":
            assert entry["break_even"]["text"] == "no difference shown"
