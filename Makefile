# `make help` lists the targets. They write to .venv-tf<version> and build/ only.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

TF ?= 2.21.0
VENV ?= .venv-tf$(TF)
WORKERS ?= 2
JOBS ?= $(shell nproc)
export TF VENV JOBS CASES TURN TURNS_OF

python := $(VENV)/bin/python
cmake := $(VENV)/bin/cmake
ctest := $(VENV)/bin/ctest
cpp_files := git ls-files '*.h' '*.cc' '*.cu' '*.cuh'

# configured,FOLDER,OPTIONS: writes the files of a build.
define configured
$(cmake) -S . -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
  -DPython3_EXECUTABLE=$(abspath $(python)) $(2) >/dev/null
endef

# core_build,FOLDER,OPTIONS,TARGET: configures (once) and builds the core alone, or a target of it.
define core_build
{ test -f $(1)/build.ninja || $(call configured,$(1),-DLOCKSTEP_BUILD_OPS=OFF $(2)); } && \
$(cmake) --build $(1) -j $(JOBS) $(if $(3),--target $(3)) -- --quiet
endef

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 13
	@echo 'Variables: TF=2.15.1 (TensorFlow), WORKERS=2 (make train), DATA=folder (make train), FOR=python (make gpu: of the environment that gets the library), TESTS="paths or options" (make test, make test-python), FILTER="Rendezvous*" (make test-core: a pattern of GoogleTest), FAULTS="--faults kill --moments step" (make test-faults), SECONDS=60 (make fuzz), ROWS="tf2.1*" (make test-matrix), MINUTES=30 SEED=number (make soak)'

.PHONY: setup
setup: ## the virtual environment with TensorFlow, the op library and the façades
	@tools/setup.sh ops

.PHONY: check-workers
check-workers:
	@[[ '$(WORKERS)' =~ ^[1-9][0-9]*$$ ]] || { echo "make train: WORKERS=$(WORKERS): wanted a number, 1 or more" >&2; exit 2; }

.PHONY: gpu
gpu: $(if $(FOR),,setup) ## the library for GPUs, beside the op library; a CUDA compiler comes from PyPI if none is installed (105 MB)
	@tools/setup.sh core cuda
	@$(call core_build,build/gpu,-DLOCKSTEP_BUILD_CUDA=ON,lockstep_cuda13)
	@folder="$$($(or $(FOR),$(python)) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lockstep" && \
	{ test -f "$$folder/_build_info.py" || { echo "make gpu: FOR=$(FOR): no lockstep-tf is installed in $$folder" >&2; exit 2; }; } && \
	cp build/gpu/core/device/liblockstep_cuda13.so "$$folder/" && echo "$$folder/liblockstep_cuda13.so"

# The two files that tools/device_check.sh takes to a machine with a GPU, and strips.
.PHONY: device-check-programs
device-check-programs:
	@tools/setup.sh core tests cuda
	@$(call core_build,build/core-tf-$(TF),$(core_tests_options),lockstep_device_check lockstep_cuda13)
	@mkdir -p build/device_check/programs
	@cp build/core-tf-$(TF)/core/device/check/lockstep_device_check \
	  build/core-tf-$(TF)/core/device/liblockstep_cuda13.so build/device_check/programs/

.PHONY: train
train: check-workers setup ## train a ranking model on WORKERS workers: on generated data, or on DATA
	@folder=$$($(python) examples/ranking/data.py --source "$(DATA)") && \
	CUDA_VISIBLE_DEVICES= $(python) -m hybridbackend.run -n $(WORKERS) \
	  $(python) examples/ranking/train.py --data "$$folder" $(TRAIN)

# The core is built while pip unpacks TensorFlow, which takes one core; the op library then takes its objects from ccache.
# The core's tests mostly wait, for deadlines and for each other, so they run beside Python's; their output comes last.
# REDUCED=1 runs the tests that another version of TensorFlow could break (conftest.py defines them), and of a test with
# several cases every third. `make test-matrix` runs all of their cases. CASES=N runs every N-th case of each test,
# beginning with number TURN; with TURNS_OF=file, every N-th test of each file.
.PHONY: test
test: ## all tests: the core's with ctest, Python's with pytest
	@tools/setup.sh core tests $(cuda_compiler)
	@tools/setup.sh python $(optional_packages) & environment=$$!; core=0; \
	$(core_tests_build) || core=$$?; \
	wait $$environment && exit $$core
	@WERROR=ON tools/setup.sh ops standin
	@core=0; python=0; output=build/core-tf-$(TF)/tests.txt; \
	$(core_tests) '' $(if $(REDUCED),-R columnar) >"$$output" 2>&1 & core_tests=$$!; \
	trap 'kill $$core_tests 2>/dev/null' EXIT; \
	$(python_tests) || python=$$?; \
	[ $$python = 2 ] && exit 2; \
	wait $$core_tests || core=$$?; \
	cat "$$output"; \
	echo "TensorFlow $(TF): core tests $$([ $$core = 0 ] && echo passed || echo FAILED)," \
	  "Python tests $$([ $$python = 0 ] && echo passed || echo FAILED)"; \
	exit $$((core || python))

core_tests_build = $(call core_build,build/core-tf-$(TF),$(core_tests_options),$(if $(REDUCED),lockstep_columnar_tests))
core_tests_options := -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_WERROR=ON
# With a CUDA compiler the library for GPUs is built as well, so that no change breaks it unseen.
cuda_compiler = $(if $(REDUCED),,cuda)
core_tests = tools/test_core.sh build/core-tf-$(TF)
optional_packages = $(if $(REDUCED),,kubernetes mlflow)
python_tests = $(if $(REDUCED),CASES=$(or $(CASES),3)) tools/test_python.sh $(if $(REDUCED),--reduced) $(TESTS)

.PHONY: test-long
test-long: ## the tests that make test leaves out because they take long; TESTS selects some
	@tools/setup.sh core tests ops standin spark ray
	@$(if $(TESTS),,$(core_tests_build) && LOCKSTEP_LONG_TESTS=1 $(core_tests) '' -R '^device_')
	@$(python) -m pytest --long -m long --timeout=1200 $(or $(TESTS),--ignore=tests/hosts python tf tests)

.PHONY: check-filter
check-filter:
	@[[ '$(FILTER)' =~ ^[A-Za-z0-9_.*?:/-]*$$ ]] || \
	  { echo "make test-core: FILTER=$(FILTER): wanted a pattern of GoogleTest, such as Rendezvous*" >&2; exit 2; }

.PHONY: test-core
test-core: check-filter ## the core's tests; FILTER selects some
	@tools/setup.sh core tests $(cuda_compiler)
	@$(core_tests_build)
	@$(core_tests) '$(FILTER)'

.PHONY: test-python
test-python: ## Python's tests; TESTS selects some
	@tools/setup.sh ops standin
	@$(python_tests)

# Programs for emulated hosts: the engine's tests, and the switch for slow and lossy cables.
define hosts_setup
	@tools/setup.sh tests hosts
	@$(call core_build,build/core-tf-$(TF),$(core_tests_options),lockstep_comm_test lockstep_emulated_switch)
	@$(python) -m lockstep.testing.emulated_cluster
endef

.PHONY: test-hosts
test-hosts: setup ## jobs on emulated hosts (as root): the engine's tests, the main job, killed hosts, cut cables
	$(hosts_setup)
	@$(python) -m pytest --long --timeout=600 $(or $(TESTS),tests/hosts)

.PHONY: test-faults
test-faults: setup ## the table of faults and moments of jobs on two emulated hosts (as root), 20 to 60 minutes
	$(hosts_setup)
	@$(python) -m tests.hosts.faults $(FAULTS)

