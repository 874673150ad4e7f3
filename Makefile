# The words of docs/contract.md §7, the same for people and for .ci/run.
# Each component says in its own module.mk what it builds and what its tests are.
SHELL := /bin/bash
.DEFAULT_GOAL := hook

VENV := .venv
PY := $(VENV)/bin/python
BUILD := build
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' runtime_shim/__init__.py)
PREFIX ?= /usr/local
DESTDIR ?=

# Debian's compiler for tests and sanitizers; zig for what is shipped (glibc 2.17 symbols, static musl).
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wswitch-enum -Werror
CC_TEST := gcc -std=gnu11 -g -O1 $(WARNINGS)
ZIG := $(PY) -m ziglang
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

# C_FILES_<component>, C_INCLUDES_<component>: what clang-format, clang-tidy and cppcheck read. Apart,
# because a header of one may bear the name of another's, or of the C library's.
C_COMPONENTS :=
C_TESTS :=        # test programs; each ends with "N passed, N failed"
PRODUCTS :=       # what `make hook` builds
FAKES :=          # the simulated GPU
SAN_PRODUCTS :=   # sanitizer builds of the products
TEST_DATA :=      # what tests need and is fetched, once

SETUP := $(VENV)/.setup-base

include runtime_shim/launcher/module.mk
include hook_c/module.mk
include tests/fakes/gpu/module.mk
include bench/gpu/module.mk
include packaging/deb/module.mk
include tests/fuzz/module.mk

# Whole nodes mostly wait for each other: more workers than processors.
WORKERS ?= 4
# Daemons do most of the work here, not the tests.
ENGINE_WORKERS ?= 3

.PHONY: setup lock check fmt test test-c test-py test-engines demo proto api hook install e2e fuzz bench images test-images test-schedulers device clean

$(SETUP): scripts/setup requirements-dev.lock
	scripts/setup base

setup:
	scripts/setup base check engines
	$(MAKE) $(TEST_DATA)

hook: $(SETUP) $(PRODUCTS)

# The newest versions of everything that is installed: docs/release.md.
lock: $(SETUP)
	scripts/lock

proto:
	scripts/proto

check: $(SETUP)
	scripts/check

fmt: $(SETUP)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix --exit-zero .
	$(VENV)/bin/clang-format -i $(filter-out %.gen.h %.gen.c,$(foreach component,$(C_COMPONENTS),$(C_FILES_$(component))))

test-c: $(SETUP) $(PRODUCTS) $(FAKES) $(C_TESTS)
	scripts/run-c-tests $(C_TESTS)

test-py: $(SETUP) $(PRODUCTS) $(SAN_PRODUCTS) $(FAKES) $(TEST_DATA)
	$(PY) -m pytest -q -n $(WORKERS) -m "not engine and not device and not deb and not e2e and not images and not schedulers"

test: test-c test-py

test-engines: $(SETUP) $(PRODUCTS) $(FAKES)
	scripts/setup engines
	$(PY) -m pytest -q -n $(ENGINE_WORKERS) --dist loadgroup tests/engines

demo: $(SETUP) $(PRODUCTS) $(FAKES)
	$(PY) -m tests.demo

bench: $(SETUP) $(PRODUCTS) $(FAKES)
	$(PY) bench/runtime.py

# Both images, for REGISTRY (docker.io/vgpu) with TAG (the version).
images: $(SETUP) $(PRODUCTS)
	scripts/setup images
	scripts/images $(REGISTRY) $(TAG)

test-images: $(SETUP) $(PRODUCTS)
	scripts/setup engines images
	$(PY) -m pytest -q -m images tests/images

device: $(SETUP) $(PRODUCTS)
	tests/device/run

install: $(SETUP) $(PRODUCTS)
	scripts/install "$(DESTDIR)" "$(PREFIX)" "$(VERSION)"

KUBE_PROGRAMS := kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl helm
# QUICK=1: one case of each kind. A program that cannot be had fails the tier: it was not run.
E2E_MARK := $(if $(QUICK),e2e_quick,e2e)
e2e: $(SETUP) $(PRODUCTS) $(FAKES)
	scripts/setup e2e
	for name in $(KUBE_PROGRAMS); do scripts/kube-program $$name >/dev/null || exit; done
	$(PY) -m pytest -q -m $(E2E_MARK) tests/e2e

# Other systems' schedulers, built by whoever runs this, in PROGRAMS (docs/schedulers.md). RECORD=DIR: what
# became of each case is written there.
test-schedulers: $(SETUP) $(PRODUCTS) $(FAKES)
	scripts/setup e2e
	$(if $(PROGRAMS),for name in $(KUBE_PROGRAMS); do scripts/kube-program $$name >/dev/null || exit; done)
	VGPU_SCHEDULER_PROGRAMS="$(PROGRAMS)" VGPU_SCHEDULER_RECORD="$(RECORD)" \
		$(PY) -m pytest -q -m schedulers tests/e2e/schedulers

# Each target for SECONDS, as many at once as there are processors.
fuzz: SECONDS ?= 600
fuzz: $(SETUP) $(FAKES)
	scripts/setup fuzz
	$(MAKE) $(FUZZERS)
	tests/fuzz/run $(SECONDS)

clean:
	rm -rf $(BUILD)

print-%:
	@echo '$($*)'
