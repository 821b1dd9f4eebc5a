"""Write the lock file: what pip resolves for this project with the extras export and dev, as exact pins.

python .ci/lock.py requirements.lock        (`make lock` does this)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
EXTRAS = ("export", "dev")

# torch brings these along on some platforms and names their exact versions itself; a CPU wheel has none of them.
GPU_LIBRARIES = re.compile(r"nvidia-|cuda-|triton$")

HEADER = """\
# Exact versions for development, tests and the demo (pip install -e .[export,dev]), resolved on Python {python}.
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
    command += ["--dry-run", "--ignore-installed", "--report", "-", *wanted()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def pins(report: dict[str, Any]) -> list[str]:
    """``name==version`` lines, sorted, without local build tags and GPU libraries."""
    lines = []
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if not GPU_LIBRARIES.match(name):
            lines.append(f"{name}=={item['metadata']['version'].partition('+')[0]}")
    return sorted(lines)


def main() -> None:
    """Resolve and write the file named on the command line."""
    report = resolve()
    python = ".".join(report["environment"]["python_version"].split(".")[:2])
    Path(sys.argv[1]).write_text(HEADER.format(python=python) + "\n".join(pins(report)) + "\n")


if __name__ == "__main__":
    main()
