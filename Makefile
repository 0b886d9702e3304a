# fedpersonal: `make` lists what there is to do. Every target installs what it needs into .venv.

VENV       := .venv
RUN        := $(VENV)/bin/python
INSTALLED  := $(VENV)/installed
CLUSTER    := $(VENV)/cluster_installed
DOCS       := $(VENV)/docs/installed
NUMBA      := $(VENV)/benchmark/installed
RIVALS     := pfl fedjax flower
TESTS      := tests

# What CI runs on today's stack, too: rounds against Keras' own `fit`, methods against NumPy, runtimes, run
# folders and stores, runs of two tasks.
TODAY_TESTS := tests/tff tests/model/keras_parity_test.py tests/methods tests/federated tests/runtime tests/runs \
  $(patsubst %,"tests/suite/tasks/contract_test.py::test_a_run_opens_again[%]",movielens reddit) \
  $(addprefix --ignore=tests/,methods/contract_test.py federated/reference_test.py federated/evaluation_reference_test.py)

# Test files of each folder of fedpersonal/ that build little.
QUICK_TESTS := $(addprefix tests/,architecture_test.py errors_test.py files_test.py options_test.py optimizers_test.py \
  audit/checks_test.py client/phases_test.py client/ridge_test.py data evaluation/evaluate_test.py \
  evaluation/metrics_test.py federated/boundary_test.py federated/cohort_test.py federated/process_test.py \
  methods/algorithm_test.py methods/method_test.py model/examples_test.py model/partition_test.py \
  suite/models/factorization_test.py suite/models/gpt2_test.py report/page_test.py runs/checkpoints_test.py runs/metrics_test.py \
  runs/record_test.py runs/store_file_test.py runtime/xla_test.py suite/readers suite/tasks/checks_test.py suite/tasks/ranking_test.py \
  tff/witness_test.py training/callbacks_test.py training/clients_test.py training/loop_test.py \
  training/participation_test.py)

# Where texts are given, the next word task trains on them.
TEXTS       = $(if $(TEXT_FILE),"--text_file=$(TEXT_FILE)") $(if $(DATA_DIR),"--data_dir=$(DATA_DIR)")
QUICK_TEXTS = experiments/presets/stackoverflow_$(if $(TEXT_FILE)$(DATA_DIR),quick,generated).flags

# Keras and Matplotlib would write to the home folder.
export KERAS_HOME   := $(CURDIR)/$(VENV)/home/keras
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/home/matplotlib

.DEFAULT_GOAL := help
.PHONY: help install doctor movielens interactions digits stackoverflow reddit films tv_shows table1 table2 table3 figure2 figure3 fedperc_tables fedperc_parts dp_table recommendation leaderboard benchmark rivals cluster_install cluster cluster_test test test_quick fuzz today_test bazel_test lint samples docs notebook wheel lock wheels clean force

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9_]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "FLAGS='--seed=1 ...' is handed on to the command that a target runs."

install: $(INSTALLED) ## Install the pinned packages and fedpersonal into .venv

# Whether what is installed is of the stack that was asked for, its script finds out.
force:

$(INSTALLED): requirements/lock.txt requirements/today.txt setup.py $(if $(STACK),force)
	@scripts/install.sh $(VENV)

# It installs nothing, and finds out why what is installed does not work.
doctor: ## Check that experiments can run here, and say what to do: make doctor DATA_DIR=...
	@$(if $(wildcard $(RUN)),$(RUN),python3) -m experiments.doctor \
	  $(if $(DATA_DIR),"--data_dir=$(DATA_DIR)") $(FLAGS)

movielens: $(INSTALLED) ## Train FedRecon on MovieLens-100K, which comes with the packages
	@$(RUN) -m experiments.movielens --size=quick $(FLAGS)

interactions: $(INSTALLED) ## Train PFedRec on MovieLens-100K: which film does a user see next?
	@$(RUN) -m experiments.interactions --size=quick $(FLAGS)

digits: $(INSTALLED) ## Train Ditto on handwritten digits, of clients who write each in a way of their own
	@$(RUN) -m experiments.digits --size=quick $(FLAGS)

