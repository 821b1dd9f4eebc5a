"""A requested stop interrupts any running code, and no partial files remain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType

import pytest

from peagle.compiler.console import exit_cleanup, interrupts

SWALLOWED = """
import os, signal, sys
from peagle.compiler.console import interrupts
from peagle.compiler.console.printing import interruptible, report_failure

interrupts.watch()

@interruptible("the work is kept")
def verb():
    try:
        os.kill(os.getpid(), signal.Signals(int(sys.argv[1])))
    except BaseException:
        pass
    {then}

try:
    verb()
except Exception as error:
    sys.exit(report_failure(error, as_json=False))
"""

# A stage that executes `{work}` in the program; `stop()` sends it the signal. Finally, the stage ends by itself.
STAGE = """
import contextlib, ctypes, gc, os, signal, sys, threading, time, weakref
from pathlib import Path
import peagle.compiler.console.interrupts
from peagle.compiler import cli
from peagle.compiler.store import stages

number = signal.Signals(int(sys.argv[1]))
stages.code_digest = lambda make: ""  # of a program that is no file

def stop():
    os.kill(os.getpid(), number)

def goes_on():
    end = time.monotonic() + 40
    while time.monotonic() < end:
        time.sleep(0.01)
    print("the stage went on to its end")

class Thing:
    pass

def make(folder):
    (folder / "part").write_text("half")
    {work}

def run_cli(arguments):
    from peagle.compiler.console.printing import interruptible
    verb = interruptible("nothing was published")(lambda: stages.StageStore(Path(sys.argv[2])).run("trace", [], make))
    try:
        verb()
    except Exception as error:
        from peagle.compiler.console.printing import report_failure
        return report_failure(error, as_json=False)
    return 0

cli.run_cli = run_cli
cli.main()
"""

WORKS = {
    "weak reference": "thing = Thing(); kept = weakref.ref(thing, lambda _: stop()); del thing; goes_on()",
    "__del__": "Thing.__del__ = lambda _: stop(); thing = Thing(); del thing; goes_on()",
    "all caught": "exec('try:\\n stop()\\nexcept BaseException:\\n pass'); goes_on()",
    "C callback": "ctypes.CFUNCTYPE(None)(stop)(); goes_on()",
}
DEADLOCK = (
    "peagle.compiler.console.interrupts.PATIENCE = 0.2; lock = ctypes.create_string_buffer(64); "
    "libc = ctypes.CDLL(None); libc.pthread_mutex_lock(lock); threading.Timer(0.1, stop).start(); "
    "libc.pthread_mutex_lock(lock)"
)


def run_stage(work: str, number: signal.Signals, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STAGE.format(work=work), str(int(number)), str(cache)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def require_stopped(done: subprocess.CompletedProcess[str], number: signal.Signals, cache: Path) -> None:
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
    assert ("nothing was published" in done.stderr) is (number == signal.SIGINT)
    assert done.stdout == ""
    assert [path.suffix for path in (cache / "trace").iterdir()] == [".lock"]


@pytest.mark.parametrize("then", ["interrupts.check()", "raise ImportError('half imported')"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_swallowed_signal_counts_at_the_next_step(then: str, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", SWALLOWED.format(then=then), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("work", WORKS)
def test_stop_works_where_exceptions_are_suppressed(work: str, tmp_path: Path) -> None:
    require_stopped(run_stage(WORKS[work], signal.SIGINT, tmp_path), signal.SIGINT, tmp_path)


@pytest.fixture
def hang_ups_count() -> Iterator[None]:
    """Restore SIGHUP, which `nohup make test` ignores in all child processes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_ups_count")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_native_call_that_never_returns_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    require_stopped(run_stage(DEADLOCK, number, tmp_path), number, tmp_path)


def test_a_second_ctrl_c_waits_no_longer(tmp_path: Path) -> None:
    work = DEADLOCK.replace("0.2;", "1e9; threading.Timer(0.3, stop).start();")
    require_stopped(run_stage(work, signal.SIGINT, tmp_path), signal.SIGINT, tmp_path)


def test_who_started_it_with_nohup_has_it_go_on(tmp_path: Path) -> None:
    done = subprocess.run(
        ["nohup", sys.executable, "-c", STAGE.format(work="stop()"), str(int(signal.SIGHUP)), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "trace").glob("*/part"))


@pytest.mark.parametrize(("name", "code", "said"), [("typer", 130, "error: interrupted\n"), ("weakref", -2, "")])
def test_ctrl_c_while_the_program_is_imported_shows_no_traceback(name: str, code: int, said: str) -> None:
    program = f"""
import builtins, os, signal
import_module = builtins.__import__
def interrupted(name, *rest, **more):
    if name == {name!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return import_module(name, *rest, **more)
builtins.__import__ = interrupted
from peagle.compiler.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_import_lock_is_never_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, importer = (
        sys._getframe(),
        compile("import sys; here = sys._getframe()", "<frozen importlib._bootstrap>", "exec"),
    )
    names: dict[str, object] = {}
    exec(importer, names)
    monkeypatch.setattr(interrupts, "_stop", interrupts._Stop())
    interrupts._handle_signal(signal.SIGINT, names["here"])  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        interrupts._handle_signal(interrupts._AGAIN, frame)


def test_native_module_loading_is_never_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> FrameType:
        return (lambda: sys._getframe())()  # for example, an enumeration made by C++

    monkeypatch.setattr(interrupts, "_stop", interrupts._Stop())
    code = load.__code__.replace(co_qualname="ExtensionFileLoader.exec_module")
    interrupts._handle_signal(signal.SIGINT, FunctionType(code, globals())())
    with pytest.raises(KeyboardInterrupt):
        interrupts._handle_signal(interrupts._AGAIN, sys._getframe())


def test_one_stop_is_raised_once_while_it_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_stop", interrupts._Stop())
    with pytest.raises(SystemExit) as caught:
        interrupts._handle_signal(signal.SIGTERM, None)
    interrupts._handle_signal(interrupts._AGAIN, None)  # during cleanup
    assert caught.value.code == 143
    del caught
    with pytest.raises(SystemExit):
        interrupts._handle_signal(interrupts._AGAIN, None)


def test_stop_waits_for_held_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_stop", interrupts._Stop())
    with exit_cleanup.defer_stops():
        interrupts._handle_signal(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        interrupts._handle_signal(interrupts._AGAIN, None)


def test_process_removes_partial_files_on_every_kind_of_exit(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from peagle.compiler.console.exit_cleanup import remove_on_exit
with remove_on_exit(Path({str(tmp_path / "folder")!r})):
    os.makedirs({str(tmp_path / "folder" / "below")!r})
    raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGALRM]
)
def test_late_stop_keeps_the_exit_code(number: signal.Signals) -> None:
    program = f"""
import os, sys
class Late:
    def __del__(self, kill=os.kill, own=os.getpid()):
        kill(own, {int(number)})
late = Late()
sys.argv[1:] = ["--version"]
from peagle.compiler.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
