"""What was tested is what ships: a changed byte of a kernel file makes the gate INVALID and is named."""

import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite.cli import main
from evalsuite.environment import attention_package
from evalsuite.errors import UserError
from evalsuite.ship import find_differences, read_shipped
from made_runs import make_meta, make_run, write_run

SOURCE = Path(__file__).parent.parent / "attention"


def package(folder: Path) -> Path:
    """Put a copy of the attention package there as it is installed."""
    return shutil.copytree(SOURCE, folder / "evalsuite_attention", ignore=shutil.ignore_patterns("__pycache__"))


def wheel(path: Path, installed: Path, *, under: str = "evalsuite_attention") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for source in installed.rglob("*.py"):
            file.write(source, f"{under}/{source.relative_to(installed)}")
        file.writestr("evalsuite/cli.py", "other = 1\n")
    return path


def run_json(**changes):
    """run.json of a run that was served by the package as it is in this checkout."""
    return make_meta((), attention=attention_package(), **changes)


def differences(path: Path) -> list[str]:
    return list(find_differences(run_json(), read_shipped(path)))


def test_wheel_site_packages_checkout_and_package_folder_have_the_digest_of_the_run(tmp_path: Path) -> None:
    installed = package(tmp_path)
    checkout = tmp_path / "checkout"
    shutil.copytree(installed, checkout / "attention")
    places = (tmp_path, installed, checkout / "attention", checkout, wheel(tmp_path / "a.whl", installed))
    assert {read_shipped(place).sha256 for place in places} == {attention_package()["sha256"]}
    assert [differences(place) for place in places] == [[]] * 5


def test_a_changed_missing_or_added_file_is_named(tmp_path: Path) -> None:
    installed = package(tmp_path)
    decode = installed / "decode.py"
    decode.write_bytes(decode.read_bytes() + b"\n")
    (installed / "segments.py").unlink()
    (installed / "extra.py").write_text("")
    for place in (tmp_path, wheel(tmp_path / "a.whl", installed)):
        [line] = differences(place)
        assert line.endswith("changed: decode.py; missing: segments.py; added: extra.py")


def test_code_that_no_digest_covers_is_a_difference(tmp_path: Path) -> None:
    installed = package(tmp_path)
    (installed / "deep").mkdir()
    (installed / "deep" / "kernel.py").write_text("x = 1\n")
    for place in (tmp_path, wheel(tmp_path / "a.whl", installed)):
        [line] = differences(place)
        assert line.endswith("not covered by the digest: deep/kernel.py")


OTHER = "other = 1\n"
DATA = "evalsuite-0.1.0.data"
INFO = "evalsuite-0.1.0.dist-info"


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({f"{DATA}/purelib/evalsuite_attention/decode.py": OTHER}, "2 entries are evalsuite_attention/decode.py"),
        ({f"{DATA}/platlib/evalsuite_attention/decode.py": OTHER}, "2 entries are evalsuite_attention/decode.py"),
        ({"./evalsuite_attention//decode.py": OTHER}, "2 entries are evalsuite_attention/decode.py"),
        ({f"{DATA}/purelib/evalsuite_attention/new.py": OTHER}, "new.py lands in the package"),
        ({f"{DATA}/data/lib/python3.12/site-packages/evalsuite_attention/decode.py": OTHER}, "lands in the package"),
        ({"x/../evalsuite_attention/decode.py": OTHER}, "x/../evalsuite_attention/decode.py is no plain path"),
        ({"/usr/lib/python3/evalsuite_attention/decode.py": OTHER}, "is no plain path"),
        (
            {"evalsuite_attention/__pycache__/decode.cpython-312.pyc": OTHER},
            "digest: __pycache__/decode.cpython-312.pyc",
        ),
        ({"evalsuite_attention/new.pyc": OTHER}, "not covered by the digest: new.pyc"),
        ({f"{INFO}/entry_points.txt": "[vllm.general_plugins]\nx = other:register\n"}, "general_plugins loads other"),
        ({f"./{INFO}/entry_points.txt": "[vllm.general_plugins]\nx = other:register\n"}, "is no plain path"),
        ({f"{INFO}/entry_points.txt": "[vllm.platform_plugins]\nx=evalsuite_attention2:r\n"}, "evalsuite_attention2"),
        ({f"{INFO}/entry_points.txt": "[vllm.general_plugins]\nx = evalsuite_attention.plugin:register\n"}, None),
        ({"zz.pth": "import zz_hook\n"}, "zz.pth is of no package of evalsuite"),
        ({f"{DATA}/purelib/zz.pth": "import zz_hook\n"}, "is of no package of evalsuite"),
        ({"sitecustomize.py": OTHER}, "sitecustomize.py is of no package of evalsuite"),
        ({"vllm/v1/attention/backends/flash_attn.py": OTHER}, "flash_attn.py is of no package of evalsuite"),
        ({f"{INFO}/entry_points.txt": "[console_scripts]\nx = evalsuite.cli:main\n", f"{DATA}/scripts/x": OTHER}, None),
    ],
)
def test_a_wheel_that_may_install_or_load_other_code_than_its_package_is_a_difference(
    tmp_path: Path, entries: dict[str, str], told: str | None
) -> None:
    path = wheel(tmp_path / "a.whl", package(tmp_path))
    with zipfile.ZipFile(path, "a") as file:
        for name, text in entries.items():
            file.writestr(name, text)
    lines = differences(path)
    assert bool(lines) is (told is not None)
    assert (told or "") in "".join(lines)


