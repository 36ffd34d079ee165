"""Where two responses part: position, gaps, runner-up, and whether rounding explains it."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from evalsuite import divergence_output
from evalsuite.divergence import Divergence, find_divergence, spread
from evalsuite.journal import Run, load_run
from evalsuite.pairing import pair_up
from evalsuite.report import derive, render_csv, render_text
from made_runs import grades_of, make_run

RESULTS = Path(__file__).parent.parent / "results"
SAME = ([1, 2, 3, 4], [4.0, 4.0, 3.9, 4.0])
"""Tokens and gaps of a response; each token's runner-up is its negative unless said otherwise."""


def found(*pairs, outcomes=None, temperature=0.0):
    """Find the divergence of pairs, each (tokens, gaps[, runners-up]) of the baseline and of the candidate."""
    run = make_run(outcomes or "rr " * len(pairs))
    responses = {"baseline": [], "candidate": []}
    for number, pair in enumerate(pairs):
        for arm, (tokens, gaps, *runners_up) in zip(responses, pair, strict=True):
            recorded = None if gaps is None else tuple(-0.5 - gap for gap in gaps)
            responses[arm].append(
                replace(
                    run.responses[arm][number],
                    token_ids=None if tokens is None else tuple(tokens),
                    logprobs=None if gaps is None else (-0.5,) * len(gaps),
                    runner_up_logprobs=recorded,
                    runner_up_ids=tuple(runners_up[0]) if runners_up else tuple(-token for token in tokens or ()),
                )
            )
    meta = run.meta | {"sampling": run.meta["sampling"] | {"temperature": temperature}}
    run = Run(path=run.path, meta=meta, questions=run.questions, responses=responses)
    return find_divergence(run, pair_up(run, grades_of(run)))


def shifted(by):
    """A pair of equal responses whose gap at one step differs by `by` between the arms."""
    return SAME, (SAME[0], [4.0, 4.0 - by, *SAME[1][2:]])


def parted(baseline_gap, candidate_gap, *, runner_up=True):
    """A pair that parts at its third token."""
    swapped = ([-1, -2, 9], [-1, -2, 3]) if runner_up else ([-1, -2, 7], [-1, -2, 7])
    return ([1, 2, 3], [4.0, 4.0, baseline_gap], swapped[0]), ([1, 2, 9], [4.0, 4.0, candidate_gap], swapped[1])


def test_the_first_token_that_differs_is_found_with_its_gaps_and_runners_up() -> None:
    [parting] = found(shifted(0.5), parted(0.25, 0.125)).partings
    assert (parting.position, parting.baseline_token, parting.candidate_token) == (2, 3, 9)
    assert (parting.baseline_gap, parting.candidate_gap, parting.moved) == (0.25, 0.125, 0.375)
    assert parting.baseline_is_runner_up is True and parting.candidate_is_runner_up is True
    [third] = found(parted(0.25, 0.125, runner_up=False)).partings
    assert third.baseline_is_runner_up is False and third.candidate_is_runner_up is False


def test_a_near_tie_moved_no_further_than_steps_before_and_a_wide_gap_did() -> None:
    result = found(shifted(0.5), parted(0.25, 0.25), parted(0.25, 0.26), parted(2.0, 1.0))
    assert [parting.near for parting in result.partings] == [True, False, False]
    assert [parting.moved for parting in result.wide] == [3.0, 0.51]
    assert result.moved[-1] == 0.5


def test_a_candidate_that_moves_every_step_does_not_hide_what_it_overturns() -> None:
    """Its own movements are large too, so the baseline's median gap alone tells."""
    one, other = parted(4.5, 0.5)
    result = found(shifted(9.0), shifted(8.0), (one, other))
    assert result.median_gap == 4.0 and result.moved[-1] == 9.0
    assert [parting.near for parting in result.partings] == [False]


def test_steps_at_which_the_arms_had_other_runners_up_measure_no_movement() -> None:
    same, other = ([-1, -2, -3, -4], [-1, -2, -3, -5])
    assert len(found(((*SAME, same), (*SAME, other))).moved) == 3


def test_noise_of_float32_does_not_make_equal_movements_differ() -> None:
    result = found(shifted(0.5), parted(0.2500000596, 0.25))
    assert [parting.near for parting in result.partings] == [True]


def test_lost_and_gained_pairs_that_hang_on_a_near_tie_are_counted_apart() -> None:
    result = found(shifted(0.5), parted(0.1, 0.1), parted(3.0, 0.1), parted(0.1, 0.1), outcomes="rr rw rw wr")
    assert dict(result.count("lost")) == {True: 1, False: 1}
    assert dict(result.count("gained")) == {True: 1}
    assert result.count().total() == 3