stackoverflow: $(INSTALLED) ## Train FedRecon on text: make stackoverflow TEXT_FILE=... (or generated text)
	@$(RUN) -m experiments.stackoverflow --flagfile=$(QUICK_TEXTS) $(TEXTS) $(FLAGS)

reddit: $(INSTALLED) ## Train FURL on labelled texts: make reddit TEXT_FILE=... (or generated comments)
	@$(RUN) -m experiments.reddit --size=quick $(TEXTS) $(FLAGS)

films: $(INSTALLED) ## Train FURL on MovieLens-100K: who likes which film, by its title and genres
	@$(RUN) -m experiments.reddit --flagfile=experiments/presets/films_quick.flags $(FLAGS)

tv_shows: $(INSTALLED) ## Train FedPerC on utterances: make tv_shows DATA_DIR=... (or generated dialogues)
	@$(RUN) -m experiments.tv_shows --size=quick $(TEXTS) $(FLAGS)

table1: $(INSTALLED) ## Reproduce table 1 of FedRecon: make table1 DATA_DIR=<folder of MovieLens-1M>
	@$(RUN) -m experiments.reproduce --target=table1 $(if $(DATA_DIR),"--data_dir=$(DATA_DIR)") $(FLAGS)

table2: $(INSTALLED) ## Reproduce table 2: make table2 TEXT_FILE=<texts>
	@$(RUN) -m experiments.reproduce --target=table2 $(TEXTS) $(FLAGS)

table3: $(INSTALLED) ## Reproduce table 3 of FURL: make table3 DATA_DIR=<reddit_comments.jsonl.gz, ml-1m>
	@$(RUN) -m experiments.reproduce --target=table3 $(TEXTS) $(FLAGS)

figure2: $(INSTALLED) ## Reproduce figure 2, from the runs of table 2: make figure2 TEXT_FILE=...
	@$(RUN) -m experiments.reproduce --target=figure2 $(TEXTS) $(FLAGS)

figure3: $(INSTALLED) ## Reproduce figure 3: make figure3 TEXT_FILE=<texts> MOVIELENS_DIR=<folder>
	@$(RUN) -m experiments.reproduce --target=figure3 $(TEXTS) \
	  $(if $(MOVIELENS_DIR),"--movielens_dir=$(MOVIELENS_DIR)") $(FLAGS)

fedperc_tables: $(INSTALLED) ## Reproduce FedPerC's tables: make fedperc_tables DATA_DIR=<folder of tv_shows.jsonl.gz>
	@$(RUN) -m experiments.reproduce --target=fedperc_tables $(TEXTS) $(FLAGS)

fedperc_parts: $(INSTALLED) ## Compare other parts of FedPerC's base: make fedperc_parts DATA_DIR=...
	@$(RUN) -m experiments.reproduce --target=fedperc_parts $(TEXTS) $(FLAGS)

dp_table: $(INSTALLED) ## Show errors against epsilon: make dp_table DATA_DIR=<folder of MovieLens-1M>
	@$(RUN) -m experiments.reproduce --target=dp_table $(if $(DATA_DIR),"--data_dir=$(DATA_DIR)") $(FLAGS)

recommendation: $(INSTALLED) ## Rank the next film by PFedRec and others: make recommendation DATA_DIR=...
	@$(RUN) -m experiments.reproduce --target=recommendation $(if $(DATA_DIR),"--data_dir=$(DATA_DIR)") $(FLAGS)

leaderboard: $(INSTALLED) ## Compare all methods on all tasks, on data that need no download
	@$(RUN) -m experiments.leaderboard $(FLAGS)

ROUND = PYTHONPATH=$(VENV)/benchmark $(RUN) -m benchmarks.movielens_round $(if $(DATA_DIR),"--data_dir=$(DATA_DIR)")

benchmark: $(NUMBA) ## Compare the time of one round with TFF, JAX, NumPy and Numba: make benchmark DATA_DIR=...
	@$(ROUND) $(FLAGS)

