# Every target makes the virtual environment that it needs; the first run downloads packages.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := crds/kvaware_crds engine/kvaware_engine cluster/kvaware_cluster extender/kvaware_extender operator/kvaware_operator simulator/kvaware_simulator cli/kvaware_cli

.PHONY: help install demo test check fix generate unit component e2e vllm bench controlplane kind-up kind-down lock clean

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(VENV)/.installed: requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvaware needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 ...")'
	@echo "making the virtual environment $(VENV) (once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

install: $(VENV)/.installed ## Make the virtual environment

demo: $(VENV)/.installed ## Watch kvaware place example pods and requests; CLUSTER=real: pods, on a real control plane
ifeq ($(CLUSTER),real)
	@PYTHONPATH=tests $(BIN)/python -m kvaware_testing.real_demo
else
	@$(BIN)/kvaware demo $(if $(CLUSTER),--cluster $(CLUSTER))
endif

test: $(VENV)/.installed ## Run all tests, on a real kube-apiserver and kube-scheduler too
	$(BIN)/pytest tests/unit tests/component tests/e2e

check: $(VENV)/.installed ## Format, lint, types, import layers, generated files, unit tests
	$(BIN)/ruff format --check $(SOURCES) tests
	$(BIN)/ruff check $(SOURCES) tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m kvaware_crds.generate --check crds
	$(BIN)/python -m kvaware_crds.generate --check helm/kvaware/crds
	$(BIN)/python -m kvaware_cli.docs --check docs
	$(BIN)/pytest -q tests/unit

fix: $(VENV)/.installed ## Repair what can be repaired by itself
	$(BIN)/ruff check --fix $(SOURCES) tests
	$(BIN)/ruff format $(SOURCES) tests

generate: $(VENV)/.installed ## Rewrite the CRDs, the chart's copy of them and the reference pages
	$(BIN)/python -m kvaware_crds.generate crds
	$(BIN)/python -m kvaware_crds.generate helm/kvaware/crds
	$(BIN)/python -m kvaware_cli.docs docs

unit: $(VENV)/.installed ## Unit tests only
	$(BIN)/pytest -q tests/unit

component: $(VENV)/.installed ## Component tests only
	$(BIN)/pytest -q tests/component

e2e: $(VENV)/.installed ## End-to-end tests only
	$(BIN)/pytest tests/e2e

VLLM := build/vllm

$(VLLM)/.installed: tests/vllm/requirements.txt
	@[ "$$(uname -sm)" = "Linux x86_64" ] || { echo "make vllm needs Linux on x86-64, and this is $$(uname -sm)" >&2; exit 1; }
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || \
	  { echo "make vllm needs libnuma.so.1, and it is not there. On Debian and Ubuntu: apt-get install libnuma1" >&2; exit 1; }
	@echo "making the virtual environment $(VLLM)/venv (once; 3 GB to download, 6 GB on disk)"
	@if command -v uv >/dev/null; then \
	  uv venv --quiet --clear --python 3.11 $(VLLM)/venv && \
	  uv pip install --quiet --python $(VLLM)/venv/bin/python --no-deps --compile-bytecode -r $<; \
	else \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "make vllm needs uv, or Python 3.11; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 vllm")' && \
	  $(PYTHON) -m venv --clear $(VLLM)/venv && \
	  $(VLLM)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<; \
	fi
	@touch $@

vllm: $(VENV)/.installed $(VLLM)/.installed ## Tests against real vLLM engines on the CPU (5 minutes; 3 GB to download, once)
	@$(VLLM)/venv/bin/python tests/vllm/make_model.py $(VLLM)/model
	$(BIN)/pytest tests/vllm

bench: $(VENV)/.installed ## Measure hot paths as ratios inside one run; writes build/bench.json
	@PYTHONPATH=tests $(BIN)/python tests/bench/run.py $(PARTS)

controlplane: $(VENV)/.installed ## Build or find the control plane's programs (some 10 minutes, once)
	@PYTHONPATH=tests $(BIN)/python -m kvaware_testing.controlplane build

# What kind-up calls, and what to say where it is missing.
KIND_NEEDS := docker kind kubectl helm
KIND_IMAGE := kvaware:kind

kind-up: ## A cluster in Docker with the chart installed, to try it (needs docker, kind, kubectl, helm)
	@for program in $(KIND_NEEDS); do command -v $$program >/dev/null || \
	  { echo "make kind-up needs $$program on PATH, and it is not there. Without Docker: make demo, make demo CLUSTER=real" >&2; exit 1; }; done
	@docker info >/dev/null 2>&1 || { echo "make kind-up needs a Docker daemon, and 'docker info' finds none" >&2; exit 1; }
	docker build --tag $(KIND_IMAGE) .
	kind get clusters | grep -qx kvaware || kind create cluster --config kind-config.yaml --wait 120s
	kind load docker-image $(KIND_IMAGE) --name kvaware
	@for node in $$(kubectl --context kind-kvaware get nodes -l nvidia.com/gpu.present -o name); do \
	  kubectl --context kind-kvaware patch $$node --subresource=status --type=merge \
	    -p '{"status":{"capacity":{"nvidia.com/gpu":"8"},"allocatable":{"nvidia.com/gpu":"8"}}}' || exit 1; done
	helm upgrade --install kvaware helm/kvaware --kube-context kind-kvaware --namespace kvaware-system --create-namespace \
	  --set image.repository=$(firstword $(subst :, ,$(KIND_IMAGE))) --set image.tag=$(lastword $(subst :, ,$(KIND_IMAGE))) \
	  --wait --timeout 5m

kind-down: ## Remove that cluster
	kind delete cluster --name kvaware

lock: ## Rewrite the lock files from pyproject.toml (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-annotate pyproject.toml -o requirements.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-annotate --group dev pyproject.toml -o requirements-dev.lock

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
