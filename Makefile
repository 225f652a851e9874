# Two commands: `make gate` runs the gate on this machine's CPU, `make test` runs the quick tests.
# Both set up what they need of one virtual environment first; stamp files keep that to once. Only the engine is large.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RESULTS := perfgate-results
ENGINE := $(VENV)/.engine
TESTS := $(VENV)/.tests
# Where the index of wheels for the CPU is named, torch alone comes from it: no other package may be taken from a second index.
TORCH_INDEX ?=
# Where a list of exact files is named, the tools, or the engine, come from it alone, by hash.
TEST_LOCK ?=
ENGINE_LOCK ?=
# More options of pip's.
PIP_FLAGS ?=
TORCH := $(shell grep -om1 'torch==[0-9.]*' pyproject.toml)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
# One worker more than the smallest machine has cores: tests wait for processes, and the quick tier took 341 s where two took 465.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadgroup

.PHONY: gate gate-regression test test-all coverage test-rest mutants lint clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

gate: $(ENGINE) ## measure, judge and report: the whole gate, on this machine's CPU
	$(BIN)/perfgate gate cpu-moe --parent $(RESULTS)

gate-regression: $(ENGINE) ## the same with a candidate whose steps take 60 % longer: ends in REGRESSION, exit code 1
	$(BIN)/perfgate gate cpu-moe --parent $(RESULTS) --candidate-inject step:0.60

test: $(TESTS) ## run the quick tests: no engine, no browser; minutes
	$(PYTEST) --tier quick

test-all: test test-rest ## run all tests, the real CPU gate among them

coverage: $(TESTS) ## run the quick tests and hold what they reach to the limit in pyproject.toml; twice the time of `make test`
	$(PYTEST) --tier quick --cov

test-rest: $(ENGINE) $(TESTS)
	$(PYTEST) --tier rest

mutants: $(TESTS) ## break the rule's code in every small way and write down what no test notices; a quarter of an hour
	$(PIP) --editable '.[mutation]'
	nice -n 19 $(BIN)/mutmut run --max-children 1
	$(BIN)/python benchmarks/mutation/collect.py

lint: $(TESTS) ## check style, types, workflows and scripts
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/zizmor --offline --no-progress --quiet --persona auditor .github/workflows
	$(BIN)/actionlint -shellcheck $(BIN)/shellcheck .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/shellcheck .ci/run .github/*.sh deploy/*.sh deploy/hooks/*.sh benchmarks/*/*.sh

clean: ## remove what the targets made
	rm -rf $(VENV) $(RESULTS) mutants .coverage .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The engine's pins and the package itself; pip says that SGLang's CUDA pins are unmet, which is the point.
$(ENGINE): pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV): real SGLang for the CPU, about 2.5 GB, once"
	$(if $(ENGINE_LOCK),$(PIP) --require-hashes --no-deps --only-binary :all: $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") --requirement "$(ENGINE_LOCK)")
	$(if $(ENGINE_LOCK),,$(if $(TORCH_INDEX),$(PIP) --index-url "$(TORCH_INDEX)" "$(TORCH)"))
	$(if $(ENGINE_LOCK),$(PIP) --no-index --no-deps --no-build-isolation --editable .,$(PIP) --editable '.[cpu-engine]')
	$(BIN)/perfgate engine install
	touch $@

# Without the engine. Where it comes later, its pins replace what was chosen freely here; where it came first, they stay.
$(TESTS): pyproject.toml | $(BIN)/python
	$(if $(TEST_LOCK),$(PIP) --require-hashes --no-deps --only-binary :all: --requirement "$(TEST_LOCK)")
	$(if $(TEST_LOCK),$(PIP) --no-index --no-deps --no-build-isolation --editable .,$(PIP) --editable '.[test]')
	$(if $(TEST_LOCK),,$(PIP) --no-deps apache-otava==0.8.0)
	touch $@