rivals: $(NUMBA) $(RIVALS:%=$(VENV)/rivals/%/installed) ## Compare it with pfl-research, FedJAX and Flower, too: make rivals DATA_DIR=...
	@$(ROUND) $(RIVALS:%=--library=%) $(FLAGS)

$(VENV)/rivals/%/installed: requirements/rivals/%_lock.txt
	@scripts/install_apart.sh $(@D) $<

$(NUMBA): $(INSTALLED) requirements/benchmark_lock.txt
	@cmp -s requirements/lock.txt $(INSTALLED) || { echo "The benchmark needs TensorFlow Federated itself: STACK=tff" >&2; exit 2; }
	@env -u PIP_PREFIX -u PIP_USER $(RUN) -m pip --quiet --disable-pip-version-check --no-cache-dir \
	  install --no-deps --require-hashes --upgrade --target=$(@D) -r requirements/benchmark_lock.txt
	@touch $@

cluster_install: $(CLUSTER) ## Add Ray, for experiments on several machines, to .venv

$(CLUSTER): $(INSTALLED) requirements/cluster_lock.txt requirements/today_cluster.txt
	@scripts/install_cluster.sh $(VENV)

cluster: $(CLUSTER) ## Train on two Ray nodes on this machine, and without Ray
	@$(RUN) -m examples.ray_nodes

cluster_test: $(CLUSTER) ## Run the tests of Ray clusters (10 minutes)
	@$(RUN) -m pytest -q tests/runtime/ray_test.py $(FLAGS)

test: $(INSTALLED) ## Run the tests: each property once
	@$(RUN) -m pytest -q --numprocesses=logical --maxprocesses=4 --dist=loadgroup --no-loadscope-reorder $(TESTS) $(FLAGS)

test_quick: ## Run some tests of each folder of fedpersonal/
	@$(MAKE) --no-print-directory test TESTS='$(QUICK_TESTS)'

# FEDPERSONAL_FUZZ_CASES, if set, is the number of cases of each fuzz test.
fuzz: export FEDPERSONAL_FUZZ_CASES ?= 2000
fuzz: ## Run all tests with all their rows, kill runs at every step, and fuzz far longer (hours)
	@$(MAKE) --no-print-directory test FLAGS='--exhaustive $(FLAGS)'

today_test: ## Run the tests of what computes on today's stack, in .venv/today
	@$(MAKE) --no-print-directory test STACK=today VENV=$(VENV)/today TESTS='$(TODAY_TESTS)'

bazel_test: $(INSTALLED) ## Run the tests under Bazel, each file by itself
	@bazel test --nocache_test_results --test_output=errors //tests/... $(FLAGS)

lint: $(INSTALLED) ## Check style and types
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

samples: $(INSTALLED) ## Make the sample pages of the docs, docs/samples, anew
	@scripts/samples.sh $(RUN)

docs: $(DOCS) ## Build the site of docs/ into build/docs, without the network
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs --quiet build --strict
	@echo "The site is in build/docs: open build/docs/index.html"

notebook: $(INSTALLED) $(DOCS) ## Run the cells of docs/start/ten_minutes.md in Jupyter's kernel, and keep what they show
	@PYTHONPATH="$$(echo $(abspath $(VENV))/docs/lib/python*/site-packages)" $(RUN) -m build_tools.notebook

$(DOCS): requirements/docs_lock.txt
	@scripts/install_apart.sh $(@D) $<

wheel: $(INSTALLED) ## Build a wheel of fedpersonal into dist/, with the versions that it needs
	@rm -rf build/lib build/bdist.*
	@$(RUN) -m pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir dist .
	@cp requirements/constraints.txt dist
	@echo "dist/ has the wheel, and constraints.txt: docs/how_to/own_project.md says how to install both"

lock: ## Resolve the dependencies into requirements/ again (FLAGS=--upgrade: newest ones)
	@scripts/lock.sh resolve $(FLAGS)

wheels: ## Ask the registry whether today's stack has wheels for Linux and macOS, x86-64 and ARM
	@scripts/lock.sh wheels

clean: ## Remove .venv, build products and caches; results/ stays
	@rm -rf $(VENV) build dist ./*.egg-info .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