def test_an_entry_given_twice_is_a_difference(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", package(tmp_path))
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("evalsuite_attention/decode.py", (SOURCE / "decode.py").read_bytes())
    assert "2 entries are evalsuite_attention/decode.py" in differences(path)[0]


def test_compiled_and_linked_code_in_a_folder_is_a_difference(tmp_path: Path) -> None:
    installed = package(tmp_path)
    (installed / "__pycache__").mkdir()
    (installed / "__pycache__" / "decode.cpython-312.pyc").write_bytes(b"")
    (installed / "decode").symlink_to(tmp_path)
    [line] = differences(tmp_path)
    assert line.endswith("not covered by the digest: __pycache__/decode.cpython-312.pyc, decode")


def test_a_run_that_shows_no_tested_package_is_no_evidence_for_a_release(tmp_path: Path) -> None:
    shipped = read_shipped(SOURCE)
    meta = run_json()
    stock = meta | {"arms": meta["arms"] | {"candidate": meta["arms"]["candidate"] | {"kernel": "stock"}}}
    attached = meta | {"arms": meta["arms"] | {"candidate": meta["arms"]["candidate"] | {"kernel": None}}}
    for other, why in (
        (stock, "no receipt shows"),
        (attached, "no receipt shows"),
        (meta | {"attention": None}, "names no digest"),
    ):
        [line] = find_differences(other, shipped)
        assert why in line


def test_a_run_json_whose_files_do_not_add_up_to_its_digest_is_no_evidence() -> None:
    meta = run_json()
    [line] = find_differences(meta | {"attention": meta["attention"] | {"sha256": "0" * 64}}, read_shipped(SOURCE))
    assert "do not add up to its digest" in line


@pytest.mark.parametrize("what", ["folder", "wheel", "text", "absent", "broken", "packed"])
def test_something_without_an_attention_package_is_one_line_and_exit_2(tmp_path: Path, what: str, capsys) -> None:
    path = tmp_path / "thing"
    if what == "folder":
        path.mkdir()
        (path / "plugin.py").write_text("")
    elif what == "wheel":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("evalsuite_attention.py", "")
    elif what == "text":
        path.write_text("no wheel")
    elif what == "packed":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.write(SOURCE / "decode.py", "evalsuite_attention/decode.py")
        code = bytearray(path.read_bytes())
        code[100:160] = b"\xff" * 60
        path.write_bytes(code)
    elif what == "broken":
        whole = wheel(path, SOURCE).read_bytes()
        at = whole.index(b"import torch")
        path.write_bytes(whole[:at] + b"IMPORT" + whole[at + 6 :])
    run = write_run(make_run("rr " * 8, path=tmp_path / "run"))
    assert main(["gate", str(run), "--margin", "0.5", "--ship", str(path)]) == 2
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n") == 1
    assert f"--ship {path}" in told.err and "expected a wheel, or a folder" in told.err


def served_by(files: dict[str, str], digest: str, path: Path):
    """A run of two recorded arms whose receipts name this package."""
    run = make_run("rr " * 20, path=path, attention={"sha256": digest, "files": files})
    return replace(
        run,
        responses={
            arm: tuple(replace(r, receipt={**r.receipt, "digest": digest}) for r in responses)
            for arm, responses in run.responses.items()
        },
    )


def test_one_changed_byte_makes_a_gate_that_passed_invalid_in_every_output(tmp_path: Path, capsys) -> None:
    installed = package(tmp_path / "site")
    shipped = read_shipped(tmp_path / "site")
    run = write_run(served_by(dict(shipped.files), shipped.sha256, tmp_path / "run"))
    command = ["gate", str(run), "--margin", "0.5", "--ship", str(tmp_path / "site")]
    assert main(command) == 0
    assert f"holds the attention package that was tested: {shipped.sha256[:8]}" in capsys.readouterr().out

    kernel = installed / "decode.py"
    code = bytearray(kernel.read_bytes())
    code[len(code) // 2] ^= 1
    kernel.write_bytes(code)
    assert main(command) == 4
    told = capsys.readouterr().out
    assert "INVALID: attention package" in told and "changed: decode.py" in told and "that was tested" not in told
    assert main([*command, "--json", "--junit", str(tmp_path / "junit.xml")]) == 4
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "INVALID" and "changed: decode.py" in data["headline"]
    assert data["shipped"] == read_shipped(tmp_path / "site").sha256 != shipped.sha256
    assert "changed: decode.py" in (tmp_path / "junit.xml").read_text()


def test_unreadable_files_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "evalsuite_attention").mkdir()
    (tmp_path / "evalsuite_attention" / "plugin.py").symlink_to("nowhere")
    with pytest.raises(UserError, match="holds no attention package"):
        read_shipped(tmp_path)


def test_the_digest_is_what_sha256sum_prints(tmp_path: Path) -> None:
    folder = tmp_path / "evalsuite_attention"
    folder.mkdir()
    (folder / "b.py").write_bytes(b"b")
    (folder / "a.py").write_bytes(b"a")
    lines = "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}.py\n" for name in "ab")
    assert read_shipped(tmp_path).sha256 == hashlib.sha256(lines.encode()).hexdigest()
