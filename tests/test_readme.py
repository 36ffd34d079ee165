"""What the README says holds: its commands parse, and its figures are those of the recorded files."""

import json
import re
import shlex
from pathlib import Path

import pytest

from evalsuite.cli import build_parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = README + "".join((ROOT / page).read_text(encoding="utf-8") for page in ("docs/ci.md", "results/README.md"))
COMMANDS = sorted(set(re.findall(r"^    (?:python -m )?evalsuite (.+?)(?:\s+#.*)?$", PAGES, re.MULTILINE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    build_parser().parse_args(shlex.split(command))


def test_every_command_is_listed() -> None:
    listed = build_parser().format_help()
    for name in re.findall(r"^    ([a-z]+) +[a-z]", listed, re.MULTILINE):
        assert f"evalsuite {name}" in README or f"`{name}`" in README, name


def test_the_attention_figures_are_those_recorded() -> None:
    heads = ""
    found = re.findall(r"^\| ([\d/]*) ?\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", README, re.MULTILINE)
    assert len(found) == 4
    for shape, context, *figures in found:
        heads = shape or heads
        replay = json.loads((ROOT / "results/h200-replay" / heads.replace("/", "-") / "replay.json").read_text())
        [entry] = [each for each in replay["contexts"] if each["context"] == int(context)]
        recorded = {row["kernel"]: row["microseconds"] for row in entry["rows"]}
        assert figures == [f"{recorded[kernel]:.1f}" for kernel in ("FA2 auto", "FA3", "split-KV (ours)")]


def test_the_decode_rates_are_those_recorded() -> None:
    recorded = json.loads((ROOT / "results/h200-speed/speed.json").read_text())["summary"]
    rates = re.findall(r"^\| [\d/]* ?\| (\d+) \|.* \| (\+[\d.]+ % \(.*\)) \|$", README, re.MULTILINE)
    assert len(rates) == 2
    rates += re.findall(r"at (16)K it shows (\+[\d.]+ % \(.*?\))", README)
    assert len(rates) == 3
    for context, rate in rates:
        [change] = [
            each["decode_rate_change"]
            for each in recorded
            if str(each["context"]).startswith(context) and each["arm"] == "hybrid"
        ]
        assert rate == "{:+.1f} % ({:+.1f} to {:+.1f})".format(*(100 * change[key] for key in ("mean", "low", "high")))


def test_the_demo_table_is_the_one_recorded() -> None:
    recorded = json.loads((ROOT / "results/cpu-capitals/comparison.json").read_text())
    assert f"baseline right      {recorded['table']['kept']} kept " in README
    assert recorded["headline"] in README
