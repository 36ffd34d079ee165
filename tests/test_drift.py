"""What two sets of next-token distributions are found to lie apart, and what is said of it."""

import math
import random
from collections.abc import Callable

import pytest

from evalsuite import drift
from evalsuite.drift import Drift, compare, judge
from evalsuite.records import Forced
from evalsuite.verdict import Verdict

VOCABULARY, TOP, QUESTIONS, STEPS = 40, 8, 12, 30
Noise = Callable[[random.Random, int], float]


def make_arm(noise: Noise, *, seed: int, top: int = TOP, questions: int = QUESTIONS) -> list[Forced]:
    """Return an arm whose logits are the same for every caller but for `noise` of each step."""
    shared, own = random.Random("logits"), random.Random(seed)
    arm = []
    for question in range(questions):
        ids, logprobs = [], []
        for step in range(STEPS):
            logits = [shared.gauss(0, 2) for _ in range(VOCABULARY)]
            size = noise(own, step) if step else 0.0
            distribution = softmax([value + own.gauss(0, 1) * size for value in logits])
            ranked = sorted(range(VOCABULARY), key=lambda token: -distribution[token])[:top]
            ids.append(tuple(ranked))
            logprobs.append(tuple(math.log(distribution[token]) for token in ranked))
        arm.append(
            Forced(
                question=f"q{question}",
                sample=0,
                prompt_tokens=100 + question,
                token_ids=tuple(range(STEPS)),
                top_ids=tuple(ids),
                top_logprobs=tuple(logprobs),
                receipt={},
            )
        )
    return arm


def softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(value - largest) for value in logits]
    return [weight / sum(weights) for weight in weights]


def constant(size: float) -> Noise:
    return lambda _, step: size


def drift_of(noise: Noise, *, seed: int, name: str = "arm", **options: int) -> Drift:
    return compare(make_arm(constant(0), seed=0, **options), make_arm(noise, seed=seed, **options), name=name)


def test_equal_distributions_lie_exactly_zero_apart_and_pass() -> None:
    same = drift_of(constant(0), seed=5)
    assert same.farthest == same.mean == 0.0
    assert all(step.kl == 0.0 and step.same_top for step in same.steps)
    assert judge(same, [drift_of(constant(0.01), seed=1)]).verdict is Verdict.PASS
    assert judge(same, []).verdict is Verdict.PASS


@pytest.mark.parametrize("size", [0.05, 0.5, 2.0])
def test_bounds_hold_the_true_total_variation_and_never_exceed_the_true_kl(size: float) -> None:
    whole = drift_of(constant(size), seed=3, top=VOCABULARY)
    part = drift_of(constant(size), seed=3, top=TOP)
    for truth, bound in zip(whole.steps, part.steps, strict=True):
        assert bound.total_variation <= truth.total_variation + 1e-9 <= bound.total_variation_most + 2e-9
        assert bound.kl <= truth.kl + 1e-9


def test_with_the_whole_vocabulary_the_figures_are_those_of_the_definitions() -> None:
    one = {0: math.log(0.5), 1: math.log(0.3), 2: math.log(0.2)}
    other = {1: math.log(0.6), 0: math.log(0.3), 2: math.log(0.1)}
    step = drift._compare_step(one, other, kv_length=7)
    assert step.total_variation == pytest.approx(0.3, abs=1e-6)
    assert step.kl == pytest.approx(0.5 * math.log(5 / 3) + 0.3 * math.log(0.5) + 0.2 * math.log(2), abs=1e-6)
    assert not step.same_top
    assert step.kv_length == 7


def test_the_first_token_belongs_to_the_prefill_and_is_counted_apart() -> None:
    found = drift_of(constant(0.3), seed=2)
    assert len(found.prefill) == QUESTIONS
    assert {step.total_variation for step in found.prefill.values()} == {0.0}
    assert len(found.steps) == QUESTIONS * (STEPS - 1)
    assert min(step.kv_length for step in found.steps) == 101


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_a_candidate_as_far_off_as_right_kernels_passes(factor: float) -> None:
    right = [drift_of(constant(0.02), seed=seed, name=f"right {seed}") for seed in (1, 2)]
    found = judge(drift_of(constant(0.02 * factor), seed=9), right)
    assert found.verdict is Verdict.PASS
    assert found.ratio is not None
    assert found.ratio.ratio == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize("factor", [3.0, 10.0, 100.0])
