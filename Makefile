# Broadside's targets; each is one line of intent. `make` alone prints them.
.DEFAULT_GOAL := help
BIN := .venv/bin
ARGS ?=
# Else each process of a run compiles its hundreds of modules anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## print the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## make .venv with .venv/bin/broadside; bring uv and a recent iperf3 into the checkout
	@sh deploy/setup.sh

tools: setup ## also what the other traffic engines and the tests need: lftp, nginx, chromium...
	@sh deploy/setup.sh all

demo: setup ## fire a real broadside on this machine and judge it; options: make demo ARGS="--pairs 8"
	@$(BIN)/broadside demo $(ARGS)

soak: setup ## a weekend in ten minutes: 60 bursts in the lab, coordinators and an agent killed
	@$(BIN)/python -m tests.soak $(ARGS)

faults: setup ## break a fleet in every phase of a run: the table of faults, each held to the rules
	@$(BIN)/python -m tests.faults $(ARGS)

scenarios: tools ## every test of the field's notebook in the lab, in one table; ARGS="--only FTP" or "--live"
	@$(BIN)/python -m tests.scenarios $(ARGS)

test: tools ## before each commit: lint, types, docs, deploy-check, unit, review, contract, live; 15 minutes
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint types docs costs
	@$(MAKE) --no-print-directory -j4 deploy-check waiting computing

test-all: test ## what CI runs: also what leaves the checkout, and the live tests that need a quiet machine
	@$(MAKE) --no-print-directory shipped
	@$(MAKE) --no-print-directory quiet

quiet: setup # live tests that assert what a loaded machine changes; several only wait
	@$(PYTEST) -n 4 $$(grep -rl "mark.alone" tests) -m alone $(ARGS)

costs: setup # in CPU-seconds beside others: what runs at the same time slows both alike
	@$(MAKE) --no-print-directory ratios || echo "costs: told above, and no failure here: a shared host's ratios wander; make ratios on a quiet one"

ratios: setup ## costs beside fixed work, held against this machine's in tests/bench/machines: a fifth more fails
	@$(BIN)/python -m tests.bench --quick --machines tests/bench/machines

PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder

waiting: setup # for clocks and processes, but not for a core: what computes beside them is nice
	@$(PYTEST) -n 7 tests/live tests/contract -m "not alone" $(ARGS)

computing: setup # with a longer limit of time, because it has the lowest priority
	@nice $(PYTEST) -n 2 --timeout 1500 tests/unit tests/review $(ARGS)

shipped: tools ## execute what leaves the checkout on the systems of its users: one table
	@nice $(PYTEST) -n 3 tests/shipped $(ARGS)

lint: setup ## ruff: rules and format; vulture: dead code; hadolint and compose: Docker files; commit subjects
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/vulture
	@$(BIN)/hadolint deploy/docker/Dockerfile && $(BIN)/python -m tests.deploy_check.compose
	@sh .ci/commit_subjects.sh

types: setup ## mypy, strict
	@nice $(BIN)/mypy

unit: setup ## only the tests that need no process, network or clock
	@$(BIN)/pytest tests/unit $(ARGS)

docs: setup ## build the documentation, which the coordinator serves at /docs; a broken link fails
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 315532800) nice $(BIN)/python -m mkdocs build --strict

fuzz: setup ## ask the API at least 20,000 odd questions; print how many, and what broke
	@$(BIN)/python -m tests.fuzz $(ARGS)

attack: setup ## try every attack on every boundary; print what stopped each
	@$(BIN)/python -m tests.attack $(ARGS)

hunt: setup ## look for a wrong verdict in an independent generator's worlds; ARGS="--cases 3000 --seed N"
	@$(BIN)/python -m tests.hunt $(ARGS)

stops: setup ## wrong decisions and savings of bursts that end when certain; ARGS="--bursts 20000"
	@nice $(BIN)/python -m tests.hunt.stop_decisions $(ARGS)

mutants: setup .tools/mutmut/mutants.lock ## mutate the judgement at random; print what no unit test noticed; ARGS="--mutants 300 --seed N"
	@nice $(BIN)/python -m tests.mutants $(ARGS)

