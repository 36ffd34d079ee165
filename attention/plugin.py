"""The vLLM plugin (entry point of the group `vllm.general_plugins`): registers the hybrid backends by name.

GGUF_PQ2_SINGLE_ATTN_BACKEND says what serves a decode step of one request and one query token:

    unset    nothing changes; `--attention-backend CUSTOM` is there to choose the hybrid on a GPU
    triton   NVIDIA GPU: split-KV in Triton; replaces the class behind FLASH_ATTN (and CUSTOM)
    flash    NVIDIA GPU: the same class with split-KV switched off, the control of `triton`
    torch    CPU: split-KV in plain PyTorch; replaces the class behind CPU_ATTN

GGUF_PQ2_SINGLE_ATTN_SEGMENTS overrides the number of segments.

vLLM logs and skips a plugin that fails to import, so this module imports nothing that could fail; an exception that
`register` raises, however, ends the start of the server, as a wrong setting should. The backends are registered as
strings: importing vLLM's FlashAttention here would fix its CUDA-graph support before the configuration is known.
"""

import os

BACKEND_VARIABLE = "GGUF_PQ2_SINGLE_ATTN_BACKEND"
SEGMENTS_VARIABLE = "GGUF_PQ2_SINGLE_ATTN_SEGMENTS"
PLATFORMS = {"triton": "cuda", "flash": "cuda", "torch": "cpu"}  # allowed value -> the vLLM platform it is for
GPU_BACKEND = "evalsuite_attention.gpu.HybridBackend"
CPU_BACKEND = "evalsuite_attention.cpu.HybridBackend"
VLLM_RANGES = {"cuda": ((0, 24), (0, 34)), "cpu": ((0, 32), (0, 34))}  # [first, end) of the versions known


def register() -> None:
    """Register the hybrid backends with vLLM; called once in each of its processes.

    Raises ValueError for a wrong setting and RuntimeError for a vLLM outside the supported range, the latter only
    if the hybrid is asked for.
    """
    choice = chosen_backend()
    if choice is None:
        _offer_custom()
        return
    check_vllm(PLATFORMS[choice])
    read_segments()
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    platform = current_platform.device_type
    if platform != PLATFORMS[choice]:
        raise ValueError(
            f"{BACKEND_VARIABLE}={choice} is for vLLM's {PLATFORMS[choice]} platform, but this is {platform}: "
            f"{_describe_values()}, or unset it"
        )
    if platform == "cpu":
        register_backend(AttentionBackendEnum.CPU_ATTN, CPU_BACKEND)
    else:
        register_backend(AttentionBackendEnum.CUSTOM, GPU_BACKEND)
        register_backend(AttentionBackendEnum.FLASH_ATTN, GPU_BACKEND)


def chosen_backend() -> str | None:
    """Return the value of GGUF_PQ2_SINGLE_ATTN_BACKEND, None if unset. Raises ValueError for a wrong one."""
    value = os.environ.get(BACKEND_VARIABLE)
    if value is not None and value not in PLATFORMS:
        raise ValueError(f"{BACKEND_VARIABLE}={value!r} is not known: {_describe_values()}, or unset it")
    return value


def read_segments() -> int | None:
    """Return the value of GGUF_PQ2_SINGLE_ATTN_SEGMENTS, None if unset. Raises ValueError if it is no integer >= 1."""
    value = os.environ.get(SEGMENTS_VARIABLE)
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ValueError(f"{SEGMENTS_VARIABLE}={value!r} is no number of segments: use an integer from 1, or unset it")
    return int(value)


def check_vllm(platform: str) -> None:
    """Raise RuntimeError unless the installed vLLM is one whose interface the backend for `platform` knows."""
    import vllm
    from packaging.version import InvalidVersion, Version

    first, end = VLLM_RANGES[platform]
    try:
        known = first <= Version(vllm.__version__).release[:2] < end
    except InvalidVersion:  # a source build without tags calls itself "dev"
        known = False
    if not known:
        raise RuntimeError(
            f"the hybrid attention backend for {platform} knows vLLM {first[0]}.{first[1]} up to, not including, "
            f"{end[0]}.{end[1]}, but this is {vllm.__version__}: install a version in that range, or use the stock "
            f"backend (unset {BACKEND_VARIABLE})"
        )


def _offer_custom() -> None:
    """Put the hybrid behind the name CUSTOM, which is nobody's until a plugin takes it; `gpu` checks the version."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:  # a vLLM without this registry: whoever has not asked for the hybrid must not notice
        return
    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, GPU_BACKEND)


def _describe_values() -> str:
    return "set " + " or ".join(f"{value} ({platform})" for value, platform in PLATFORMS.items())