def test_a_candidate_much_farther_off_fails_after_a_few_hundred_tokens(factor: float) -> None:
    right = [drift_of(constant(0.02), seed=1)]
    assert judge(drift_of(constant(0.02 * factor), seed=9), right).verdict is Verdict.FAIL


def test_a_fault_at_few_steps_fails_although_the_mean_is_within_bounds() -> None:
    def rarely(_: random.Random, step: int) -> float:
        return 0.3 if step == 17 else 0.02

    found = judge(drift_of(rarely, seed=9), [drift_of(constant(0.02), seed=1)])
    assert found.verdict is Verdict.FAIL
    assert found.ratio is not None
    assert found.ratio.high < drift.TOLERANCE
    assert found.spikes is not None
    assert found.spikes >= drift.SPIKES


def test_right_kernels_pass_each_other_whatever_their_seed() -> None:
    right = drift_of(constant(0.02), seed=1)
    verdicts = {judge(drift_of(constant(0.02), seed=seed), [right]).verdict for seed in range(2, 40)}
    assert verdicts == {Verdict.PASS}


def test_too_few_responses_or_no_right_kernel_settle_nothing() -> None:
    far = drift_of(constant(0.02), seed=9)
    assert judge(far, []).verdict is Verdict.INCONCLUSIVE
    assert judge(far, [drift_of(constant(0), seed=1)]).verdict is Verdict.INCONCLUSIVE
    alone = drift_of(constant(0.02), seed=9, questions=1)
    assert judge(alone, [drift_of(constant(0.02), seed=1, questions=1)]).verdict is Verdict.INCONCLUSIVE


def test_a_wrong_kernel_among_the_right_ones_makes_no_room_for_another() -> None:
    right = [drift_of(constant(0.02), seed=1, name="right"), drift_of(constant(0.2), seed=2, name="wrong")]
    found = judge(drift_of(constant(0.2), seed=9), right)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "wrong lies" in found.reason


def test_an_interval_across_the_bound_settles_nothing() -> None:
    right = [drift_of(constant(0.02), seed=1, questions=3)]
    assert judge(drift_of(constant(0.04), seed=9, questions=3), right).verdict is Verdict.INCONCLUSIVE


def test_nan_is_as_far_off_as_can_be() -> None:
    arm = make_arm(constant(0), seed=0)
    poisoned = [
        Forced(**{**fields(forced), "top_logprobs": tuple((None,) * TOP for _ in forced.token_ids)}) for forced in arm
    ]
    found = compare(arm, poisoned, name="nan")
    assert {step.total_variation for step in found.steps} == {1.0}
    assert judge(found, [drift_of(constant(0.02), seed=1)]).verdict is Verdict.FAIL


def fields(forced: Forced) -> dict[str, object]:
    return {name: getattr(forced, name) for name in Forced.__slots__}


def test_other_tokens_are_no_comparison() -> None:
    arm = make_arm(constant(0), seed=0)
    other = [Forced(**{**fields(arm[0]), "token_ids": tuple(range(1, STEPS + 1))})]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="other tokens"):
        compare(arm, other, name="arm")


def test_steps_are_grouped_by_lengths_that_double() -> None:
    groups = drift.by_length(drift_of(constant(0.1), seed=1))
    assert list(groups) == [(64, 128), (128, 256)]
    assert sum(map(len, groups.values())) == QUESTIONS * (STEPS - 1)
    assert all(start <= step.kv_length < stop for (start, stop), steps in groups.items() for step in steps)


def changed(arm: list[Forced], change: Callable[[int, int, tuple[float, ...]], object]) -> list[Forced]:
    """Return an arm whose logprobs at (response, step) are what `change` makes of them; None leaves them."""
    edited = []
    for number, forced in enumerate(arm):
        values = [change(number, step, logprobs) or logprobs for step, logprobs in enumerate(forced.top_logprobs)]
        edited.append(Forced(**{**fields(forced), "top_logprobs": tuple(values)}))  # type: ignore[arg-type]
    return edited


BASE = make_arm(constant(0), seed=0)
RIGHT = [drift_of(constant(0.02), seed=seed, name=f"right {seed}") for seed in (1, 2)]


