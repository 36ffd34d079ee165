"""`evalsuite capture` from the real small model on vLLM's CPU build, and what the command refuses.

pytest tests/performance/test_capture.py        (one engine; the rest takes two seconds)
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evalsuite.checkpoint import default_checkpoint
from evalsuite.errors import UserError
from evalsuite_performance.capture import add_parser, placed
from evalsuite_performance.capture_file import TENSORS, digest, open_capture
from evalsuite_performance.capture_worker import attends_to_all
from evalsuite_performance.paged import load_case
from evalsuite_performance.prompt_text import make_prompt, sentences
from evalsuite_performance.trials import exact_outputs, plain_outputs, relative_error

CONTEXT = 300  # two pages of 128, and part of a third
RUN = """
import argparse, sys
from evalsuite_performance import capture, replay
parser = argparse.ArgumentParser()
commands = parser.add_subparsers()
capture.add_parser(commands)
replay.add_parser(commands)
args = parser.parse_args(sys.argv[1:])
sys.exit(args.call(args))
"""


def evalsuite(*options):
    """Run a command in a process of its own and return it."""
    command = [sys.executable, "-c", RUN, *map(str, options)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A capture of the small model, served by the hybrid."""
    if torch.version.cuda is not None:
        pytest.skip("needs vLLM's CPU build")
    path = tmp_path_factory.mktemp("captured") / "small.safetensors"
    options = ("--model", default_checkpoint(), "--context", CONTEXT, "--out", path, "--arm", "cpu-hybrid")
    done = evalsuite("capture", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return open_capture(path)


@pytest.mark.server
def test_the_file_says_what_was_served(captured):
    assert captured.shape.heads == "9/3/64" and captured.shape.dtype == "bfloat16"
    assert (captured.context, captured.layers, captured.scale) == (CONTEXT, 30, 0.125)
    assert captured.details["classes"] == {"evalsuite_attention.cpu.HybridImpl": 30}
    assert captured.details["arm"] == "cpu-hybrid" and captured.details["model"] == "SmolLM2-135M-Instruct"
    assert len(set(captured.details["layer_names"])) == 30 and captured.details["other_layers"] == []


@pytest.mark.server
def test_exact_attention_over_the_captured_kv_is_what_the_kernel_wrote(captured):
    """So query, keys, values, page order and scale belong together, in every layer."""
    case = load_case(captured, layers=30, device="cpu")
    exact, plain = exact_outputs(case), plain_outputs(case, torch.float32).bfloat16()
    assert relative_error(case.served, exact) <= 2 * relative_error(plain, exact)
    shifted = torch.roll(case.served, 1, dims=0)
    assert relative_error(shifted, exact) > 0.1


@pytest.mark.server
def test_slots_past_the_context_are_zero_and_the_digest_holds(captured):
    tensors = read(captured)
    for name in ("keys", "values"):
        slots = tensors[name].flatten(1, 2)
        assert not slots[:, CONTEXT:].any() and slots[:, CONTEXT - 1].any()
    assert digest(tensors) == captured.details["sha256"]


@pytest.mark.server
def test_replay_takes_the_file(captured):
    done = evalsuite("replay", "--kv", captured.path, "--segments", 3)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"context {CONTEXT}" in done.stdout and "captured from SmolLM2-135M-Instruct" in done.stdout


def read(capture):
    from safetensors.torch import load_file

    tensors = load_file(capture.path)
    assert sorted(tensors) == list(TENSORS)
    return tensors


@pytest.mark.parametrize(
    "changes, found",
    [
        ({"--context": "1"}, "--context 1 holds no history"),
        ({"--context": "8193"}, "--context 8193 is more than the 8192 positions"),
        ({"--out": "name.bin"}, "--out name.bin cannot be written; expected NAME.safetensors"),
        ({"--out": "/no/such/a.safetensors"}, "in a folder that exists"),
        ({"--model": "/no/such"}, "model /no/such does not exist"),
        ({"--out": f"{'a' * 300}.safetensors"}, "cannot be written (File name too long); expected NAME.safetensors"),
        ({"--out": "/proc/a.safetensors"}, "/proc/a.safetensors cannot be written ("),
        ({"--arm": "cpux"}, "unknown arm 'cpux'"),
        ({"--arm": ""}, "unknown arm ''"),
        ({"--arm": "http://localhost:1"}, "is a running server"),
    ],
)
def test_wrong_options_are_one_line_that_says_what_to_do(changes, found):
    options = {"--context": "300", "--out": "never.safetensors", "--arm": "cpu"} | changes
    if "--model" not in options:
        options["--model"] = str(default_checkpoint())
    with pytest.raises(UserError) as caught:
        parse(options)
    assert found in str(caught.value) and "\n" not in str(caught.value)
    assert not Path("never.safetensors.part").exists()


def test_a_folder_in_the_files_place_is_found_before_anything_is_served(tmp_path):
    folder = tmp_path / "a.safetensors"
    folder.mkdir()
    with pytest.raises(UserError, match="cannot be written; expected NAME"):
        parse({"--context": "300", "--out": str(folder), "--arm": "cpu"})


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError, RuntimeError])
def test_the_file_appears_whole_or_not_at_all(tmp_path, error):
    out = tmp_path / "a.safetensors"
    with pytest.raises(error), placed(out) as part:
        part.write_text("half")
        raise error
    assert not list(tmp_path.iterdir())
    with placed(out) as part:
        part.write_text("whole")
        assert not out.exists()
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]


