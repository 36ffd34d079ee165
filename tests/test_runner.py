"""Every question is asked in order and answered once, whatever happens on the way."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalsuite import runner, server
from evalsuite.arms import Arm
from evalsuite.cli import main
from evalsuite.client import Prompt, Sampling
from evalsuite.errors import UserError
from evalsuite.journal import dump, load_run
from evalsuite.receipts import fingerprint, plan_fingerprint
from evalsuite.records import ARMS, Response
from made_runs import make_meta, make_question
from stub_server import WARM_UP, WORDS, running, started

# httpcore leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.*:ResourceWarning")

FIRST = 100
"""Question k is asked with the token ids (FIRST + k,) * 3, or with the message str(FIRST + k)."""


def make_plan(
    arms: Mapping[str, Arm], folder: Path, *, questions: int = 5, samples: int = 1, ids: bool = True
) -> runner.Plan:
    made = [make_question(number) for number in range(questions)]
    prompts = {
        question.id: Prompt(
            messages=[{"role": "user", "content": str(FIRST + number)}],
            token_ids=(FIRST + number,) * 3 if ids else None,
        )
        for number, question in enumerate(made)
    }
    return runner.Plan(
        meta=make_meta(made),
        arms=arms,
        checkpoints={side: None if arm.url else folder for side, arm in arms.items()},
        model=None,
        questions=made,
        prompts=prompts,
        sampling=Sampling(budget=96, temperature=0.0, until=()),
        samples=samples,
        seed=0,
    )


def both(arm: Arm) -> dict[str, Arm]:
    return dict.fromkeys(ARMS, arm)


def attached(url: str) -> Arm:
    return Arm(name="url", url=url, kernel=None)


def responses(folder: Path, side: str) -> tuple[Response, ...]:
    return load_run(folder).responses[side]


def asked(seen: Path) -> list[dict[str, Any]]:
    """Return what the stub was asked, warm-ups and probes left out."""
    lines = [json.loads(line) for line in seen.read_text().splitlines()]
    return [line for line in lines if line["asked"] not in (WARM_UP, ["Hi"])]


def kill_while_asking(script: str, seen: Path, token: int) -> list[psutil.Process]:
    """Run a script until the server that writes `seen` is asked the prompt that begins with `token`, and kill it then.

    Returns the processes that were below it.
    """
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not seen.exists() or token not in [line["asked"][0] for line in asked(seen)]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    return below


def questions_of(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    return [int(line["asked"][0]) - FIRST for line in lines]


def test_both_arms_are_asked_the_same_questions_in_order_one_at_a_time(tmp_path: Path) -> None:
    arms = {side: started(tmp_path, "--seen", str(tmp_path / side), name=side) for side in ARMS}
    plan = make_plan(arms, tmp_path)
    runner.run(plan, tmp_path / "run")
    seen = {side: asked(tmp_path / side) for side in ARMS}
    for side in ARMS:
        assert questions_of(seen[side]) == [0, 1, 2, 3, 4]
        assert {line["at_once"] for line in seen[side]} == {1}
        got = responses(tmp_path / "run", side)
        assert [response.question for response in got] == [f"q{number:03d}" for number in range(5)]
        assert {response.text for response in got} == {"".join(WORDS)}
        assert {response.session for response in got} == {1}
        stamps = {"arm": fingerprint(plan.meta["arms"][side]), "plan": plan_fingerprint(plan.meta)}
        assert all(r.error is None and r.receipt and stamps.items() <= r.receipt.items() for r in got)
    assert seen["baseline"] == seen["candidate"]


def test_seeds_differ_between_questions_and_samples_and_are_the_same_in_both_arms(tmp_path: Path) -> None:
    with running("--seen", str(tmp_path / "seen")) as url:
        runner.run(make_plan(both(attached(url)), tmp_path, samples=3), tmp_path / "run")
    seeds = {side: [r.seed for r in responses(tmp_path / "run", side)] for side in ARMS}
    assert seeds["baseline"] == seeds["candidate"]
    assert len(set(seeds["baseline"])) == 15
    assert [line["seed"] for line in asked(tmp_path / "seen")] == seeds["baseline"] * 2
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds["baseline"])


def test_the_same_plan_again_asks_nothing(tmp_path: Path) -> None:
    with running("--seen", str(tmp_path / "seen")) as url:
        plan = make_plan(both(attached(url)), tmp_path)
        runner.run(plan, tmp_path / "run")
        before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        runner.run(plan, tmp_path / "run")
    assert len(asked(tmp_path / "seen")) == 10
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("how", ["die", "no-done", "500", "garbled"])
def test_a_server_that_fails_once_is_started_anew_and_the_question_is_asked_again(tmp_path: Path, how: str) -> None:
    seen = tmp_path / "seen"
    arm = started(tmp_path, "--seen", str(seen), "--misbehave", how, "--on", str(FIRST + 2), "--times", "1")
    runner.run(make_plan(both(arm), tmp_path, questions=4), tmp_path / "run")
    got = responses(tmp_path / "run", "baseline")
    assert [(r.question, r.error) for r in got] == [(f"q{number:03d}", None) for number in range(4)]
    assert questions_of(asked(seen))[:5] == [0, 1, 2, 2, 3]
    assert (tmp_path / "run" / "baseline.log").read_text().count("$ ") == 2
    receipt = got[2].receipt
    assert receipt is not None
    assert receipt["positions"] == [], "the failed attempt must not be in the receipt of the next"


def test_a_question_that_kills_every_server_is_an_error_and_the_next_is_answered(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    arm = started(tmp_path, "--seen", str(seen), "--misbehave", "die", "--on", str(FIRST + 1))
    runner.run(make_plan({"baseline": arm, "candidate": started(tmp_path)}, tmp_path, questions=3), tmp_path / "run")
    got = responses(tmp_path / "run", "baseline")
    assert [r.question for r in got] == ["q000", "q001", "q002"]
    assert [r.error is None for r in got] == [True, False, True]
    assert got[1].error and "RemoteProtocolError" in got[1].error
    assert got[1].text is None and got[1].tokens is None and got[1].receipt is None
    assert questions_of(asked(seen)) == [0, 1, 1, 1, 2]
    assert [r.error for r in responses(tmp_path / "run", "candidate")] == [None] * 3


def test_a_request_that_the_server_refuses_is_asked_once_and_recorded(tmp_path: Path) -> None:
    with running("--seen", str(tmp_path / "seen"), "--misbehave", "400", "--on", str(FIRST)) as url:
        runner.run(make_plan(both(attached(url)), tmp_path, questions=2), tmp_path / "run")
    got = responses(tmp_path / "run", "baseline")
    assert got[0].error and got[0].error.startswith("HTTP 400")
    assert got[1].error is None
    assert questions_of(asked(tmp_path / "seen")) == [0, 1, 0, 1]


@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["vLLM", "plain"])
def test_an_attached_server_is_asked_with_messages_and_proves_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with running("--seen", str(tmp_path / "seen"), *flags) as url:
        runner.run(make_plan(both(attached(url)), tmp_path, ids=False), tmp_path / "run")
    got = responses(tmp_path / "run", "candidate")
    assert [r.text for r in got] == ["".join(WORDS)] * 5
    assert [r.receipt for r in got] == [None] * 5
    assert [r.token_ids is None for r in got] == [bool(flags)] * 5
    assert all(("return_token_ids" in line["keys"]) == (not flags) for line in asked(tmp_path / "seen"))


def test_an_attached_server_that_wants_a_key_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with running("--api-key", "secret") as url:
        runner.run(make_plan(both(attached(url)), tmp_path), tmp_path / "run")
    assert [r.error for r in responses(tmp_path / "run", "candidate")] == [None] * 5
    assert not [path for path in (tmp_path / "run").iterdir() if "secret" in path.read_text()]


def test_an_attached_server_that_is_gone_stops_the_run_and_what_it_answered_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RECOVERY_SECONDS", 0.1)
    with running("--misbehave", "die", "--on", str(FIRST + 3)) as url:
        plan = make_plan(both(attached(url)), tmp_path)
        with pytest.raises(UserError, match=r"is gone .*give the same command again: what it answered is kept"):
            runner.run(plan, tmp_path / "run")
        port = url.rpartition(":")[2]
    assert [r.question for r in responses(tmp_path / "run", "baseline")] == ["q000", "q001", "q002"]
    with running("--port", port):
        runner.run(plan, tmp_path / "run")
    got = responses(tmp_path / "run", "baseline")
    assert [(r.question, r.session, r.error) for r in got] == [
        ("q000", 1, None), ("q001", 1, None), ("q002", 1, None), ("q003", 2, None), ("q004", 2, None),
    ]  # fmt: skip


def test_a_key_that_expires_stops_the_run_instead_of_recording_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question used to be recorded as an error for good, because 401 was taken for its server's last word."""
    monkeypatch.setattr(server, "RECOVERY_SECONDS", 0.1)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with (
        running("--api-key", "secret", "--misbehave", "expire", "--on", str(FIRST + 2)) as url,
        pytest.raises(UserError, match="HTTP 401"),
    ):
        runner.run(make_plan(both(attached(url)), tmp_path), tmp_path / "run")
    assert [r.error for r in responses(tmp_path / "run", "baseline")] == [None, None]