def test_a_response_that_ends_where_the_other_goes_on_parts_at_an_unknown_gap() -> None:
    result = found(shifted(0.5), (([1, 2], [4.0, 4.0]), ([1, 2, 3], [4.0, 4.0, 4.0])))
    [parting] = result.partings
    assert (parting.position, parting.baseline_token, parting.candidate_token) == (2, None, 3)
    assert parting.moved is None and parting.near is None
    assert "1 at a gap that is not known" in divergence_output.summarize(result)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_a_logprob_that_is_no_finite_number_is_not_known(bad: float | None) -> None:
    one, other = parted(0.25, 0.125)
    run = make_run("rr")
    changed = {
        arm: (
            replace(
                run.responses[arm][0], token_ids=tuple(tokens), logprobs=(-0.5, -0.5, -0.5),
                runner_up_ids=tuple(ids), runner_up_logprobs=(-4.0, -4.0, bad if arm == "candidate" else -1.0),
            ),
        )
        for arm, (tokens, _, ids) in zip(("baseline", "candidate"), (one, other), strict=True)
    }  # fmt: skip
    broken = replace(run, responses=changed)
    result = find_divergence(broken, pair_up(broken, grades_of(broken)))
    [parting] = result.partings
    assert (parting.baseline_gap, parting.candidate_gap, parting.near) == (0.5, None, None)
    json.dumps(divergence_output.to_json(result), allow_nan=False)


def test_without_logprobs_positions_are_still_found() -> None:
    result = found((([1, 2], None), ([1, 3], None)))
    [parting] = result.partings
    assert (parting.position, parting.near, result.median_gap, result.moved) == (1, None, None, ())
    assert all(isinstance(part, str | list) for part in divergence_output.describe(result))


def test_pairs_without_token_ids_are_counted_and_a_run_without_any_says_so() -> None:
    part = found((SAME, SAME), ((None, None), SAME))
    assert (part.pairs, len(part.compared), part.partings) == (2, 1, ())
    assert "equal tokens in 1 of 1 pair (1 more without token ids)" in divergence_output.summarize(part)
    report = derive(make_run("rr rw"))
    assert "first divergence: not known" in render_text(report)
    [first, second] = csv.DictReader(io.StringIO(render_csv(report)))
    assert first["same_tokens"] == second["first_difference"] == ""


def test_of_sampled_responses_only_positions_are_told() -> None:
    result = found(shifted(0.5), parted(0.25, 0.125), temperature=0.7)
    [parting] = result.partings
    assert (parting.position, parting.baseline_gap, parting.near, result.moved) == (2, None, None, ())
    assert "sampled" in divergence_output.summarize(result)
    assert [part[-1][0] for part in divergence_output.describe(result) if isinstance(part, list)] == [
        "tokens before it"
    ]


def test_quantiles_are_values_that_occurred() -> None:
    assert spread([]) is None
    assert spread([3.0]) == (3.0,) * 6
    assert spread(range(1, 101)) == (1, 25, 50, 75, 99, 100)


def test_a_long_list_of_wide_gaps_is_cut_in_the_report_and_whole_in_json() -> None:
    result = found(shifted(0.5), *[parted(3.0, 1.0)] * 30)
    *_, title, rows = divergence_output.describe(result)
    assert "the widest 20 of 30" in str(title) and len(rows) == 21
    assert len(divergence_output.to_json(result)["wide"]) == 30


@pytest.fixture(scope="module")
def recorded() -> list[Divergence]:
    reports = [derive(load_run(RESULTS / f"h200-{task}-fa2-hybrid")) for task in ("word_problems", "capitals")]
    return [report.comparison.divergence for report in reports]


def test_figures_of_the_recorded_runs_are_those_of_the_notebook(recorded: list[Divergence]) -> None:
    """529 of 600 and 63 of 150 equal, largest gap 0.5, the candidate's choice the runner-up in 155 of 158."""
    assert [len(each.compared) - len(each.partings) for each in recorded] == [529, 63]
    partings = [parting for each in recorded for parting in each.partings]
    assert max(max(p.baseline_gap, p.candidate_gap) for p in partings) == 0.5
    assert sum(p.candidate_is_runner_up for p in partings) == 155 and len(partings) == 158


def test_right_kernels_that_only_sum_in_another_order_part_at_near_ties_alone(recorded: list[Divergence]) -> None:
    assert [each.wide for each in recorded] == [(), ()]
    assert all(parting.near for each in recorded for parting in each.partings)


def test_no_token_is_written_down_as_a_set_may_be_gated() -> None:
    tokens = (([1, 2, 314159], [4.0, 4.0, 3.0]), ([1, 2, 271828], [4.0, 4.0, 3.0]))
    result = found(shifted(0.5), tokens)
    assert len(result.wide) == 1
    run = make_run("rr rr")
    written = [divergence_output.to_json(result), list(divergence_output.describe(result))]
    written += [divergence_output.cells(result, pair) for pair in pair_up(run, grades_of(run))]
    assert not any(token in str(written) for token in ("314159", "271828"))
