"""The planted faults: each applies, each is a fault, and none is shipped. The self-test itself is `make selftest`."""

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "selftest"))

from faults import FAULTS, PACKAGE, RIGHT, SOURCE, Edit, plant  # noqa: E402
from judge import Finding, Row  # noqa: E402
from table import INSTRUMENTS, conclude, passed  # noqa: E402

PLATFORMS = ("cpu", "gpu")
CPU_BUILD = pytest.param(
    "cpu", marks=pytest.mark.skipif(torch.version.cuda is not None, reason="needs vLLM's CPU build")
)

MEASURE = """
import json, sys
from pathlib import Path
import torch
CASE = {"q_heads": 6, "kv_heads": 2, "head_size": 64, "page_size": 16, "seq_len": 100}
generator = torch.Generator().manual_seed(0)
table = torch.randperm(9, generator=generator)[:7]
# every slot is finite, so that what a fault reads too much looks like any other position
keys, values = torch.randn(2, 9, 16, 2, 64, generator=generator)
query = torch.randn(6, 64, generator=generator)
report = {}
for folder in map(Path, sys.argv[1:]):
    for name in [name for name in sys.modules if name.partition(".")[0] == "evalsuite_attention"]:
        del sys.modules[name]
    sys.path[0] = str(folder)
    output = torch.full((6, 64), torch.nan)
    attend(output)
    from evalsuite_attention import __file__ as imported
    assert Path(imported).parent.parent == folder
    report[folder.name] = output.tolist()
print("REPORT", json.dumps({"output": report, "inputs": [t.tolist() for t in (query, keys, values, table)]}))
"""
CPU = """
from types import SimpleNamespace

def attend(output):
    from evalsuite_attention import cpu, receipt
    impl = object.__new__(cpu.HybridImpl)
    impl.uses_split_kv, impl.scale = True, 0.125
    impl.ledger = receipt.Ledger(segments=8, max_seq_len=128, device="cpu")
    cache = torch.cat([keys.permute(0, 2, 3, 1).flatten(2), values.permute(0, 2, 1, 3).flatten(2)], dim=-1)
    metadata = cpu.CPUAttentionMetadata(
        num_actual_tokens=1, max_query_len=1, query_start_loc=torch.tensor([0, 1]), max_seq_len=100,
        seq_lens=torch.tensor([100]), block_table=table[None], slot_mapping=torch.zeros(1), scheduler_metadata=None,
    )
    layer = SimpleNamespace(isa="vec")
    impl.forward(layer, query[None], None, None, cache.view(9, 2, 16, 128), metadata, output[None])
    assert impl.ledger.counts.tolist() == [1, 0, 0] and impl.ledger.positions.nonzero().tolist() == [[100]]
"""
GPU = """
import os
os.environ["TRITON_INTERPRET"] = "1"

def attend(output):
    from evalsuite_attention.decode import allocate_workspace, split_kv_decode
    from evalsuite_attention.segments import Plan
    plan = Plan(segments=4, tile=16, stages=2, warps=4)
    count, positions = torch.zeros(1, dtype=torch.int64), torch.zeros(128, dtype=torch.int32)
    split_kv_decode(
        query, keys, values, table.int(), torch.tensor([100], dtype=torch.int32), output, scale=0.125, plan=plan,
        workspace=allocate_workspace(plan=plan, q_heads=6, head_size=64, device="cpu"), count=count,
        positions=positions,
    )
    assert count.tolist() == [1] and positions.nonzero().tolist() == [[100]]
"""


@pytest.fixture(scope="module", params=[CPU_BUILD, "gpu"])
def errors(request, tmp_path_factory):
    """The error of each copy's output against float64, by name; each copy counted one launch at length 100."""
    from evalsuite_attention.reference import paged_attention

    folder = tmp_path_factory.mktemp(request.param)
    faults = {RIGHT: None, **{fault.name: fault for fault in FAULTS}}
    for name, fault in faults.items():
        plant(fault, request.param, folder / name)
    code = {"cpu": CPU, "gpu": GPU}[request.param] + MEASURE
    command = [sys.executable, "-c", code, *(str(folder / name) for name in faults)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.rsplit("REPORT", 1)[1])
    inputs = [torch.tensor(values) for values in found["inputs"]]
    exact = paged_attention(*inputs, 100, scale=0.125)
    return {
        name: (torch.tensor(output, dtype=torch.float64) - exact).abs().max().item()
        for name, output in found["output"].items()
    }


def test_each_fault_errs_far_beyond_the_right_kernel_and_looks_right_in_the_receipt(errors):
    right = errors.pop(RIGHT)
    assert right < 1e-6  # sums in float32, so the copy is the kernel that the other tests hold to account
    assert len(errors) == 10
    assert {name: error for name, error in errors.items() if not error > 100 * right} == {}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_copy_differs_from_the_package_by_its_edit_alone(platform, tmp_path):
    sources = {file.name: file.read_bytes() for file in SOURCE.glob("*.py")}
    for fault in (None, *FAULTS):
        name = RIGHT if fault is None else fault.name
        copy = {file.name: file.read_bytes() for file in plant(fault, platform, tmp_path / name).iterdir()}
        changed = {file for file in copy if copy[file] != sources[file]}
        assert copy.keys() == sources.keys()
        assert changed == (set() if fault is None else {fault.edit(platform).file})


@pytest.mark.parametrize("text", ["", "one two two"])
def test_an_edit_whose_text_is_not_there_exactly_once_is_refused(text):
    with pytest.raises(ValueError, match="expected once"):
        Edit(file="decode.py", old="two", new="three").apply(text)


def test_a_wheel_holds_the_package_as_it_is_and_nothing_of_the_self_test(tmp_path):
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in (*packages.values(), "selftest"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert {name: data for name, data in held.items() if name.startswith(PACKAGE)} == {
        f"{PACKAGE}/{file.name}": file.read_bytes() for file in SOURCE.glob("*.py")
    }
    words = [b"selftest", *(fault.name.encode() for fault in FAULTS)]
    code = {name: data for name, data in held.items() if ".dist-info/" not in name}  # which holds the README
    assert [name for name, data in code.items() if any(word in name.encode() + data for word in words)] == []


def row(name, *instruments):
    findings = {each: Finding(caught=each in instruments, effect="none", figures={"pairs": 20}) for each in INSTRUMENTS}
    return Row(name=name, findings=findings)


def test_the_self_test_passes_only_if_a_run_catches_every_fault_and_nothing_in_the_right_kernel():
    rows = [row("one", "accuracy", "forced"), row("two", "divergence"), row(RIGHT)]
    assert passed(rows)
    assert not passed([*rows, row("three")])
    assert not passed([*rows, row("three", "tests")])  # kernel tests are no instrument of a run
    assert not passed([*rows[:2], row(RIGHT, "forced")])


def test_the_conclusion_names_the_faults_that_accuracy_misses():
    rows = [row("one", "accuracy", "forced"), row("two", "divergence"), row("three"), row(RIGHT)]
    assert conclude(rows) == [
        "FAIL: 2 of 3 faults caught by at least one instrument of a run, the right kernel by none",
        "Caught by no run: three.",
        "Accuracy alone, on 20 questions, misses 2 of 3: two, three.",
    ]
