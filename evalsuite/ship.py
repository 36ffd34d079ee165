"""Compare the attention package that a run was served by with one that is about to be released.

The digest is that of run.json and of every receipt: the SHA-256 of each Python file of the package, see
`environment.attention_package`. Nothing of what is released is imported or installed.
"""

import hashlib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path, PurePosixPath
from typing import Any

from evalsuite.environment import ATTENTION, digest_of
from evalsuite.errors import UserError

_EXPECTED = f"expected a wheel, or a folder, that holds the package {ATTENTION}"
_MARKS = {"plugin.py", "receipt.py"}
"""Files by which the package is known in a source checkout, where its folder has another name."""
_CODE = (".py", ".so", ".pyd", ".pyc")
"""What Python imports. It takes a compiled file for its source without a look at it, if that says so."""
_PACKAGES = (ATTENTION, "evalsuite", "evalsuite_performance", "evalsuite_tasks")
"""What a wheel may install: a module beside these, or a .pth file, may take the place of another."""
_PLUGINS = "vllm."
"""Groups of entry points by which vLLM loads code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What is about to be released."""

    path: Path
    sha256: str
    files: Mapping[str, str]
    """SHA-256 of each Python file by its name in the package."""
    uncovered: tuple[str, ...]
    """Code in subfolders and compiled code, which no run's digest covers."""
    problems: tuple[str, ...]
    """Why it may not be these files that an installer puts into the package, or that vLLM loads."""


def read_shipped(path: Path) -> Shipped:
    """Return the attention package in a wheel or folder: site-packages, a checkout, or the package's own folder.

    Raises UserError where there is none, or where it cannot be read.
    """
    try:
        contents, problems = (_read_folder(path), ()) if path.is_dir() else _read_wheel(path)
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
        problems=problems,
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
    if shipped.problems:
        yield f"{shipped.path} may install or load other code than was tested: {'; '.join(shipped.problems)}"
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
    # A folder that is a link may hold code as well, which is then not covered.
    files = [file for file in found.rglob("*") if (_is_code(file.name) and file.is_file()) or _is_linked(file)]
    return {file.relative_to(found).as_posix(): b"" if file.is_dir() else file.read_bytes() for file in files}


def _is_linked(file: Path) -> bool:
    return file.is_symlink() and file.is_dir()


def _read_wheel(path: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the code of the package by its name there, and what keeps it from being what is installed."""
    inside = f"{ATTENTION}/"
    with zipfile.ZipFile(path) as wheel:
        entries = [(entry, PurePosixPath(entry)) for entry in wheel.namelist() if not entry.endswith("/")]
        code = {
            name.as_posix().removeprefix(inside): wheel.read(entry)
            for entry, name in entries
            if name.as_posix().startswith(inside) and _is_code(name.name)
        }
        described = [zipfile.Path(wheel, f"{name.parent}/") for _, name in entries if name.name == "entry_points.txt"]
        foreign = [line for folder in described for line in _find_foreign(folder)]
    return code, (*_find_stray(entries), *foreign)


def _find_stray(entries: Sequence[tuple[str, PurePosixPath]]) -> Iterator[str]:
    """Yield the entries of a wheel that an installer may put in the place of others."""
    # It also unpacks NAME.data/purelib and platlib beside the packages, and the rest of NAME.data elsewhere.
    places = Counter(re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", name.as_posix()) for _, name in entries)
    for place, times in places.items():
        if times > 1:
            yield f"{times} entries are {place}"
    for entry, name in entries:
        if entry != str(name) or name.is_absolute() or ".." in name.parts or "\\" in entry:
            yield f"{entry} is no plain path"
        elif name.parts[0].endswith(".data") and ATTENTION in name.parts:
            yield f"{entry} lands in the package"
        elif name.parts[0] not in _PACKAGES and not re.match(r"[^/]+\.(dist-info|data/scripts)/", entry):
            yield f"{entry} is of no package of evalsuite, and may change what is loaded"


def _find_foreign(folder: zipfile.Path) -> Iterator[str]:
    """Yield the entry points of a distribution by which vLLM loads something else than the package."""
    for point in PathDistribution(folder).entry_points:
        module = point.value.partition(":")[0].strip()
        if point.group.startswith(_PLUGINS) and module != ATTENTION and not module.startswith(f"{ATTENTION}."):
            yield f"{point.group} loads {module}"
