"""What the house rules still let pass. The lists only shrink: an entry without need fails its rule as well."""

from __future__ import annotations

# Imports of a wing that is not below.
UP: frozenset[str] = frozenset(
    {
        "peagle.compiler.hardware.gpus imports peagle.compiler.precision.legal",
        "peagle.compiler.pipeline.build imports peagle.compiler.tune.choose_k",
        "peagle.compiler.pipeline.report imports peagle.compiler.tune.choose_k",
        "peagle.compiler.precision.built imports peagle.compiler.tensorrt.matmuls",
        "peagle.compiler.precision.products imports peagle.compiler.tensorrt.matmuls",
        "peagle.compiler.request.doctor imports peagle.compiler.pipeline.half",
    }
)

# Modules that import each other.
CIRCLES: frozenset[str] = frozenset()

# Names of more than one class.
TWICE: frozenset[str] = frozenset(
    {
        "Acceptance",
        "Attention",
        "Backend",
        "Choice",
        "Device",
        "Drafter",
        "Experts",
        "Gpu",
        "Graph",
        "Limits",
        "Linear",
        "Plan",
        "Request",
        "Sizes",
        "Stream",
        "Tensor",
        "Trial",
        "_Reader",
        "_Work",
    }
)

# Public docstrings that begin without a subject.
FRAGMENTS: frozenset[str] = frozenset(
    {
        "compiler/checkpoints/formats/base.py::Tensor.shape",
        "compiler/checkpoints/formats/numbers.py::check_codes",
        "compiler/console/progress.py::Bars.step",
        "compiler/console/progress.py::Quiet.step",
        "compiler/pipeline/half.py::product_version",
        "compiler/precision/built.py::losses",
        "compiler/precision/caches.py::stored_cache_scales",
        "compiler/precision/calibration/methods.py::Max.describe",
        "compiler/precision/calibration/methods.py::Max.observer",
        "compiler/precision/calibration/methods.py::Mse.describe",
        "compiler/precision/calibration/methods.py::Mse.observer",
        "compiler/precision/calibration/methods.py::Percentile.describe",
        "compiler/precision/calibration/methods.py::Percentile.observer",
        "compiler/precision/calibration/ranges.py::in_words",
        "compiler/precision/calibration/states.py::States",
        "compiler/precision/proof.py::Narrowed.share",
        "compiler/precision/proof.py::Narrowed.streams",
        "compiler/precision/provider.py::Provider.codes",
        "compiler/precision/provider.py::Provider.scales",
        "compiler/precision/provider.py::Weight.count",
        "compiler/precision/provider.py::narrowed",
        "compiler/precision/provider.py::without",
        "compiler/precision/recipes.py::Recipe.on",
        "compiler/precision/rounded.py::RoundedHere.losses",
        "compiler/precision/rounded.py::RoundedHere.scales",
        "compiler/precision/schemes.py::Scheme.smallest_block",
        "compiler/precision/schemes.py::scheme",
        "compiler/precision/source.py::Matrix",
        "compiler/precision/source.py::Matrix.count",
        "compiler/precision/source.py::matrices",
        "compiler/precision/source.py::of_drafter",
        "compiler/precision/source.py::of_target",
        "compiler/precision/stored.py::StoredFp8",
        "compiler/precision/stored.py::StoredFp8.losses",
        "compiler/tensorrt/program.py::read_programs",
        "compiler/tensorrt/request.py::PlanFacts.to_record",
        "compiler/verify/groups.py::Only.check",
        "compiler/verify/groups.py::Only.codes",
        "compiler/verify/groups.py::Only.key",
        "compiler/verify/groups.py::Only.losses",
        "compiler/verify/groups.py::Only.notes",
        "compiler/verify/groups.py::Only.others",
        "compiler/verify/groups.py::Only.recipe",
        "compiler/verify/groups.py::Only.scales",
        "compiler/verify/groups.py::Only.uncalibrated",
        "compiler/verify/groups.py::Only.wanted",
        "compiler/verify/groups.py::Only.weights",
        "compiler/verify/groups.py::groups_of",
        "compiler/verify/losslessness.py::",
        "compiler/verify/origin.py::on_cpu",
        "compiler/verify/pairs.py::Workshop.target_of",
        "compiler/verify/perplexity.py::perplexity",
        "compiler/verify/perplexity.py::pooled",
        "compiler/verify/precision.py::Precision.as_json",
        "compiler/verify/precision.py::finite",
        "compiler/verify/run.py::verify_elsewhere",
        "compiler/verify/texts.py::read_texts",
        "engines/backends/base.py::Emitted.read",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.admit",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.begin",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.draft_logits",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.first",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.prefill",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.retire",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.step",
        "engines/backends/onnxruntime/backend.py::OnnxRuntimeBackend.target_logits",
        "engines/backends/tensorrt/backend.py::TensorRTBackend",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.admit",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.begin",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.draft_logits",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.first",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.prefill",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.retire",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.step",
        "engines/backends/tensorrt/backend.py::TensorRTBackend.target_logits",
        "engines/backends/tensorrt/contract.py::Contract.shape",
        "engines/backends/tensorrt/device.py::CudaDevice",
        "engines/backends/tensorrt/device.py::CudaDevice.allocate",
        "engines/backends/tensorrt/device.py::CudaDevice.capture",
        "engines/backends/tensorrt/device.py::CudaDevice.copy",
        "engines/backends/tensorrt/device.py::CudaDevice.download",
        "engines/backends/tensorrt/device.py::CudaDevice.launch",
        "engines/backends/tensorrt/device.py::CudaDevice.pinned",
        "engines/backends/tensorrt/device.py::CudaDevice.record",
        "engines/backends/tensorrt/device.py::CudaDevice.upload",
        "engines/backends/tensorrt/pinned.py::LateEmission.read",
        "graphs/lowering/ort/codes.py::blocks_of",
        "graphs/names.py::wanted",
        "graphs/names.py::weight_name",
        "graphs/rounding/nodes.py::code_shape",
        "graphs/rounding/nodes.py::scale_dtype",
        "graphs/rounding/nodes.py::scale_shape",
        "graphs/rounding/rules.py::Rule.sites",
        "graphs/targets/census.py::RoledWeight.count",
        "graphs/targets/gemma4.py::Gemma4.patches",
        "graphs/targets/semantic.py::rotate_one",
        "plugins/kernels/compile.py::nvcc_version",
        "plugins/kernels/compile.py::nvrtc_version",
        "plugins/tensorrt/quick_deploy.py::",
    }
)

