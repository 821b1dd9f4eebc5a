"""The supported targets at full size are traced on the meta device, within the memory of a small machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from peagle.compiler.checkpoints.known_pairs import PAIRS, HubRepo

TRACE = """
import resource, sys, time
from peagle.compiler.checkpoints.resolve_names import target_config
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.trace import trace_target

config, _ = target_config(sys.argv[1])
started = time.perf_counter()
skeleton = Skeleton(config)
model = trace_target(skeleton, skeleton.family.describe(config).with_taps(), "bfloat16")
print(len(model.graph), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.perf_counter() - started)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if isinstance(pair.target, HubRepo)])
def test_a_promised_target_is_traced_in_less_than_a_gigabyte(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", TRACE, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    nodes, peak, seconds = (float(number) for number in done.stdout.split())
    print(f"{name}: {nodes:.0f} nodes, {peak / 1e9:.2f} GB, {seconds:.0f} s")  # with -s: the figures of the docs
    assert nodes > 500
    assert peak < 1e9
