"""The GPU backend without a GPU: cache layouts as tensors, its contract with the installed vLLM, and its dispatch.

The kernels run in Triton's CPU interpreter; the classes are those of the installed vLLM, whose CPU build has the
sources of its CUDA backends. FlashAttention itself cannot run here, so what would go to it is recorded instead.
"""

import dataclasses
import inspect
import os
from types import SimpleNamespace

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("here the kernels are not interpreted; test_gpu.py tests the same natively", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined, at the import of `gpu`

flash_attn = pytest.importorskip("vllm.v1.attention.backends.flash_attn")
from evalsuite_attention import gpu  # noqa: E402
from evalsuite_attention.receipt import FALLBACK, OTHER, SPLIT_KV  # noqa: E402
from evalsuite_attention.reference import paged_attention  # noqa: E402
from vllm.config import CompilationConfig, CUDAGraphMode  # noqa: E402
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType  # noqa: E402

PAGES, PAGE_SIZE, KV_HEADS, GROUP, HEAD_SIZE = 5, 16, 2, 3, 64


def backend_of_shape(shape):
    return SimpleNamespace(get_kv_cache_shape=lambda pages, page_size, heads, head_size: shape)


@pytest.mark.parametrize(
    "backend, view",
    [
        pytest.param(backend_of_shape((7, 2, 16, 3, 32)), gpu.view_stacked, id="up to 0.25"),
        pytest.param(backend_of_shape((7, 3, 16, 64)), gpu.view_packed, id="0.26 to 0.28"),
        pytest.param(flash_attn.FlashAttentionBackend, gpu.view_packed, id="the installed vLLM"),
    ],
)
def test_the_cache_layout_of_each_version_is_recognized(backend, view):
    assert gpu.choose_view(backend) is view


def test_an_unknown_cache_layout_is_refused_by_its_shape():
    with pytest.raises(RuntimeError, match=r"does not know a KV cache of shape \(2, 7, 16, 3, 32\)"):
        gpu.choose_view(backend_of_shape((2, 7, 16, 3, 32)))


def make_cache(layout, *, seed=0, head_major=False):
    """Return a cache as vLLM hands it to a layer, with keys and values as [pages, page_size, kv_heads, head_size]."""
    shape = PAGES, PAGE_SIZE, KV_HEADS, HEAD_SIZE
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, *shape, generator=generator).bfloat16()
    if layout == "stacked":
        order = (0, 1, 3, 2, 4) if head_major else (0, 1, 2, 3, 4)  # vLLM's HND and NHD, which undo themselves
        cache = torch.stack([keys, values], dim=1).permute(order).contiguous().permute(order)
    else:
        cache = torch.cat([keys, values], dim=-1)  # in memory as NHD, logically with the heads first
        cache = cache.transpose(1, 2)
        cache = cache.contiguous() if head_major else cache
    return cache, keys, values


@pytest.mark.parametrize("head_major", [False, True])
@pytest.mark.parametrize("layout", ["stacked", "packed"])
def test_views_of_either_layout_are_keys_and_values_without_a_copy(layout, head_major):
    cache, keys, values = make_cache(layout, head_major=head_major)
    view = {"stacked": gpu.view_stacked, "packed": gpu.view_packed}[layout]
    seen_keys, seen_values = view(cache, HEAD_SIZE)
    assert torch.equal(seen_keys, keys) and torch.equal(seen_values, values)
    assert {seen_keys.untyped_storage().data_ptr(), seen_values.untyped_storage().data_ptr()} == {
        cache.untyped_storage().data_ptr()
    }


def test_forward_takes_what_the_installed_vllm_passes():
    ours, theirs = (
        inspect.signature(cls.forward).parameters for cls in (gpu.HybridImpl, flash_attn.FlashAttentionImpl)
    )
    assert list(ours) == list(theirs)


def test_the_metadata_of_the_installed_vllm_has_what_the_dispatch_reads():
    fields = {field.name for field in dataclasses.fields(flash_attn.FlashAttentionMetadata)}
    assert fields >= {"num_actual_tokens", "max_query_len", "query_start_loc", "seq_lens", "block_table", "causal"}


def test_only_uniform_batches_are_captured_whatever_version_vllm_would_choose():
    support = gpu.HybridMetadataBuilder.get_cudagraph_support(None, None)
    assert support == AttentionCGSupport.UNIFORM_BATCH


