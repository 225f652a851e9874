# Two commands for everybody: `make gate` runs the gate on this machine's CPU, `make test` runs the tests.
# Both set up their own virtual environment first; a stamp file keeps that to once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RESULTS := perfgate-results
ENGINE := $(VENV)/.engine
TESTS := $(VENV)/.tests

.PHONY: gate gate-regression test mutants lint coverage clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

gate: $(ENGINE) ## measure, judge and report: the whole gate, on this machine's CPU
	$(BIN)/perfgate gate cpu-moe --parent $(RESULTS)

gate-regression: $(ENGINE) ## the same with a candidate that is about 25 % slower: ends in REGRESSION, exit code 1
	$(BIN)/perfgate gate cpu-moe --parent $(RESULTS) --candidate-inject step:0.30

test: $(ENGINE) $(TESTS) ## run the tests, the real CPU gate among them
	$(BIN)/python -m pytest --cov --numprocesses 2 --dist loadgroup

mutants: $(TESTS) ## break the rule's code in every small way and write down what no test notices; a quarter of an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutation]'
	nice -n 19 $(BIN)/mutmut run --max-children 1
	$(BIN)/python benchmarks/mutation/collect.py

lint: $(TESTS) ## check style, types, workflows and scripts
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/zizmor --offline --no-progress --quiet .github/workflows
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/shellcheck .ci/run .github/*.sh deploy/hooks/*.sh benchmarks/kernels/*.sh

clean: ## remove what the targets made
	rm -rf $(VENV) $(RESULTS) mutants .coverage .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The engine's pins and the package itself; pip says that SGLang's CUDA pins are unmet, which is the point.
$(ENGINE): pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV): real SGLang for the CPU, about 2.5 GB, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu-engine]'
	$(BIN)/perfgate engine install
	touch $@

$(TESTS): pyproject.toml | $(ENGINE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps apache-otava==0.8.0
	touch $@
