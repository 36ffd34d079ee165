"""What `evalsuite doctor` finds, and that it knows the versions which the attention package knows."""

import pytest
from evalsuite_attention import plugin

from evalsuite import doctor, environment
from evalsuite.cli import main


def test_the_versions_are_those_of_the_attention_package() -> None:
    assert {"GPU": plugin.VLLM_RANGES["cuda"], "CPU": plugin.VLLM_RANGES["cpu"]} == doctor.VLLM_RANGES


@pytest.mark.parametrize(
    ("version", "gpu", "ready"),
    [("0.24.0", True, True), ("0.24.0", False, False), ("0.32.0+cpu", False, True), ("0.34.1", True, False),
     ("0.23.2", True, False), (None, True, False)],
)  # fmt: skip
def test_a_vllm_is_ready_if_its_platform_knows_it(
    monkeypatch: pytest.MonkeyPatch, version: str | None, gpu: bool, ready: bool
) -> None:
    monkeypatch.setattr(environment, "version", lambda *names: version)
    found = doctor._vllm(gpu)
    assert found.ready is ready
    assert ready or found.mend


def test_every_finding_is_a_line_and_what_is_missing_has_its_mend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    assert main(["doctor"]) == 2
    told = capsys.readouterr().out.splitlines()
    missing = [at for at, line in enumerate(told) if line.startswith("MISSING")]
    assert any("vLLM plugin: VLLM_PLUGINS=another leaves it out" in told[at] for at in missing)
    assert all(told[at + 1].strip() for at in missing)
