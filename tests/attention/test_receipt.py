"""Counting: the ledger, the receipt made of all ledgers, and the package's digest.

pytest tests/attention/test_receipt.py
"""

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from evalsuite_attention import receipt

EMPTY = {"layers": 0, "split_kv": 0, "fallback": 0, "other": 0, "positions": []}


@pytest.fixture(autouse=True)
def no_ledgers(monkeypatch):
    monkeypatch.setattr(receipt, "_ledgers", [])


def test_an_arm_without_the_hybrid_reports_zeros():
    assert receipt.take_receipt() == EMPTY


def test_a_receipt_holds_the_sums_over_all_ledgers_and_starts_them_anew():
    first = receipt.open_ledger(segments=8, max_seq_len=10, device="cpu")
    second = receipt.open_ledger(segments=8, max_seq_len=20, device="cpu")
    first.layers, second.layers = 2, 1
    first.counts += torch.tensor([4, 0, 2])
    second.counts += torch.tensor([3, 5, 1])
    first.positions[9:11] += 2
    second.positions[10:13] += 1
    taken = receipt.take_receipt()
    assert taken == {
        "layers": 3,
        "split_kv": 7,
        "fallback": 5,
        "other": 3,
        "positions": [[9, 10, 2], [10, 11, 3], [11, 13, 1]],
    }
    assert json.loads(json.dumps(taken)) == taken
    assert receipt.take_receipt() == {**EMPTY, "layers": 3}


def test_a_reset_keeps_the_addresses_that_a_captured_graph_writes_to():
    ledger = receipt.open_ledger(segments=8, max_seq_len=10, device="cpu")
    counts, positions = ledger.counts, ledger.positions
    receipt.take_receipt()
    counts[receipt.SPLIT_KV] += 1
    positions[7] += 1
    assert receipt.take_receipt() == {**EMPTY, "split_kv": 1, "positions": [[7, 8, 1]]}


def test_counts_beyond_two_to_the_31_are_exact():
    receipt.open_ledger(segments=8, max_seq_len=10, device="cpu").counts[receipt.SPLIT_KV] += 2**31 + 1
    assert receipt.take_receipt()["split_kv"] == 2**31 + 1


def test_runs_of_the_position_log_expand_to_the_log():
    for log in itertools.product(range(3), repeat=6):
        runs = receipt.run_lengths(torch.tensor(log))
        expanded = [0] * 6
        for start, stop, count in runs:
            expanded[start:stop] = [count] * (stop - start)
        assert tuple(expanded) == log
        assert all(count > 0 for _, _, count in runs)
        assert all(left[1] < right[0] or left[2] != right[2] for left, right in itertools.pairwise(runs))


def test_the_digest_is_what_a_shell_computes_in_the_package_folder():
    printed = subprocess.run(
        "sha256sum *.py | sha256sum",
        shell=True,
        cwd=Path(receipt.__file__).parent,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert receipt.package_digest(receipt.hash_files()) == printed.split()[0]


def test_any_edit_addition_or_renaming_changes_the_digest():
    files = receipt.hash_files()
    variants = [
        files,
        {**files, "cpu.py": files["plugin.py"]},
        {**files, "more.py": files["cpu.py"]},
        {("other.py" if name == "cpu.py" else name): digest for name, digest in files.items()},
    ]
    assert len({receipt.package_digest(variant) for variant in variants}) == len(variants)
