"""llama.cpp's server as a peer: one version, compiled once, serves the engine's own file."""

from __future__ import annotations

import sys
from pathlib import Path

import llama_server
import pytest
from peers.llama_cpp_source import requirement


def test_source_is_that_of_the_other_peer() -> None:
    name, _, version = requirement().partition("==")
    assert name == "llama-cpp-python"
    assert version[0].isdigit()


def test_compiled_server_is_used_again(tmp_path: Path) -> None:
    version = requirement().partition("==")[2]
    program = tmp_path / f"llama-server-{version}" / "llama-server"
    program.parent.mkdir()
    program.touch()
    assert llama_server.built(tmp_path) == program


def test_engine_of_a_folder_is_refused(demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["llama_server.py", str(demo_engine)])
    with pytest.raises(SystemExit, match="needs a GGUF file"):
        llama_server.main()
