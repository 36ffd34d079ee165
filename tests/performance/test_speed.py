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
from typing import Any

import psutil
import pytest
import scipy.stats

from evalsuite import environment
from evalsuite.arms import Arm
from evalsuite.errors import UserError
from evalsuite_performance import models, speed
from evalsuite_performance.break_even import Difference, break_even, describe, difference
from evalsuite_performance.models import ModelShape, parse_shape, read_shape, write_model

sys.path.insert(0, str(Path(__file__).parent))
from speed_server import arms_file

# httpcore leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.*family=1:ResourceWarning")

SPLIT = {"kernel": "split_kv", "env": {"GGUF_PQ2_SINGLE_ATTN_BACKEND": "torch"}}


def exactly(value: float) -> Difference:
    return Difference(mean=value, low=value, high=value)


def around(value: float, by: float) -> Difference:
    return Difference(mean=value, low=value - by, high=value + by)


# --- break-even ---


def test_the_published_break_even_is_reproduced() -> None:
    """Triton everywhere: 8.5 s longer to the first token at 32K, 3 ms saved per token (DESIGN, section 1).

    Those are 2,833 tokens after the first: with one more both arms are level within 1 ms, and with two it is ahead.
    """
    assert break_even(exactly(8.5), exactly(0.003)).tokens == 2833 + 2


@pytest.mark.parametrize(
    ("extra", "saved", "expected"),
    [
        (
            around(1.05, 0.1),
            around(0.01, 0.002),
            "from 107 tokens (81 to 145)",
        ),  # 1.05 / 0.01; 0.95 / 0.012; 1.15 / 0.008
        (around(-1.05, 0.1), around(-0.01, 0.002), "until 105 tokens (80 to 144)"),
        (around(1.0, 0.1), around(-0.01, 0.001), "never"),
        (around(-1.0, 0.1), around(0.01, 0.001), "always"),
        (around(0.1, 0.203), around(0.01, 0.005), "from at most 62 tokens"),  # 0.303 / 0.005
        (around(0.1, 0.203), around(-0.01, 0.005), "until at most 21 tokens"),  # -0.103 / -0.005
        (around(1.0, 0.1), around(0.001, 0.0019), "from at least 312 tokens"),  # 0.9 / 0.0029
        (around(-1.0, 0.1), around(0.001, 0.0019), "until at least 1,000 tokens"),  # -0.9 / -0.0009
        (around(0.1, 0.2), around(0.001, 0.002), "no difference shown"),
        (exactly(0.0), around(0.01, 0.001), "always"),  # equal to the first token, faster after it
        (exactly(0.0), around(-0.01, 0.001), "never"),
        (around(1.0, 0.1), exactly(0.0), "never"),
        (around(-1.0, 0.1), exactly(0.0), "always"),
        (around(0.0, 0.0001), around(0.01, 0.001), "from at most 2 tokens"),  # with one it may still be behind
    ],
)
def test_break_even_claims_what_the_intervals_show(extra: Difference, saved: Difference, expected: str) -> None:
    assert describe(break_even(extra, saved)) == expected


@pytest.mark.parametrize("late", [0.0125, 0.5, 3.0, 3.0625])
def test_from_the_break_even_an_arm_is_ahead_and_before_it_is_not(late: float) -> None:
    """By its definition, in binary fractions: N tokens take the time to the first and N - 1 times that of a token."""

    def ahead(tokens: int) -> bool:
        return late + (tokens - 1) * 0.125 < (tokens - 1) * 0.25

    first = break_even(exactly(late), exactly(0.125)).tokens
    assert first and ahead(first) and not ahead(first - 1)
    last = break_even(exactly(-late), exactly(-0.125)).tokens
    assert last and -late + (last - 1) * 0.125 < 0 and not -late + last * 0.125 < 0


def test_a_difference_is_that_of_the_pairs_with_students_interval() -> None:
    slow, fast = [1.0, 1.4, 1.1, 1.7], [0.9, 1.25, 1.0, 1.55]
    found = difference(slow, fast)
    expected = scipy.stats.ttest_rel(slow, fast).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.125)
    assert found.sign == 1, "the ranges of the two overlap, and in every pair the second is faster"
    assert difference(fast, slow).sign == -1
    assert difference(slow, slow).sign == 0


def test_one_pair_shows_no_difference() -> None:
    assert difference([9.0], [1.0]).sign == 0
    assert describe(break_even(difference([9.0], [1.0]), difference([9.0], [1.0]))) == "no difference shown"


# --- models ---


def test_kv_bytes_are_those_of_the_published_model() -> None:
    assert ModelShape(heads=24, kv_heads=4, head_size=256, layers=16).kv_bytes == 64 * 1024


def test_a_dummy_model_has_the_shape_asked_for_and_room_for_the_prompt(tmp_path: Path) -> None:
    shape = parse_shape("24/4/256", layers=16)
    write_model(shape, tmp_path, positions=200_000)
    assert read_shape(tmp_path) == shape
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"]) == (3072, 8192)
    assert config["max_position_embeddings"] == 200_000


def test_only_layers_with_full_attention_count(tmp_path: Path) -> None:
    text = {"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 8,
            "vocab_size": 500, "layer_types": ["linear_attention", "full_attention"] * 4}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text}))
    assert read_shape(tmp_path) == ModelShape(heads=24, kv_heads=4, head_size=256, layers=4, vocabulary=500)


@pytest.mark.parametrize("text", ["24/4", "24/4/256/1", "a/b/c", "24/5/256", "24/4/250", "0/1/64", "", "24/0/64"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="shape"):
        parse_shape(text, layers=1)


@pytest.mark.parametrize("config", ["[]", "{}", "{", '{"num_attention_heads": 0}', '{"text_config": 3}'])
def test_a_configuration_without_a_shape_is_refused(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match="does not say the model's shape"):
        read_shape(tmp_path)


# --- the command ---


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
    assert change["mean"] == pytest.approx(sum(paces["slow"][:2]) / sum(paces["fast"][:2]) - 1)
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