# Public docstrings whose first line goes on in the next.
UNFINISHED: frozenset[str] = frozenset(
    {
        "compiler/pipeline/build.py::",
        "compiler/verify/bisect.py::Bisection",
        "engines/backends/tensorrt/contract.py::Contract",
        "engines/folder/manifest.py::Manifest",
        "graphs/lowering/tensorrt/mx.py::",
        "graphs/rounding/rewrite.py::",
        "plugins/tensorrt/fields.py::read",
        "plugins/tensorrt/quick_deploy.py::implementer",
    }
)

# Folders with too many entries.
FULL: frozenset[str] = frozenset(
    {
        "compiler/verify",
    }
)

# Modules that are too small to be found.
SMALL: frozenset[str] = frozenset(
    {
        "graphs/lowering/ort/contrib.py",
        "graphs/lowering/tensorrt/plugins.py",
    }
)

# Tests of no one module that do not lie in `tests/scenarios/`, or not where their module lies.
ELSEWHERE: frozenset[str] = frozenset(
    {
        "tests/compiler/pipeline/quantize/test_parts.py",
        "tests/compiler/precision/calibration/test_resume.py",
        "tests/compiler/verify/test_measures.py",
        "tests/engines/backends/test_host_device.py",
        "tests/graphs/lowering/ort/test_linears.py",
        "tests/graphs/lowering/tensorrt/test_lowering.py",
        "tests/graphs/lowering/test_lowering.py",
        "tests/plugins/kernels/test_baselines.py",
        "tests/plugins/kernels/test_driver_calls.py",
        "tests/plugins/tensorrt_plugins/test_aot.py",
        "tests/plugins/tensorrt_plugins/test_check.py",
        "tests/plugins/tensorrt_plugins/test_fields.py",
        "tests/plugins/tensorrt_plugins/test_module.py",
        "tests/plugins/tensorrt_plugins/test_plugin.py",
        "tests/plugins/tensorrt_plugins/test_quick_deploy.py",
        "tests/plugins/test_op_spec.py",
        "tests/plugins/test_sampling.py",
        "tests/test_docs.py",
    }
)
