# `make help` lists the targets. Needs Python 3.11 or 3.12, JDK 17, Maven >= 3.8; Linux.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.SECONDEXPANSION:

PYTHON ?= python3
MVN ?= mvn
STRATEGY ?= ps
SPARK ?= 3
EXECUTORS ?= 3
LAB ?=

# Installs four times as fast as pip; unlike it, it does not read pip's own settings.
UV := uv==0.13.9
INDEX = $(if $(PIP_INDEX_URL),--default-index $(PIP_INDEX_URL))

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BIN := $(CURDIR)/.venv/bin
MAVEN := $(MVN) -q -ntp -B -f scala/pom.xml
SCALAFMT = env MAVEN_OPTS="$${MAVEN_OPTS-} -XX:TieredStopAtLevel=1" $(MAVEN) -Pspark-3.5,bigdl org.antipathy:mvn-scalafmt_2.12:format
# Scalafmt tells each file that it downloads. What else it tells is shown if it fails.
SCALAFMT_LOGGED = mkdir -p build; $(SCALAFMT) $(1) > build/scalafmt.log 2>&1 || \
	{ grep -v '^Downloading ' build/scalafmt.log; exit 1; }
JAR_3 := scala/core/target/spark-3.5/sparkdl-comm-spark3.5_2.12-$(VERSION).jar
JAR_4 := scala/core/target/spark-4.2/sparkdl-comm-spark4.2_2.13-$(VERSION).jar
BIGDL_JAR := scala/bigdl/target/spark-3.5/sparkdl-comm-bigdl-spark3.5_2.12-$(VERSION).jar
JAR_SOURCES := $(shell find scala -name target -prune -o -path '*/src/test' -prune -o -type f ! -name '.*' -print)

# Hundreds of processes of tests load the same modules; none of them should compile them again.
unexport PYTHONDONTWRITEBYTECODE

# --- environments -------------------------------------------------------------------------------

.PHONY: env
env: .venv/.stamp ## .venv from requirements.lock, with this package editable

.venv/.stamp: requirements.lock pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 12) else \
	  "make env: the locked packages need Python 3.11 or 3.12, $(PYTHON) is %d.%d; set PYTHON=..." % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check $(UV)
	@echo 'make env: installing the locked packages into .venv, 6 GB with torch and its CUDA libraries: a minute or more'
	$(BIN)/uv pip install -q --python $(BIN)/python $(INDEX) -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: spark4-env
spark4-env: .spark4/.stamp ## .spark4: PySpark 4 on top of .venv

.spark4/.stamp: requirements-spark4.lock | .venv/.stamp
	$(BIN)/uv pip install -q --python $(BIN)/python $(INDEX) --no-deps --upgrade --target .spark4 -r $<
	@touch $@

.PHONY: bigdl
bigdl: build/bigdl/.stamp ## build/bigdl: BigDL 2.4.0, which the benchmark `peers` compares with

build/bigdl/.stamp: | .venv/.stamp
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --upgrade --target $(@D) bigdl-dllib-spark3==2.4.0 bigdl-core==2.3.0 six==1.17.0
	@touch $@

# No repository has BigDL's jars: Maven gets them from one that is made here of what is in the Python packages.
BIGDL_REPOSITORY := build/bigdl/repository
BIGDL_INSTALL = $(MAVEN) org.apache.maven.plugins:maven-install-plugin:3.1.4:install-file \
	-DlocalRepositoryPath=$(CURDIR)/$(BIGDL_REPOSITORY)

