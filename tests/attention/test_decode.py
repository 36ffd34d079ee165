"""The split-KV kernels against `reference`: in Triton's CPU interpreter, or natively (marked gpu) where there is a GPU.

pytest tests/attention/test_decode.py
"""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined, at the import below

from evalsuite_attention.decode import allocate_workspace, merge_kernel, split_kv_decode  # noqa: E402
from evalsuite_attention.reference import merge, paged_attention, segment_attention, segment_bounds  # noqa: E402
from evalsuite_attention.segments import Plan, plan_decode  # noqa: E402

pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
POSITIONS = 2048


@pytest.mark.parametrize("head_size", [64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 6, 16])
def test_any_head_size_and_group_is_as_accurate_as_plain_torch(head_size, group):
    check_case(head_size=head_size, group=group)


@pytest.mark.parametrize("head_size, group", [(64, 4), (96, 8), (128, 5), (256, 2)])
def test_float16_is_as_accurate_as_plain_torch(head_size, group):
    check_case(dtype=torch.float16, head_size=head_size, group=group)


@pytest.mark.parametrize("head_size", [64, 96, 128, 256])
def test_the_plan_of_each_head_size_is_as_accurate_as_plain_torch(head_size):
    """The tile, stages and warps that the rule chooses, on a small device."""
    plan = plan_decode(sm_count=3, kv_heads=2, head_size=head_size, max_seq_len=POSITIONS)
    inputs = make_inputs(head_size=head_size, page_size=784, seq_len=1000)
    run = decode(*inputs, 1000, plan=plan)
    assert_as_accurate_as_plain_torch(run.output, *expect(paged_attention, run))


@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 31, 32, 33, 95, 96, 97, 191])
@pytest.mark.parametrize("segments", [1, 5])
def test_any_length_and_segment_count_is_as_accurate_as_plain_torch(seq_len, segments):
    check_case(seq_len=seq_len, segments=segments)


@pytest.mark.parametrize("seq_len", [1, 33, 191])
def test_more_segments_than_tokens_is_as_accurate_as_plain_torch(seq_len):
    check_case(seq_len=seq_len, segments=200)


@pytest.mark.parametrize("page_size", [16, 32, 48, 784])
@pytest.mark.parametrize("tile", [16, 64])
def test_any_page_size_is_as_accurate_as_plain_torch(page_size, tile):
    check_case(page_size=page_size, seq_len=page_size + 40, tile=tile)


@pytest.mark.parametrize("order", ["PNH2D", "P2NHD", "HPN2D", "2PHND"])
def test_any_order_of_the_cache_in_memory_is_as_accurate_as_plain_torch(order):
    check_case(order=order)


def test_offsets_beyond_two_to_the_31_elements_are_read():
    """Three pages 2**30 elements apart; the memory in between is reserved and never touched."""
    page_size, head_size, apart = 16, 64, 2**30
    far = torch.empty(3 * apart + 2 * page_size * head_size, dtype=torch.float16, device=DEVICE)
    far = far.as_strided((4, page_size, 1, 2 * head_size), (apart, 2 * head_size, 2 * head_size, 1))
    far[:] = torch.randn(far.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.float16)
    keys, values = far.split(head_size, dim=-1)
    query = torch.randn(2, head_size, generator=torch.Generator().manual_seed(1)).to(DEVICE, torch.float16)
    run = decode(query, keys, values, torch.tensor([3, 0, 2]), 45, segments=2)
    assert_as_accurate_as_plain_torch(run.output, *expect(paged_attention, run))


