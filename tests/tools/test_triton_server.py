"""The files that `make triton-server` installs, according to its list."""

from __future__ import annotations

from packaging.requirements import Requirement

from tests.house.tree import PYPROJECT
from tools.triton_server import PINS


def test_environment_supports_the_engine_and_grammars() -> None:
    pins = dict(line.split("==") for line in PINS.read_text().splitlines() if not line.startswith("#"))
    needed = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["grammar"]]
    for requirement in map(Requirement, needed):
        assert requirement.name in pins, f"{requirement.name} is missing: {PINS.name} lists all that is installed"
        assert pins[requirement.name] in requirement.specifier
