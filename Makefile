# Every verb does its own set-up: a virtual environment in .venv, made again when pyproject.toml or the kernels change.
# Another PYTHON than the default one gets an environment of its own: make test PYTHON=python3.12 uses .venv-python3.12.
PYTHON ?= python3
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
# Modules are compiled when they are imported first: most never are.
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile
KERNELS := src/bookies/kernels/_native.pyx src/bookies/kernels/_crc32c.h
SEED ?=
MINUTES ?= 1
JOBS ?=
AGAINST ?=
# Tests and benchmarks start hundreds of processes, which would compile everything each time where this is set.
export PYTHONDONTWRITEBYTECODE :=
REV ?= $(AGAINST)

.PHONY: run test long check static compiled coverage fuzz fuzz-native placement sim mutants museum chaos chaos-storage console slow-causes http-attack web-scan observe apache interop distributedlog etcd kerberos spark-chaos bench bench-apache bench-compare bench-recovery bench-scale bench-spark bench-spark-metadata bench-logs bench-ledgers bench-zones example spark-cluster spark-versions docs dist release image chart clean

run: $(VENV)/.demo
	@$(BIN)/bk demo $(ARGS)

# Many tests wait, for the end of a lease or of a process, so on two processors four of them run at a time.
test: $(VENV)/.dev $(VENV)/.demo $(VENV)/.classes
	@SPARK_SUBMIT_OPTS="$$(cat $(VENV)/.classes)" $(BIN)/python -m pytest -q -n $(or $(JOBS),4) $(ARGS)

# Whole runs, which `make test` leaves out because each takes half a minute and more.
long: $(VENV)/.dev $(VENV)/.demo $(VENV)/.classes
	@SPARK_SUBMIT_OPTS="$$(cat $(VENV)/.classes)" $(BIN)/python -m pytest -q -n $(or $(JOBS),2) -m long $(ARGS)

check: static
	@$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_words.py

static: $(VENV)/.dev
	@$(BIN)/ruff format --check src tests
	@$(BIN)/ruff check src tests
	@$(BIN)/mypy

# Python's caches of all tests, or each process of `make test` would compile them. Some tests may lack PySpark yet.
compiled: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n 0 --collect-only > /dev/null 2>&1 || true

# Every branch of the protocol's decisions is taken by their own tests: no cluster, no simulator.
PROTOCOL_TESTS := tests/unit/protocol tests/scenarios $(addprefix tests/property/test_,add_pipeline.py log.py placement.py \
	quorum.py read.py)

coverage: $(VENV)/.dev
	@$(BIN)/python -m coverage run -m pytest -q -n 0 --hypothesis-profile=brief $(PROTOCOL_TESTS) $(ARGS)
	@$(BIN)/python -m coverage report

# Decoders of what others wrote, on inputs that coverage guides; the compiled kernels with sanitizers against Python's.
fuzz: $(VENV)/.dev $(VENV)/.fuzz
	@$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) $(if $(TARGET),--targets $(TARGET)) $(ARGS)

fuzz-native: $(VENV)/.dev $(VENV)/.fuzz
	@$(BIN)/python -m tests.fuzz.run --sanitized --minutes $(MINUTES) $(if $(TARGET),--targets $(TARGET)) $(ARGS)

# Every topology of up to 8 bookies, 3 racks and 2 regions, against trying everything.
placement: $(VENV)/.dev
	@$(BIN)/python -m tests.placement.exhaustive --jobs $(or $(JOBS),2) $(ARGS)

sim: $(VENV)/.dev
	@$(BIN)/bk sim $(if $(SEED),--seed $(SEED),--profile small --minutes $(MINUTES) --jobs $(or $(JOBS),2)) $(ARGS)

mutants: $(VENV)/.dev
	@$(BIN)/python -m tests.sim.mutant_table --write $(ARGS)

museum: $(VENV)/.dev
	@$(BIN)/python -m tests.museum.run --write --steps 250000 $(ARGS)

chaos: $(VENV)/.dev
	@$(BIN)/bk chaos $(ARGS)

