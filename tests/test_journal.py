"""What the journal has accepted is on the disk, and only that."""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalsuite.errors import UserError
from evalsuite.journal import Journal, load_meta, load_run, read_lines, write_once
from evalsuite.records import Response, response_from_json, to_json
from made_runs import make_response, make_run, write_run


def read(path: Path) -> list[Response]:
    return list(read_lines(path, response_from_json))


def write(path: Path, *responses: Response) -> None:
    journal = Journal(path)
    for response in responses:
        journal.append(response)
    journal.close()


ONE, TWO, THREE = (make_response(f"q{number:03d}", "baseline", "r") for number in range(3))


def test_a_response_survives_a_round_trip_unchanged(tmp_path: Path) -> None:
    full = make_response(
        "q000", "candidate", "r", text='é\n"\u2028', token_ids=(1, 2), logprobs=(-0.5, -9999.0), stop_reason="Q:"
    )
    write(tmp_path / "log", full, TWO)
    assert read(tmp_path / "log") == [full, TWO]


def test_an_appended_response_is_on_the_disk_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    journal = Journal(tmp_path / "log")
    assert synced == [str(tmp_path)], "the new file's name must be on the disk as well"
    journal.append(ONE)
    assert synced[1:] == [str(tmp_path / "log")]
    assert read(tmp_path / "log") == [ONE]
    journal.close()


@pytest.mark.parametrize("cut", [1, 2, 100, "é"])
def test_a_half_written_last_line_is_not_read_and_is_cut_off_before_the_next(tmp_path: Path, cut: int | str) -> None:
    """Cut within a character of two bytes, the file used to be refused as "not UTF-8" for good."""
    path = tmp_path / "log"
    write(path, ONE, make_response("q001", "baseline", "r", text="é"))
    data = path.read_bytes()
    path.write_bytes(data[: data.index("é".encode()) + 1] if cut == "é" else data[: -int(cut)])
    assert read(path) == [ONE]
    write(path, TWO)
    assert read(path) == [ONE, TWO]


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"5", b"null", b"", b"half", b'{"question": "q"', b"\xff\xfe"])
def test_a_foreign_line_is_named_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log"
    write(path, ONE)
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, TWO)
    with pytest.raises(UserError, match="line 2: not a record of evalsuite") as refused:
        read(path)
    assert "\n" not in str(refused.value)


def test_wrong_types_are_foreign(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps(to_json(ONE) | {"question": 5}) + "\n")
    with pytest.raises(UserError, match="line 1"):
        read(path)


@pytest.fixture
def small_files() -> Iterator[int]:
    """Let this process write no file longer than some bytes: the disk is full at a place that we choose."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 5000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_keeps_every_earlier_response_and_says_what_to_do(tmp_path: Path, small_files: int) -> None:
    """Closing used to try the failed bytes again and end in a traceback."""
    path = tmp_path / "log"
    journal = Journal(path)
    kept = []
    with pytest.raises(UserError, match="make room on the disk and give the same command again"):
        for number in range(100):
            response = make_response(f"q{number:03d}", "baseline", "r", text="x" * 1000)
            journal.append(response)
            kept.append(response)
    journal.close()
    assert read(path) == kept
    assert 2 < len(kept) < 10
    assert path.stat().st_size <= small_files
    assert path.read_bytes().endswith(b"\n")


def test_after_room_was_made_the_same_response_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    write(path, ONE)
    journal = Journal(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, old[1]))
    with pytest.raises(UserError, match="File too large"):
        journal.append(TWO)
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    journal.close()
    write(path, TWO, THREE)
    assert read(path) == [ONE, TWO, THREE]


def test_a_journal_that_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        Journal(tmp_path / "missing" / "log")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "run.json"
    write_once(path, "first")
    with pytest.raises(OSError, match="File too large"):
        write_once(path, "x" * (small_files + 1))
    assert path.read_text() == "first"


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    run = make_run("rr rw wr ww", path=tmp_path / "run")
    write_run(run)
    assert load_run(run.path) == run


def test_a_run_without_candidate_responses_is_read(tmp_path: Path) -> None:
    run = make_run("rr rw", path=tmp_path / "run")
    write_run(run)
    (run.path / "candidate.jsonl").unlink()
    assert load_run(run.path).responses["candidate"] == ()


def test_a_question_answered_twice_is_refused(tmp_path: Path) -> None:
    run = make_run("rr rw", path=tmp_path / "run")
    write_run(run)
    write(run.path / "baseline.jsonl", run.responses["baseline"][0])
    with pytest.raises(UserError, match="'q000', sample 0 is answered twice"):
        load_run(run.path)


def test_a_response_to_a_question_of_another_run_is_refused(tmp_path: Path) -> None:
    run = make_run("rr rw", path=tmp_path / "run")
    write_run(run)
    write(run.path / "candidate.jsonl", make_response("q999", "candidate", "r"))
    with pytest.raises(UserError, match="q999"):
        load_run(run.path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "no run directory"), ("", "not JSON"), ("[]", "schema 'list'"), ('{"schema": 2}', "schema 2, expected 1"),
     ("\udcff", "not JSON")],
)  # fmt: skip
def test_a_directory_that_holds_no_run_is_one_clear_line(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=expected) as refused:
        load_meta(tmp_path)
    assert "\n" not in str(refused.value)
