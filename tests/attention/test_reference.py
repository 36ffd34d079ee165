"""The specification itself: against PyTorch's own attention in float64, and by identities.

pytest tests/attention/test_reference.py
"""

import itertools
import math

import pytest
import torch
from evalsuite_attention.reference import merge, paged_attention, segment_attention, segment_bounds
from torch.nn.functional import scaled_dot_product_attention

LENGTHS = (1, 2, 31, 32, 33, 100)


def make_case(*, seq_len, group=3, kv_heads=2, head_size=24, page_size=16, order="PNHD"):
    """Return query, key pages, value pages, page table and the history as [seq_len, kv_heads, head_size] twice.

    Pages are shuffled, lie in memory in the given order of dimensions, and hold NaN in every slot past seq_len.
    """
    generator = torch.Generator().manual_seed(1000 * seq_len + page_size)
    keys, values = torch.randn(2, seq_len, kv_heads, head_size, dtype=torch.float64, generator=generator)
    query = torch.randn(group * kv_heads, head_size, dtype=torch.float64, generator=generator)
    used = -(-seq_len // page_size)
    sizes = {"P": used + 2, "N": page_size, "H": kv_heads, "D": head_size}
    table = torch.randperm(used + 2, generator=generator)[:used].int()
    pages = []
    for history in (keys, values):
        memory = torch.full([sizes[letter] for letter in order], torch.nan, dtype=torch.float64)
        view = memory.permute([order.index(letter) for letter in "PNHD"])
        for position in range(seq_len):
            view[table[position // page_size], position % page_size] = history[position]
        pages.append(view)
    return query, *pages, table, keys, values


def attend(query, keys, values, scale):
    """Return PyTorch's attention of one query token over a dense history."""
    group = query.shape[0] // keys.shape[1]
    dense = [history.repeat_interleave(group, dim=1).transpose(0, 1) for history in (keys, values)]
    return scaled_dot_product_attention(query[:, None], *dense, scale=scale)[:, 0]


def assert_equal_but_for_rounding(actual, expected, positions):
    """Fail if float64 sums over the positions, of scores that are sums over 24 dimensions, cannot differ so much.

    Each term of a sum adds at most one rounding of the size of the result.
    """
    rounding = torch.finfo(torch.float64).eps * max(1.0, expected.abs().max().item())
    assert (actual - expected).abs().max().item() <= (positions + 24) * rounding


@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("page_size", [16, 48])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("order", ["PNHD", "PHND", "PHDN", "HPDN"])
def test_paged_attention_is_torch_attention_in_any_page_order_and_memory_order(seq_len, page_size, group, order):
    *inputs, keys, values = make_case(seq_len=seq_len, page_size=page_size, group=group, order=order)
    expected = attend(inputs[0], keys, values, 0.3)
    assert_equal_but_for_rounding(paged_attention(*inputs, seq_len, scale=0.3), expected, seq_len)


@pytest.mark.parametrize("seq_len", LENGTHS)
@pytest.mark.parametrize("segments", [1, 2, 7, 200])
@pytest.mark.parametrize("tile", [1, 16])
def test_each_partial_and_lse_is_attention_over_its_segment_alone(seq_len, segments, tile):
    query, key_pages, value_pages, table, keys, values = make_case(seq_len=seq_len)
    partial, lse = segment_attention(
        query, key_pages, value_pages, table, seq_len, scale=0.3, segments=segments, tile=tile
    )
    assert partial.shape == (6, segments, 24) and lse.shape == (6, segments)
    for index, (start, stop) in enumerate(segment_bounds(seq_len, segments, tile)):
        if start == stop:
            assert (partial[:, index] == 0).all() and (lse[:, index] == -math.inf).all()
            continue
        expected = attend(query, keys[start:stop], values[start:stop], 0.3)
        assert_equal_but_for_rounding(partial[:, index], expected, stop - start)
        scores = torch.einsum("hgd,nhd->hgn", query.view(2, 3, 24), keys[start:stop]).flatten(0, 1) * 0.3
        assert_equal_but_for_rounding(lse[:, index], scores.exp().sum(-1).log(), stop - start)


@pytest.mark.parametrize("seq_len", LENGTHS)
def test_merge_gives_the_whole_for_every_number_of_segments(seq_len):
    *inputs, _, _ = make_case(seq_len=seq_len)
    whole = paged_attention(*inputs, seq_len, scale=0.3)
    for segments in range(1, seq_len + 3):
        parts = segment_attention(*inputs, seq_len, scale=0.3, segments=segments)
        assert_equal_but_for_rounding(merge(*parts), whole, seq_len)


def test_merge_does_not_depend_on_the_order_of_segments():
    *inputs, _, _ = make_case(seq_len=100)
    partial, lse = segment_attention(*inputs, 100, scale=0.3, segments=9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    assert_equal_but_for_rounding(merge(partial[:, order], lse[:, order]), merge(partial, lse), 9)


@pytest.mark.parametrize(
    "wrong_merge",
    [
        lambda partial, lse: partial.mean(1),
        lambda partial, lse: merge(partial, lse / math.log(2)),
        lambda partial, lse: merge(partial, lse * math.log(2)),
    ],
    ids=["averaged", "base 2 taken for e", "e taken for base 2"],
)
def test_averages_and_other_logarithms_are_caught(wrong_merge):
    """The tolerance of the tests above is tight enough to tell; a short last segment shows it most."""
    *inputs, _, _ = make_case(seq_len=100)
    whole = paged_attention(*inputs, 100, scale=0.3)
    partial, lse = segment_attention(*inputs, 100, scale=0.3, segments=3)
    with pytest.raises(AssertionError):
        assert_equal_but_for_rounding(wrong_merge(partial, lse), whole, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_split_kv_in_a_smaller_type_is_as_accurate_as_attention_in_that_type(dtype):
    query, key_pages, value_pages, table, _, _ = make_case(seq_len=100)
    inputs = [tensor.to(dtype) for tensor in (query, key_pages, value_pages)]
    exact = paged_attention(*inputs, table, 100, scale=0.3)
    plain = paged_attention(*inputs, table, 100, scale=0.3, dtype=dtype)
    split = merge(*segment_attention(*inputs, table, 100, scale=0.3, segments=8, dtype=dtype))
    assert split.dtype == dtype
    assert (split - exact).abs().max() <= 2 * (plain - exact).abs().max()


def test_segments_cover_the_history_once_in_order_by_whole_tiles():
    for seq_len, segments, tile in itertools.product(range(1, 70), (1, 2, 3, 8, 100), (1, 16, 32)):
        bounds = segment_bounds(seq_len, segments, tile)
        assert len(bounds) == segments
        assert [position for start, stop in bounds for position in range(start, stop)] == list(range(seq_len))
        held = [(start, stop) for start, stop in bounds if start < stop]
        assert all(start % tile == 0 for start, _ in held)
        assert len({stop - start for start, stop in held[:-1]}) <= 1  # all but the last are equal
        assert all(bound == (seq_len, seq_len) for bound in bounds[len(held) :])
