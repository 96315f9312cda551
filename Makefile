# make predict: the first answer, from nothing.   make test: everything the tests need, then all of them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps

.PHONY: predict test lint benchmark descriptors calibrations accuracy clean

predict: $(STAMPS)/core
	$(BIN)/paleo-lite predict vgg16 --gpu k80 --precision fp64

test: $(STAMPS)/test lint
	$(BIN)/python -m pytest

lint: $(STAMPS)/test
	$(BIN)/ruff check paleo_lite tests benchmarks
	$(BIN)/ruff format --check paleo_lite tests benchmarks
	$(BIN)/mypy
	$(BIN)/paleo-lite hardware audit

benchmark: $(STAMPS)/test
	$(BIN)/python benchmarks/cold_start.py
	$(BIN)/python benchmarks/trace_speed.py

# Every descriptor in models/, traced anew.
descriptors: $(STAMPS)/test
	$(BIN)/python -m paleo_lite.networks.export models

# Every calibration, fitted anew from the published measurements in DATA.
DATA ?= ../shared/data
calibrations: $(STAMPS)/test
	$(BIN)/python -m paleo_lite.calibration.ship $(DATA) calibrations

# How true predictions are, on what was held out of the same measurements.
accuracy: $(STAMPS)/test
	sed -n '/^# /,/^<!-- tables -->/p' docs/accuracy.md > docs/accuracy.md.new
	for split in network family gpu source; do \
		printf '\n## Leave one %s out\n\n' $$split; \
		COLUMNS=400 $(BIN)/paleo-lite validate --data $(DATA) --split $$split --format markdown || exit 1; \
	done >> docs/accuracy.md.new
	mv docs/accuracy.md.new docs/accuracy.md

clean:
	rm -rf $(VENV)

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "paleo-lite needs Python 3.10 or later")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/core: pyproject.toml | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --constraint constraints.txt
	touch $@

# torch first and alone, so that nothing else chooses a build of it.
$(STAMPS)/test: pyproject.toml constraints.txt | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@ $(STAMPS)/core
