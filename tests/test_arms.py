"""An arm is what its preset, its TOML table or its URL says, and a wrong one is one clear line."""

from pathlib import Path

import pytest

from evalsuite.arms import PRESETS, Arm, find_arm, load_arms, to_json
from evalsuite.errors import UserError


def load(folder: Path, text: str) -> dict[str, Arm]:
    path = folder / "arms.toml"
    path.write_text(text, encoding="utf-8")
    return load_arms(path)


def test_without_a_file_there_are_the_presets() -> None:
    assert load_arms(None) == dict(PRESETS)
    assert {"fa2", "hybrid", "triton", "fa3", "flashinfer", "cpu", "cpu-hybrid"} <= set(PRESETS)


def test_every_preset_names_the_backend_to_confirm_and_the_kernel_to_prove() -> None:
    for arm in PRESETS.values():
        assert arm.backend, arm.name
        assert arm.kernel in ("stock", "split_kv"), arm.name
        assert arm.about, arm.name


def test_a_table_adds_to_the_arm_it_is_like(tmp_path: Path) -> None:
    arms = load(
        tmp_path,
        '[arm.long]\nlike = "cpu-hybrid"\nargs = ["--max-model-len", "4096"]\nenv = { A = "1" }\nmodel = "m"\n'
        '[arm.longer]\nlike = "long"\nkernel = "stock"\n',
    )
    base = PRESETS["cpu-hybrid"]
    assert arms["long"].args == (*base.args, "--max-model-len", "4096")
    assert arms["long"].env == {**base.env, "A": "1"}
    assert (arms["long"].model, arms["long"].kernel, arms["long"].backend) == ("m", "split_kv", "CPU_ATTN")
    assert (arms["longer"].args, arms["longer"].kernel) == (arms["long"].args, "stock")
    assert arms["longer"].name == "longer"


@pytest.mark.parametrize(
    ("args", "backend"),
    [
        ('["--attention-backend", "CUSTOM"]', "CUSTOM"),
        ('["--attention-backend=flash_attn"]', "FLASH_ATTN"),
        ('["--attention-backend", "A", "--attention-backend", "B"]', "B"),
        ('["--attention-backend", "auto"]', None),
        ('["--attention-backend"]', None),
        ("[]", None),
    ],
)
def test_the_backend_to_confirm_is_the_one_that_the_flags_name(tmp_path: Path, args: str, backend: str | None) -> None:
    arms = load(
        tmp_path,
        f'[arm.own]\nargs = {args}\n[arm.said]\nbackend = "X"\nargs = {args}\n'
        f'[arm.other]\nlike = "fa2"\nargs = {args}\n',
    )
    assert (arms["own"].backend, arms["said"].backend) == (backend, "X")
    assert arms["other"].backend == (backend or "FLASH_ATTN")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "holds nothing; expected tables"),
        ("[arm", "cannot be read as TOML"),
        ("arm = 5", "expected tables"),
        ("[arms.a]", "holds ['arms']"),
        ("x = 1\n[arm.a]", "expected tables [arm.NAME] and nothing else"),
        ("[arm]\na = 5", "[arm.a] is no arm"),
        ('[arm."a b"]', "is no arm"),
        ('[arm.""]', "is no arm"),
        ("[arm.fa2]", "has a preset's name"),
        ("[arm.a]\nargz = []", "'argz'; expected one of like, model"),
        ('[arm.a]\nargs = "--x"', "args is '--x'; expected a list"),
        ("[arm.a]\nargs = [5]", "text only; quote numbers"),
        ("[arm.a]\nenv = { A = 1 }", "text only; quote numbers"),
        ("[arm.a]\nflash_attn_version = true", "flash_attn_version is True"),
        ('[arm.a]\nflash_attn_version = "2"', "flash_attn_version is '2'"),
        ('[arm.a]\nkernel = "triton"', "expected 'stock' or 'split_kv'"),
        ('[arm.a]\nlike = "fa4"', "like is 'fa4'; expected a preset"),
        ('[arm.a]\nlike = "b"\n[arm.b]', "like is 'b'; expected a preset or an arm further up"),
        ("[arm.a]\nurl = 'http://x'", "'url'"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_that_names_file_and_fault(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(UserError) as refused:
        load(tmp_path, text)
    assert expected in str(refused.value)
    assert str(tmp_path / "arms.toml") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_no_text_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        with pytest.raises(UserError, match="cannot be read as TOML"):
            load_arms(path)


@pytest.mark.parametrize("url", ["http://host:8000", "https://host", "http://[::1]:8000", "http://host/prefix"])
def test_a_url_is_an_arm_that_is_attached_to_and_proves_nothing(url: str) -> None:
    for spelling in (url, url + "/", url + "/v1", url + "/v1/"):
        arm = find_arm(spelling, PRESETS)
        assert arm.url == url
        assert (arm.kernel, arm.backend, arm.args) == (None, None, ())


@pytest.mark.parametrize(
    "url",
    ["http://", "ftp://host", "://", "http://user:pw@host", "http://host?x=1", "http://host:port", "http://host:99999",
     "http://[::1", "http://host:0"],
)  # fmt: skip
def test_what_is_no_server_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="is no server address"):
        find_arm(url, PRESETS)


def test_an_unknown_arm_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown arm 'cpu-hybird'; did you mean cpu-hybrid"):
        find_arm("cpu-hybird", PRESETS)


def test_run_json_tells_everything_that_decides_what_an_arm_serves() -> None:
    data = to_json(PRESETS["hybrid"], model_sha256="abc")
    assert set(data) == {
        "name", "model", "args", "env", "url", "backend", "flash_attn_version", "kernel", "model_sha256",
    }  # fmt: skip
