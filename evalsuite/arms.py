"""Arms: one served configuration each, by preset, by TOML file or by URL."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from evalsuite.errors import UserError

Kernel = Literal["stock", "split_kv"]

SWITCHES = "GGUF_PQ2_"
"""Variables with this prefix choose a kernel: a server gets them from its arm, never from the caller's shell."""

_SINGLE = "GGUF_PQ2_SINGLE_ATTN_BACKEND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One served configuration: a vLLM server to start, or a running one to attach to."""

    name: str
    about: str = ""
    model: str | None = None
    """Checkpoint folder or hub name; None takes the run's `--model`."""
    args: tuple[str, ...] = ()
    """Flags of vLLM's OpenAI server, as a user would type them."""
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    backend: str | None = None
    """The attention backend that every layer must report before the first question."""
    flash_attn_version: int | None = None
    """The FlashAttention version that every layer must report, where the backend has one."""
    kernel: Kernel | None = "stock"
    """What each receipt must show. None where no receipt can be demanded."""


_CPU_ARGS = ("--enforce-eager", "--dtype", "bfloat16")
_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}


def _flash(version: int, backend: str = "FLASH_ATTN") -> tuple[str, ...]:
    return ("--attention-backend", backend, "--attention-config", f'{{"flash_attn_version":{version}}}')


PRESETS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(name="fa2", about="FlashAttention-2 for everything", args=_flash(2), backend="FLASH_ATTN",
            flash_attn_version=2),
        Arm(name="hybrid", about="FlashAttention-2, and Triton split-KV for a decode step of one request",
            args=_flash(2, "CUSTOM"), backend="CUSTOM", flash_attn_version=2, kernel="split_kv"),
        Arm(name="hybrid-off", about="control: the hybrid backend with split-KV switched off",
            args=_flash(2, "CUSTOM"), env={_SINGLE: "flash"}, backend="CUSTOM",
            flash_attn_version=2),
        Arm(name="triton", about="vLLM's Triton attention for everything",
            args=("--attention-backend", "TRITON_ATTN"), backend="TRITON_ATTN"),
        Arm(name="fa3", about="FlashAttention-3 (Hopper)", args=_flash(3), backend="FLASH_ATTN",
            flash_attn_version=3),
        Arm(name="flashinfer", about="FlashInfer", args=("--attention-backend", "FLASHINFER"),
            backend="FLASHINFER"),
        Arm(name="cpu", about="vLLM's CPU attention", args=_CPU_ARGS, env=_CPU_ENV, backend="CPU_ATTN"),
        Arm(name="cpu-hybrid", about="CPU attention, and split-KV for a decode step of one request",
            args=_CPU_ARGS, env={**_CPU_ENV, _SINGLE: "torch"}, backend="CPU_ATTN",
            kernel="split_kv"),
    )
}  # fmt: skip


def to_json(arm: Arm, *, model_sha256: str | None) -> dict[str, Any]:
    """Return what run.json says about an arm."""
    data = asdict(arm)
    del data["about"]
    return {**data, "args": list(arm.args), "env": dict(arm.env), "model_sha256": model_sha256}


def load_arms(path: Path | None) -> dict[str, Arm]:
    """Return the presets and the arms that a TOML file adds. Raises UserError naming what in the file is wrong.

    A table [arm.NAME] may hold `like` (a preset or an earlier arm to start from), `model`, `args` (added to those of
    `like`), `env` (likewise), `backend` (by default what --attention-backend in `args` names), `flash_attn_version` and
    `kernel` ("stock" or "split_kv").
    """
    arms = dict(PRESETS)
    if path is None:
        return arms
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as TOML ({error}); expected tables [arm.NAME]") from error
    if set(tables) != {"arm"} or not isinstance(tables["arm"], dict):
        raise UserError(f"{path} holds {sorted(tables) or 'nothing'}; expected tables [arm.NAME] and nothing else")
    for name, table in tables["arm"].items():
        if name in PRESETS:
            raise UserError(f"{path}: [arm.{name}] has a preset's name; choose another")
        arms[name] = _arm_from_table(f"{path}: [arm.{name}]", name, table, arms)
    return arms


def _arm_from_table(where: str, name: str, table: Any, arms: Mapping[str, Arm]) -> Arm:
    kinds = {"like": str, "model": str, "args": list, "env": dict, "backend": str, "flash_attn_version": int,
             "kernel": str}  # fmt: skip
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or not isinstance(table, dict):
        raise UserError(f"{where} is no arm; expected a table whose name has letters, digits, '.', '_' or '-'")
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f"{where} has {key!r}; expected one of {', '.join(kinds)}")
        if type(value) is not kinds[key]:
            raise UserError(f"{where}: {key} is {value!r}; expected a {kinds[key].__name__}")
    args, env = table.get("args", []), table.get("env", {})
    if not all(isinstance(item, str) for item in [*args, *env.values()]):
        raise UserError(f"{where}: args and env must hold text only; quote numbers")
    if any("\0" in item for item in [*args, *env, *env.values()]) or any("=" in key or not key for key in env):
        raise UserError(f"{where}: args and env must hold no NUL, and env no name that is empty or has a '='")
    if table.get("kernel", "stock") not in ("stock", "split_kv"):
        raise UserError(f"{where}: kernel is {table['kernel']!r}; expected 'stock' or 'split_kv'")
    base = Arm(name=name)
    if "like" in table:
        if table["like"] not in arms:
            raise UserError(f"{where}: like is {table['like']!r}; expected a preset or an arm further up in the file")
        base = arms[table["like"]]
    changes = {key: table[key] for key in ("model", "backend", "flash_attn_version", "kernel") if key in table}
    changes.setdefault("backend", named_backend(args) or base.backend)
    return replace(base, name=name, about="", args=(*base.args, *args), env={**base.env, **env}, **changes)


def named_backend(args: Sequence[str]) -> str | None:
    """Return the backend that a server's flags name, as its layers report it; None where they leave it to vLLM."""
    named = (find_flag(args, "--attention-backend") or "AUTO").upper()
    return None if named == "AUTO" else named


def find_flag(args: Sequence[str], name: str) -> str | None:
    """Return the value of a server's flag, the last where it is given twice; None where it is not given."""
    joined = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    flags = [part.replace("_", "-") for part in joined]  # vLLM takes either spelling
    places = [place for place, flag in enumerate(flags[:-1]) if flag == name]
    return joined[places[-1] + 1] if places else None


def find_arm(name: str, arms: Mapping[str, Arm]) -> Arm:
    """Return the arm called `name`, or one that attaches to it where `name` is a URL."""
    if "://" in name:
        try:
            parts = urlsplit(name)
            fits = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.username
            fits = fits and parts.port != 0
        except ValueError:  # a port that is no number, an IPv6 address without its end
            fits = False
        if not fits:
            raise UserError(f"{name} is no server address; expected http://HOST:PORT (no user, no query)")
        return Arm(name=f"{parts.netloc}", url=name.rstrip("/").removesuffix("/v1"), kernel=None)
    if name not in arms:
        near = difflib.get_close_matches(name, arms, n=3) or sorted(arms)
        raise UserError(f"unknown arm {name!r}; did you mean {', '.join(near)}? `evalsuite arms` lists all")
    return arms[name]
