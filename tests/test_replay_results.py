"""The page about split and segment counts says what the recorded replays hold, and what the code's own rules give."""

import json
from pathlib import Path
from typing import Any

import pytest
from evalsuite_attention.segments import plan_decode

from evalsuite.render import markdown_table
from evalsuite_performance.flash_kernels import fa2_auto_splits
from evalsuite_performance.layer_shape import LayerShape

FOLDER = Path(__file__).parents[1] / "results" / "h200-replay"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
REPLAYS = ("24-4-256", "32-8-128", "9-3-64", "smollm2-captured")
SM_COUNT = 132  # of an H200
HEAD = ("context", "FA2 auto", "FA2 best forced", "vLLM's Triton, 16", "Triton, best", "split-KV (ours)", "control")
Row = dict[str, Any]


def read(name: str) -> Row:
    return json.loads((FOLDER / name / "replay.json").read_text(encoding="utf-8"))


def pick(rows: list[Row], start: str) -> Row:
    """Return the fastest row whose kernel's name starts so; the control is no candidate."""
    found = [row for row in rows if row["kernel"].startswith(start) and not row["kernel"].endswith("again")]
    return min(found, key=lambda row: row["microseconds"])


def forced(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kernel"].endswith(" splits")]


def render(data: Row) -> str:
    """Return the page's table of one replay: microseconds, and in brackets the splits or segments."""
    lines: list[tuple[str, ...]] = [HEAD]
    for entry in data["contexts"]:
        rows = entry["rows"]
        columns = [
            pick(rows, "FA2 auto"),
            pick(forced(rows), "FA2"),
            pick(rows, "Triton 16 "),
            pick(rows, "Triton"),
            pick(rows, "split-KV"),
        ]
        control = f"{100 * entry['noise']:+.2f} %" + (", NOISY" if entry["noisy"] else "")
        times = [f"{row['microseconds']:.1f} ({row['parts']})" for row in columns]
        lines.append((str(entry["context"]), *times, control))
    return markdown_table(lines)


@pytest.mark.parametrize("name", REPLAYS)
def test_each_table_holds_the_recorded_figures(name: str) -> None:
    assert render(read(name)) in PAGE


def test_every_recorded_replay_has_its_table() -> None:
    assert sorted(REPLAYS) == sorted(file.parent.name for file in FOLDER.glob("*/replay.json"))


@pytest.mark.parametrize(
    "q_heads, kv_heads, head_size, sms, chosen",
    [  # contexts 256, 1k, 2k, 4k, 8k, 32k, 128k; computed with the C++ formula
        (32, 8, 128, 132, [2, 8, 16, 32, 32, 29, 28]),
        (16, 2, 128, 132, [2, 8, 16, 32, 64, 128, 114]),
        (9, 3, 64, 132, [1, 4, 8, 16, 32, 64, 74]),
        (32, 8, 128, 108, [2, 8, 16, 16, 22, 24, 23]),
        (32, 8, 128, 58, [2, 8, 8, 11, 13, 13, 13]),
        (8, 8, 128, 132, [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_fa2s_own_split_count_is_what_its_source_computes(
    q_heads: int, kv_heads: int, head_size: int, sms: int, chosen: list[int]
) -> None:
    shape = LayerShape(q_heads=q_heads, kv_heads=kv_heads, head_size=head_size, page_size=16)
    contexts = [256, 1024, 2048, 4096, 8192, 32768, 131072]
    assert [fa2_auto_splits(shape, context, sms) for context in contexts] == chosen


@pytest.mark.parametrize("name", REPLAYS)
def test_the_rules_of_the_page_give_the_recorded_automatic_counts(name: str) -> None:
    data = read(name)
    shape = LayerShape(**data["shape"])
    longest = max(entry["context"] for entry in data["contexts"])
    plan = plan_decode(sm_count=SM_COUNT, kv_heads=shape.kv_heads, head_size=shape.head_size, max_seq_len=longest)
    for entry in data["contexts"]:
        assert pick(entry["rows"], "FA2 auto")["parts"] == fa2_auto_splits(shape, entry["context"], SM_COUNT)
        assert pick(entry["rows"], "split-KV")["parts"] == plan.segments


def test_what_the_page_says_of_all_replays_holds() -> None:
    contexts = {(name, entry["context"]): entry["rows"] for name in REPLAYS for entry in read(name)["contexts"]}
    gains = {}
    for (name, context), rows in contexts.items():
        timed = [row for row in rows if row["microseconds"] is not None]
        assert pick(rows, "split-KV") is min(timed, key=lambda row: row["microseconds"])
        gains[name, context] = max(row["gain"] for row in forced(rows))
        assert min(forced(rows), key=lambda row: row["gain"])["parts"] in (8, 128)
        segments = pick(rows, "split-KV")["parts"]
        nearest = min((16, 32, 64, 128), key=lambda count: abs(count - segments))
        assert pick(rows, "Triton")["parts"] == nearest
        same = [row for row in forced(rows) if row["parts"] == pick(rows, "FA2 auto")["parts"]]
        assert [row["relative_error"] for row in same] == [pick(rows, "FA2 auto")["relative_error"]] * len(same)
        assert all(abs(row["gain"] - 1) < 0.0225 for row in same)
    assert round(gains["24-4-256", 4096], 2) == 1.30 == round(max(gains.values()), 2)
    assert [key for key, gain in gains.items() if gain < 1] == [("9-3-64", 131072)]
    slowdowns = [pick(rows, "Triton 16 ")["microseconds"] / pick(rows, "Triton")["microseconds"]
                 for rows in contexts.values()]  # fmt: skip
    assert (round(min(slowdowns), 1), round(max(slowdowns), 1)) == (1.7, 6.6)