$(BIGDL_REPOSITORY)/.stamp: build/bigdl/.stamp $(wildcard scala/bigdl/wheel/*.pom)
	$(BIGDL_INSTALL) -DpomFile=$(CURDIR)/scala/bigdl/wheel/bigdl-dllib-spark3.pom \
	  -Dfile=$(CURDIR)/build/bigdl/bigdl/share/dllib/lib/bigdl-dllib-spark_3.1.3-2.4.0-jar-with-dependencies.jar
	$(BIGDL_INSTALL) -DpomFile=$(CURDIR)/scala/bigdl/wheel/bigdl-core.pom -Dfile=$(CURDIR)/build/bigdl/bigdl/share/core/lib/all-2.3.0.jar
	@touch $@

.PHONY: bigdl-jar
bigdl-jar: $(BIGDL_JAR) ## scala/bigdl: IBatchOptimizer for models written in BigDL, Spark 3.5 only
	@mkdir -p sparkdl_comm/jars
	@cp -u --remove-destination $(JAR_3) $< sparkdl_comm/jars/

$(BIGDL_JAR): $(BIGDL_REPOSITORY)/.stamp $(JAR_SOURCES)
	$(MAVEN) -Pspark-3.5,bigdl -Dmaven.test.skip=true -DskipTests package
	@touch $(JAR_3) $@

# --- Scala --------------------------------------------------------------------------------------

.PHONY: jar jar-3 jar-4
jar: jar-3 jar-4 ## the plugin for both Spark lines, also copied to sparkdl_comm/jars; scala/bench's jars stay there
jar-3 jar-4: jar-%: $$(JAR_$$*)
	@mkdir -p sparkdl_comm/jars
	@cp -u --remove-destination $< sparkdl_comm/jars/

$(JAR_3): $(JAR_SOURCES)
	$(MAVEN) -Pspark-3.5 -Dmaven.test.skip=true -DskipTests package
	@touch $@

$(JAR_4): $(JAR_SOURCES)
	$(MAVEN) -Pspark-4.2 -Dmaven.test.skip=true -DskipTests package
	@touch $@

.PHONY: wheel
wheel: jar build/pip/bin/pip ## the Python package as a wheel in build/dist, with both jars
	rm -rf build/dist
	build/pip/bin/pip wheel -q --disable-pip-version-check --no-deps -w build/dist .
	@ls build/dist/*.whl

build/pip/bin/pip:
	$(PYTHON) -m venv build/pip

# Spark 3's own package is without Spark Connect, and Maven Central has no jar of every patch release.
CONNECT_VERSION := 3.5.7
CONNECT_JAR := build/connect/spark-connect_2.12-$(CONNECT_VERSION).jar

# Python's packages come while Maven compiles.
.PHONY: ready-3 ready-4 ready
ready-3 ready-4: ready-%:
	@mkdir -p build
	@echo 'compiling the plugin for Spark $* (build/jar-$*.log)'
	@$(MAKE) --no-print-directory jar-$* > build/jar-$*.log 2>&1 & jar=$$!; \
	  $(MAKE) --no-print-directory $(if $(filter 4,$*),spark4-env,env); wait $$jar || { cat build/jar-$*.log; exit 1; }

ready:
	@mkdir -p build
	@echo 'compiling the plugin for Spark 3.5 and 4.2 (build/jar.log)'
	@$(MAKE) --no-print-directory jar > build/jar.log 2>&1 & jar=$$!; \
	  $(MAKE) --no-print-directory spark4-env; wait $$jar || { cat build/jar.log; exit 1; }

.PHONY: connect-jar
connect-jar: $(CONNECT_JAR) ## Spark Connect for Spark 3.5, for its tests

$(CONNECT_JAR):
	$(MAVEN) org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
	  -Dartifact=org.apache.spark:spark-connect_2.12:$(CONNECT_VERSION) -DoutputDirectory=$(CURDIR)/$(@D)

.PHONY: scala-test
scala-test: ## ScalaTest on Spark 3.5
	$(MAVEN) -Pspark-3.5 test

.PHONY: bigdl-test
bigdl-test: $(BIGDL_REPOSITORY)/.stamp ## ScalaTest of scala/bigdl
	$(MAVEN) -Pspark-3.5,bigdl test -DwildcardSuites=sparkdl.comm.bigdl

.PHONY: scala-test-4
scala-test-4: ## ScalaTest on Spark 4.2
	$(MAVEN) -Pspark-4.2 test

# --- checks and tests ---------------------------------------------------------------------------

.PHONY: check
check: env ## ruff, mypy, which room imports which, licence headers, scalafmt; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	@missing=$$(grep -rL --include='*.scala' --include='*.java' '^// SPDX-License-Identifier: Apache-2.0$$' scala/*/src); \
	  test -z "$$missing" || { echo "no licence header: $$missing"; exit 1; }
	@$(MAKE) --no-print-directory scalafmt

.PHONY: scalafmt
scalafmt:
	@echo 'checking how Scala is formatted (build/scalafmt.log)'
	@$(call SCALAFMT_LOGGED)

.PHONY: format
format: env ## formats Python and Scala
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	@$(call SCALAFMT_LOGGED,-Dscalafmt.validateOnly=false)

