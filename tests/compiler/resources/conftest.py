"""Estimates share one target."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _trials_once(trials_once: None) -> None:
    """Every estimate of these tests takes the session's trials."""
