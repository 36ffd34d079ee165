"""Try the candidates on a case: bind, check what they write, time, and put it into rows."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from evalsuite.errors import UserError
from evalsuite.progress import announce
from evalsuite_performance.candidate import Candidate, Refused
from evalsuite_performance.paged import Case
from evalsuite_performance.timing import Replay, record, time_rounds

if TYPE_CHECKING:
    import torch

NOISE = 0.01  # the control may be off by this much
ERROR_TIMES = 2  # an error above this many times what plain PyTorch makes is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one kernel did at one context. None where it was skipped, or where a thing is not known."""

    kernel: str
    skipped: str | None = None
    """Why it did not run."""
    parts: int | None = None
    """Into how many splits or segments it cut the history."""
    note: str | None = None
    """What sets it apart from the kernel in a server."""
    relative_error: float | None = None
    """Against float64: ‖output - exact‖ / ‖exact‖ of the worst layer. None for an output that holds NaN."""
    wrong: bool = False
    microseconds: float | None = None
    """Median time for one layer."""
    gain: float | None = None
    """How many times as fast as the yardstick: median of the ratios within one round."""
    gain_lower_quartile: float | None = None
    gain_upper_quartile: float | None = None
    """Half of the rounds' ratios lie between the quartiles."""
    gigabytes_per_second: float | None = None
    """The KV's bytes over the time."""
    copy_share: float | None = None
    """That over the bandwidth of a large copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate after it ran once, or was refused."""

    candidate: Candidate
    row: Row
    replay: Replay | None


