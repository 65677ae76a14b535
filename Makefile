# `make book` and `make test` do all their own set-up, in .venv here. Paths are relative, so the folder's own may hold spaces.

PROFILE = book
FORCE =
ARGS =
PY = .venv/bin/python

.PHONY: help setup book test check-pages lint bench verify clean

help:
	@echo 'make book         run the chapters, build the book in _build/html (PROFILE=smoke, book or full; FORCE=1 anew)'
	@echo 'make test         run the tests (FORCE=1 even if nothing has changed; ARGS="-k name" for some)'
	@echo 'make verify       check the claims of both papers in full and print the table (ARGS=--fast for the quick form)'
	@echo 'make check-pages  look at every page in headless Chromium'
	@echo 'make lint         ruff, mypy, import-linter'
	@echo 'make bench        run the benchmarks'
	@echo 'make clean        remove what was built; .venv stays'

setup:
	@sh scripts/setup.sh

book: setup
	@$(PY) -m icl_core.cli book --profile "$(PROFILE)" $(if $(FORCE),--force)

test: setup
	@$(PY) scripts/once.py $(if $(FORCE)$(ARGS),--force) tests -- -m pytest $(ARGS)

check-pages: book
	@$(PY) tests/check_pages.py _build/html --screenshots _build/screenshots

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

verify: setup
	@$(PY) -m icl_core.cli verify --json _build/verify.json $(ARGS)

bench: setup
	@for file in benchmarks/*.py; do echo "$$file"; $(PY) "$$file" || exit 1; done

clean:
	rm -rf _build build .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
