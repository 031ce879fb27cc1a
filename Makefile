# The whole platform on this machine, and what its developers run. Everything is installed into .venv, nothing into the system.
#   make up [PORT=8000] [DATA_DIR=.smriti] [DATABASE_URL=...] [BROKER_URL=...] [DEMO=0] [PYTHON=python3]

PYTHON ?= python3
RUN := .venv/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check -qq install
# For commands that load the settings, but need no database.
SETTINGS := SECRET_KEY=only-for-checks-0123456789-abcdefghijklmnopqrstuvwxyz-ABCDEF \
	MASTER_KEY=b25seS1mb3ItY2hlY2tzLTAxMjM0NTY3ODlhYmNkZWY= BASE_URL=https://smriti.example \
	DATABASE_URL=postgresql://check:check@127.0.0.1:1/check VAULT_DATABASE_URL=postgresql://check:check@127.0.0.1:1/check \
	BROKER_URL=redis://127.0.0.1:1/0
# A virtual environment is tied to its folder; one that was moved or copied is made anew.
MOVED := $(shell [ ! -e .venv/.folder ] || [ "$$(cat .venv/.folder)" = "$$(pwd -P)" ] || echo moved)

.PHONY: help up down status test check bench chaos proof lock $(MOVED)

help:
	@echo "make up      install what is missing, start the platform, and keep it running until Ctrl-C"
	@echo "make down    stop it          make status  say whether it runs"
	@echo "make test    all tests        make check   lint, types, import rules, templates, migrations"
	@echo "make bench   commits and claims beside their floors      make proof   the tests at the numbers that are claimed"
	@echo "make chaos [SEED=1] [EFFECTS=300]   agents pay invoices while everything is killed; says what was lost or repeated"

up: .venv/.installed
	@exec $(RUN) -m config.embedded up

down status: .venv/.installed
	@exec $(RUN) -m config.embedded $@

test: .venv/.installed-dev
	$(RUN) -m pytest -n auto --maxprocesses 8 --dist loadgroup

check: .venv/.installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(SETTINGS) $(RUN) -m mypy
	.venv/bin/lint-imports
	$(RUN) -m djlint templates --lint --quiet
	$(SETTINGS) $(RUN) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(SETTINGS) $(RUN) manage.py check --deploy --fail-level WARNING
	@! git grep -nE -e '$(CURDIR)(/|$$)' -e 'index[-]url|"resolved": *"http' -- . || \
		{ echo "These lines name a machine's path or a registry."; exit 1; }

bench: .venv/.installed-dev
	$(RUN) -m tests.benchmarks
	$(RUN) -m tests.benchmarks --claims

chaos: .venv/.installed-dev
	@$(RUN) -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(EFFECTS),--effects $(EFFECTS))

proof: .venv/.installed-dev
	$(RUN) -m pytest --proof -m proof

# Needs uv. The files name no download addresses.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --output-file requirements.lock
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-header --output-file requirements-dev.lock

.venv/.folder: $(MOVED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Smriti needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(if $(MOVED),$(PYTHON) -m venv --clear .venv,[ -x $(RUN) ] || $(PYTHON) -m venv .venv)
	@pwd -P > $@

.venv/.installed: .venv/.folder requirements.lock pyproject.toml
	@echo "Installing packages into .venv (this takes a minute, once) ..."
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.venv/.installed-dev: .venv/.folder requirements-dev.lock pyproject.toml
	@echo "Installing packages for development into .venv (this takes a minute, once) ..."
	@$(PIP) --require-hashes -r requirements-dev.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@
