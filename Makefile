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

tools: setup ## install also the programs of other traffic engines and tests: lftp, nginx, chromium...
	@sh deploy/setup.sh all

demo: setup ## execute a real run on this machine and judge it; options: make demo ARGS="--pairs 8"
	@$(BIN)/broadside demo $(ARGS)

soak: setup ## 60 bursts in the lab in ten minutes, while coordinators and an agent are killed
	@$(BIN)/python -m tests.soak $(ARGS)

faults: setup ## inject faults in every phase of a run; check each result against the rules, in one table
	@$(BIN)/python -m tests.faults $(ARGS)

scenarios: tools ## every test scenario in the lab, in one table; ARGS="--only FTP" or "--live"
	@$(BIN)/python -m tests.scenarios $(ARGS)

test: tools ## before each commit: lint, types, docs, deploy-check, unit, review, contract, live; 15 minutes
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint types docs costs
	@$(MAKE) --no-print-directory -j4 deploy-check waiting computing

test-all: test ## all tests of CI: also the release files, and live tests that need an idle machine
	@$(MAKE) --no-print-directory shipped
	@$(MAKE) --no-print-directory quiet

quiet: setup # live tests that assert what a loaded machine changes: those that wait, then those that load it
	@$(PYTEST) -n 4 $$(grep -rl "mark.quiet" tests) -m quiet $(ARGS)
	@$(PYTEST) -n 2 $$(grep -rl "mark.alone" tests) -m alone $(ARGS)

costs: setup # in CPU-seconds beside others: what runs at the same time slows both alike
	@$(MAKE) --no-print-directory ratios || echo "costs: told above, and no failure here: a shared host's ratios wander; make ratios on a quiet one"

ratios: setup ## compare costs with this machine's in tests/bench/machines; fail at 20 % more
	@$(BIN)/python -m tests.bench --quick --machines tests/bench/machines

PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder

waiting: setup # for clocks and processes, but not for a core: what computes beside them is nice
	@$(PYTEST) -n 7 tests/live tests/contract -m "not alone and not quiet" $(ARGS)

computing: setup # with a longer limit of time, because it has the lowest priority
	@nice $(PYTEST) -n 2 --timeout 1500 tests/unit tests/review $(ARGS)

shipped: tools ## install and execute the release files on the supported systems, in one table
	@nice $(PYTEST) -n 3 tests/shipped $(ARGS)

lint: setup ## ruff: rules and format; vulture: dead code; hadolint and compose: Docker files; commit subjects
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/vulture
	@$(BIN)/hadolint deploy/docker/Dockerfile && $(BIN)/python -m tests.deploy_check.compose
	@sh .ci/commit_subjects.sh

types: setup ## mypy, strict
	@nice $(BIN)/mypy

unit: setup ## only the tests that need no process, network or clock
	@$(BIN)/pytest tests/unit $(ARGS)

docs: setup ## build the documentation that the coordinator serves at /docs; fail at a broken link
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 315532800) nice $(BIN)/python -m mkdocs build --strict

fuzz: setup ## send at least 20,000 random requests to the API; print their number and the failures
	@$(BIN)/python -m tests.fuzz $(ARGS)

attack: setup ## try every attack on every trust boundary; print the defence that stopped each
	@$(BIN)/python -m tests.attack $(ARGS)

hunt: setup ## search for a wrong verdict in results of an independent generator; ARGS="--cases 3000 --seed N"
	@$(BIN)/python -m tests.hunt $(ARGS)

stops: setup ## measure wrong decisions and savings of bursts that end when certain; ARGS="--bursts 20000"
	@nice $(BIN)/python -m tests.hunt.stop_decisions $(ARGS)

mutants: setup .tools/mutmut/mutants.lock ## mutate the code of the verdict at random; print mutants that no unit test detects; ARGS="--mutants 300 --seed N"
	@nice $(BIN)/python -m tests.mutants $(ARGS)

.tools/mutmut/mutants.lock: tests/mutants.lock | setup
	@.tools/uv/bin/uv pip install -q --python $(BIN)/python --target $(@D) --require-hashes --no-deps -r $< && cp $< $@

bench: setup .tools/peers/peers.lock ## print costs, limits and peers in one table; ARGS="--json"; bench-all: every bench
	@PYTHONPATH=.tools/peers $(BIN)/python -m tests.bench $(ARGS)

.tools/peers/peers.lock: tests/bench/peers.lock | setup
	@.tools/uv/bin/uv pip install -q --python $(BIN)/python --target $(@D) --require-hashes --no-deps -r $< && cp $< $@

bench-all: setup .tools/peers/peers.lock ## run every file of tests/bench; fail if a result is below its minimum
	@failed=0; for bench in tests/bench/bench_*.py; do echo "== $$bench"; PYTHONPATH=.tools/peers $(BIN)/python -m "$$(echo $${bench%.py} | tr / .)" || failed=1; done; exit $$failed

LOCK := .tools/uv/bin/uv pip compile pyproject.toml --generate-hashes --universal --python-version 3.11 --no-header -q

lock: setup ## resolve pyproject.toml again: requirements.lock, its subset for images, and Debian packages
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

deploy-check: tools ## check everything under deploy/ without Azure: Terraform, cloud-init, units, Docker
	@nice $(BIN)/python -m tests.deploy_check $(ARGS)

rehearse: setup ## rehearse Azure: up, plan, scale, down of each example with the real Terraform and az
	@$(BIN)/python -m tests.azure_emulator $(ARGS)

wheelhouse: setup ## build dist/broadside-bundle.tar.gz for VMs without internet
	@$(BIN)/python -m deploy.azure.wheelhouse $(ARGS)

release: setup ## build dist/release-VERSION: wheel, sdist, archive, bundle, image, bills of materials, checksums
	@$(BIN)/python -m deploy.release $(ARGS)

hosts-archive: setup ## build dist/broadside-hosts.tar.gz for hosts without internet
	@$(BIN)/python -m deploy.hosts.archive $(ARGS)

compat-fixtures: tools ## write this version's records, as test data for later versions; VERSION=0.9.0
	@$(BIN)/python -m tests.compat.write $(VERSION)

clean: ## remove files of setup, demo and test from the checkout
	rm -rf .venv .tools .broadside build dashboards/docs_site *.egg-info agent/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help setup tools demo soak faults scenarios test test-all quiet shipped costs ratios waiting computing lint types unit docs fuzz attack hunt mutants bench bench-all lock deploy-check rehearse wheelhouse release hosts-archive compat-fixtures clean