def compare_kernels(
    case: Case, candidates: Sequence[Candidate], *, device: str, rounds: int, copy: float | None
) -> dict[str, Any]:
    """Return the report's entry of the case's context, as JSON values.

    "yardstick" is the first candidate that ran, or null. `copy` is the copy bandwidth in GB/s; where there is none, on
    a CPU, rows hold times and errors only. Else the yardstick runs twice; "noise" is by how much its second row was
    faster, and "noisy" says whether that is more than NOISE. Raises UserError where `check_served` does.
    """
    exact = exact_outputs(case)
    check_served(case, exact)
    tried = [try_candidate(candidate, case, exact, device) for candidate in candidates]
    yardstick = next((each for each in tried if each.replay), None)
    control = None
    if yardstick and copy is not None:
        control = replace(yardstick.candidate, name=f"{yardstick.candidate.name}, again")
        tried.append(try_candidate(control, case, exact, device))
    announce(f"context {case.context}: timing")
    order = [each for each in tried if each.replay]
    if control:  # in the middle: as the last it would mirror the yardstick, and share whatever the ends of a round do
        order.insert(len(order) // 2, order.pop())
    replays = {each.candidate.name: each.replay for each in order if each.replay}
    times = time_rounds(replays, rounds=rounds, device=device)
    announce("")
    rows = [each.row for each in tried]
    if yardstick:
        allowed = allowed_error(case, case.outputs.dtype, exact)
        rows = [judge(each, yardstick, allowed) for each in tried]
        rows = [add_times(row, times, yardstick.candidate.name, case, copy) for row in rows]
    gains = {row.kernel: row.gain for row in rows}
    gain = gains[control.name] if control else None
    noise = None if gain is None else round(gain - 1, 5)
    return {
        "context": case.context,
        "layers": case.layers,
        "kv_bytes": case.shape.kv_bytes(case.context),
        "yardstick": yardstick.candidate.name if yardstick else None,
        "noise": noise,
        "noisy": None if noise is None else abs(noise) > NOISE,
        "rows": [asdict(row) for row in rows],
    }


def try_candidate(candidate: Candidate, case: Case, exact: "torch.Tensor", device: str) -> Tried:
    """Return the candidate with its replay and the error of what that wrote, or with the reason why it did not run."""
    announce(f"context {case.context}: {candidate.name}")
    try:
        replay, parts = bind(candidate, case, device)
    except Refused as reason:
        return Tried(candidate=candidate, row=Row(kernel=candidate.name, skipped=str(reason)), replay=None)
    case.outputs.fill_(math.nan)  # what is not written shows
    replay()
    error = relative_error(case.outputs, exact)
    shown = float(f"{error:.3e}") if math.isfinite(error) else None
    row = Row(kernel=candidate.name, parts=parts, note=candidate.note, relative_error=shown)
    return Tried(candidate=candidate, row=row, replay=replay)


def bind(candidate: Candidate, case: Case, device: str) -> tuple[Replay, int | None]:
    """Return the candidate's replay of all layers, and its number of splits or segments.

    Raises Refused with the reason, also where the kernel itself turned the case down or could not be compiled. Memory
    that ran out, and a device that failed, are no refusals and keep their exceptions.
    """
    import torch

    refusals: tuple[type[Exception], ...] = (RuntimeError, ValueError, TypeError, AssertionError, OSError, ImportError)
    try:
        from triton.errors import TritonError

        refusals += (TritonError,)
    except ImportError:
        pass
    try:
        built = candidate.build(case)
        return record(built.launch, case.layers, device), built.parts
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except refusals as error:
        line = str(error).strip().partition("\n")[0]
        raise Refused(f"{type(error).__name__}: {line}") from error


def exact_outputs(case: Case) -> "torch.Tensor":
    """Return attention of every layer in float64 [layers, q_heads, head_size], a KV head at a time to save memory."""
    import torch
    from evalsuite_attention.reference import paged_attention

    group = case.shape.q_heads // case.shape.kv_heads
    exact = torch.empty(case.outputs.shape, dtype=torch.float64, device=case.outputs.device)
    for index in range(case.layers):
        query, keys, values, _ = case.layer(index)
        for head in range(case.shape.kv_heads):
            own = slice(head * group, (head + 1) * group)
            exact[index, own] = paged_attention(
                query[own],
                keys[:, :, head : head + 1],
                values[:, :, head : head + 1],
                case.table,
                case.context,
                scale=case.scale,
            )
    return exact


def plain_outputs(case: Case, dtype: "torch.dtype") -> "torch.Tensor":
    """Return what plain PyTorch makes of every layer in a type."""
    import torch
    from evalsuite_attention.reference import paged_attention

    outputs = []
    for index in range(case.layers):
        query, keys, values, _ = case.layer(index)
        outputs.append(paged_attention(query, keys, values, case.table, case.context, scale=case.scale, dtype=dtype))
    return torch.stack(outputs)


def relative_error(outputs: "torch.Tensor", exact: "torch.Tensor") -> float:
    """Return ‖output - exact‖ / ‖exact‖ of the worst layer; NaN if an output holds NaN."""
    distance = (outputs.double() - exact).flatten(1).norm(dim=1)
    return float((distance / exact.flatten(1).norm(dim=1)).max())


def allowed_error(case: Case, dtype: "torch.dtype", exact: "torch.Tensor") -> float:
    """Return the largest relative error of an output in a type that is not wrong.

    That is ERROR_TIMES that of plain PyTorch, but never less than what no kernel can be blamed for, however lucky plain
    PyTorch was: an exact number is off by up to half an eps once it is rounded to the type, and sums in float32, in
    another order, by a few of float32's.
    """
    import torch

    least = float(torch.finfo(dtype).eps / 2 + 4 * torch.finfo(torch.float32).eps)
    return max(ERROR_TIMES * relative_error(plain_outputs(case, dtype), exact), least)


def check_served(case: Case, exact: "torch.Tensor") -> None:
    """Raise UserError where the output of a capture is not attention over its KV, within what plain PyTorch rounds.

    So its queries, keys, values, order of pages and scale belong together.
    """
    if case.served is None:
        return
    error = relative_error(case.served, exact)
    allowed = allowed_error(case, case.served.dtype, exact)
    if not error <= allowed:
        raise UserError(
            f"the output that was captured is not what the captured queries and KV give: relative error {error:.1e}, "
            f"expected at most {allowed:.1e}, {ERROR_TIMES} times what plain PyTorch rounds; capture it again"
        )


def judge(tried: Tried, yardstick: Tried, allowed: float) -> Row:
    """Return the row with its verdict: an error above `allowed` is wrong.

    A yardstick that is right allows the others ERROR_TIMES its own error as well; one that is wrong allows nothing.
    """
    row, measured = tried.row, yardstick.row.relative_error
    if row.skipped is not None or not tried.candidate.held:
        return row
    if tried is not yardstick and measured is not None and measured <= allowed:
        allowed = max(allowed, ERROR_TIMES * measured)
    return replace(row, wrong=row.relative_error is None or not row.relative_error <= allowed)


def add_times(row: Row, times: dict[str, list[float]], yardstick: str, case: Case, copy: float | None) -> Row:
    """Return the row with its median time and, where the copy bandwidth is known, what follows from it."""
    if row.skipped is not None:
        return row
    microseconds = statistics.median(times[row.kernel]) / case.layers * 1e3
    if copy is None:
        return replace(row, microseconds=round(microseconds, 3))
    ratios = [first / own for first, own in zip(times[yardstick], times[row.kernel], strict=True)]
    lower, gain, upper = (round(each, 5) for each in statistics.quantiles(ratios, n=4, method="inclusive"))
    speed = case.shape.kv_bytes(case.context) / microseconds / 1e3
    return replace(
        row,
        microseconds=round(microseconds, 3),
        gain=gain,
        gain_lower_quartile=lower,
        gain_upper_quartile=upper,
        gigabytes_per_second=round(speed, 1),
        copy_share=round(speed / copy, 4),
    )
