"""Fixtures for all tests."""

from pathlib import Path

import pytest


@pytest.fixture
def data() -> Path:
    """The folder of golden values and made-up questions."""
    return Path(__file__).parent / "data"
