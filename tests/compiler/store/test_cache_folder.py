"""The cache is trusted if only its user and root can have written to it; every reader requires that."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.pipeline.cpu_kernels import cpu_kernels, is_compiled_locally
from peagle.compiler.pipeline.plan_stages import build_plugin_library, library_of_export
from peagle.compiler.pipeline.shared_steps import PipelineRun
from peagle.compiler.precision.calibration.resume import CalibrationFolder
from peagle.compiler.request.build_platform import BuildPlatform
from peagle.compiler.store import cache_folder, known_hashes
from peagle.compiler.store.cache_folder import UntrustedCache, make_private, require_trusted
from peagle.compiler.store.known_hashes import entry_of
from peagle.compiler.store.stages import StageStore
from peagle.compiler.verbs.diagnosis import diagnose
from peagle.compiler.verify.unpublished_pairs import scratch
from peagle.graphs.lowering import CPU
from peagle.plugins.cpu.compile import CpuLibrary
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels.pack import write_pack
from tests.fixtures.commands import Run
from tests.models import Pair

STRANGER = 54321  # a user id that no test runs as
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
Own = Callable[[Path, int], None]


def without_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no C++ compiler: in every module that has the function, lest one imports and keeps the replacement."""
    for module in ("tensorrt.library.compile", "cpu.compile"):
        monkeypatch.setattr(f"peagle.plugins.{module}.find_compilers", lambda *_: [])


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Own:
    """Make a path appear to belong to a user, for tests that do not run as root."""
    owners: dict[tuple[int, int], int] = {}
    for name in ("stat", "lstat"):
        real = getattr(os, name)

        def told(path: os.PathLike[str], *, real: Callable[..., os.stat_result] = real) -> os.stat_result:
            found = real(path)
            fields = list(found)
            fields[4] = owners.get((found.st_dev, found.st_ino), found.st_uid)
            return os.stat_result(fields)

        monkeypatch.setattr(cache_folder, "os", SimpleNamespace(**vars(vars(cache_folder)["os"]) | {name: told}))

    def give(path: Path, user: int) -> None:
        found = os.lstat(path)
        owners[found.st_dev, found.st_ino] = user

    return give


def make(folder: Path) -> None:
    """Make a stage of two files."""
    (folder / "sub").mkdir()
    (folder / "sub" / "a").write_bytes(b"a" * 1000)
    (folder / "b").write_bytes(b"b")


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    """A store with a stage, open for others to read."""
    store = StageStore(tmp_path / "cache")
    stage = store.run("trace", ["x"], make)
    for folder in (store.root, stage.path.parent, stage.path):
        folder.chmod(0o755)
    return store


def stage_of(store: StageStore) -> Path:
    return store.run("trace", ["x"], make).path


def parts(store: StageStore) -> dict[str, Path]:
    """Name each thing that a stage is reached through, or consists of."""
    stage = stage_of(store)
    return {
        "root": store.root, "kind": stage.parent, "stage": stage, "folder": stage / "sub", "file": stage / "sub" / "a",
        "record": stage / "stage.json", "lock": stage.with_suffix(".lock"),
    }  # fmt: skip


@pytest.mark.parametrize("part", ["root", "kind", "stage", "folder", "file", "record", "lock"])
def test_cache_of_another_user_is_rejected_with_owner_path_and_fix(store: StageStore, own: Own, part: str) -> None:
    path = parts(store)[part]
    own(path, STRANGER)
    with pytest.raises(EnvironmentProblem) as caught:
        stage_of(store)
    assert str(path) in caught.value.what
    assert f"belongs to user {STRANGER}" in caught.value.what
    assert "PEAGLE_CACHE" in caught.value.fix
    assert (f"rm -r {path}" in caught.value.fix) == (part != "root")


@pytest.mark.parametrize("part", ["root", "kind", "stage", "folder", "file", "record"])
@pytest.mark.parametrize("bits", [0o002, 0o020, 0o022])
def test_writable_cache_is_rejected_with_mode_path_and_fix(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, part: str, bits: int
) -> None:
    monkeypatch.setattr(cache_folder, "_is_private", lambda _: False)
    path = parts(store)[part]
    path.chmod(path.stat().st_mode | bits)
    with pytest.raises(EnvironmentProblem) as caught:
        stage_of(store)
    assert f"other users can write to {path}" in caught.value.what
    assert f"has mode {path.stat().st_mode & 0o7777:04o}" in caught.value.why
    assert f"chmod -R go-w {path}" in caught.value.fix
    assert "PEAGLE_CACHE" in caught.value.fix
    path.chmod(path.stat().st_mode & ~0o022)
    assert stage_of(store).is_dir(), "the cure works"