def test_batch_invariance_is_not_claimed():
    assert flash_attn.FlashAttentionBackend.supports_batch_invariance()
    assert not gpu.HybridBackend.supports_batch_invariance()


def test_a_graph_of_one_token_must_be_among_those_captured():
    full, piecewise = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.PIECEWISE
    gpu.check_captured_sizes(CompilationConfig(cudagraph_mode=full, cudagraph_capture_sizes=[1, 2, 4]))
    gpu.check_captured_sizes(CompilationConfig(cudagraph_mode=piecewise, cudagraph_capture_sizes=[2, 4]))
    with pytest.raises(RuntimeError, match=r"needs a CUDA graph of one token, but vLLM captures \[2, 4\]"):
        gpu.check_captured_sizes(CompilationConfig(cudagraph_mode=full, cudagraph_capture_sizes=[2, 4]))


class Layers:
    """Builds `HybridImpl`s as vLLM would with FlashAttention 2, and records what they hand to it."""

    def __init__(self, monkeypatch):
        self.config = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=PAGES * PAGE_SIZE, dtype=torch.bfloat16),
            parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            speculative_config=None,
            additional_config={},
        )
        self.to_flash_attention = []
        monkeypatch.setattr(gpu, "get_current_vllm_config", lambda: self.config)
        monkeypatch.setattr(flash_attn, "get_flash_attn_version", lambda **_: 2)
        monkeypatch.setattr(
            flash_attn.FlashAttentionImpl, "forward", lambda impl, *args: self.to_flash_attention.append(impl)
        )
        gpu.share_split_kv.cache_clear()

    def make(self, **changes):
        arguments = {
            "num_heads": GROUP * KV_HEADS,
            "head_size": HEAD_SIZE,
            "scale": HEAD_SIZE**-0.5,
            "num_kv_heads": KV_HEADS,
            "alibi_slopes": None,
            "sliding_window": None,
            "kv_cache_dtype": "auto",
        }
        return gpu.HybridImpl(**(arguments | changes))


@pytest.fixture
def layers(monkeypatch):
    monkeypatch.delenv(gpu.BACKEND_VARIABLE, raising=False)
    monkeypatch.setenv(gpu.SEGMENTS_VARIABLE, "3")
    return Layers(monkeypatch)


def make_metadata(*, lengths=(37,), query_lens=(1,), **changes):
    """Return FlashAttention's metadata of a step; request i has the pages 4, 3, ... of the cache."""
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    fields = {
        "num_actual_tokens": sum(query_lens),
        "max_query_len": max(query_lens),
        "query_start_loc": starts,
        "max_seq_len": max(lengths),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "block_table": torch.tensor([[4, 3, 2, 1, 0]] * len(lengths), dtype=torch.int32),
        "slot_mapping": torch.zeros(sum(query_lens), dtype=torch.int64),
    }
    return flash_attn.FlashAttentionMetadata(**(fields | changes))


def step(impl, metadata, cache=None):
    """Run one layer's attention for one step on random queries; return query and output."""
    tokens = metadata.num_actual_tokens
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(tokens, GROUP * KV_HEADS, HEAD_SIZE, generator=generator).bfloat16()
    output = torch.full_like(query, torch.nan)
    impl.forward(None, query, None, None, cache, metadata, output)
    return query, output


@pytest.mark.parametrize("layout", ["stacked", "packed"])
def test_a_single_decode_is_served_by_split_kv_and_logged_by_its_length(layers, layout):
    first, second = layers.make(), layers.make()
    cache, keys, values = make_cache(layout)
    for impl in (first, second):
        impl.view_cache = {"stacked": gpu.view_stacked, "packed": gpu.view_packed}[layout]
        query, output = step(impl, make_metadata(lengths=(37,)), cache)
        table = torch.tensor([4, 3, 2])
        arguments = (query[0], keys, values, table, 37)
        exact = paged_attention(*arguments, scale=impl.scale)
        plain = paged_attention(*arguments, scale=impl.scale, dtype=torch.bfloat16)
        assert (output[0].double() - exact).abs().max() <= 2 * (plain.double() - exact).abs().max()
    assert layers.to_flash_attention == []
    ledger = first.split_kv.ledger
    assert ledger is second.split_kv.ledger and ledger.layers == 2 and ledger.segments == 3
    assert ledger.counts.tolist() == [2, 0, 0]
    assert ledger.positions.nonzero().flatten().tolist() == [37] and ledger.positions[37] == 2


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"lengths": (37,), "query_lens": (37,)}, id="prefill"),
        pytest.param({"lengths": (37,), "query_lens": (5,)}, id="chunk or verification"),
        pytest.param({"lengths": (37, 20), "query_lens": (1, 1)}, id="two requests"),
        pytest.param({"lengths": (37, 20), "query_lens": (1, 0)}, id="one request padded to two"),
    ],
)
def test_a_step_of_more_goes_to_flash_attention_and_counts_once_per_layer(layers, metadata):
    impls = [layers.make(), layers.make()]
    for impl in impls:
        step(impl, make_metadata(**metadata))
    assert layers.to_flash_attention == impls
    counts = impls[0].split_kv.ledger.counts
    assert counts[OTHER] == 2 and counts[SPLIT_KV] == counts[FALLBACK] == 0


