# The front door. Every target that a user may want has a `## text` behind it; `make help` prints these.
# Written for GNU make 3.81 (macOS) and newer. All paths are relative: make cannot quote a folder with a space in it.

SHELL := bash
.DEFAULT_GOAL := help

# What a run may be told: make results DATASET=locomo PROFILE=qwen3. Set with `=`, so that only the command line
# changes them, not a variable of the same name that happens to be in the environment.
DATASET = sample
PROFILE = local
LOCOMO =
NB =
GRID =
ENGINE = local
ARGS =

# Recipes take values as "$$NAME" from the environment, where no blank, quote or $ in them means anything to make or
# to the shell. P="COST=$5" would lose its $ when make expands it, so P is taken as it was written.
override P := $(value P)
export DATASET PROFILE LOCOMO NB GRID ENGINE P

# A name on PATH is not yet a Python (pyenv leaves shims that fail), so each candidate is run. 3.11 comes first:
# requirements.lock was made with it.
runs    = $(shell "$(1)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$(1)")
PYTHON ?= $(or $(call runs,python3.11),$(call runs,python3),$(call runs,python3.12),$(call runs,python3.13))

# Debian's python3 has no ensurepip until python3-venv is installed, and says so only after making half a .venv.
venv    = $(shell "$(PYTHON)" -m ensurepip --version >/dev/null 2>&1 && "$(PYTHON)" -m venv -h 2>/dev/null)

# Both as one line each, before anything is written.
define need_python
$(if $(call runs,$(PYTHON)),,$(error $(or $(PYTHON),python3) is not Python 3.11 or newer: install one, or name it with make PYTHON=/path/to/python3))
$(if $(venv),,$(error $(PYTHON) cannot make virtual environments: install the package python3-venv (apt install python3-venv), then run make again))
endef

# The lines pip prints while it works are several hundred. Shown is what takes time; errors come by on stderr.
pip_install = -m pip install --disable-pip-version-check --progress-bar off
show_large  = while read -r line; do case "$$line" in \
	*" MB)" | *" GB)" | "Installing "*) printf '  %s\n' "$${line:0:110}" ;; esac; done

