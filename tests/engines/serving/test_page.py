"""How the files of the chat page are served and packaged."""

from __future__ import annotations

import gzip
import re
from fnmatch import fnmatch

import pytest

from peagle.engines.serving.page import page_files
from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call
from tests.house.tree import PYPROJECT, ROOT

FOLDER = ROOT / "engines" / "serving" / "page"
MAX_BYTES = 150_000


def test_everything_a_browser_can_load_is_small(server: Server) -> None:
    sizes = {}
    for path in ("/", *(f"/page/{name}" for name in page_files() if name != "index.html")):
        status, headers, content = call(server, "GET", path, headers={"Accept-Encoding": "gzip, br"})
        assert (status, headers["content-encoding"]) == (200, "gzip")
        sizes[path] = len(content)
    assert sum(sizes.values()) < MAX_BYTES, sizes


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("/", "text/html"), ("/page/page.css", "text/css"), ("/page/vendor/highlight/core.min.js", "text/javascript")],
)
def test_files_have_their_media_type_and_are_revalidated(server: Server, path: str, media_type: str) -> None:
    status, headers, content = call(server, "GET", path)
    assert (status, headers["content-type"]) == (200, f"{media_type}; charset=utf-8")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-content-type-options"] == "nosniff"
    _, _, compressed = call(server, "GET", path, headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(compressed) == content
    status, again, nothing = call(server, "GET", path, headers={"If-None-Match": headers["etag"]})
    assert (status, again["etag"], nothing) == (304, headers["etag"], b"")
    assert call(server, "GET", path, headers={"If-None-Match": '"other"'})[0] == 200


@pytest.mark.parametrize(
    "name", ["", "index.html", "__init__.py", "missing.js", "vendor", "vendor/README.md", "../app.py", "..%2fapp.py"]
)
def test_nothing_else_is_served(server: Server, name: str) -> None:
    assert call(server, "GET", f"/page/{name}")[0] == 404


def test_policy_allows_only_the_server_s_own_files(server: Server) -> None:
    for path in ("/", "/page/page.js"):
        policy = call(server, "GET", path)[1]["content-security-policy"]
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules["default-src"] == "'none'"
        assert {rules[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
        assert rules["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in policy
        assert "http" not in policy


def test_every_file_that_a_file_names_is_there() -> None:
    own = [name for name in page_files() if not name.startswith("vendor/")]
    named = {}
    for name in own:
        text = page_files()[name].content.decode()
        pattern = r'(?:src|href)="page/([^"]+)"' if name == "index.html" else r'(?:from |import\()["`]\./([^"`]+)["`]'
        named[name] = {each for each in re.findall(pattern, text) if "${" not in each}
        assert named[name] <= set(page_files()), name
    assert set().union(*named.values()) | {"index.html"} == {
        name for name in page_files() if not name.startswith("vendor/highlight/") or name.endswith("core.min.js")
    }


def test_page_and_its_licences_are_packaged() -> None:
    settings = PYPROJECT["tool"]["setuptools"]["package-data"]["peagle.engines.serving.page"]
    for name in (*page_files(), "vendor/README.md"):
        assert any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in settings), name
    licences = [path for pattern in PYPROJECT["project"]["license-files"] for path in ROOT.glob(pattern)]
    for library in (path for path in (FOLDER / "vendor").iterdir() if path.is_dir()):
        assert library / "LICENSE" in licences
        assert f"`{library.name}/`" in (FOLDER / "vendor" / "README.md").read_text()


@pytest.mark.parametrize("path", ["/", "/llm", "/llm/"])
def test_page_below_a_root_path_finds_its_files_without_a_key(guarded_server: Server, path: str) -> None:
    status, _, content = call(guarded_server, "GET", path)
    assert status == 200
    assert b'<base href="/llm/">' in content
    assert call(guarded_server, "GET", "/llm/page/page.js")[0] == 200
    assert call(guarded_server, "GET", "/page/page.js")[0] == 200
    assert call(guarded_server, "GET", "/llm/v1/models")[0] == 401