chaos-storage: $(VENV)/.dev
	@$(BIN)/python tests/chaos/storage_chaos.py $(ARGS)

# The console in headless Chromium (Debian: chromium); screenshots in build/console.
console: $(VENV)/.dev $(VENV)/.console
	@$(BIN)/python -m tests.console.browser $(ARGS)

slow-causes: $(VENV)/.dev
	@$(BIN)/python tests/chaos/slow_causes.py $(ARGS)

# Adds while the HTTP server is attacked; figures of a quiet machine.
http-attack: $(VENV)/.dev
	@$(BIN)/python tests/chaos/http_attack.py $(ARGS)

# Wapiti as nobody, as a viewer and as an administrator, each module MINUTES at most; its reports in build/web-scan.
web-scan: $(VENV)/.dev $(VENV)/.scanner
	@$(BIN)/python tests/chaos/web_scan.py --scanner $(VENV)/scanner/bin/wapiti --minutes $(MINUTES) --reports build/web-scan $(ARGS)

# A real Prometheus beside a cluster, in calm (MINUTES) and in the states that alerts are about.
observe: $(VENV)/.dev
	@$(BIN)/python -m tests.observe.trial --minutes $(MINUTES) $(ARGS)

# Apache's own bookie, in a Java process; its jars are kept where BOOKIES_APACHE_CACHE says.
apache: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
apache: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n 0 -m apache tests/apache $(ARGS)

# A real etcd server, from PATH or where BOOKIES_ETCD says (Debian: etcd-server); and Apache's driver beside ours.
etcd: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
etcd: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n 0 -m etcd tests/etcd $(ARGS)

# A real KDC (Debian: krb5-kdc krb5-admin-server krb5-user libkrb5-dev, and a compiler for the extra); and Java beside it.
kerberos: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
kerberos: $(VENV)/.dev
	@$(BIN)/pip install -q -e '.[kerberos]'
	@$(BIN)/python -m pytest -q -n 0 -m kerberos tests/kerberos $(ARGS)

# Apache's clients and bookies with ours, in every mixture: needs a JVM with its compiler, and Maven for the first time.
interop: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
interop: $(VENV)/.dev
	@$(BIN)/python -m tests.interop.run $(ARGS)

# Java's DistributedLog and ours on one namespace. ALTERNATIONS: writers of one log that are killed in turn.
distributedlog: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
distributedlog: export BOOKIES_ALTERNATIONS = $(or $(ALTERNATIONS),20)
distributedlog: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n 0 -m apache tests/distributedlog $(ARGS)

spark-chaos: $(VENV)/.dev $(VENV)/.demo
	@$(BIN)/python tests/chaos/spark_chaos.py $(ARGS)

# Apache's system and this one in turn, on this machine: five cases, all of them, or an earlier revision instead of Apache's.
bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.suite --brief --pairs 3 $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

bench-apache: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.suite $(ARGS)

bench-compare: $(VENV)/.dev
	@$(if $(REV),,echo "which revision? make bench-compare REV=HEAD~20" && exit 2)
	@$(BIN)/python -m benchmarks.suite --against $(REV) $(ARGS)

# A bookie dies: Apache's AutoRecovery beside ours, on ZooKeeper.
bench-recovery: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.recovery $(ARGS)

# 1 to 4 bookies under 1 to 4 client processes; what it finds goes into docs/internals/performance.md (python -m benchmarks.model).
bench-scale: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.scale $(ARGS)

# Three zones of network namespaces with delay between them: what near reads save. As root.
bench-zones: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.zones $(ARGS)

example: $(VENV)/.demo
	@$(BIN)/python examples/flights/pipeline.py $(ARGS)

# Executors of their own, on each metadata store: needs a JVM, Maven for the first time, and etcd.
spark-cluster: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
spark-cluster: $(VENV)/.dev $(VENV)/.demo $(VENV)/.connect
	@$(BIN)/python -m pytest -q -n 0 -m cluster tests/live/test_spark_cluster.py $(ARGS)

