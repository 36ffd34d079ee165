"""The plugin: what each setting registers with vLLM, and which settings end the start.

pytest tests/attention/test_plugin.py
"""

import pytest

SCRIPT = """
import json, os, sys
import vllm
from evalsuite_attention import plugin
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

NAMES = ("FLASH_ATTN", "CPU_ATTN", "CUSTOM")

def overridden():
    return {name: AttentionBackendEnum[name].get_path() for name in NAMES if AttentionBackendEnum[name].is_overridden()}

def register(env, version=vllm.__version__, platform="cpu", theirs=None):
    for name in NAMES:
        AttentionBackendEnum[name].clear_override()
    if theirs:
        register_backend(AttentionBackendEnum.CUSTOM, theirs)
    for name in ("BACKEND", "SEGMENTS"):
        os.environ.pop(f"GGUF_PQ2_SINGLE_ATTN_{name}", None)
    os.environ.update({f"GGUF_PQ2_SINGLE_ATTN_{name}": value for name, value in env.items()})
    vllm.__version__, current_platform.device_type = version, platform
    try:
        plugin.register()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return overridden()

load_general_plugins()  # as each of vLLM's processes does
report = {"installed": overridden(), "imported": "evalsuite_attention.cpu" in sys.modules}
report |= {name: register(*args, **kwargs) for name, (args, kwargs) in CASES.items()}
print("REPORT", json.dumps(report))
"""
GPU = "evalsuite_attention.gpu.HybridBackend"
CPU = "evalsuite_attention.cpu.HybridBackend"


def case(version=None, platform=None, theirs=None, **env):
    given = {"version": version, "platform": platform, "theirs": theirs}
    return [env], {name: value for name, value in given.items() if value is not None}


CASES = {
    "unset": case(),
    "unset on a GPU": case(platform="cuda"),
    "unset, vLLM too old": case(version="0.23.1"),
    "unset, CUSTOM taken": case(theirs="theirs.Backend"),
    "torch": case(BACKEND="torch"),
    "torch with segments": case(BACKEND="torch", SEGMENTS="16"),
    "triton": case(BACKEND="triton", platform="cuda"),
    "flash": case(BACKEND="flash", platform="cuda"),
    "misspelt": case(BACKEND="tritn"),
    "empty": case(BACKEND=""),
    "triton without a GPU": case(BACKEND="triton"),
    "torch on a GPU": case(BACKEND="torch", platform="cuda"),
    "no segments": case(BACKEND="torch", SEGMENTS="0"),
    "segments misspelt": case(BACKEND="torch", SEGMENTS="many"),
    "first": case(BACKEND="triton", version="0.24.0", platform="cuda"),
    "last": case(BACKEND="triton", version="0.33.2+cu130", platform="cuda"),
    "too old": case(BACKEND="triton", version="0.23.1", platform="cuda"),
    "too new": case(BACKEND="triton", version="0.34.0rc1", platform="cuda"),
    "no version": case(BACKEND="triton", version="dev", platform="cuda"),
    "too old for the CPU": case(BACKEND="torch", version="0.31.0"),
}


@pytest.fixture(scope="module")
def registered(run_python):
    """Return what is registered in each case, all tried in one fresh interpreter."""
    return run_python(f"CASES = {CASES!r}\n{SCRIPT}")


def test_importing_the_plugin_imports_neither_torch_nor_vllm_nor_triton(run_python):
    heavy = "sorted({'torch', 'vllm', 'triton'} & set(sys.modules))"
    assert run_python(f"import json, sys, evalsuite_attention.plugin; print('REPORT', json.dumps({heavy}))") == []


def test_installed_and_unset_the_plugin_leaves_flash_attn_and_cpu_attn_unpatched(registered):
    assert registered["installed"] == {"CUSTOM": GPU}
    assert not registered["imported"]


def test_another_plugins_custom_backend_is_left_in_place(registered):
    assert registered["unset, CUSTOM taken"] == {"CUSTOM": "theirs.Backend"}


@pytest.mark.parametrize("case", ["unset", "unset on a GPU", "unset, vLLM too old"])
def test_unset_offers_custom_and_touches_nothing_else(registered, case):
    assert registered[case] == {"CUSTOM": GPU}


@pytest.mark.parametrize("case", ["torch", "torch with segments"])
def test_torch_replaces_cpu_attn(registered, case):
    assert registered[case] == {"CPU_ATTN": CPU}


@pytest.mark.parametrize("case", ["triton", "flash", "first", "last"])
def test_triton_and_its_control_replace_flash_attn_in_every_known_version(registered, case):
    assert registered[case] == {"FLASH_ATTN": GPU, "CUSTOM": GPU}


VALUES = "set triton (cuda) or flash (cuda) or torch (cpu), or unset it"


@pytest.mark.parametrize(
    "case, message",
    [
        ("misspelt", f"ValueError: GGUF_PQ2_SINGLE_ATTN_BACKEND='tritn' is not known: {VALUES}"),
        ("empty", f"ValueError: GGUF_PQ2_SINGLE_ATTN_BACKEND='' is not known: {VALUES}"),
        (
            "triton without a GPU",
            f"ValueError: GGUF_PQ2_SINGLE_ATTN_BACKEND=triton is for vLLM's cuda platform, but this is cpu: {VALUES}",
        ),
        (
            "torch on a GPU",
            f"ValueError: GGUF_PQ2_SINGLE_ATTN_BACKEND=torch is for vLLM's cpu platform, but this is cuda: {VALUES}",
        ),
        (
            "no segments",
            "ValueError: GGUF_PQ2_SINGLE_ATTN_SEGMENTS='0' is no number of segments: "
            "use an integer from 1, or unset it",
        ),
        (
            "segments misspelt",
            "ValueError: GGUF_PQ2_SINGLE_ATTN_SEGMENTS='many' is no number of segments: "
            "use an integer from 1, or unset it",
        ),
    ],
)
def test_a_wrong_setting_ends_the_start_with_what_is_allowed(registered, case, message):
    assert registered[case] == message


@pytest.mark.parametrize(
    "case, platform, known, found",
    [
        ("too old", "cuda", "0.24 up to, not including, 0.34", "0.23.1"),
        ("too new", "cuda", "0.24 up to, not including, 0.34", "0.34.0rc1"),
        ("no version", "cuda", "0.24 up to, not including, 0.34", "dev"),
        ("too old for the CPU", "cpu", "0.32 up to, not including, 0.34", "0.31.0"),
    ],
)
def test_a_vllm_outside_the_known_versions_ends_the_start_with_the_range(registered, case, platform, known, found):
    assert registered[case] == (
        f"RuntimeError: the hybrid attention backend for {platform} knows vLLM {known}, but this is {found}: install a "
        "version in that range, or use the stock backend (unset GGUF_PQ2_SINGLE_ATTN_BACKEND)"
    )
