# Two commands do everything on a machine with python3 and make: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-long test-all browser lint format bench rates rivals peers audit kill soak overhead docs pictures dist clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,bench]'
	touch $@

$(VENV)/.frameworks: $(VENV)/.ready  # some 300 MB
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[frameworks]'
	touch $@

demo: $(VENV)/.ready          ## a classifier, free and with a fairness bound: a certified table, and lariax-demo.html
	$(BIN)/python examples/fairness.py

test: $(VENV)/.ready          ## every behaviour, in some five minutes
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m 'not long'

test-long: $(VENV)/.frameworks  ## the same at length: long statistics, tables, thousands of inputs, some of them fresh; Lightning, transformers, accelerate
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m long

test-all: test test-long      ## both

browser:                      ## Debian's Chromium, in which the report is tested, where it may be installed
	@command -v chromium >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } \
	|| echo '*** NO CHROMIUM HERE, AND IT MAY NOT BE INSTALLED: THE REPORT WILL NOT BE TESTED IN A BROWSER ***'

lint: $(VENV)/.ready          ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src/lariax tests/typing/users.py

format: $(VENV)/.ready        ## rewrite the files as `make lint` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready         ## speed as ratios in one run, written to benchmarks/results
	$(BIN)/python -m benchmarks.speed

rates: $(VENV)/.ready         ## the paper's rates, measured; tables and pictures in ./rates
	$(BIN)/python -m lariax.rates --processes $(WORKERS)

rivals: $(VENV)/.ready        ## methods of other papers on the same problems, written to benchmarks/results
	$(BIN)/python -m benchmarks.rivals --processes $(WORKERS) --write

peers: $(VENV)/.ready         ## cooper-optim and humancompatible-train beside ours, written to benchmarks/results
	$(BIN)/python -m benchmarks.peers $(if $(DATA),--data $(DATA)) --write

kill: $(VENV)/.ready          ## kill 200 runs at random moments, resume them, compare the answers
	$(BIN)/python -m benchmarks.kill

soak: $(VENV)/.ready          ## an hour of one run: do memory and speed stay flat?
	$(BIN)/python -m benchmarks.soak

overhead: $(VENV)/.ready      ## what checkpoints cost, as a ratio
	$(BIN)/python -m benchmarks.overhead

docs: $(VENV)/.ready          ## the site, offline, in ./site; warnings are errors
	$(BIN)/python -m sphinx --jobs auto -E -W --keep-going --color -b html -c docs . site

pictures: $(VENV)/.ready      ## the pictures of README and of the gallery's page, solved and drawn anew
	$(BIN)/python -m scripts.pictures

dist: $(VENV)/.ready          ## wheel and source distribution in ./dist, checked
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

audit: $(VENV)/.ready         ## known vulnerabilities of the pinned versions: 0 none, 1 some, 3 could not be looked up
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[audit]'
	$(BIN)/python scripts/audit.py

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