.tools/mutmut/mutants.lock: tests/mutants.lock | setup
	@.tools/uv/bin/uv pip install -q --python $(BIN)/python --target $(@D) --require-hashes --no-deps -r $< && cp $< $@

bench: setup .tools/peers/peers.lock ## one table: what it costs, its limits, peers beside; ARGS="--json"; bench-all: every bench
	@PYTHONPATH=.tools/peers $(BIN)/python -m tests.bench $(ARGS)

.tools/peers/peers.lock: tests/bench/peers.lock | setup
	@.tools/uv/bin/uv pip install -q --python $(BIN)/python --target $(@D) --require-hashes --no-deps -r $< && cp $< $@

bench-all: setup .tools/peers/peers.lock ## print the figures of every file of tests/bench; fails when one misses its floor
	@failed=0; for bench in tests/bench/bench_*.py; do echo "== $$bench"; PYTHONPATH=.tools/peers $(BIN)/python -m "$$(echo $${bench%.py} | tr / .)" || failed=1; done; exit $$failed

LOCK := .tools/uv/bin/uv pip compile pyproject.toml --generate-hashes --universal --python-version 3.11 --no-header -q

lock: setup ## resolve pyproject.toml anew into requirements.lock, what images need of it, and Debian packages
	@$(LOCK) --all-extras --group dev -o requirements.lock
	@$(LOCK) --extra azure --extra tables --extra telemetry --group build -c requirements.lock -o deploy/docker/requirements.lock
	@.tools/uv/bin/uv pip compile tests/bench/peers.in -c requirements.lock --generate-hashes --universal --python-version 3.11 --no-header -q -o tests/bench/peers.lock
	@.tools/uv/bin/uv pip compile tests/mutants.in -c requirements.lock --generate-hashes --universal --python-version 3.11 --no-header -q -o tests/mutants.lock
	@$(VM_LOCK) deploy/azure/bundle/agent.in -o deploy/azure/bundle/agent.lock
	@$(VM_LOCK) pyproject.toml --extra azure --extra tables --extra telemetry -o deploy/azure/bundle/coordinator.lock
	@$(BIN)/python -m deploy.debian_packages
	@$(HOST_LOCK) pyproject.toml --extra telemetry deploy/hosts/hosts.in -o deploy/hosts/hosts.lock

# What Azure's VMs run: Debian 13.
VM_LOCK := .tools/uv/bin/uv pip compile -c requirements.lock --generate-hashes --python-version 3.13 --python-platform x86_64-manylinux_2_28 --no-header -q

# What any hosts run, from the oldest Python and glibc that deploy/hosts knows.
HOST_LOCK := .tools/uv/bin/uv pip compile -c requirements.lock --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-header -q

deploy-check: tools ## everything under deploy/, without Azure: Terraform, cloud-init, units, Docker
	@nice $(BIN)/python -m tests.deploy_check $(ARGS)

rehearse: setup ## Azure in rehearsal: up, plan, scale, down of each example with the real Terraform and az
	@$(BIN)/python -m tests.azure_emulator $(ARGS)

wheelhouse: setup ## dist/broadside-bundle.tar.gz: what VMs without internet install
	@$(BIN)/python -m deploy.azure.wheelhouse $(ARGS)

release: setup ## dist/release-VERSION: wheel, sdist, archive, bundle, image, bills of materials, checksums
	@$(BIN)/python -m deploy.release $(ARGS)

hosts-archive: setup ## dist/broadside-hosts.tar.gz: what any hosts without internet install
	@$(BIN)/python -m deploy.hosts.archive $(ARGS)

compat-fixtures: tools ## what this version writes, for every later one to read; VERSION=0.9.0
	@$(BIN)/python -m tests.compat.write $(VERSION)

clean: ## remove what setup, demo and test made in the checkout
	rm -rf .venv .tools .broadside build dashboards/docs_site *.egg-info agent/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help setup tools demo soak faults scenarios test test-all quiet shipped costs ratios waiting computing lint types unit docs fuzz attack hunt mutants bench bench-all lock deploy-check rehearse wheelhouse release hosts-archive compat-fixtures clean