# Static analysis only: neither torch nor Spark is loaded.
MKDOCS = env NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

.PHONY: docs docs-serve
docs: env ## the site of the documentation, in build/docs; warnings are errors
	$(MKDOCS) build --strict --clean

docs-serve: env ## shows the site on http://127.0.0.1:8000, and follows changes
	$(MKDOCS) serve

# Spark's classes, for the JVMs that tests start: see tests/spark_home.py.
ARCHIVES := build/tests/spark3.jsa build/tests/spark4.jsa
build/tests/spark4.jsa: export PYTHONPATH = $(CURDIR)/.spark4
build/tests/spark4.jsa: .spark4/.stamp
$(ARCHIVES): build/tests/spark%.jsa: .venv/.stamp tests/class_archive.py tests/spark_home.py
	$(BIN)/python -m tests.class_archive > build/class-archive-$*.log 2>&1 || { cat build/class-archive-$*.log; exit 1; }

.PHONY: test
test: ready bigdl-jar $(ARCHIVES) check scala-test ## everything but the slow tests, with the same draws every time
	$(BIN)/python -m pytest -n 3 -m "not slow"

# The number that a run prints repeats its draws: SPARKDL_TEST_SEED=NUMBER make test-all.
.PHONY: test-all
test-all: export SPARKDL_TEST_SEED ?= random
test-all: ready bigdl-jar $(ARCHIVES) check docs connect-jar scala-test bigdl-test scala-test-4 test-oldest ## everything, with new draws
	$(BIN)/python -m pytest -m alone
	$(BIN)/python -m pytest -n 3 -m "not alone"

# The oldest versions that pyproject.toml allows, all the same on Python 3.11 and 3.12.
.oldest/.stamp: pyproject.toml requirements.lock | .venv/.stamp
	test -x .oldest/bin/python || $(PYTHON) -m venv .oldest
	$(BIN)/uv pip install -q --python .oldest/bin/python $(INDEX) --resolution lowest-direct -e '.[spark,metrics,demo]'
	$(BIN)/uv pip install -q --python .oldest/bin/python $(INDEX) $$(grep -E '^(pytest|hypothesis)' requirements.lock)
	@touch $@

# Rooms whose tests need no more than the package does.
OLDEST_ROOMS = autotune collectives compress conf data gang ml optim space strategies train

.PHONY: test-oldest
test-oldest: jar .oldest/.stamp ## some tests with the oldest versions that pyproject.toml allows
	.oldest/bin/python -m pytest -n 3 -m "not slow" $(OLDEST_ROOMS:%=tests/unit/%) tests/integration/test_training.py \
	  --ignore tests/unit/ml/test_export.py

.PHONY: test-gpu
test-gpu: ## those that need a GPU, and neither Spark nor Java; with the Python and torch that there are
	$(PYTHON) -m pytest -m gpu tests/gpu

# --- programs on local-cluster ------------------------------------------------------------------

# A Spark home made of links: local-cluster writes its executors' directories (with their stderr) to $SPARK_HOME/work,
# which is build/spark*-home/work this way.
HOME_LINKS = for part in bin jars python; do ln -sfn "$$pyspark/$$part" $(@D)/$$part; done

build/spark3-home/.stamp: .venv/.stamp
	@mkdir -p $(@D)
	@pyspark=$$($(BIN)/python -c 'import pyspark; print(pyspark.__path__[0])'); $(HOME_LINKS)
	@touch $@

build/spark4-home/.stamp: .spark4/.stamp
	@mkdir -p $(@D)
	@pyspark=$(CURDIR)/.spark4/pyspark; $(HOME_LINKS)
	@touch $@

SUBMIT_HERE = build/spark$(SPARK)-home/bin/spark-submit --master 'local-cluster[$(EXECUTORS),1,2048]'
SUBMIT = env SPARK_HOME=$(CURDIR)/build/spark$(SPARK)-home SPARK_LOCAL_IP=127.0.0.1 \
	PYSPARK_PYTHON=$(BIN)/python PYSPARK_DRIVER_PYTHON=$(BIN)/python \
	$(if $(filter 4,$(SPARK)),PYTHONPATH=$(CURDIR)/.spark4) \
	$(if $(LAB),$(BIN)/python python/sparkdl-lab submit --topology $(LAB) --,$(SUBMIT_HERE)) \
	--jars $(JAR_$(SPARK)) \
	--conf spark.plugins=sparkdl.comm.CommPlugin \
	--conf spark.sparkdl.comm.strategy=$(STRATEGY) \
	--conf spark.scheduler.barrier.maxConcurrentTasksCheck.interval=1s \
	--conf spark.sql.warehouse.dir=file:$(CURDIR)/build/spark-warehouse \
	--conf spark.log.level=WARN \
	--conf spark.ui.showConsoleProgress=false