def test_keys_that_grow_along_the_history_do_not_overflow():
    """Each tile raises the running maximum, so that every partial sum must be rescaled."""
    inputs = make_inputs(seq_len=150)
    keys, table = inputs[1], inputs[3]
    for position in range(150):
        keys[table[position // 48], position % 48] *= 1 + position / 3
    run = decode(*inputs, 150, segments=3)
    assert_as_accurate_as_plain_torch(run.output, *expect(paged_attention, run))


def test_one_launch_configuration_serves_every_length_it_reads_from_the_device():
    inputs = make_inputs(seq_len=191)
    for seq_len in (191, 7, 64, 130):
        run = decode(*inputs, seq_len, segments=4)
        assert_as_accurate_as_plain_torch(run.output, *expect(paged_attention, run))


def test_same_inputs_give_the_same_bits():
    inputs = make_inputs(seq_len=191)
    first, second = (decode(*inputs, 191, segments=7).output for _ in range(2))
    assert torch.equal(first, second)


def test_each_launch_adds_one_to_the_count_and_to_its_length_in_the_log():
    inputs = make_inputs(seq_len=191)
    count = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    positions = torch.zeros(101, dtype=torch.int32, device=DEVICE)
    for seq_len in (5, 100, 5, 191):
        decode(*inputs, seq_len, segments=4, count=count, positions=positions)
    assert count.tolist() == [4, 0, 0]
    logged = {length: times for length, times in enumerate(positions.tolist()) if times}
    assert logged == {5: 2, 100: 2}  # a length past the log's end is counted in its last place


@pytest.mark.parametrize("segments, live", [(1, 1), (2, 1), (7, 7), (64, 63), (133, 100)])
@pytest.mark.parametrize("head_size", [64, 96, 256])
def test_merge_weighs_partials_by_lse_and_ignores_segments_without_positions(segments, live, head_size):
    generator = torch.Generator().manual_seed(segments)
    partial = torch.randn(3, segments, head_size, generator=generator)
    lse = torch.randn(3, segments, generator=generator) * 8
    exact = merge(partial[:, :live].double(), lse[:, :live].double())
    plain = merge(partial[:, :live], lse[:, :live]).half()
    partial[:, live:], lse[:, live:] = torch.nan, torch.nan
    output = torch.full((3, head_size), torch.nan, dtype=torch.float16, device=DEVICE)
    block_head = 32
    merge_kernel[(3, -(-head_size // block_head))](
        partial.to(DEVICE),
        lse.to(DEVICE),
        torch.tensor([16 * live], dtype=torch.int32, device=DEVICE),  # one tile of 16 per live segment
        output,
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
        torch.zeros(1, dtype=torch.int32, device=DEVICE),
        1,
        segments,
        output.stride(0),
        HEAD_SIZE=head_size,
        TILE=16,
        BLOCK_SEGMENTS=1 << (segments - 1).bit_length(),
        BLOCK_HEAD=block_head,
        OVERLAP=False,
    )
    assert_as_accurate_as_plain_torch(output.cpu(), plain, exact)


class Run:
    """Inputs and results of one call, on the CPU."""

    def __init__(self, inputs, seq_len, plan, scale, workspace, output):
        self.inputs, self.seq_len, self.plan, self.scale = inputs, seq_len, plan, scale
        self.partial, self.lse, self.output = workspace.partial.cpu(), workspace.lse.cpu(), output.cpu()


def make_inputs(*, dtype=torch.bfloat16, head_size=64, kv_heads=2, group=3, page_size=48, seq_len=100, order="PNH2D"):
    """Return query, key pages, value pages and a shuffled page table; every slot past `seq_len` holds NaN."""
    generator = torch.Generator().manual_seed(seq_len + head_size + group)
    used = -(-seq_len // page_size)
    pages = used + 2
    sizes = {"P": pages, "2": 2, "N": page_size, "H": kv_heads, "D": head_size}
    cache = torch.full([sizes[name] for name in order], torch.nan, dtype=dtype, device=DEVICE)
    cache = cache.permute([order.index(name) for name in "2PNHD"])
    table = torch.randperm(pages, generator=generator)[:used]
    for position in range(seq_len):
        token = torch.randn(2, kv_heads, head_size, generator=generator).to(DEVICE, dtype)
        cache[:, table[position // page_size], position % page_size] = token
    query = torch.randn(kv_heads * group, head_size, generator=generator).to(DEVICE, dtype)
    return query, cache[0], cache[1], table


def decode(query, keys, values, table, seq_len, *, segments=4, tile=16, plan=None, count=None, positions=None):
    """Run the kernels with everything they write poisoned, and a page table that ends with the history."""
    plan = plan or Plan(segments=segments, tile=tile, stages=2, warps=4)
    workspace = allocate_workspace(plan=plan, q_heads=len(query), head_size=query.shape[1], device=DEVICE)
    workspace.partial.fill_(torch.nan)
    workspace.lse.fill_(torch.nan)
    output = torch.full_like(query, torch.nan)
    scale = query.shape[1] ** -0.5
    split_kv_decode(
        query,
        keys,
        values,
        table[: -(-seq_len // keys.shape[1])].to(DEVICE, torch.int32),
        torch.tensor([seq_len], dtype=torch.int32, device=DEVICE),
        output,
        scale=scale,
        plan=plan,
        workspace=workspace,
        count=torch.zeros(1, dtype=torch.int64, device=DEVICE) if count is None else count,
        positions=torch.zeros(POSITIONS, dtype=torch.int32, device=DEVICE) if positions is None else positions,
    )
    return Run((query, keys, values, table), seq_len, plan, scale, workspace, output)


def expect(function, run, **kwargs):
    """Return `function` of the run's inputs in the run's own type and in float64, both on the CPU."""
    query, keys, values, table = (tensor.cpu() for tensor in run.inputs)
    return tuple(
        function(query, keys, values, table, run.seq_len, scale=run.scale, dtype=dtype, **kwargs)
        for dtype in (query.dtype, torch.float64)
    )


def check_case(*, segments=4, tile=16, seq_len=100, **kwargs):
    """Compare output, partials and LSE of one case; what belongs to no position must be left as it was."""
    run = decode(*make_inputs(seq_len=seq_len, **kwargs), seq_len, segments=segments, tile=tile)
    assert_as_accurate_as_plain_torch(run.output, *expect(paged_attention, run))
    bounds = segment_bounds(seq_len, segments, tile)
    live = sum(start < stop for start, stop in bounds)
    plain, exact = expect(segment_attention, run, segments=segments, tile=tile)
    for actual, rough, true in zip((run.partial, run.lse), plain, exact, strict=True):
        assert_as_accurate_as_plain_torch(actual[:, :live], rough[:, :live], true[:, :live])
        assert actual[:, live:].isnan().all(), "a segment without positions was written"


def assert_as_accurate_as_plain_torch(actual, plain, exact):
    """Fail if `actual` is further from `exact` (float64) than twice what plain PyTorch in the same type is."""
    error = (actual.double() - exact).abs().max().item()
    noise = (plain.double() - exact).abs().max().item()
    rounding = torch.finfo(plain.dtype).eps * exact.abs().max().item()
    assert error <= 2 * noise + rounding / 2, f"error {error:.2e}, plain PyTorch {noise:.2e}"
