# Two commands matter: `make demo` runs the main job, `make test` passes the tests.
# Everything lands in .venv (Python) and in the control plane cache (see `rackgate up --help`).

SHELL := bash
.DEFAULT_GOAL := help
# The one that .venv is made with; empty: the fastest on the PATH.
PYTHON ?=
BIN := .venv/bin
STEP := scripts/step
PYTEST := $(BIN)/python -m pytest
FAST := tests/unit tests/property tests/conformance tests/wire
BROWSER_TESTS := tests/console
PROSE := shared services cli osmo invariants deploy docs changelog.d README.md CONTRIBUTING.md CHANGELOG.md
# These need no control plane and share nothing. Those of whole services wait for most of their time:
# two processes for each core.
PROCESSES := $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
SPREAD := -n $(PROCESSES) --maxprocesses 8 --dist worksteal
# Three processes, each with a control plane of its own, one file after another in each; what only
# the run of all of them shows is judged after it, by the records in this folder.
PLANES := -n 3 --dist loadfile --no-loadscope-reorder
RECORDS := .rackgate/audit-records

# Where bytecode may not be kept, each process would compile all tests again, for 10 s of a core.
fast integration test: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test lint types contracts fast pages browser integration chaos redteam bench prove docs chart \
        pictures format locks controlplane clean

##@ Start

help: ## show this list
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## create .venv with the locked packages

.venv/.ready: requirements/bootstrap.lock requirements/dev.lock pyproject.toml
	@$(STEP) "create .venv" scripts/venv $(PYTHON)
	@$(STEP) "install uv" $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
	@$(STEP) "sync the locked packages" $(BIN)/uv pip sync -q --require-hashes requirements/dev.lock
	@$(STEP) "install rackgate" $(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## run the main job live on a real control plane
	@$(BIN)/rackgate demo

##@ Check

lint: setup ## check format, lint, types, import contracts and generated files
	@$(STEP) "format" $(BIN)/ruff format --check -q .
	@$(STEP) "lint" $(BIN)/ruff check -q .
	@$(STEP) "words" $(BIN)/codespell -D - -D docs/banned-words.txt $(PROSE)
	@$(STEP) "types" $(BIN)/mypy
	@$(STEP) "import contracts" $(BIN)/lint-imports --no-logo
	@$(STEP) "generated pages of docs/reference are fresh" $(BIN)/python -m tests.support.reference --check
	@$(STEP) "the Helm chart and deploy/elsewhere are fresh" $(BIN)/python -m tests.support.chart --check

fast: setup ## run the unit, property, conformance and wire tests
	@$(STEP) "unit, property, conformance and wire tests" $(PYTEST) -q $(SPREAD) $(FAST)
	@$(STEP) "stored examples" $(BIN)/python -m tests.prove.stored

pages: setup browser ## look at the pages of the console with a real browser
	@$(STEP) "types of the console's page" scripts/page-types
	@$(STEP) "pages of the console in a browser" $(PYTEST) -q -rs $(BROWSER_TESTS)

browser:
	@$(STEP) "Chromium" scripts/chromium

integration: controlplane ## run the tests on three real control planes
	@rm -rf $(RECORDS)
	@$(STEP) "integration tests on three real control planes" \
	  $(PYTEST) -q $(PLANES) --audit-records $(RECORDS) tests/integration
	@$(STEP) "rights that the whole run used" \
	  $(PYTEST) -q --audit-records $(RECORDS) tests/integration/whole_run.py

test: setup browser ## run every check and test
	@$(MAKE) --no-print-directory lint
	@$(STEP) "unit, property, conformance and wire tests" $(PYTEST) -q $(SPREAD) $(FAST)
	@$(STEP) "stored examples" $(BIN)/python -m tests.prove.stored
	@$(MAKE) --no-print-directory pages
	@$(MAKE) --no-print-directory integration

##@ Prove

prove: controlplane ## plant faults; each must make a marked test fail
	@$(STEP) "planted faults" $(BIN)/python -m tests.prove.run

chaos: controlplane ## run Jobs while everything fails: 20 seeds; SEEDS=n for more, SEED=k for one
	@$(STEP) "property tests on fresh examples" env -u CI $(PYTEST) -q $(SPREAD) tests/property
	@$(STEP) "chaos" $(PYTEST) -q -s tests/chaos

redteam: controlplane ## attack quota and placement with a user's rights, with webhooks up and down
	@$(STEP) "red team" $(PYTEST) -q -s tests/security

bench: controlplane ## measure against baselines in the same run
	@$(STEP) "bench: placement" $(BIN)/python -m bench.placement
	@$(STEP) "bench: trees" $(BIN)/python -m bench.tree
	@$(STEP) "bench: encoded assignments" $(BIN)/python -m bench.encoding
	@$(STEP) "bench: profiles" $(BIN)/python -m bench.profiles
	@$(STEP) "bench: decoding watch events" $(BIN)/python -m bench.decode
	@$(STEP) "bench: workflows for KAI" $(BIN)/python -m bench.osmo
	@$(STEP) "bench: webhook reviews" $(BIN)/python -m bench.webhook
	@$(STEP) "bench: requests of a Job" $(BIN)/python -m bench.requests
	@$(STEP) "bench: memory while Jobs come and go" $(BIN)/python -m bench.soak
	@$(STEP) "bench: pods ungated" $(BIN)/python -m bench.ungate
	@$(STEP) "bench: gangs released" $(BIN)/python -m bench.gangs --gangs 200
	@$(STEP) "bench: what gangs cost" $(BIN)/python -m bench.gang_cost
	@$(STEP) "bench: pods placed at birth" $(BIN)/python -m bench.birth
	@$(STEP) "bench: from create to running" $(BIN)/python -m bench.running
	@$(STEP) "bench: resizes by slices" $(BIN)/python -m bench.slices
	@$(STEP) "bench: the console" $(BIN)/python -m bench.console
	@$(STEP) "bench: jobs to bound pods" $(BIN)/python -m bench.jobs_to_bound
	@$(STEP) "bench: jobs to bound pods, nodes flapping" $(BIN)/python -m bench.jobs_to_bound --flap --rounds 1
	@$(STEP) "bench: jobs to bound pods, 2,560 nodes" $(BIN)/python -m bench.jobs_to_bound --large --rounds 1

##@ Write

format: setup ## format and fix what can be fixed
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

docs: chart ## write the generated pages of docs/reference, and the Helm chart
	@$(BIN)/python -m tests.support.reference

chart: setup ## write the Helm chart and deploy/elsewhere from manifests and settings
	@$(BIN)/python -m tests.support.chart

pictures: setup browser ## photograph every view and state of the console
	@$(STEP) "pictures of the console" $(BIN)/python -m tests.console.photograph

locks: setup ## resolve the locked packages again
	@for name in bootstrap dev; do $(BIN)/uv pip compile -q --upgrade --universal --no-header \
	  --generate-hashes --no-emit-index-url requirements/$$name.in -o requirements/$$name.lock; done
	@$(BIN)/uv pip compile -q --universal --no-header --generate-hashes --no-emit-index-url \
	  -c requirements/dev.lock requirements/runtime.in -o requirements/runtime.lock

##@ Machine

controlplane: setup ## build (or find) etcd, Kubernetes, KWOK, JobSet, KubeRay and LeaderWorkerSet
	@$(STEP) "control plane binaries" $(BIN)/rackgate binaries --with jobset,kuberay,lws

clean: ## remove the virtual environment and tool caches
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis
