"""The rule that chooses the number of segments: static, bounded, and overridden only as a whole."""

import pytest
from evalsuite_attention.segments import HEAD_SIZES, MAX_SEGMENTS, plan_decode

H200 = 132  # multiprocessors


def plan(**changes):
    shape = {"sm_count": H200, "kv_heads": 4, "head_size": 256, "max_seq_len": 131072}
    return plan_decode(**(shape | changes))


@pytest.mark.parametrize("kv_heads, head_size, segments", [(4, 256, 132), (3, 64, 132), (8, 128, 66), (8, 96, 66)])
def test_the_measured_shapes_get_one_full_wave_of_programs_on_an_h200(kv_heads, head_size, segments):
    chosen = plan(kv_heads=kv_heads, head_size=head_size)
    assert chosen.segments == segments
    assert chosen.segments * kv_heads % H200 == 0


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 7, 8, 16, 32, 200])
@pytest.mark.parametrize("sm_count", [1, 58, 82, 108, 132, 192])
def test_there_is_at_least_one_segment_and_never_more_than_a_wave(head_size, kv_heads, sm_count):
    chosen = plan(head_size=head_size, kv_heads=kv_heads, sm_count=sm_count)
    assert 1 <= chosen.segments <= MAX_SEGMENTS
    assert chosen.segments == 1 or chosen.segments * kv_heads <= 4 * sm_count


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_tiles_are_a_power_of_two_that_a_tensor_core_takes(head_size):
    tile = plan(head_size=head_size).tile
    assert tile >= 16 and tile & (tile - 1) == 0


def test_a_short_length_bound_gives_no_more_segments_than_tiles():
    assert plan(max_seq_len=100).segments == 7  # tiles of 16


def test_an_override_replaces_the_number_of_segments_and_nothing_else():
    measured, overridden = plan(), plan(segments=32)
    assert overridden.segments == 32
    assert (overridden.tile, overridden.stages, overridden.warps) == (measured.tile, measured.stages, measured.warps)


@pytest.mark.parametrize("segments", [0, -1, MAX_SEGMENTS + 1])
def test_an_override_out_of_range_is_refused(segments):
    with pytest.raises(ValueError, match=f"{segments} segments is outside 1 ... 1024"):
        plan(segments=segments)


def test_an_unmeasured_head_size_is_refused_by_name():
    with pytest.raises(ValueError, match="head size 80 is not supported: use one of 64, 96, 128, 256"):
        plan(head_size=80)
