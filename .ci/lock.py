"""Write the lock file: what pip resolves for this project with the extras export, rtx, serve and dev, as exact pins.

python .ci/lock.py requirements.lock        (`make lock` does this)
python .ci/lock.py --oldest constraints     (`make test-oldest`: the lower ends of the ranges that are tested)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
EXTRAS = ("export", "rtx", "serve", "dev")

# Only what we ask for ourselves is pinned of these. torch brings others along on some platforms and names their exact
# versions itself; a CPU wheel has none of them.
GPU_LIBRARIES = re.compile(r"nvidia-|cuda-|tensorrt|triton$")

# A CUDA wheel of the pinned torch insists on parts of this CUDA release, and the parts of nvcc must be of one release.
CUDA = "13.0"
OF_ONE_CUDA = ("nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-nvvm")

# There are no wheels of them for other systems; what needs them says so when it is called.
GPU_MARKER = ' ; sys_platform == "linux"'

# What we patch or call in ways that change from version to version; pip takes the newest of all others.
RANGED = ("huggingface-hub", "torch", "transformers")

HEADER = """\
# Exact versions for tests and the demo (pip install -e .[export,rtx,serve,dev]), resolved on Python {python}.
# Regenerate with: make lock
# No build tag on torch: a CPU wheel and a CUDA wheel of this version both satisfy the pin.
"""


def wanted() -> list[str]:
    """What pyproject.toml asks for, the build requirements too: the editable install builds without isolation."""
    project = tomllib.loads(PYPROJECT.read_text())
    extras = project["project"]["optional-dependencies"]
    lists = [project["build-system"]["requires"], project["project"]["dependencies"], *(extras[e] for e in EXTRAS)]
    return [requirement for one in lists for requirement in one]


def resolve() -> dict[str, Any]:
    """pip's installation report for an empty environment; installs nothing."""
    command = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input", "install"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={CUDA}.*\n" for name in OF_ONE_CUDA)
        constraints.flush()
        command += ["--constraint", constraints.name, "--dry-run", "--ignore-installed", "--report", "-", *wanted()]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def normal(name: str) -> str:
    """A distribution's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(roots: list[str], needs: dict[str, list[str]]) -> set[str]:
    """The distributions that the requirements ask for, and those that these need, as far as `needs` knows them."""
    found: set[tuple[str, str]] = set()
    todo = [(requirement, "") for requirement in roots]
    while todo:
        text, extra = todo.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for one in ("", *requirement.extras):
            key = (normal(requirement.name), one)
            if key not in found:
                found.add(key)
                todo += [(text, one) for text in needs.get(key[0], [])]
    return {name for name, _ in found}


def pins(report: dict[str, Any]) -> list[str]:
    """``name==version`` lines, sorted, without local build tags and without the GPU libraries that torch asks for."""
    metadata = {normal(item["metadata"]["name"]): item["metadata"] for item in report["install"]}
    needs = {name: one.get("requires_dist", []) for name, one in metadata.items()}
    ours = needed([r for r in wanted() if GPU_LIBRARIES.match(normal(Requirement(r).name))], needs)
    lines = []
    for name, one in metadata.items():
        gpu = bool(GPU_LIBRARIES.match(name))
        if not gpu or name in ours:
            lines.append(f"{name}=={one['version'].partition('+')[0]}{GPU_MARKER if gpu else ''}")
    return sorted(lines)


def oldest() -> list[str]:
    """``name==version`` lines of the lower ends of the tested ranges."""
    ranges = [one for one in map(Requirement, wanted()) if normal(one.name) in RANGED]
    ends = [(one.name, next(end.version for end in one.specifier if end.operator == ">=")) for one in ranges]
    return sorted(f"{name}=={version}" for name, version in ends)


def main() -> None:
    """Write the file named on the command line."""
    if sys.argv[1] == "--oldest":
        Path(sys.argv[2]).write_text("\n".join(oldest()) + "\n")
        return
    report = resolve()
    python = ".".join(report["environment"]["python_version"].split(".")[:2])
    Path(sys.argv[1]).write_text(HEADER.format(python=python) + "\n".join(pins(report)) + "\n")


if __name__ == "__main__":
    main()