def test_a_server_that_does_not_come_back_stops_the_run_and_what_it_answered_is_kept(tmp_path: Path) -> None:
    arm = started(tmp_path, "--seen", str(tmp_path / "seen"), "--misbehave", "never-again", "--on", str(FIRST + 2))
    with pytest.raises(UserError, match="its server ended while starting"):
        runner.run(make_plan(both(arm), tmp_path), tmp_path / "run")
    assert [r.question for r in responses(tmp_path / "run", "baseline")] == ["q000", "q001"]
    assert responses(tmp_path / "run", "candidate") == ()


@pytest.mark.parametrize("side", ARMS)
def test_a_run_that_is_killed_goes_on_where_it_stopped_and_leaves_no_process(tmp_path: Path, side: str) -> None:
    """evalsuite gets SIGKILL while an arm serves its third question."""
    seen, folder = tmp_path / "seen", tmp_path / "run"
    hanging = started(tmp_path, "--seen", str(seen), "--misbehave", "hang", "--on", str(FIRST + 2), "--times", "1")
    arms = both(started(tmp_path)) | {side: hanging}
    script = (
        "from pathlib import Path\nfrom test_runner import make_plan, runner\nfrom evalsuite.arms import Arm\n"
        f"runner.run(make_plan({arms!r}, Path({str(tmp_path)!r})), Path({str(folder)!r}))"
    )
    below = kill_while_asking(script, seen, FIRST + 2)
    assert len(below) == 3
    assert [r.question for r in responses(folder, side)] == ["q000", "q001"]
    assert not psutil.wait_procs(below, timeout=10)[1]

    runner.run(make_plan(arms, tmp_path), folder)
    for each in ARMS:
        assert [r.question for r in responses(folder, each)] == [f"q{number:03d}" for number in range(5)]
        assert [r.error for r in responses(folder, each)] == [None] * 5
    assert [r.session for r in responses(folder, side)] == [1, 1, 2, 2, 2]
    assert questions_of(asked(seen)) == [0, 1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"sampling": {"budget": 97}}, "sampling.budget is 96 there and 97 now"),
        ({"questions_sha256": "other"}, "questions_sha256 is"),
        ({"attention": {"sha256": "e" * 64, "files": {}}}, "attention.sha256 is"),
        ({"attention": None}, "attention is"),
        ({"environment": {"vllm": "0.33.0"}}, "environment.vllm is '0.32.0' there and '0.33.0' now"),
        ({"arms": {"candidate": {"env": {"A": "1"}}}}, "arms.candidate.env.A is None there and '1' now"),
        ({"arms": {"baseline": {"args": []}}}, "arms.baseline.args is ['--dtype', 'float16'] there and [] now"),
    ],
)
def test_another_plan_is_refused_with_the_field_that_differs(
    tmp_path: Path, changed: dict[str, Any], expected: str
) -> None:
    plan = make_plan({}, tmp_path)
    with runner.open_run(plan, tmp_path / "run"):
        pass
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    other = replace(plan, meta=merge(plan.meta, changed))
    with pytest.raises(UserError) as refused, runner.open_run(other, tmp_path / "run"):
        pass
    assert f"{tmp_path / 'run'} belongs to another plan: {expected}" in str(refused.value)
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def merge(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}


