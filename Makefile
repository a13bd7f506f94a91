# The same for people and for CI, in an activated virtual environment.
PYTHON ?= python

.PHONY: help check test slow shards bench format golden digests pages docs

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

check:  ## formatting, lint, types, architecture, size of the house
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	lint-imports
	$(PYTHON) tests/house.py

test:  ## the tests, in less than three minutes on two cores
	$(PYTHON) -m pytest

slow:  ## the other tests, in all ten shards (SHARD=2/10: of one; SHARD=commit: of the one that is the commit's)
	$(PYTHON) -m pytest -m slow $(if $(SHARD),--shard $(SHARD))

shards:  ## run all slow tests and store how long each takes, so that shards are of like length
	$(PYTHON) -m pytest -m slow --renew-shards

bench:  ## what must hold of speed, before a release (a quarter of an hour; fails where a bar is missed)
	$(PYTHON) tests/bench/bars.py

golden:  ## renew the exact texts that the tests compare with
	$(PYTHON) -m pytest tests/golden/test_text.py --snapshot-update

digests:  ## renew what happens in all shipped scenarios and 10,000 cases (minutes; prints what moved)
	$(PYTHON) tests/digests.py --renew

pages:  ## renew what commands print in the pages (minutes; PAGE=first-run: of one page)
	$(PYTHON) tests/pages.py $(PAGE)

docs:  ## the reference pages and the site, in site/ (needs the extra `docs`)
	$(PYTHON) docs/build.py
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet --site-dir site

format:  ## put the code in shape
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
