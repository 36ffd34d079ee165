"""Captures as `evalsuite replay --kv` reads them: what they decide, and that a damaged or unfit one is refused.

pytest tests/performance/test_capture_file.py        (a few seconds)
"""

import json
import math

import pytest
import torch
from evalsuite_attention.reference import paged_attention
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_replay import SMALL, run, without_gpu

from evalsuite.errors import UserError
from evalsuite_performance.capture_file import KEY, open_capture, save_capture
from evalsuite_performance.paged import load_case
from evalsuite_performance.trials import exact_outputs, relative_error


def capture_file(path, *, context=200, said=None, layers=3, shift=0):
    """Write a capture of made-up tensors, whose context is said to be `said`, and return its path.

    Each layer's output is that of the layer `shift` before it.
    """
    pages = SMALL.pages(context)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(layers, SMALL.q_heads, SMALL.head_size, generator=generator).bfloat16()
    size = (2, layers, pages, SMALL.page_size, SMALL.kv_heads, SMALL.head_size)
    keys, values = torch.randn(size, generator=generator).bfloat16()
    table = torch.arange(pages)
    outputs = [paged_attention(*each, table, context, scale=0.25) for each in zip(query, keys, values, strict=True)]
    output = torch.stack(outputs).bfloat16().roll(shift, dims=0)
    details = {"context": said or context, "scale": 0.25, "model": "made-up"}
    save_capture(path, {"query": query, "keys": keys, "values": values, "output": output}, details)
    return path


def test_a_capture_is_replayed_from_its_own_numbers_and_repeated_beyond_its_layers(tmp_path):
    capture = open_capture(capture_file(tmp_path / "c.safetensors"))
    assert capture.shape == SMALL and (capture.context, capture.layers, capture.scale) == (200, 3, 0.25)
    case = load_case(capture, layers=5, device="cpu")
    assert torch.equal(case.caches[4], case.caches[1]) and torch.equal(case.queries[4], case.queries[1])
    assert case.caches[4].data_ptr() != case.caches[1].data_ptr()
    exact = exact_outputs(case)
    query, keys, values, _ = case.layer(1)
    flat_keys, flat_values = (each.flatten(0, 1)[:200, 1].double() for each in (keys, values))
    weights = torch.softmax(query[3:].double() @ flat_keys.T * 0.25, dim=-1)
    assert relative_error((weights @ flat_values)[None], exact[1:2, 3:]) < 1e-12


@without_gpu
def test_a_capture_decides_shape_page_and_context(tmp_path, capsys):
    path = capture_file(tmp_path / "c.safetensors")
    assert run("--kv", path, "--heads", "6/2/64", "--page", 48, "--context", 200) == 0
    assert "captured from made-up" in capsys.readouterr().out
    for option, value in (("--heads", "6/3/64"), ("--page", 16), ("--context", 100)):
        with pytest.raises(UserError, match=f"was captured with --heads 6/2/64 --page 48 --context 200, but {option}"):
            run("--kv", path, option, value)


@without_gpu
def test_a_capture_whose_output_is_not_what_its_kv_gives_is_refused(tmp_path):
    path = capture_file(tmp_path / "c.safetensors", shift=1)
    with pytest.raises(UserError, match=r"^the output that was captured .* capture it again$"):
        run("--kv", path)


def test_files_that_are_no_capture_are_refused(tmp_path):
    from safetensors.torch import save_file

    text, bare = tmp_path / "text.safetensors", tmp_path / "bare.safetensors"
    text.write_text("no tensors")
    save_file({"query": torch.zeros(1)}, bare)
    for path, found in (
        (text, "cannot be read as safetensors"),
        (bare, "is no capture"),
        (capture_file(tmp_path / "a.safetensors", said="many"), "metadata cannot be read"),
    ):
        with pytest.raises(UserError, match=found):
            open_capture(path)
    with pytest.raises(UserError, match="but its metadata says"):
        open_capture(capture_file(tmp_path / "b.safetensors", said=97, context=96))


def altered(path, **changes):
    """Write a capture whose metadata is changed, and return its path."""
    capture_file(path)
    with safe_open(path, framework="pt") as file:
        details = json.loads(file.metadata()[KEY])
    details = {name: value for name, value in (details | changes).items() if value is not None}
    save_file(load_file(path), path, metadata={KEY: json.dumps(details)})
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"page_size": 0}, {"context": math.inf}, {"context": -300}, {"context": True}, {"q_heads": 5}, {"kv_heads": 4},
        {"layers": 0}, {"layers": "3"}, {"model": None}, {"model": "\udcff"}, {"dtype": "nonsense"},
        {"dtype": "float64"}, {"scale": 0.0}, {"scale": -5.0}, {"scale": math.nan}, {"scale": None}, {"vllm": math.nan},
        {"sha256": None},
    ],
)  # fmt: skip
def test_metadata_that_says_no_shape_or_cannot_be_reported_is_one_line(tmp_path, changes):
    with pytest.raises(UserError, match=r"c\.safetensors: its metadata cannot be read \(.*\); capture it again$"):
        open_capture(altered(tmp_path / "c.safetensors", **changes))


@pytest.mark.parametrize("stored", ["[1]", "null", '"x"', "[" * 100_000, "{"])
def test_metadata_that_is_no_object_is_one_line(tmp_path, stored):
    path = tmp_path / "c.safetensors"
    save_file({"query": torch.zeros(1)}, path, metadata={KEY: stored})
    with pytest.raises(UserError, match="its metadata cannot be read"):
        open_capture(path)


def test_numbers_that_were_changed_after_the_capture_are_refused(tmp_path):
    path = capture_file(tmp_path / "c.safetensors")
    content = bytearray(path.read_bytes())
    content[-1000:] = b"\x11" * 1000
    path.write_bytes(content)
    with pytest.raises(UserError, match="holds other numbers than were captured"):
        open_capture(path)


def test_tensors_of_another_type_than_is_said_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds tensors .* but its metadata says"):
        open_capture(altered(tmp_path / "a.safetensors", dtype="float16"))
    path = tmp_path / "b.safetensors"
    capture = open_capture(capture_file(path))
    tensors = load_file(path)
    save_capture(path, tensors | {"keys": tensors["keys"].float()}, capture.details)
    with pytest.raises(UserError, match=r"holds tensors .* but its metadata says"):
        open_capture(path)


@pytest.mark.parametrize("name, value", [("keys", math.nan), ("query", math.inf), ("output", math.nan)])
def test_what_is_not_finite_is_the_captures_fault_and_no_kernels(tmp_path, name, value):
    path = tmp_path / "c.safetensors"
    capture = open_capture(capture_file(path))
    tensors = load_file(path)
    tensors[name][1].view(-1)[7] = value
    save_capture(path, tensors, capture.details)
    with pytest.raises(UserError, match=f"{name} of layer 1 hold NaN or infinity"):
        open_capture(path)
