"""Turn where pairs part into lines, tables, JSON and columns of pairs.csv.

None of it holds a token, which would tell of what a gated set asks; the responses have them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from evalsuite.divergence import LEVELS, Divergence, Parting, spread
from evalsuite.pairing import Pair
from evalsuite.records import ARMS
from evalsuite.wording import UNKNOWN, count

Rows = list[tuple[str, ...]]
OUTCOMES = ("kept", "lost", "gained", "missed")
MOST_ROWS = 20
"""Of the wide gaps that a report lists; comparison.json has all."""
COLUMNS = {
    "first_difference": "position",
    "baseline_gap": "baseline_gap",
    "candidate_gap": "candidate_gap",
    "baseline_is_runner_up": "baseline_is_runner_up",
    "candidate_is_runner_up": "candidate_is_runner_up",
    "near_tie": "near",
}
"""Columns of pairs.csv and the fields of a `Parting` that they show."""


def summarize(found: Divergence | None) -> str:
    """Return in one line how many pairs part, and at what."""
    if found is None or not found.compared:
        return "not known, as no pair has the token ids of both responses"
    equal, compared = len(found.compared) - len(found.partings), count(len(found.compared), "pair")
    same = f"equal tokens in {equal} of {compared}"
    if lacking := found.pairs - len(found.compared):
        same += f" ({lacking} more without token ids)"
    if not found.greedy:
        return f"{same}; sampled text parts by chance, so this says little"
    seen = found.count()
    unknown = f", {seen[None]} at a gap that is not known" if seen[None] else ""
    return f"{same}, {seen[True]} part at a near tie, {seen[False]} at a wide gap{unknown}"


def describe(found: Divergence | None) -> Iterator[str | Rows]:
    """Yield the paragraphs and tables of the report's section, text without markup."""
    line = summarize(found)
    yield line[0].upper() + line[1:] + "."
    if found is None or not found.partings:
        return
    yield _quantile_rows(found)
    if not found.greedy:
        return
    named = (f"the {arm}'s in {_runners_up(found, arm)}" for arm in ARMS)
    yield (
        f"Where they part, one choice was the other arm's runner-up: {' and '.join(named)} of "
        f"{count(len(found.partings), 'pair')}. A gap is the logprob of the chosen token minus that of its runner-up; "
        "moved is how far that difference lies apart in the two arms. At a near tie it moved no further than at some "
        "step before, where both arms took the same token, and the baseline's gap is at most the median of all its "
        f"gaps, {_number(found.median_gap)}."
    )
    seen = {outcome: found.count(outcome) for outcome in OUTCOMES}
    yield [
        ("", "near tie", "wide gap", UNKNOWN),
        *((name, *(str(counts[near]) for near in (True, False, None))) for name, counts in seen.items()),
    ]
    if found.wide:
        first = f", the widest {MOST_ROWS} of {len(found.wide)}" if len(found.wide) > MOST_ROWS else ""
        yield f"At a wide gap, which rounding does not explain{first}:"
        head = ("question", "outcome", "tokens before it", "gap in the baseline", "in the candidate", "moved")
        yield [head, *map(_wide_row, found.wide[:MOST_ROWS])]


def to_json(found: Divergence) -> dict[str, Any]:
    """Return every figure for comparison.json."""
    partings = found.partings
    seen = {outcome: found.count(outcome) for outcome in OUTCOMES}
    return {
        "greedy": found.greedy,
        "pairs": found.pairs,
        "compared": len(found.compared),
        "identical": len(found.compared) - len(partings),
        "position": _quantiles([parting.position for parting in partings]),
        "gap": {arm: _quantiles(_known(found, f"{arm}_gap")) for arm in ARMS},
        "moved": _quantiles(_known(found, "moved")),
        "is_runner_up": {arm: _runners_up(found, arm) for arm in ARMS},
        "steps_before": len(found.moved),
        "moved_before": _quantiles(found.moved),
        "baseline_median_gap": found.median_gap,
        "outcomes": {
            outcome: {"near_tie": counts[True], "wide_gap": counts[False], "not_known": counts[None]}
            for outcome, counts in seen.items()
        },
        "wide": [_listed(parting) for parting in found.wide],
    }


def cells(found: Divergence | None, pair: Pair) -> tuple[object, ...]:
    """Return a pair's cells of pairs.csv: whether all tokens are equal, None if not known, then those of COLUMNS."""
    key = (pair.question, pair.sample)
    if found is None or key not in found.compared:
        return (None,) * (1 + len(COLUMNS))
    parting = found.compared[key]
    return (parting is None, *(getattr(parting, field, None) for field in COLUMNS.values()))


def _listed(parting: Parting) -> dict[str, Any]:
    left_out = ("near", "baseline_token", "candidate_token")
    fields = {key: value for key, value in asdict(parting).items() if key not in left_out}
    return fields | {"moved": parting.moved}


def _quantile_rows(found: Divergence) -> Rows:
    measured: list[tuple[str, Sequence[float]]] = [("tokens before it", [p.position for p in found.partings])]
    if found.greedy:
        measured += [(f"gap in the {arm}", _known(found, f"{arm}_gap")) for arm in ARMS]
        measured.append(("moved, at least", _known(found, "moved")))
        measured.append(("moved at the steps before", found.moved))
    return [
        ("", "number", "least", *(f"{100 * level:g} %" for level in LEVELS[1:-1]), "most"),
        *((name, str(len(values)), *_shown(values)) for name, values in measured),
    ]


def _shown(values: Sequence[float]) -> tuple[str, ...]:
    return tuple(map(_number, spread(values) or (None,) * len(LEVELS)))


def _wide_row(parting: Parting) -> tuple[str, ...]:
    name = parting.question + (f", sample {parting.sample}" if parting.sample else "")
    gaps = (parting.baseline_gap, parting.candidate_gap, parting.moved)
    return (name, parting.outcome, str(parting.position), *map(_number, gaps))


def _known(found: Divergence, field: str) -> list[float]:
    return [value for parting in found.partings if (value := getattr(parting, field)) is not None]


def _runners_up(found: Divergence, arm: str) -> int:
    return sum(getattr(parting, f"{arm}_is_runner_up") is True for parting in found.partings)


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    found = spread(values)
    return None if found is None else {f"{level:g}": value for level, value in zip(LEVELS, found, strict=True)}


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"