# The stamp is written last and holds the folder, so neither an interrupted install nor a .venv that was moved or
# copied is taken for done. Where it does not hold this folder, the install is due whatever the dates say.
PY    := .venv/bin/python
READY := .venv/installed
ifneq ($(shell test -x $(PY) && cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

# Only a finished install is built upon; anything else starts afresh (pip takes half a package for a whole one).
# Without build isolation, because the lock has the setuptools that is needed and nothing unpinned shall come in.
$(READY): requirements.lock pyproject.toml
	$(need_python)
	@test "$$(cat $(READY) 2>/dev/null)" = "$$(pwd -P)" \
		&& $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "setup: making .venv with $(PYTHON)"; "$(PYTHON)" -m venv --clear .venv; }
	@rm -f $(READY)
	@echo "setup: installing requirements.lock into .venv (minutes the first time; torch is the largest)"
	@set -o pipefail; $(PY) $(pip_install) -r requirements.lock | $(show_large)
	@set -o pipefail; $(PY) $(pip_install) --no-deps --no-build-isolation -e . | $(show_large)
	@pwd -P > $(READY)
	@echo "setup: done"

# What was typed is heard: make run takes DATASET and PROFILE from the command line too, and a plan refuses parameters.
typed         = $(if $(findstring command line,$(origin $(1))),-p $(1) "$$$(1)")
no_parameters = $(if $(P)$(NB),$(error a plan has its own parameters: change them with make run NB=... P="NAME=VALUE"))

.PHONY: help setup lab data models results estimate run grid check report bench test torture lint format lock clean clean-all

help: ## explain every target
	@echo "Raw-RAG, a notebook laboratory. First time here: make results (half an hour), then make lab."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Targets install what they need. FORCE=1 repeats finished work, ARGS='...' goes to the program behind"
	@echo "lab, grid, test and bench, PYTHON=... chooses the interpreter (3.11 or newer) of the first install."

setup: $(READY) ## make .venv and install what requirements.lock lists

lab: $(READY) ## open the notebooks in JupyterLab
	JUPYTER_PREFER_ENV_PATH=1 $(PY) -m jupyterlab --ServerApp.root_dir=. $(ARGS)

data: $(READY) ## get LoCoMo, checked by sha256; LOCOMO=path/to/locomo10.json takes a copy you have
	$(PY) -m rawrag_utils.corpus $(if $(LOCOMO),"$$LOCOMO")

models: $(READY) ## get the weights of PROFILE=local, checked by sha256
	$(PY) -m rawrag_utils.llm "$$PROFILE"

results: $(READY) ## run the whole plan of DATASET=sample with PROFILE=local, write results/ and its report
	$(no_parameters)
	$(PY) -m rawrag_utils.run --plan "$$DATASET" --profile "$$PROFILE"

estimate: $(READY) ## say what the plan of DATASET would ask of PROFILE's language model: tokens, time or cost
	$(no_parameters)
	$(PY) -m rawrag_utils.run --plan "$$DATASET" --profile "$$PROFILE" --dry-run

run: $(READY) ## run one notebook into runs/: NB=02_embedding P="DATASET=my.json CATEGORIES='[1, 2]'"
	$(if $(NB),,$(error name a notebook: make run NB=01_chunking P="CHUNK_SIZE=128"))
	$(PY) -m rawrag_utils.run "$$NB" $(call typed,DATASET) $(call typed,PROFILE) $(if $(P),--set "$$P")

grid: $(READY) ## run every combination in GRID=notebooks/params/grid_windows.yaml; ENGINE=ray spreads them
	$(if $(GRID),,$(error name a grid: make grid GRID=notebooks/params/grid_windows.yaml))
	$(PY) -m rawrag_utils.scale grid "$$GRID" --engine "$$ENGINE" $(ARGS)

check: $(READY) ## run 01-03 anew and compare with results/expected.yaml (DATASET, PROFILE)
	$(no_parameters)
	$(PY) -m rawrag_utils.run --check "$$DATASET" --profile "$$PROFILE"

report: $(READY) ## write results/report.html, .md and .tex from the result files, and README's tables
	$(PY) -m rawrag_utils.report

bench: $(READY) ## measure time and memory beside plain baselines, fill benchmarks/README.md (45 min)
	$(PY) -m benchmarks $(ARGS)

# All tests in two processes, each file in one of them; some tests in this one, where a debugger can be reached.
test: $(READY) ## run the tests; ARGS="tests/test_chunking.py -k spans" runs some of them
	$(PY) -m pytest $(or $(ARGS),-n 2 --dist loadfile --no-loadscope-reorder)

# What tests/torture.log says is committed: names of files and numbers, no folder of the machine.
torture: $(READY) ## kill 50 runs at random moments, fuzz at length, an hour in all, into tests/torture.log
	@set -o pipefail; { $(PY) tests/torture.py --kills 50 $(ARGS) \
		&& echo "10,000 damaged inputs of each kind:" \
		&& RAWRAG_FUZZ=10000 $(PY) -m pytest --no-header -q -n 2 -o faulthandler_timeout=7200 \
		tests/test_fuzz.py; } 2>&1 | tee tests/torture.log

# Cell ids stay: nbstripout would number them, and every insertion would then change all that follow.
lint: $(READY) ## check code and notebooks: rules, format, no outputs left in
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m nbstripout --verify --keep-id notebooks/*.ipynb

format: $(READY) ## mend what lint finds, where a program can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(PY) -m nbstripout --keep-id notebooks/*.ipynb

# Versions in the present lock stay while pyproject.toml admits them, so the same input gives the same lock; with
# UPGRADE=1 all but two are chosen anew: torch (edit its line by hand; its CPU and CUDA builds must both exist) and
# soupsieve (from 3.0 on it needs Python 3.11.5, and Debian 12 has 3.11.2; a test looks for more of that kind).
# What is frozen is the same wherever it is done: no build suffix of torch (+cpu) and none of the CUDA packages that
# come with some of its builds and not with others.
lock: ## renew requirements.lock from pyproject.toml (Python 3.11 on Linux); UPGRADE=1 takes newer releases
	$(need_python)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "make lock needs Python 3.11: make lock PYTHON=/path/to/python3.11")'
	@"$(PYTHON)" -m venv --clear .cache/lock
	@grep -E '$(if $(UPGRADE),^(torch|soupsieve)==,==)' requirements.lock > .cache/lock/keep.txt
	@set -o pipefail; .cache/lock/bin/python $(pip_install) -c .cache/lock/keep.txt --upgrade setuptools | $(show_large)
	@set -o pipefail; .cache/lock/bin/python $(pip_install) -c .cache/lock/keep.txt --no-build-isolation -e '.[dev,scale]' | $(show_large)
	@set -o pipefail; { sed -n '/^#/p' requirements.lock; \
		.cache/lock/bin/python -m pip freeze --all --exclude pip --exclude rawrag-utils \
		| sed 's/+.*//' | grep -vE '^(nvidia|cuda|triton)'; } > .cache/lock/requirements.lock
	@mv .cache/lock/requirements.lock requirements.lock
	@rm -rf .cache/lock
	@echo "requirements.lock renewed; pins in environment.yml must follow: make test ARGS=tests/test_packaging.py"

clean: ## remove what running made here: runs/ and caches; never results/, data/ or .venv
	rm -rf runs mutants .cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +

clean-all: clean ## the same and .venv, as after a fresh clone (data/ and results/ stay)
	rm -rf .venv *.egg-info