@as_root
@pytest.mark.parametrize("part", ["root", "stage", "file"])
def test_real_foreign_cache_is_rejected(store: StageStore, part: str) -> None:
    os.chown(parts(store)[part], STRANGER, STRANGER)
    with pytest.raises(EnvironmentProblem, match=f"belongs to user {STRANGER}"):
        stage_of(store)


def test_root_owned_cache_is_trusted(store: StageStore, own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in parts(store).values():
        own(path, 0)
    monkeypatch.setattr(vars(cache_folder)["os"], "geteuid", lambda: STRANGER)
    assert stage_of(store).is_dir()


def test_a_switch_trusts_everybody(store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.root.chmod(0o777)
    monkeypatch.setenv("PEAGLE_CACHE_CHECK", "off")
    assert stage_of(store).is_dir()
    monkeypatch.setenv("PEAGLE_CACHE_CHECK", "no")
    with pytest.raises(EnvironmentProblem, match=r"\$PEAGLE_CACHE_CHECK is 'no'"):
        stage_of(store)


def test_modes_do_not_matter_below_a_private_folder(store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage written with a umask of 002 or 000."""
    monkeypatch.setattr(cache_folder, "_is_private", lambda _: False)
    every = parts(store)
    for path in every.values():
        path.chmod(path.stat().st_mode | 0o022)
    every["root"].chmod(0o700)
    assert stage_of(store).is_dir()
    every["root"].chmod(0o755)
    every["kind"].chmod(0o700)
    assert stage_of(store).is_dir()


def test_but_a_link_leads_out_of_it(store: StageStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (store.root / "trace").rename(elsewhere)
    (store.root / "trace").symlink_to(elsewhere)
    store.root.chmod(0o700)
    assert stage_of(store).is_dir(), "a cache may be spread over disks"
    elsewhere.chmod(0o777)
    with pytest.raises(EnvironmentProblem, match="other users can write to"):
        stage_of(store)


def test_linked_cache_is_checked_at_its_destination(store: StageStore, tmp_path: Path, own: Own) -> None:
    link = tmp_path / "link"
    link.symlink_to(store.root)
    assert stage_of(StageStore(link)).is_dir()
    own(link, STRANGER)
    with pytest.raises(EnvironmentProblem, match=f"{link}, which is the cache folder, belongs to"):
        stage_of(StageStore(link))


def test_a_cache_below_a_folder_of_everybody_is_trusted(tmp_path: Path) -> None:
    """As /tmp is, with its sticky bit and, on many rented machines, other folders without one."""
    for number, mode in enumerate((0o1777, 0o777)):
        shared = tmp_path / f"tmp{number}"
        shared.mkdir()
        shared.chmod(mode)
        assert stage_of(StageStore(shared / "cache")).is_dir()
        with pytest.raises(EnvironmentProblem, match="other users can write to"):
            stage_of(StageStore(shared))


@pytest.mark.parametrize(
    ("name", "members", "primary", "private"),
    [
        ("me", [], 77, True),
        ("me", ["me"], 77, True),
        ("me", ["me", "you"], 77, False),
        ("staff", [], 77, False),
        ("me", [], 78, False),
    ],
)
def test_a_group_of_the_user_alone_is_the_user(
    store: StageStore,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    members: list[str],
    primary: int,
    private: bool,
) -> None:
    """A private group, as on Debian, Ubuntu and Fedora, which use a umask of 002."""
    group = store.root.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=group + primary - 77))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    for path in parts(store).values():
        path.chmod(path.stat().st_mode | 0o020)
    if private:
        assert stage_of(store).is_dir()
        return
    with pytest.raises(EnvironmentProblem, match="other users can write to"):
        stage_of(store)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_next_build_trusts_the_cache_under_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setattr(cache_folder, "_is_private", lambda _: False)
    before = os.umask(umask)
    try:
        store = StageStore(tmp_path / "new" / "cache")
        assert not store.run("trace", ["x"], make).reused
    finally:
        os.umask(before)
    assert store.run("trace", ["x"], make).reused
    assert store.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_so_it_does_in_a_cache_of_an_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    """Earlier versions used the umask; a folder that others may read is not changed."""
    monkeypatch.setattr(cache_folder, "_is_private", lambda _: False)
    root = tmp_path / "cache"
    root.mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        assert not StageStore(root).run("trace", ["x"], make).reused
        with CalibrationFolder.open(StageStore(root), make, ["x"], 0) as kept:
            (kept.folder / "step-0000.json").write_text("{}")
        make_private(root, "timing")
    finally:
        os.umask(before)
    assert StageStore(root).run("trace", ["x"], make).reused
    with CalibrationFolder.open(StageStore(root), make, ["x"], 0) as kept:
        assert (kept.folder / "step-0000.json").is_file()
    require_trusted(root, "timing", "a.cache")


class TestEveryReader:
    """Everything that reads from the cache refuses one that other users can write to."""

    @pytest.fixture(autouse=True)
    def open_cache(self, store: StageStore, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A cache for all commands that everybody can write to."""
        monkeypatch.setenv("PEAGLE_CACHE", str(store.root))
        store.root.chmod(0o777)
        return store.root

    @pytest.mark.parametrize(
        "command",
        [
            ("build", "demo", "--out", "engine"),
            ("export", "demo", "--out", "export"),
            ("cache", "list"),
            ("cache", "prune"),
        ],
    )
    def test_commands(
        self, command: tuple[str, ...], cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        done = cli(*command)
        assert done.code == 3
        assert f"other users can write to {tmp_path / 'cache'}" in done.err
        assert "chmod -R go-w" in done.err
        assert not (tmp_path / command[-1]).exists()

    def test_the_default_store(self) -> None:
        with pytest.raises(EnvironmentProblem, match="other users can write to"):
            StageStore.default()

    def test_hashes_of_checkpoints(self, open_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(known_hashes, "LARGE", 1)
        (tmp_path / "weights").write_bytes(b"weights")
        with pytest.raises(EnvironmentProblem, match="other users can write to"):
            entry_of(tmp_path / "weights", open_cache)

    def test_fingerprints(self, tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(known_hashes, "LARGE", 1)
        with pytest.raises(EnvironmentProblem, match="other users can write to"):
            _ = Checkpoint.open(tiny_pair.target).fingerprint

    def test_unfinished_calibrations(self, open_cache: Path) -> None:
        with (
            pytest.raises(EnvironmentProblem, match="other users can write to"),
            CalibrationFolder.open(StageStore(open_cache), make, ["x"], 0),
        ):
            pass

    def test_scratch_graphs(self, open_cache: Path) -> None:
        with pytest.raises(EnvironmentProblem, match="other users can write to"), scratch(open_cache):
            pass

    def test_compiled_kernels(self, open_cache: Path) -> None:
        (open_cache / "cpu-library").mkdir()
        (open_cache / "cpu-library" / "x").mkdir()
        library = CpuLibrary("linux-x86_64", "", b"")
        with pytest.raises(EnvironmentProblem, match="other users can write to"):
            is_compiled_locally(StageStore(open_cache), library)

    def test_kernels_that_a_build_could_do_without(self, open_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        without_compilers(monkeypatch)
        run = PipelineRun.begin(StageStore(open_cache), None)
        platform = BuildPlatform("onnxruntime", "", (), CPU, runs_here=True)
        for is_asked in (False, True):
            with pytest.raises(UntrustedCache, match="other users can write to"):
                cpu_kernels(run, platform, is_asked=is_asked)

    def test_a_plugin_library_that_a_build_could_do_without(
        self, open_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_compilers(monkeypatch)
        open_cache.chmod(0o755)
        run = PipelineRun.begin(StageStore(open_cache), None)
        kernels = run.store.run("kernels", [], lambda folder: write_pack(folder, []))
        open_cache.chmod(0o777)
        with pytest.raises(UntrustedCache, match="other users can write to"):
            build_plugin_library(run, kernels)
        with pytest.raises(UntrustedCache, match="other users can write to"):
            library_of_export(run, ["sm_120"])

    def test_doctor_reports_it_and_continues(self, open_cache: Path, cli: Run) -> None:
        assert f"other users can write to {open_cache}" in diagnose().cache_problem
        done = cli("doctor")
        assert done.code == 0
        assert "cache unusable: other users can write to" in " ".join(done.out.split())


def test_missing_cache_is_trusted(tmp_path: Path) -> None:
    require_trusted(tmp_path / "absent", "trace", "key")
    (tmp_path / "file").touch()
    require_trusted(tmp_path / "file", "trace", "key")
