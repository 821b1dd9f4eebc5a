"""Packages of an extra: an error for a missing one shows the install command for this installation."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from peagle.plugins import optional_packages
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.optional_packages import EXTRAS, install, install_to_build, require, typed, upgrade
from tests.house.tree import PYPROJECT


class Installed:
    """A distribution with what pip wrote of its origin."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.text = None if origin is None else json.dumps(origin)

    def read_text(self, name: str) -> str | None:
        """The one file that is asked for."""
        assert name == "direct_url.json"
        return self.text


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    monkeypatch.setattr(optional_packages, "_pip", lambda: "pip")


def local(path: Path, **more: Any) -> dict[str, Any]:
    return {"url": path.as_uri(), **more}


def test_index_install_is_requested_by_product_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(monkeypatch, None)
    assert install("rtx") == "pip install 'peagle-compile[rtx]'"
    assert install("rtx", again=True) == "pip install --force-reinstall 'peagle-compile[rtx]'"
    assert upgrade() == "`pip install --upgrade peagle-compile`"


def test_a_checkout_installs_from_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    installed_from(monkeypatch, local(folder, dir_info={"editable": True}))
    assert install("export") == f"pip install -e '{folder}[export]'"
    assert upgrade() == f"update {folder}"
    installed_from(monkeypatch, local(folder, dir_info={}))
    assert install("export") == f"pip install '{folder}[export]'"
    assert upgrade() == f"update {folder}, then `pip install '{folder}'`"


def test_wheel_install_uses_the_wheel_or_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "peagle_compile-1-py3-none-any.whl"
    wheel.touch()
    installed_from(monkeypatch, local(wheel, archive_info={}))
    assert install("export") == f"pip install '{wheel}[export]'"
    wheel.unlink()
    monkeypatch.setattr(
        metadata, "requires", lambda _: ["numpy>=2", 'torch<3,>=2; extra == "export"', 'cuda-core<2; extra == "rtx"']
    )
    assert install("export") == "pip install 'torch<3,>=2'"
    assert install("export", "rtx") == "pip install 'torch<3,>=2' 'cuda-core<2'"


def test_repository_install_uses_the_same_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    installed_from(monkeypatch, origin)
    assert install("rtx") == "pip install 'peagle-compile[rtx] @ git+https://example.org/x.git@abc'"


def test_sources_on_the_path_install_from_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Installed:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", absent)
    assert re.search(r"pip install -e '/.*\[rtx\]'", install("rtx"))


def test_missing_build_packages_are_listed_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(monkeypatch, None)
    assert install_to_build("rtx") == "pip install 'peagle-compile[rtx]'"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert install_to_build("rtx") == "pip install 'peagle-compile[export,rtx]'"


def test_pip_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert install("rtx").startswith(f"{sys.executable} -m pip install ")


def test_all_missing_packages_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    with pytest.raises(EnvironmentProblem, match=r"building needs .*: torch, onnx-ir") as caught:
        require("export", "building")
    assert caught.value.fix == f"run `{install('export')}`"
    require("export", "the download", "huggingface_hub")


def test_failed_import_is_attributed_by_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    absent = typed(ModuleNotFoundError("No module named 'onnx_ir'", name="onnx_ir"))
    assert absent is not None
    assert "onnx-ir" in absent.what
    old = typed(
        ImportError("cannot import name 'x' from 'transformers.integrations'", name="transformers.integrations")
    )
    assert old is not None
    assert "cannot be imported" in old.what
    assert "cannot import name 'x'" in old.why
    assert typed(ModuleNotFoundError("No module named 'peagle.x'", name="peagle.x")) is None
    assert typed(ImportError("no name")) is None


def test_shared_package_prefers_the_more_complete_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for product, extra in (("tensorrt", "rtx"), ("tensorrt_rtx", "tensorrt")):
        with monkeypatch.context() as patch:
            patch.setattr(
                optional_packages, "is_installed", lambda name, absent=product: name not in (absent, "cuda.core")
            )
            told = typed(ModuleNotFoundError("No module named 'cuda.core'", name="cuda.core"))
        assert told is not None
        assert told.fix == f"run `{install(extra)}`"


def test_every_package_of_an_extra_is_one_of_pyprojects() -> None:
    for extra, modules in EXTRAS.items():
        declared = {re.split(r"[<>=~ ]", line)[0] for line in PYPROJECT["project"]["optional-dependencies"][extra]}
        assert set(modules.values()) <= declared
    declared = {re.split(r"[<>=~ ]", line)[0] for line in PYPROJECT["project"]["optional-dependencies"]["export"]}
    assert set(EXTRAS["export"].values()) == declared
