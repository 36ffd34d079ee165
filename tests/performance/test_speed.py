"""Speed: what is timed was proven, arms alternate, and no break-even is claimed that the scatter covers."""

import argparse
import csv
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import psutil
import pytest

from evalsuite import environment
from evalsuite.arms import Arm
from evalsuite.errors import UserError
from evalsuite_performance import models, speed
from evalsuite_performance.models import ModelShape, parse_shape, read_shape, write_model

sys.path.insert(0, str(Path(__file__).parent))
from speed_server import arms_file

# httpcore leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.*family=1:ResourceWarning")

SPLIT = {"kernel": "split_kv", "env": {"GGUF_PQ2_SINGLE_ATTN_BACKEND": "torch"}}


def read(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    speed.add_parser(parser.add_subparsers())
    args = parser.parse_args(["speed", *arguments])
    code = args.call(args)
    assert isinstance(code, int)
    return code


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(parse_shape("9/3/64", layers=2), folder, positions=4096)
    return str(folder)


def options(tmp_path: Path, model: str, **arms: Any) -> list[str]:
    named = [part for name in arms for part in ("--arm", name)]
    return [
        *named,
        "--arms",
        str(arms_file(tmp_path, **arms)),
        "--model",
        model,
        "--context",
        "64,16",
        "--tokens",
        "20",
    ]


def test_arms_are_asked_alternately_and_every_figure_is_written(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, out = tmp_path / "seen", tmp_path / "out"
    slow = {"env": {"STUB_MS": "20"}, "args": ["--seen", str(seen)]}
    fast = {**SPLIT, "env": {**SPLIT["env"], "STUB_MS": "1"}, "args": ["--seen", str(seen)]}  # type: ignore[dict-item]
    assert run(*options(tmp_path, model, slow=slow, fast=fast), "--out", str(out), "--repetitions", "2") == 0

    rows = read(out / "speed.csv")
    order = [(row["context"], row["repetition"], row["arm"]) for row in rows]
    rounds = [("1", "slow"), ("1", "fast"), ("2", "fast"), ("2", "slow")]
    assert order == [(context, *each) for context in ("16", "64") for each in rounds], "in reverse every other round"
    assert all(float(row["seconds_to_first_token"]) > 0 and row["tokens"] == "20" for row in rows)
    assert [row["split_kv_steps"] for row in rows[:2]] == ["", "19"]
    paces = {arm: [float(row["decode_ms_per_token"]) for row in rows if row["arm"] == arm] for arm in ("slow", "fast")}
    assert 1 <= max(paces["fast"]) < 20 <= min(paces["slow"])

    asked = [json.loads(line)["asked"] for line in seen.read_text().splitlines()]
    assert [len(prompt) for prompt in asked] == [8, 8, *[16] * 6, *[64] * 6], "starts, then per context a warm-up each"
    measured = asked[4:8]
    assert measured[0] == measured[1] != measured[2] == measured[3], "both arms get the same prompts, none twice"

    entry = json.loads((out / "speed.json").read_text())["summary"][1]
    assert entry["arm"] == "fast"
    change = entry["decode_rate_change"]
    assert change["mean"] == pytest.approx(geometric_mean(paces["slow"][:2]) / geometric_mean(paces["fast"][:2]) - 1)
    assert change["low"] < change["mean"]
    assert entry["break_even"]["kind"] != "never"
    shown = capsys.readouterr().out
    assert "baseline" in shown
    assert (out / "speed.md").read_text().startswith("# Speed\n")
    assert "<svg" in (out / "speed.svg").read_text()


def test_requests_at_once_are_at_once_and_counted_in_all(tmp_path: Path, model: str) -> None:
    seen, out = tmp_path / "seen", tmp_path / "out"
    arms = {"one": {"args": ["--seen", str(seen)], "env": {"STUB_MS": "5"}}}
    arguments = options(tmp_path, model, **arms)
    assert run(*arguments, "--out", str(out), "--repetitions", "1", "--concurrency", "4") == 0
    assert max(json.loads(line)["at_once"] for line in seen.read_text().splitlines()) == 4
    [row] = [row for row in read(out / "speed.csv") if (row["concurrency"], row["context"]) == ("4", "16")]
    assert row["tokens"] == "80"
    assert row["seconds_to_first_token"] == ""
    assert json.loads((out / "speed.json").read_text())["throughput"][0]["tokens_per_second"]["median"] > 0


def test_without_a_context_the_usual_ones_that_fit_are_taken(tmp_path: Path, model: str) -> None:
    arms = {"plain": {}, "short": {"args": ["--max-model-len", "300"]}}
    arguments = options(tmp_path, model, **arms)
    at = arguments.index("--context")
    arguments[at : at + 2] = ["--repetitions", "1", "--out", str(tmp_path / "out")]
    assert run(*arguments) == 0
    assert {row["context"] for row in read(tmp_path / "out" / "speed.csv")} == {"256"}, "1024 exceeds 300"


def test_an_arm_whose_receipt_shows_another_kernel_is_invalid(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = {"kernel": "split_kv"}  # promised, and not switched on
    assert run(*options(tmp_path, model, plain={}, silent=silent)) == 4
    shown = capsys.readouterr()
    assert "INVALID: arm silent, context 16: no layer can use split-KV" in shown.err
    assert not shown.out, "no table"


def test_an_arm_that_does_not_start_is_left_out_with_the_reason(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"plain": {}, "broken": {"args": ["--misbehave", "crash"]}}
    assert run(*options(tmp_path, model, **arms), "--repetitions", "1") == 0
    assert "Left out: broken: arm broken: its server ended while starting" in capsys.readouterr().out


def test_without_the_baseline_nothing_is_measured(tmp_path: Path, model: str) -> None:
    arms = {"broken": {"args": ["--misbehave", "crash"]}, "plain": {}}
    with pytest.raises(UserError, match="arm broken: its server ended while starting"):
        run(*options(tmp_path, model, **arms))


def test_a_response_with_too_few_tokens_is_no_measurement(tmp_path: Path, model: str) -> None:
    with pytest.raises(UserError, match="100 tokens came; expected 200"):
        run(*options(tmp_path, model, plain={}), "--tokens", "200")


def test_a_name_that_the_arms_file_takes_is_given_to_no_other_arm(tmp_path: Path, model: str) -> None:
    slow = {"env": {"STUB_MS": "8"}}
    arguments = options(tmp_path, model, **{"plain": {}, "plain-again": slow})
    assert run("--arm", "plain", *arguments, "--repetitions", "1", "--out", str(tmp_path / "out")) == 0
    times = {row["arm"]: float(row["decode_ms_per_token"]) for row in read(tmp_path / "out" / "speed.csv")}
    assert set(times) == {"plain", "plain-again", "plain-again2"}
    assert times["plain-again"] > 8 > times["plain-again2"]


def test_each_arm_is_named_with_its_own_model_and_counts_its_own_bytes(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from evalsuite_performance.workload import Workload, kv_bytes

    other = tmp_path / "other"
    other.mkdir()
    write_model(parse_shape("9/3/64", layers=4), other, positions=4096)
    assert run(*options(tmp_path, model, plain={}, own={"model": str(other)}), "--repetitions", "1") == 0
    assert "model: plain: model, own: other" in capsys.readouterr().out
    load = Workload(shape=read_shape(Path(model)), checkpoint=Path(model), dummy=False, contexts=(16,), tokens=2)
    for args, model_of, layers, size in (
        ((), None, 2, 2),
        ((), str(other), 4, 2),
        (("--dtype", "float32"), None, 2, 4),
        (("--dtype=float32", "--kv_cache_dtype=fp8_e5m2"), None, 2, 1),
    ):
        assert kv_bytes(Arm(name="a", args=args, model=model_of), load) == layers * 2 * 3 * 64 * size


def test_fewer_at_once_than_asked_for_are_refused(tmp_path: Path, model: str) -> None:
    arms = {"one": {"args": ["--max-num-seqs", "1"]}}
    with pytest.raises(UserError, match="arm one has --max-num-seqs 1, and 4 requests are to run at once"):
        run(*options(tmp_path, model, **arms), "--concurrency", "4")


def test_results_of_an_earlier_run_do_not_outlive_an_invalid_one(tmp_path: Path, model: str) -> None:
    out = tmp_path / "out"
    assert run(*options(tmp_path, model, plain={}), "--repetitions", "1", "--out", str(out)) == 0
    assert {file.suffix for file in out.glob("speed.*")} == {".csv", ".json", ".md", ".svg"}
    assert run(*options(tmp_path, model, plain={}, silent={"kernel": "split_kv"}), "--out", str(out)) == 4
    assert not list(out.glob("speed.*"))


def test_logs_outlive_only_a_line_that_names_them(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(*options(tmp_path, model, plain={}), "--repetitions", "1") == 0
    assert run(*options(tmp_path, model, plain={}, silent={"kernel": "split_kv"})) == 4
    assert not list(tmp_path.glob("evalsuite-logs-*"))
    assert run(*options(tmp_path, model, plain={}, broken={"args": ["--misbehave", "crash"]}), "--tokens", "4") == 0
    [log] = tmp_path.glob("evalsuite-logs-*/broken.log")
    assert str(log) in capsys.readouterr().out


def test_what_was_measured_is_kept_whatever_ends_the_command(tmp_path: Path, model: str) -> None:
    from evalsuite_performance.workload import Workload

    out = tmp_path / "out"
    load = Workload(shape=read_shape(Path(model)), checkpoint=Path(model), dummy=False, contexts=(16, 64), tokens=20)
    failing = {"args": ["--misbehave", "500", "--on", str(load.prompt(64, 1)[-1])]}  # the second of two contexts
    arguments = options(tmp_path, model, plain=failing)
    with pytest.raises(UserError, match="arm plain, context 64"):
        run(*arguments, "--repetitions", "1", "--out", str(out))
    assert {row["context"] for row in read(out / "speed.csv")} == {"16"}


def test_an_arm_named_again_is_its_own_noise(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = options(tmp_path, model, plain={})
    assert run("--arm", "plain", *arguments, "--repetitions", "1") == 0
    assert "plain-again" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.3, 1])
def test_an_interrupt_while_servers_start_leaves_none(tmp_path: Path, model: str, seconds: float) -> None:
    waiting = {"args": ["--misbehave", "unhealthy"]}
    arguments = options(tmp_path, model, one=waiting, two=waiting)
    # What is imported later would be interrupted half-way, which says nothing about servers.
    for name in ("measuring", "serving", "speed_output"):
        importlib.import_module(f"evalsuite_performance.{name}")
    # A shell that starts this in the background has it ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run(*arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not psutil.Process().children(recursive=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tokens", "1"], "no decode step to time"),
        (["--layers", "4"], "--layers has no --shape"),
        (["--arm", "http://127.0.0.1:1"], "is a running server"),
        (["--arm", "nonsense"], "unknown arm 'nonsense'"),
        (["--shape", "24/5/256"], "24 query heads cannot share 5 KV heads"),
        (["--model", "{model}", "--context", "70000"], "exceed the 65536 that the model holds"),
        (["--model", "/nowhere"], "does not exist"),
        (["--model", "{model}", "--out", "/proc/none"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(arguments: list[str], told: str, model: str) -> None:
    with pytest.raises(UserError, match=told) as refused:
        run(*(argument.format(model=model) for argument in arguments))
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(environment.nvidia_gpu() is not None, reason="there is an NVIDIA GPU")
def test_without_a_gpu_its_arms_are_refused_and_what_works_is_named(model: str) -> None:
    with pytest.raises(UserError, match="hybrid needs an NVIDIA GPU, and there is none; without: --arm cpu"):
        run("--model", model, "--arm", "cpu", "--arm", "hybrid")


@pytest.mark.parametrize("lengths", ["0", "a", "16,,32", "-4", "1.5", ""])
def test_a_context_that_is_no_number_is_refused(lengths: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run("--context", lengths)
    assert refused.value.code == 2


def test_the_commands_load_nothing_heavy_until_they_run() -> None:
    heavy = {"torch", "vllm", "triton", "matplotlib", "transformers", "scipy", "httpx"}
    script = f"import sys; from evalsuite_performance import profile, speed; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_every_token_id_of_a_prompt_is_of_the_vocabulary() -> None:
    from evalsuite_performance.workload import Workload

    shape = ModelShape(heads=1, kv_heads=1, head_size=8, layers=1, vocabulary=500)
    load = Workload(shape=shape, checkpoint=Path(), dummy=True, contexts=(4096,), tokens=2)
    prompts = [load.prompt(4096, number) for number in range(3)]
    assert all(100 <= token < 500 for prompt in prompts for token in prompt)
    assert prompts[0] != prompts[1] != prompts[2]
    assert models.VOCABULARY > 500
