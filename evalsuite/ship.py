"""Compare the attention package that a run was served by with one that is about to be released.

The digest is that of run.json and of every receipt: the SHA-256 of each Python file of the package, see
`environment.attention_package`. Nothing of what is released is imported or installed.
"""

import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from evalsuite.environment import ATTENTION, digest_of
from evalsuite.errors import UserError

_EXPECTED = f"expected a wheel, or a folder, that holds the package {ATTENTION}"
_MARKS = {"plugin.py", "receipt.py"}
"""Files by which the package is known in a source checkout, where its folder has another name."""
_CODE = (".py", ".so", ".pyd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What is about to be released."""

    path: Path
    sha256: str
    files: Mapping[str, str]
    """SHA-256 of each Python file by its name in the package."""
    uncovered: tuple[str, ...]
    """Code in subfolders and compiled code, which no run's digest covers."""


def read_shipped(path: Path) -> Shipped:
    """Return the attention package in a wheel or folder: site-packages, a checkout, or the package's own folder.

    Raises UserError where there is none, or where it cannot be read.
    """
    try:
        contents = _read_folder(path) if path.is_dir() else _read_wheel(path)
    except OSError as error:
        raise UserError(f"--ship {path} cannot be read ({error.strerror or error}); {_EXPECTED}") from error
    # RuntimeError: the wheel is encrypted, or packed by a method that zipfile lacks.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(f"--ship {path} is no readable wheel ({error}); {_EXPECTED}") from error
    files = {name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(contents) if _is_covered(name)}
    if not files:
        raise UserError(f"--ship {path} holds no attention package; {_EXPECTED}")
    return Shipped(
        path=path,
        sha256=digest_of(files),
        files=files,
        uncovered=tuple(sorted(name for name in contents if not _is_covered(name))),
    )


def find_differences(meta: Mapping[str, Any], shipped: Shipped) -> Iterator[str]:
    """Yield one line for each reason why a run, whose run.json is `meta`, did not test what is shipped."""
    candidate, tested = meta["arms"]["candidate"], meta.get("attention") or {}
    if candidate.get("kernel") != "split_kv":
        yield (
            f"{shipped.path} is not what was tested: no receipt shows that the candidate, {candidate['name']}, decodes "
            "with the attention package"
        )
        return
    if not tested.get("sha256"):
        yield f"{shipped.path} may not be what was tested: run.json names no digest of the attention package"
        return
    files: Mapping[str, str] = tested.get("files") or {}
    changes = {"not covered by the digest": list(shipped.uncovered)}
    if shipped.sha256 != tested["sha256"]:
        changes |= {
            "changed": [name for name, digest in shipped.files.items() if files.get(name, digest) != digest],
            "missing": [name for name in files if name not in shipped.files],
            "added": [name for name in shipped.files if name not in files],
        }
    elif not shipped.uncovered:
        return
    told = [f"{what}: {', '.join(sorted(names))}" for what, names in changes.items() if names]
    yield (
        f"attention package {tested['sha256'][:8]} was tested, {shipped.path} holds {shipped.sha256[:8]}: "
        + ("; ".join(told) or "the files that run.json lists do not add up to its digest")
    )


def _is_covered(name: str) -> bool:
    return name.endswith(".py") and "/" not in name


def _is_code(name: str) -> bool:
    return name.endswith(_CODE)


def _read_folder(path: Path) -> dict[str, bytes]:
    """Return the code of the package by its name there, empty where there is none."""
    places = (path / ATTENTION, path, path / "attention")
    names = [{file.name for file in place.glob("*.py")} for place in places]
    found = next(
        (
            place
            for place, inside in zip(places, names, strict=True)
            if (inside if place.resolve().name == ATTENTION else inside >= _MARKS)
        ),
        None,
    )
    if found is None:
        return {}
    files = [file for file in found.rglob("*") if _is_code(file.name) and file.is_file()]
    return {file.relative_to(found).as_posix(): file.read_bytes() for file in files}


def _read_wheel(path: Path) -> dict[str, bytes]:
    """Return the code of the package by its name there. Of two entries of one name the last counts, as for pip."""
    # An installer also unpacks NAME.data/purelib and platlib beside the packages.
    place = re.compile(rf"(?:[^/]+\.data/(?:purelib|platlib)/)?{ATTENTION}/(.+)")
    with zipfile.ZipFile(path) as wheel:
        matches = [(place.fullmatch(PurePosixPath(entry).as_posix()), entry) for entry in wheel.namelist()]
        return {match[1]: wheel.read(entry) for match, entry in matches if match and _is_code(match[1])}