def test_a_kernel_that_names_other_tokens_only_lies_as_far_off_as_can_be_told() -> None:
    other = [
        Forced(**{**fields(forced), "top_ids": tuple(tuple(token + 1000 for token in ids) for ids in forced.top_ids)})  # type: ignore[arg-type]
        for forced in BASE
    ]
    found = compare(BASE, other, name="garbage")
    assert found.mean > 0.5
    assert min(step.kl for step in found.steps) >= 2 * min(step.total_variation for step in found.steps) ** 2
    assert judge(found, RIGHT).verdict is Verdict.FAIL


def test_a_fault_at_some_kv_lengths_only_does_not_pass() -> None:
    near, far = make_arm(constant(0.02), seed=9), make_arm(constant(0.07), seed=9)
    mixed = []
    for one, other in zip(near, far, strict=True):
        chosen = [(other if one.prompt_tokens + step >= 128 else one) for step in range(STEPS)]
        top = {
            name: tuple(getattr(arm, name)[at] for at, arm in enumerate(chosen)) for name in ("top_ids", "top_logprobs")
        }
        mixed.append(Forced(**{**fields(one), **top}))  # type: ignore[arg-type]
    found = judge(compare(BASE, mixed, name="late"), RIGHT)
    assert found.ratio is not None and found.ratio.high < drift.TOLERANCE
    assert found.verdict is Verdict.FAIL
    assert "KV lengths 128 to 255" in found.reason


def test_a_few_far_steps_do_not_pass() -> None:
    def rarely(_: random.Random, step: int) -> float:
        return 0.2 if step == 17 else 0.02

    candidate = compare(
        BASE[:6] + BASE[6:], make_arm(constant(0.02), seed=9)[:6] + make_arm(rarely, seed=9)[6:], name="rare"
    )
    found = judge(candidate, RIGHT)
    assert found.ratio is not None and found.ratio.high < drift.TOLERANCE
    assert found.verdict is not Verdict.PASS


@pytest.mark.parametrize("at", [0, 5])
def test_one_step_without_a_finite_probability_fails(at: int) -> None:
    arm = make_arm(constant(0.02), seed=9)
    poisoned = changed(arm, lambda number, step, _: (None,) * TOP if (number, step) == (3, at) else None)
    found = judge(compare(BASE, poisoned, name="nan"), RIGHT)
    assert found.verdict is Verdict.FAIL
    assert "no finite number" in found.reason


def test_a_prefill_that_no_right_kernel_has_settles_nothing() -> None:
    arm = make_arm(constant(0.02), seed=9)
    moved = changed(arm, lambda _, step, values: tuple(value - 0.01 for value in values) if step == 0 else None)
    found = judge(compare(BASE, moved, name="prefill"), RIGHT)
    assert (found.verdict, "prefill" in found.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_baseline_that_differs_from_itself_like_right_kernels_settles_nothing() -> None:
    candidate, again = drift_of(constant(0.02), seed=9), drift_of(constant(0.02), seed=7)
    assert judge(candidate, RIGHT, again=again).verdict is Verdict.INCONCLUSIVE
    assert judge(candidate, RIGHT, again=drift_of(constant(0), seed=7)).verdict is Verdict.PASS


def test_a_right_kernel_that_differs_in_few_steps_counts_for_nothing() -> None:
    def seldom(_: random.Random, step: int) -> float:
        return 0.02 if step == 3 else 0.0

    few = drift_of(seldom, seed=3, name="few")
    candidate = drift_of(constant(0.02), seed=9)
    assert judge(candidate, [few]).verdict is Verdict.INCONCLUSIVE
    assert judge(candidate, [*RIGHT, few]).verdict is Verdict.PASS


def test_questions_of_one_cluster_count_as_one() -> None:
    candidate = drift_of(constant(0.02), seed=9)
    clusters = {f"q{number}": f"c{number // 4}" for number in range(QUESTIONS)}
    found, alone = judge(candidate, RIGHT, clusters=clusters), judge(candidate, RIGHT)
    assert found.ratio is not None and alone.ratio is not None
    assert (found.ratio.clusters, alone.ratio.clusters) == (3, 12)
    one = judge(candidate, RIGHT, clusters=dict.fromkeys(clusters, "all"))
    assert one.verdict is Verdict.INCONCLUSIVE