@pytest.mark.server
@pytest.mark.skipif(torch.version.cuda is not None, reason="needs vLLM's CPU build")
def test_weights_that_are_cut_short_are_one_line_and_leave_nothing(tmp_path):
    for file in default_checkpoint().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 1 << 20])
    out = tmp_path / "out"
    out.mkdir()
    options = ("--model", tmp_path, "--context", "64", "--arm", "cpu", "--out", out / "a.safetensors")
    command = [sys.executable, "-m", "evalsuite", "capture", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "evalsuite: vLLM does not serve" in done.stderr.splitlines()[-1]
    assert not list(out.iterdir())


def parse(options):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["capture", *(part for pair in options.items() for part in pair)])
    return args.call(args)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens where there is no GPU")
def test_an_arm_that_needs_a_gpu_names_those_that_do_not():
    with pytest.raises(UserError, match="--arm fa2 needs an NVIDIA GPU, and there is none; without one: cpu, cpu-h"):
        parse({"--context": "300", "--out": "never.safetensors", "--arm": "fa2"})


@pytest.mark.parametrize(
    "special",
    [{"sliding_window": (127, 0)}, {"sliding_window": 128}, {"logits_soft_cap": 30.0}, {"sinks": torch.zeros(1)},
     {"alibi_slopes": torch.ones(1)}, {"kv_cache_dtype": "fp8"}, {"attn_type": "encoder_only"}],
)  # fmt: skip
def test_only_layers_of_plain_attention_to_the_whole_history_are_taken(special):
    plain = {"attn_type": "decoder", "sliding_window": (-1, -1), "logits_soft_cap": 0, "kv_cache_dtype": "auto"}
    assert attends_to_all(SimpleNamespace(**plain))
    assert not attends_to_all(SimpleNamespace(**plain | special))


def test_prompts_are_as_long_as_asked_seeded_and_not_one_sentence_over_and_over():
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: list(text.encode()))
    assert len(make_prompt(tokenizer, 10_000)) == 10_000
    assert make_prompt(tokenizer, 500) == make_prompt(tokenizer, 500)
    assert make_prompt(tokenizer, 500, seed=1) != make_prompt(tokenizer, 500)
    source = sentences(0)
    assert len({next(source) for _ in range(200)}) > 190
