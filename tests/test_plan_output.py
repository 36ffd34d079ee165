"""The planner on the command line: its tables are those specified, and wrong input is one line."""

from dataclasses import replace

import pytest

from evalsuite.cli import main
from evalsuite.tasks import size_of
from made_runs import write_run
from test_gate import aa_run, named

# What the specification tables for 198 questions, by the numbers in the rows.
TABLES = {
    "one-sided exact": [
        "5 % 9.9 4.13 3.80 3.65 3.93 4.46 4.15 4.10 4.43",
        "10 % 19.8 5.79 5.41 5.40 5.56 6.43 6.07 5.99 6.26",
        "15 % 29.7 7.10 6.68 6.68 6.81 7.98 7.59 7.42 7.67",
        "25 % 49.5 9.16 8.72 8.72 8.79 10.20 9.78 9.78 9.90",
    ],
    "smallest": [
        "5 % 0.148 0.321 0.539 0.882 0.989 1.000 4.42 5.16",
        "10 % 0.117 0.216 0.358 0.690 0.905 0.995 5.83 6.66",
        "15 % 0.102 0.173 0.280 0.559 0.794 0.970 7.03 7.99",
        "25 % 0.086 0.140 0.210 0.400 0.623 0.876 8.87 10.10",
    ],
    "margin 0 2 4": [
        "1 % - 0 1 1 2 3 5 7 11 15 20",
        "2 % 0 1 1 2 3 4 6 8 12 16 21",
        "3 % 0 1 2 3 4 5 7 9 13 17 22",
        "5 % 0 2 4 5 6 6 8 11 15 19 24",
    ],
}
NAM_LIU = "3162 6215 9293 15465 837 1578 2338 3873 400 717 1049 1726 167 274 389 627"
NAM_LIU_025 = "4020 7893 11799 19634 1067 2005 2969 4917 512 913 1333 2192 215 350 494 796"
LOOKS = "3289 6464 9665 16084 871 1641 2431 4028 416 746 1091 1795 174 285 404 652"
LOOKS_025 = "4134 8117 12134 20191 1098 2062 3053 5057 526 939 1371 2254 222 360 508 818"
# Specified from a simulation: 2546 4978 7442 12381 681 1268 1875 3103 329 579 843 1382 142 223 314 503.
MEAN = "2543 4981 7443 12382 680 1268 1874 3102 329 579 843 1383 141 224 314 503"
SAMPLES = "16 32 47 79 5 8 12 20 3 4 6 9 1 2 2 4"


def test_plan_gpqa_prints_the_tables_of_the_specification(capsys):
    assert main(["plan", "gpqa"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for head, wanted in TABLES.items():
        place = next(i for i, text in enumerate(lines) if head in text and text.startswith(("discordance", "margin")))
        assert lines[place + 1 : place + 5] == wanted
    places = [i for i, text in enumerate(lines) if text.startswith("margin discordance")]
    wanted = [{4: NAM_LIU, 5: LOOKS, 6: MEAN, -1: SAMPLES}, {4: NAM_LIU_025, 5: LOOKS_025}]
    for place, columns in zip(places, wanted, strict=True):
        rows = [text.split() for text in lines[place + 1 : place + 17]]
        for column, numbers in columns.items():
            assert " ".join(row[column] for row in rows) == numbers


@pytest.mark.parametrize(
    ("task", "size"), [("gpqa", 198), ("gsm8k", 1319), ("mmlu_pro", 12_032), ("math500", 500), ("capitals", 150)]
)
def test_the_size_of_a_shipped_task_is_known_without_its_data(monkeypatch, task, size):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert size_of(task) == size


def planned(capsys, *arguments):
    """What `plan` prints, by the name of the row."""
    assert main(["plan", *arguments]) == 0
    head, *rows, _ = capsys.readouterr().out.splitlines()
    return head, {name.strip(): values.split() for name, _, values in (row.partition("  ") for row in rows)}


def test_a_plan_of_ones_own_answers_for_one_margin_and_discordance(capsys):
    head, rows = planned(capsys, "--questions", "198", "--discordance", "10%", "--margin", "5%", "--seconds", "36")
    assert head == "198 questions"
    assert rows["smallest loss seen in 80 % of runs, points"] == ["5.41"]
    assert rows["smallest margin shown, points *"] == ["6.66"]
    assert rows["questions needed for it *"] == ["339"]
    assert rows["or samples of each question, at least *"] == ["3"]
    assert rows["GPU hours of this run, both arms"] == ["3.96"]
    assert rows["GPU hours of the questions needed"] == ["6.78"]


def test_what_was_not_asked_is_not_printed(capsys):
    _, rows = planned(capsys, "--questions", "198", "--discordance", "0.1")
    assert list(rows) == [
        "share of pairs that are discordant", "smallest loss seen in 80 % of runs, points",
        "smallest margin shown, points *",
    ]  # fmt: skip


def test_without_a_discordance_the_usual_ones_stand_side_by_side(capsys):
    _, rows = planned(capsys, "--questions", "198", "--margin", "0.05")
    assert rows["smallest margin shown, points *"] == ["5.16", "6.66", "7.99", "10.10"]


def test_the_discordance_of_an_a_a_run_is_measured(capsys, tmp_path):
    folder = write_run(replace(aa_run("made", "rw wr " + "rr " * 18), path=tmp_path / "aa"))
    measured = planned(capsys, "--questions", "50", "--discordance", str(folder))
    assert measured == planned(capsys, "--questions", "50", "--discordance", "0.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpqaa"], "did you mean gpqa"),
        (["lm-eval:gsm8k"], "give it with --questions N"),
        (["--questions", "0"], "whole number from 1"),
        (["--questions", "100001"], "a plan is computed for at most 100,000 questions, found 100,001"),
        (["--questions", "100001", "--margin", "0.1"], "at most 100,000 questions"),
        (["--questions", "198", "--margin", "0"], "is no margin"),
        (["--questions", "198", "--discordance", "1.1"], "discordance must lie from 0 to 1, found 1.1"),
        (["--questions", "198", "--discordance=-1%"], "discordance must lie from 0 to 1, found -0.01"),
        (["--questions", "198", "--discordance", "nan"], "discordance must lie from 0 to 1, found nan"),
        (["--questions", "198", "--discordance", "nowhere"], "nowhere is no run directory"),
        (["--questions", "198", "--seconds", "-1"], "seconds for one response must be a positive number"),
        (["--questions", "198", "--seconds", "nan"], "seconds for one response must be a positive number"),
    ],
    ids=" ".join,
)
def test_a_wrong_plan_is_refused_in_one_line(arguments, message, capsys):
    try:
        code = main(["plan", *arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and message in err and "Traceback" not in err


def test_a_run_of_two_arms_measures_no_noise(capsys, tmp_path):
    folder = write_run(replace(named("made", "rr"), path=tmp_path / "run"))
    assert main(["plan", "--questions", "50", "--discordance", str(folder)]) == 2
    assert "expected an A/A run" in capsys.readouterr().err
