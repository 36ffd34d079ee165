"""Turn what a run can show into text for a terminal."""

from collections.abc import Iterator, Sequence

from evalsuite import planning
from evalsuite.planning import DISCORDANT, MARGINS, Lengths, Needed, Plan
from evalsuite.render import text_table
from evalsuite.wording import count

NONE = "-"
SHOWN_MARGINS = (0.01, 0.02, 0.03, 0.05)


def render_tables(*, pairs: int) -> str:
    """Return what `pairs` questions can see, need and prove, over the usual discordances and margins."""
    return "\n".join(
        [
            *_detectable(pairs),
            "",
            *_needed(pairs),
            "",
            *_provable(pairs),
            "",
            *_allowed(pairs),
            "",
            "Give --discordance (an A/A run measures the least there can be) and --margin for a plan of your own.",
        ]
    )


def render_plans(plans: Sequence[Plan]) -> str:
    """Return plans of one set of questions side by side, one column for each discordance."""
    first = plans[0]
    rows = [
        ("share of pairs that are discordant", [_percent(p.discordance) for p in plans]),
        (f"smallest loss seen in {_percent(first.power)} of runs, points", [_points(p.detectable_loss) for p in plans]),
        ("smallest margin shown, points *", [_points(p.provable_margin) for p in plans]),
    ]
    if first.margin is not None:
        stops = [plan.early_stop for plan in plans]
        rows += [
            (f"chance to show margin {_percent(first.margin)} *", [f"{p.pass_power or 0:.3f}" for p in plans]),
            ("questions needed for it *", [_known(p.questions_needed) for p in plans]),
            ("or samples of each question, at least *", [_known(p.samples_needed) for p in plans]),
            ("--stop-early: median question of the stop *", [NONE if s is None else f"{s.median:,}" for s in stops]),
            ("chance that it stops in time *", [NONE if s is None else f"{s.share_within:.3f}" for s in stops]),
        ]
    if first.hours is not None:
        rows.append(("GPU hours of this run, both arms", [_hours(p.hours) for p in plans]))
    if first.hours_needed is not None:
        rows.append(("GPU hours of the questions needed", [_hours(p.hours_needed) for p in plans]))
    return "\n".join(
        [
            count(first.pairs, "question"),
            *text_table([(name, *values) for name, values in rows]),
            "* if the arms do not truly differ",
        ]
    )


def _detectable(pairs: int) -> Iterator[str]:
    yield f"Smallest loss, in points, found in 80 % of runs of {count(pairs, 'question')} (alpha 0.05)"
    one, two = (planning.detectable(pairs=pairs, two_sided=two_sided) for two_sided in (False, True))
    tests = ("exact", "mid-p", "asymptotic", "Connor")
    head = ("discordance", "pairs", *(f"one-sided {tests[0]}", *tests[1:]), *(f"two-sided {tests[0]}", *tests[1:]))
    rows = [
        (
            _percent(a.discordance),
            f"{a.discordant:.1f}",
            *(_points(loss) for row in (a, b) for loss in (row.exact, row.midp, row.asymptotic, row.connor)),
        )
        for a, b in zip(one, two, strict=True)
    ]
    yield from text_table([head, *rows])


def _needed(pairs: int) -> Iterator[str]:
    yield "Questions to show a margin in 80 % of runs of arms that do not truly differ"
    yield "(one-sided alpha 0.05; 5 looks: planned, O'Brien-Fleming; equivalence: two tests at 0.05;"
    yield f"stop early: simulated, error some 3 %; samples of each of {count(pairs, 'question')}: at least, and PASS"
    yield "takes more, as questions that are wholly lost may not have been drawn: give --margin)"
    needed = planning.needed(pairs=pairs, margins=SHOWN_MARGINS)
    head = ("margin", "discordance", "Nam/Liu", "5 looks most", "mean", "stop early median", "80 %")
    yield from text_table(
        [
            (*head, "exact", "equivalence", "samples"),
            *((*_lengths(row, row.at_05), *map(str, (row.exact, row.equivalence, row.samples))) for row in needed),
        ]
    )
    yield ""
    yield "The same at one-sided alpha 0.025, that of the verdict's 95 % interval"
    yield from text_table([head, *(_lengths(row, row.at_025) for row in needed)])


def _lengths(row: Needed, lengths: Lengths) -> tuple[str, ...]:
    looks, stop = lengths.looks, lengths.early_stop
    numbers = (lengths.formula, looks.most, round(looks.mean), stop.median, stop.in_80_percent)
    return _percent(row.margin), _percent(row.discordance), *map(str, numbers)


def _provable(pairs: int) -> Iterator[str]:
    yield f"Chance that {count(pairs, 'question')} show a margin if the arms do not truly differ (one-sided 0.05),"
    yield "and the smallest margin, in points, shown in 80 % of runs"
    head = ("discordance", *map(_percent, MARGINS), "smallest", "at alpha 0.025")
    rows = [
        (_percent(row.discordance), *(f"{p:.3f}" for p in row.power), _points(row.smallest), _points(row.smallest_95))
        for row in planning.provable(pairs=pairs)
    ]
    yield from text_table([head, *rows])


def _allowed(pairs: int) -> Iterator[str]:
    yield f"Most pairs lost that still show the margin in {count(pairs, 'question')}, by discordant pairs (alpha 0.05)"
    rows = [
        (_percent(margin), *(_known(most) for most in planning.losses_allowed(pairs=pairs, margin=margin)))
        for margin in SHOWN_MARGINS
    ]
    yield from text_table([("margin", *map(str, DISCORDANT)), *rows])


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def _points(fraction: float | None) -> str:
    return NONE if fraction is None else f"{100 * fraction:.2f}"


def _known(number: int | None) -> str:
    return NONE if number is None else f"{number:,}"


def _hours(hours: float | None) -> str:
    return NONE if hours is None else f"{hours:.3g}"
