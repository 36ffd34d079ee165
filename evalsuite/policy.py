"""What a release must show: read a policy file.

alpha = 0.05                    # level of the regression tests, from 0.001 to 0.5; optional
inconclusive = "block"          # or "advisory"; optional

[task.gpqa]
margin = 0.05                   # largest loss accepted, a fraction
required = true                 # false: advisory, told but not decisive; optional
accept_within_margin = false    # true: a detected loss that lies within the margin is accepted; optional
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.errors import UserError

LEAST_ALPHA, MOST_ALPHA = 0.001, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """What one task must show."""

    margin: float
    required: bool = True
    accept_within_margin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a release must show on each task."""

    tasks: Mapping[str, TaskPolicy]
    alpha: float = 0.05
    inconclusive_blocks: bool = True
    """Whether a required task that is INCONCLUSIVE holds the release back even if another one passes."""


def load_policy(path: Path) -> Policy:
    """Return the policy in a TOML file. Raises UserError for what is unknown, missing or out of range."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(
            f"{path} cannot be read as TOML ({error}); expected a policy with tables [task.NAME]"
        ) from error
    _refuse_unknown(data, ("alpha", "inconclusive", "task"), str(path))
    tables = data.get("task")
    if not isinstance(tables, dict) or not tables:
        raise UserError(f"{path} names no task; expected a table [task.NAME] with a margin for each")
    tasks = {name: _read_task(f"{path}: [task.{name}]", table) for name, table in tables.items()}
    if not any(task.required for task in tasks.values()):
        raise UserError(f"{path} requires no task, so that nothing could hold a release back; make one required")
    alpha = _fraction(str(path), "alpha", data.get("alpha", 0.05))
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        # A level near 0 would turn FAIL off without a word.
        raise UserError(
            f"{path}: alpha is {alpha:g}; expected a level from {LEAST_ALPHA} to {MOST_ALPHA}, such as 0.05"
        )
    inconclusive = data.get("inconclusive", "block")
    if inconclusive not in ("block", "advisory"):
        raise UserError(f'{path}: inconclusive is {inconclusive!r}; expected "block" or "advisory"')
    return Policy(
        tasks=tasks,
        alpha=alpha,
        inconclusive_blocks=inconclusive == "block",
    )


def _read_task(where: str, table: Any) -> TaskPolicy:
    if not isinstance(table, dict) or "margin" not in table:
        raise UserError(f"{where} has no margin; expected the largest loss accepted, a fraction such as 0.05")
    _refuse_unknown(table, ("margin", "required", "accept_within_margin"), where)
    for name in ("required", "accept_within_margin"):
        if not isinstance(table.get(name, False), bool):
            raise UserError(f"{where}: {name} is {table[name]!r}; expected true or false")
    margin = _fraction(where, "margin", table["margin"])
    return TaskPolicy(**{**table, "margin": margin})


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise UserError(f"{where} holds {unknown[0]!r}, which means nothing here; expected {', '.join(known)}")


def _fraction(where: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise UserError(f"{where}: {name} is {value!r}; expected a fraction between 0 and 1, such as 0.05")
    return float(value)