def test_another_commit_alone_is_the_same_plan(tmp_path: Path) -> None:
    plan = make_plan({}, tmp_path)
    other = replace(plan, meta=merge(plan.meta, {"environment": {"git_commit": "c" * 40, "git_dirty": True}}))
    for each in (plan, other):
        with runner.open_run(each, tmp_path / "run"):
            pass
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == json.loads(dump(plan.meta))


def test_a_second_evalsuite_on_the_same_run_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    plan = make_plan({}, tmp_path)
    with (
        runner.open_run(plan, tmp_path / "run"),
        pytest.raises(UserError, match="is being written by another evalsuite"),
        runner.open_run(plan, tmp_path / "run"),
    ):
        pass
    with runner.open_run(plan, tmp_path / "run"):
        pass


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    plan = make_plan({}, tmp_path)
    with pytest.raises(UserError, match=r"holds other files and no run.json"), runner.open_run(plan, tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_start_that_a_crash_cut_short_is_started_again(tmp_path: Path) -> None:
    """What a crash left of run.json used to make the directory a foreign one."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json.part").write_text('{"schema"')
    with runner.open_run(make_plan({}, tmp_path), tmp_path / "run"):
        pass
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json", "questions.jsonl"}


@pytest.mark.parametrize("place", ["/proc/run", "/dev/null", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path, place: str) -> None:
    plan = make_plan({}, tmp_path)
    with (
        pytest.raises(UserError, match=r"cannot be written .*name another directory with --run"),
        runner.open_run(plan, Path(place)),
    ):
        pass


def test_the_default_folder_is_the_same_for_the_same_plan_and_another_for_another(tmp_path: Path) -> None:
    plan = make_plan({}, tmp_path)
    again = replace(plan, meta=merge(plan.meta, {"environment": {"git_commit": "c" * 40}}))
    other = replace(plan, meta=merge(plan.meta, {"sampling": {"budget": 97}}))
    named = replace(plan, meta=merge(plan.meta, {"task": {"name": "lm-eval:a/b"}}))
    assert runner.default_folder(plan) == runner.default_folder(again) != runner.default_folder(other)
    assert runner.default_folder(named).parent == Path("runs")


def test_the_command_line_compares_two_attached_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running() as one, running("--plain") as two:
        code = main(["run", "--limit", "3", "--baseline", one, "--candidate", two, "--run", str(tmp_path / "run")])
    out, err = capsys.readouterr()
    assert code == 3, err
    assert "INCONCLUSIVE: the baseline got 0 of 3 questions right" in out
    assert "candidate: the path is not proven" in out
    run = load_run(tmp_path / "run")
    assert [arm["url"] for arm in run.meta["arms"].values()] == [one, two]
    assert [len(run.responses[side]) for side in ARMS] == [3, 3]
