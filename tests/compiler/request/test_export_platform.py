"""The platform of a build from an export: a graph with TensorRT's expert layer requires its GPUs and TensorRT 11."""

from __future__ import annotations

import pytest

from peagle.compiler.hardware.machine import LocalGpu, Machine
from peagle.compiler.request import export_platform
from peagle.compiler.request.export_platform import ExportedGraphs, planned_platform, platform_of_export
from peagle.compiler.request.request import BackendOptions
from peagle.plugins.errors import EnvironmentProblem, UsageError

WITH_LAYER = ExportedGraphs("an-export", "tensorrt-sm100", has_expert_layer=True)
DENSE = ExportedGraphs("an-export", "tensorrt")
DENSE_FOR_B200 = ExportedGraphs("an-export", "tensorrt-sm100")  # without routed experts, or with these in MXFP4


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    sm, version = request.param
    here = Machine((LocalGpu("a GPU", sm),), {"tensorrt": version})
    monkeypatch.setattr(export_platform, "inspect_machine", lambda: here)


@pytest.mark.parametrize(
    ("machine", "exported"),
    [
        ((100, "11.0.0"), WITH_LAYER),
        ((103, "11.0.0"), WITH_LAYER),
        ((100, "10.15.1"), DENSE),
        ((90, "10.15.1"), DENSE),
        ((100, "10.15.1"), DENSE_FOR_B200),
    ],
    indirect=["machine"],
)
@pytest.mark.usefixtures("machine")
def test_export_is_built_in_its_own_form(exported: ExportedGraphs) -> None:
    assert platform_of_export(BackendOptions(), exported).lowering.name == exported.lowering


def test_unknown_gpus_are_not_reported_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem, why in (("the GPUs are unknown", "the GPUs are unknown"), ("", "there is no NVIDIA GPU")):
        here = Machine((), {"tensorrt-rtx": "1.7.1"}, problem)
        monkeypatch.setattr(export_platform, "inspect_machine", lambda here=here: here)
        with pytest.raises(UsageError, match="no GPU was specified") as caught:
            platform_of_export(BackendOptions("tensorrt-rtx"), DENSE)
        assert caught.value.why == f"{why}; and the export does not name one (--gpu)"


@pytest.mark.parametrize("machine", [(100, "10.15.1"), (103, "10.16.0")], indirect=True)
@pytest.mark.usefixtures("machine")
def test_export_for_this_gpu_with_an_older_tensorrt_is_refused_with_an_upgrade() -> None:
    with pytest.raises(EnvironmentProblem, match="needs TensorRT 11 or newer") as caught:
        platform_of_export(BackendOptions(), WITH_LAYER)
    assert "no layer for routed experts" in caught.value.why
    assert "pip install --upgrade 'tensorrt>=11,<12'" in caught.value.fix
    assert "--experts dense" in caught.value.fix


@pytest.mark.parametrize("machine", [(90, "10.15.1"), (90, "11.0.0")], indirect=True)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("exported", "why"),
    [
        (WITH_LAYER, "TensorRT has no layer for routed experts on sm_90"),
        (DENSE_FOR_B200, "these graphs were made for TensorRT on sm_100, sm_103, sm_110"),
    ],
    ids=["layer", "dense"],
)
def test_export_for_other_gpus_is_refused_with_an_export_for_this_one_whatever_the_version(
    exported: ExportedGraphs, why: str
) -> None:
    with pytest.raises(UsageError, match="is for other GPUs") as caught:
        platform_of_export(BackendOptions(), exported)
    assert caught.value.why == why
    assert caught.value.fix == "export again with `--for tensorrt --gpu sm_90`"


@pytest.mark.parametrize("gpu", ["b200", "b300", "h200", "rtx-5090"])
@pytest.mark.parametrize("exported", [WITH_LAYER, DENSE_FOR_B200], ids=["layer", "dense"])
def test_plan_for_another_machine_needs_only_its_gpu(gpu: str, exported: ExportedGraphs) -> None:
    options = BackendOptions(gpus=(gpu,))
    if gpu in ("h200", "rtx-5090"):
        with pytest.raises(UsageError, match="is for other GPUs"):
            planned_platform(options, exported)
    else:
        platform = planned_platform(options, exported)
        assert platform is not None
        assert platform.lowering.name == exported.lowering