.PHONY: bench
bench: setup ## benchmarks of the core and of the TensorFlow layer; PUBLISH=1 writes their output into docs/benchmarks.md
	@tools/setup.sh bench tfra tests hosts
	@$(call core_build,build/bench-tf-$(TF),-DLOCKSTEP_BUILD_BENCHMARKS=ON)
	@$(call core_build,build/core-tf-$(TF),$(core_tests_options),lockstep_emulated_switch)
	@rm -rf build/bench-output && mkdir -p build/bench-output
	@set -o pipefail; keep() { tee build/bench-output/$$(basename "$$1" .py).txt; }; \
	for binary in build/bench-tf-$(TF)/core/*/lockstep_*_benchmark; do echo "== $$binary"; $$binary | keep $$binary || exit; done; \
	for script in $$(git ls-files 'benchmarks/*.py' ':!benchmarks/peers'); do \
	  echo "== $$script"; $(python) $$script | keep $$script || exit; done
	@$(if $(PUBLISH),$(python) tools/bench_page.py build/bench-output)
	@$(python) benchmarks/peers/compare.py --workloads dlrm-16 --systems plain apart dense lockstep \
	  --json build/peers/dlrm.json

.PHONY: bench-peers
bench-peers: setup ## Lockstep, Horovod, TorchRec and others on the same workloads, 35 minutes; tables and picture of the pages
	@tools/setup.sh peers
	@$(python) benchmarks/peers/compare.py --publish

# sanitized,NAME,SANITIZERS,ENVIRONMENT
define sanitized
	@tools/setup.sh python tests
	@$(call core_build,build/$(1)-tf-$(TF),-DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_SANITIZE=$(2))
	$(3)$(ctest) --test-dir build/$(1)-tf-$(TF) --output-on-failure --no-tests=error -j $(JOBS)
endef

.PHONY: coverage
coverage: ## which lines of the code for devices the tests execute, without a device
	@tools/setup.sh tests ops standin
	@tools/coverage.sh

.PHONY: asan
asan: ## the core's tests with the address and undefined behaviour sanitizers
	$(call sanitized,asan,address$(comma)undefined)

.PHONY: tsan
tsan: ## the core's tests with the thread sanitizer
	$(call sanitized,tsan,thread,TSAN_OPTIONS=suppressions=$(CURDIR)/tools/tsan.supp )

# Seconds per target.
SECONDS ?= 60
.PHONY: fuzz
fuzz: setup ## malformed messages and files for all readers, SECONDS=60 for each target
	@tools/setup.sh tests fuzz
	@$(call core_build,build/fuzz-tf-$(TF),-DLOCKSTEP_BUILD_FUZZERS=ON -DCMAKE_CXX_COMPILER=clang++ \
	  -DLOCKSTEP_SANITIZE=fuzzer-no-link$(comma)address$(comma)undefined,lockstep_fuzzers)
	@tools/fuzz.sh build/fuzz-tf-$(TF) $(SECONDS)

# MINUTES is the time during which jobs are killed; they train on after that. SEED determines victims and moments.
MINUTES ?= 30
.PHONY: soak
soak: setup ## train for MINUTES=30 while workers and launchers are killed; compare with an undisturbed run
	@$(python) -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

comma := ,

.PHONY: format
format: ## format C++ and Python
	@tools/setup.sh python lint
	$(cpp_files) | xargs -r clang-format -i
	$(python) -m ruff check -q --fix . ; $(python) -m ruff format -q .

# The commands that compile tf/ and the benchmarks come from a build folder that is only configured, without precompiled
# headers: clang does not read those of GCC. clang-tidy guesses commands of files that no build has, and guesses wrong:
# the driver of libFuzzer, which only clang compiles, is left out.
.PHONY: lint
lint: ## formatting, common mistakes, locks, layers and types, of C++ and Python; the links of the pages
	@tools/setup.sh python lint tests docs
	$(docs_build)
	$(python) tools/check_layers.py
	$(python) -m ruff check . && $(python) -m ruff format --check .
	$(python) -m mypy
	$(cpp_files) | xargs -r clang-format --dry-run -Werror
	@$(core_tests_build)
	git ls-files 'core/*.cc' ':!*_benchmark.cc' ':!*/libfuzzer_driver.cc' | xargs -r -n 4 -P $(JOBS) clang-tidy --quiet -p build/core-tf-$(TF)
	@$(call configured,build/lint-tf-$(TF),-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DLOCKSTEP_BUILD_BENCHMARKS=ON)
	git ls-files 'tf/*.cc' 'tests/*.cc' '*_benchmark.cc' | xargs -r -n 2 -P $(JOBS) clang-tidy --quiet -p build/lint-tf-$(TF)
	$(python) -m pytest -q --noconftest tests/scripts/locks_test.py

docs_build = NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.PHONY: docs
docs: ## the pages of tests and of replaced symbols; the site of all pages, with the reference, in build/site
	@tools/setup.sh docs
	.venv-docs/bin/python tools/tests_page.py
	PYTHONPATH=python .venv-docs/bin/python tools/hooks_page.py
	$(docs_build)

.PHONY: wheel
wheel: ## the wheels in dist/, with libraries for all supported TensorFlows and pyarrows
	@tools/setup.sh compiler
	@tools/wheel.sh

# ROWS is a pattern of rows, such as tf2.1?*-py3.11. The table is written into docs/install.md.
ROWS ?= *
.PHONY: test-matrix
test-matrix: wheel ## the reduced tests with these wheels on every TensorFlow and Python, hours; ROWS selects some
	@$(or $(PYTHON),python3) tools/matrix.py --write --only '$(ROWS)' $(TESTS)

.PHONY: docs-test
docs-test: setup ## the programs and commands of README and the pages, and their links (a part of make test)
	@$(python) -m pytest --timeout=600 tests/scripts/pages_test.py tests/scripts/readme_test.py tests/surface/links_test.py

.PHONY: clean
clean: ## remove all built files; virtual environments stay
	rm -rf build .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