.PHONY: demo
demo: ready-$(SPARK) build/spark$(SPARK)-home/.stamp ## trains a model: STRATEGY=ps|gloo SPARK=3|4 EXECUTORS=3 LAB=star:3,200mbit; result in build/demo
	@mkdir -p build/demo
	$(SUBMIT) python/train.py $(if $(LAB),,--num-workers $(EXECUTORS)) --output build/demo

.PHONY: demo-bigdl
demo-bigdl: env bigdl-jar build/spark3-home/.stamp ## trains a BigDL model: EXECUTORS=3; result in build/demo-bigdl
	@mkdir -p build/demo-bigdl
	$(BENCH_SETTINGS) PYTHONPATH=$(CURDIR)/build/bigdl $(BIN)/python python/train_bigdl.py \
	  --executors $(EXECUTORS) --output build/demo-bigdl

BENCH_SETTINGS = SPARK_HOME=$(CURDIR)/build/spark3-home SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON=$(BIN)/python
BENCH = env $(BENCH_SETTINGS) $(BIN)/python

.PHONY: bench
bench: env jar build/spark3-home/.stamp ## the benchmarks, quickly; `python python/benchmarks` lists them
	$(BENCH) python/benchmarks zero --quick
	$(BENCH) python/benchmarks ps --quick
	$(BENCH) python/benchmarks ps --topology star:3 --quick
	$(BENCH) python/benchmarks fetch --quick
	$(BENCH) python/benchmarks peers --topology star:3 --quick
	$(BENCH) python/benchmarks collectives --topology bcube:2,2 --quick
	$(BENCH) python/benchmarks transform --quick
	$(BENCH) python/benchmarks compression --quick
	$(BENCH) python/benchmarks compression/record --quick
	$(BENCH) python/benchmarks compression/pto --topology star:2 --loopback --quick
	$(BENCH) python/benchmarks fabric --scheduler 10,100 --quick
	$(BENCH) python/benchmarks fabric --simulate --workers 6 --quick
	$(BENCH) python/benchmarks fabric --train --workers 3 --accuracy 0.5 --quick
	$(BENCH) python/benchmarks fabric --lda --workers 3 --perplexity 800 --words 2000 --quick
	$(BENCH) python/benchmarks scale/auto --quick --drop
	$(BENCH) python/benchmarks scale --validate --quick
	$(BENCH) python/benchmarks scale --scale --quick
	$(BENCH) python/benchmarks scale --blind --quick
	$(BENCH) python/benchmarks scale --predict --quick
	$(BENCH) python/benchmarks scale/size --quick
	$(BENCH) python/benchmarks bigdl --networks lenet --quick

PAGE ?= zero ps peers lab collectives lp jobs ibatch fetch transform compression fabric scale bigdl

.PHONY: results
results: env jar bigdl-jar build/spark3-home/.stamp ## measures what the page PAGE=lab of python/benchmarks tells (all pages: hours), and makes its tables
	for page in $(PAGE); do commands=$$($(BIN)/python python/benchmarks tables --commands $$page); \
	  PATH=$(BIN):$$PATH $(BENCH_SETTINGS) bash -exc "$$commands"; done
	$(MAKE) --no-print-directory tables

.PHONY: tables
tables: env ## the tables of the pages in python/benchmarks, made from their JSON files
	$(BIN)/python python/benchmarks tables

.PHONY: lab-check
lab-check: env ## measures the lab's links, on a quiet machine: fails if one is off by more than 8 %
	$(BIN)/python python/benchmarks lab

# --- the rest -----------------------------------------------------------------------------------

.PHONY: clean
clean: ## removes what was built, not the environments
	rm -rf build scala/target scala/*/target sparkdl_comm/jars *.egg-info spark-warehouse \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find sparkdl_comm python tests setup.py -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