# PySpark 4.0 to 4.3, each in a small environment beside this one. ARGS: --versions 4.0,4.2, and words for pytest after --
spark-versions: $(VENV)/.dev $(VENV)/.demo
	@$(BIN)/python -m tests.live.spark_versions $(ARGS)

# Small records, or with ARGS=--logs=1000,10000 many logs. Then Java's DistributedLog and ours in turn, on the same bookies.
bench-logs: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
bench-logs: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.logs $(ARGS)
	@$(if $(findstring --logs,$(ARGS)),true,$(BIN)/python -m benchmarks.dlogs $(JAVA_ARGS))

bench-ledgers: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
bench-ledgers: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.many_ledgers $(ARGS)

# Made-up records of many ledgers in the embedded store: plan of a read, usage, reconcile.
bench-spark-metadata: $(VENV)/.dev $(VENV)/.demo
	@$(BIN)/python -m benchmarks.spark_metadata $(ARGS)

bench-spark: export BOOKIES_APACHE_CACHE ?= $(HOME)/.cache/bookies-apache
bench-spark: $(VENV)/.dev $(VENV)/.demo
	@$(BIN)/python -m benchmarks.spark $(ARGS)

# Generated pages, drawings and the chart; then the site with search, in build/site.
docs: $(VENV)/.dev $(VENV)/.docs
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/drawings.py
	@$(BIN)/python docs/chart.py
	@$(BIN)/zensical build --clean --strict

# An sdist, and a wheel for each installed CPython, into dist. ARGS: --twice compares two builds, --demo runs each wheel.
dist: $(VENV)/.release
	@$(BIN)/python release/packages.py build $(ARGS)

# The packages of a version with checksums and a bill of materials. Tag and upload are left to you.
release: $(VENV)/.release
	@$(if $(VERSION),,echo "which version? make release VERSION=0.1.0" && exit 2)
	@$(BIN)/python release/packages.py release $(VERSION)

# An image without a daemon, into dist; from Debian's packages (apt), so on Debian 12 and with its Python.
image: $(VENV)/.release
	@$(BIN)/python release/image.py

# Every combination of the chart's switches; needs helm. ARGS: --write, --openapi FILE, --score, --server.
chart: $(VENV)/.dev
	@$(BIN)/python -m tests.deploy.chart $(ARGS)

clean:
	rm -rf .venv .venv-* build dist .cache .coverage .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "needs Python 3.11 or newer: '$(PYTHON)' was not found (make PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer: '$(PYTHON)' is older (make PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "needs Python's venv and ensurepip (Debian: apt-get install python3-venv)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Once for all extras: each installation compiles the kernels.
$(VENV)/.bookies: pyproject.toml $(KERNELS) | $(VENV)/bin/python
	@echo "installing bookies ..."
	@$(INSTALL) -e . && touch $@

$(addprefix $(VENV)/.,dev demo fuzz console connect docs release): $(VENV)/.%: $(VENV)/.bookies
	@echo "installing what $* needs ..."
	@$(INSTALL) 'bookies[$*]' && touch $@

# Wapiti pins old versions of packages that we use, so it has an environment of its own. It needs Python 3.12 or older.
$(VENV)/.scanner: | $(VENV)/bin/python
	@echo "installing the scanner ..."
	@$(BIN)/python -m venv $(VENV)/scanner
	@$(VENV)/scanner/bin/python -m pip install -q --disable-pip-version-check --no-compile wapiti3==3.2.3 && touch $@

# PySpark comes as source. Its wheel, which is for this installation alone, would take long to compress.
$(VENV)/.demo: export DIST_EXTRA_CONFIG = $(CURDIR)/release/stored.cfg
# mypy reads what is installed while it runs.
$(VENV)/.demo: | $(filter static check,$(MAKECMDGOALS))

# The classes that Spark loads, in one file: each of its starts takes half the processor time.
$(VENV)/.classes: $(VENV)/.dev $(VENV)/.demo
	@$(BIN)/python -m tests.live.spark_session $@