@pytest.mark.parametrize(
    "special",
    [{"causal": False}, {"mm_prefix_query_range_tensor": torch.zeros(1, 2)}, {"rswa_prefix_lens": torch.ones(1)}],
)
def test_a_single_decode_with_special_attention_goes_to_flash_attention_as_fallback(layers, special):
    impl = layers.make()
    step(impl, make_metadata(**special))
    assert layers.to_flash_attention == [impl]
    assert impl.split_kv.ledger.counts.tolist() == [0, 1, 0]
    assert not impl.split_kv.ledger.positions.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 128},
        {"alibi_slopes": [0.5] * GROUP * KV_HEADS},
        {"logits_soft_cap": 30.0},
        {"attn_type": AttentionType.ENCODER_ONLY},
        {"attn_type": AttentionType.ENCODER_DECODER},
        {"head_size": 80},
        {"num_heads": 34},
    ],
    ids=str,
)
def test_a_layer_that_split_kv_does_not_cover_goes_to_flash_attention_uncounted(layers, changes):
    impl = layers.make(**changes)
    assert impl.split_kv is None
    impl.forward(None, None, None, None, None, make_metadata(), None)
    assert layers.to_flash_attention == [impl]


def test_speculative_decoding_switches_split_kv_off(layers):
    layers.config.speculative_config = object()
    assert layers.make().split_kv is None


@pytest.mark.parametrize(
    "name, value", [("kv_cache_dtype", "fp8"), ("sinks", torch.zeros(6)), ("dcp_world_size", 2), ("pcp_world_size", 2)]
)
def test_what_flash_attention_2_refuses_or_shards_is_not_covered(layers, name, value):
    impl = layers.make()
    assert gpu.covers(impl, layers.config)
    setattr(impl, name, value)
    assert not gpu.covers(impl, layers.config)


def test_the_control_arm_is_the_same_class_without_split_kv(layers, monkeypatch):
    monkeypatch.setenv(gpu.BACKEND_VARIABLE, "flash")
    impl = layers.make()
    step(impl, make_metadata())
    assert layers.to_flash_attention == [impl] and impl.split_kv is None


def test_measuring_memory_counts_nothing(layers):
    impl = layers.make()
    impl.forward(None, None, None, None, None, None, None)
    assert layers.to_flash_attention == [impl] and not impl.split_kv.ledger.counts.any()


@pytest.mark.parametrize("version", [3, 4, None])
def test_another_version_of_flash_attention_is_refused_with_the_option_that_sets_it(layers, monkeypatch, version):
    monkeypatch.setattr(flash_attn, "get_flash_attn_version", lambda **_: version)
    with pytest.raises(
        RuntimeError, match=f'version {version}: start it with --attention-config .*"flash_attn_version": 2'
    ):
        layers.make()


def test_settings_change_the_identity_of_vllms_compile_cache(monkeypatch):
    from vllm.config import VllmConfig

    monkeypatch.delenv(gpu.BACKEND_VARIABLE, raising=False)
    monkeypatch.delenv(gpu.SEGMENTS_VARIABLE, raising=False)
    identities = set()
    for backend, segments in (("triton", "32"), ("triton", "64"), ("flash", "64")):
        monkeypatch.setenv(gpu.BACKEND_VARIABLE, backend)
        monkeypatch.setenv(gpu.SEGMENTS_VARIABLE, segments)
        config = VllmConfig()
        gpu.record_settings(config)
        identities.add(config.compute_hash())
    assert len(identities) == 3
