"""What a user types: every wrong input is one clear line and exit code 2, and loses nothing."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite.cli import main
from evalsuite.receipts import fingerprint
from made_runs import make_receipt, make_run, write_run

CSV = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,Record ID,Subdomain\n"
PAIRS = " ".join(["rr"] * 12 + ["wr", "ww", "ww", "tt"])  # nothing lost
Check = Callable[[list[str], str], None]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Return a check that a command line is refused with one line that says `expected`, and writes no run."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def check(arguments: list[str], expected: str) -> None:
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        assert code == 2, (out, err)
        assert "Traceback" not in err
        assert expected in err
        assert err.strip().splitlines()[-1].startswith("evalsuite")
        assert not (tmp_path / "runs").exists()

    return check


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "gpqaa"], "gpqa"),
        (["run", "--budget", "0"], "whole number from 1"),
        (["run", "--budget", "-5"], "--budget"),
        (["run", "--budget", "many"], "whole number from 1"),
        (["run", "--budget", "100000", "--limit", "1"], "the model's context has 8192"),
        (["run", "--limit", "0"], "whole number from 1"),
        (["run", "--samples", "3"], "--temperature"),
        (["run", "--temperature", "-1"], "is no temperature"),
        (["run", "--margin", "0"], "is no margin"),
        (["run", "--margin", "1"], "is no margin"),
        (["run", "--margin", "nan"], "is no margin"),
        (["run", "--baseline", "fa4"], "did you mean"),
        (["run", "--baseline", "http://"], "no server address"),
        (["run", "--baseline", ""], "unknown arm"),
        (["run", "--arms", "nowhere.toml"], "nowhere.toml"),
        (["run", "--model", "./nowhere"], "does not exist"),
        (["run", "--model", "."], "no config.json"),
        (["run", "gpqa", "--data", "nowhere.csv"], "nowhere.csv"),
        (["run", "gpqa"], "--data"),
        (["run", "--include-path", "nowhere"], "nowhere"),
        (["report", "nowhere"], "no run directory"),
        (["gate", "nowhere", "--margin", "0.05"], "no run directory"),
        (["gate", "nowhere"], "--margin"),
        (["compare", "nowhere", "elsewhere"], "nowhere"),
        (["measure"], "invalid choice"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(refused: Check, arguments: list[str], expected: str) -> None:
    refused(arguments, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "Question"),
        ("Question,Answer\nWhy?,Because\n", "Correct Answer"),
        (CSV, "no question"),
        (CSV + "Why?,a,b,c,,r1,Physics\n", "row"),
        (CSV + "Why?,a,b,c,d,r1,Physics\nWhy?,a,b,c,d,r1,Physics\n", "row 3"),
        ("\udcff", "UTF-8"),
    ],
    ids=["empty", "columns", "no-rows", "empty-cell", "twice", "encoding"],
)
def test_a_wrong_csv_is_refused(refused: Check, tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "questions.csv"
    file.write_text(text, errors="surrogateescape")
    refused(["run", "gpqa", "--data", str(file)], expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[arm", "TOML"),
        ("a = 1\n", "[arm.NAME]"),
        ("[arm.mine]\nflags = []\n", "'flags'"),
        ('[arm.mine]\nargs = "--x"\n', "args"),
        ("[arm.mine]\nargs = [1]\n", "quote numbers"),
        ('[arm.mine]\nlike = "fa9"\n', "fa9"),
        ('[arm.mine]\nkernel = "fast"\n', "'split_kv'"),
        ("[arm.fa2]\nargs = []\n", "preset"),
        ('[arm.mine]\nenv = {"A=B" = "c"}\n', "'='"),
        ('[arm.mine]\nargs = ["a\\u0000b"]\n', "NUL"),
        ("a = " + "[" * 5000, "TOML"),
    ],
)
def test_a_wrong_arms_file_is_refused(refused: Check, tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "arms.toml").write_text(text)
    refused(["arms", "--arms", "arms.toml"], expected)


def test_a_limit_beyond_the_set_says_how_many_there_are(refused: Check, data: Path) -> None:
    refused(["run", "gpqa", "--data", str(data / "gpqa_made_up.csv"), "--limit", "1000"], "1000")


def test_a_run_directory_that_holds_something_else_is_refused(refused: Check, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    refused(["run", "--limit", "1", "--run", "mine"], "holds other files")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("line", ["{", "[]", '{"question": 1}', "null"])
def test_foreign_lines_are_refused_by_number(refused: Check, tmp_path: Path, line: str) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    with (run / "candidate.jsonl").open("a") as file:
        file.write(line + "\n")
    refused(["report", str(run)], "candidate.jsonl, line")


def test_one_response_file_given_twice_is_refused(refused: Check, tmp_path: Path) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    refused(["compare", str(run / "baseline.jsonl"), str(run / "baseline.jsonl")], "given twice")


def test_verdict_text_json_and_exit_code_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    printed = main(["compare", str(run), str(run)])
    text = capsys.readouterr().out
    assert main(["compare", str(run), str(run), "--json"]) == printed
    data = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == printed
    assert f"exit code {printed}" in text
    assert data["verdict"] in text


def test_report_and_gate_decide_alike(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    assert main(["report", str(run)]) == 0
    loose, tight = main(["gate", str(run), "--margin", "0.2"]), main(["gate", str(run), "--margin", "0.001"])
    assert (loose, tight) == (0, 3)
    capsys.readouterr()


def test_a_copied_run_is_still_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    main(["report", str(run)])
    shutil.copytree(run, tmp_path / "copy")
    main(["report", str(tmp_path / "copy")])
    capsys.readouterr()
    assert (run / "report.md").read_bytes() == (tmp_path / "copy" / "report.md").read_bytes()


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, evalsuite.cli, evalsuite.report, evalsuite.sides; evalsuite.cli.build_parser().format_help(); "
        "print({'torch', 'lm_eval', 'datasets', 'vllm', 'transformers', 'scipy.stats'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    best = min(_seconds([sys.executable, "-m", "evalsuite", "--help"]) for _ in range(3))
    assert best < 0.3


def _seconds(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, capture_output=True, check=True)
    return time.monotonic() - start


def test_lists_need_no_network(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["tasks"]) == 0
    assert main(["arms"]) == 0
    out = capsys.readouterr().out
    for name in ("gpqa", "gsm8k", "mmlu_pro", "math500", "fa2", "hybrid", "cpu-hybrid"):
        assert name in out


def test_a_full_disk_behind_standard_output_is_no_verdict(tmp_path: Path) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    command = [sys.executable, "-m", "evalsuite", "gate", str(run), "--margin", "0.2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_output_is_no_traceback(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m evalsuite arms {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_crash_exits_with_2_and_its_traceback_and_never_with_the_code_of_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(path: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("evalsuite.journal.load_run", crash)
    assert main(["gate", str(tmp_path), "--margin", "0.2"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("candidate.jsonl", ("text", 5)),
        ("candidate.jsonl", ("seconds", "fast")),
        ("candidate.jsonl", ("finish_reason", None)),
        ("candidate.jsonl", ("receipt", [])),
        ("questions.jsonl", ("scoring", {})),
        ("questions.jsonl", ("target", None)),
        ("run.json", ("attention", "gone")),
        ("run.json", ("task", {"name": "made"})),
        ("run.json", ("sampling", {})),
        ("run.json", ("arms", {"baseline": {}, "candidate": None})),
        ("run.json", ("margin", "small")),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused_by_name(
    refused: Check, tmp_path: Path, name: str, change: tuple[str, object]
) -> None:
    run = write_run(make_run(PAIRS, path=tmp_path / "run"))
    first, _, rest = (run / name).read_text().partition("\n")
    (run / name).write_text(json.dumps(json.loads(first) | dict([change])) + "\n" + rest)
    for arguments in (["report", str(run)], ["gate", str(run), "--margin", "0.2"], ["compare", str(run), str(run)]):
        refused(arguments, name)


def test_responses_under_another_arms_name_are_invalid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(PAIRS, path=tmp_path / "run")
    for number, side in enumerate(("baseline", "candidate")):
        run.meta["arms"][side] |= {"kernel": "stock", "model_sha256": str(number) * 64}
    stamped = {
        side: tuple(
            replace(r, receipt={**make_receipt("stock", prompt_tokens=9, tokens=9), "arm": fingerprint(arm)})
            for r in run.responses[side]
        )
        for side, arm in run.meta["arms"].items()
    }
    right = write_run(replace(run, responses=stamped))
    assert main(["report", str(right)]) == 0
    (right / "baseline.jsonl").rename(right / "b")
    (right / "candidate.jsonl").rename(right / "baseline.jsonl")
    (right / "b").rename(right / "candidate.jsonl")
    assert main(["report", str(right)]) == 4
    assert "another arm" in capsys.readouterr().out
