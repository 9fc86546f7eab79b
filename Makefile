# lcow - a utility VM for every pod. `make help` lists the targets.
# Meson builds the programs; this file has the targets for people and CI.

MESON_GCC   := build/gcc
MESON_CLANG := build/clang
MESON_ASAN  := build/asan
MESON_WORDS := build/words
MESON_FUZZ  := build/fuzz
JOBS        := $(shell nproc)

.DEFAULT_GOAL := all
.PHONY: all help deps programs image scrambled demo check check-full unit sim asan fuzz-smoke integration host e2e soak \
        check-rooms check-format format bench fsm-docs docs man install deb clean

all: image ## build the programs and the guest image

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the Debian packages that are needed and missing
	@scripts/deps

$(MESON_GCC)/build.ninja: | deps
	@echo "programs: compiling; this takes some minutes the first time"
	@CC=gcc meson setup $(MESON_GCC) -Dpackage_version='$(PACKAGE_VERSION)' \
		>build/setup-gcc.log 2>&1 || { cat build/setup-gcc.log; exit 1; }
# The clang build is only for its warnings and is never run. Without optimization it is fastest.
$(MESON_CLANG)/build.ninja: | deps
	@CC=clang meson setup $(MESON_CLANG) -Doptimization=0 -Ddebug=false >build/setup-clang.log 2>&1 || \
		{ cat build/setup-clang.log; exit 1; }
$(MESON_ASAN)/build.ninja: | deps
	@CC=gcc meson setup $(MESON_ASAN) -Db_sanitize=address,undefined -Doptimization=1 \
		>build/setup-asan.log 2>&1 || { cat build/setup-asan.log; exit 1; }
# Scrambled messages, to find tests that depend on wording (src/base/words.h).
$(MESON_WORDS)/build.ninja: | deps
	@CC=gcc meson setup $(MESON_WORDS) -Dscramble=true >build/setup-words.log 2>&1 || \
		{ cat build/setup-words.log; exit 1; }
$(MESON_FUZZ)/build.ninja: | deps
	@CC=clang meson setup $(MESON_FUZZ) -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false \
		>build/setup-fuzz.log 2>&1 || { cat build/setup-fuzz.log; exit 1; }
$(MESON_GCC)/build.ninja $(MESON_CLANG)/build.ninja $(MESON_ASAN)/build.ninja $(MESON_FUZZ)/build.ninja \
$(MESON_WORDS)/build.ninja: | build
build:
	@mkdir -p build

# NINJA_TARGETS names targets other than all, for example to build no tests.
programs: $(MESON_GCC)/build.ninja ## build the programs in build/bin
	@ninja --quiet -C $(MESON_GCC) $(NINJA_TARGETS)
	@mkdir -p build/bin
	@for p in lcow/lcow gcs/gcs shim/containerd-shim-lcow-v2; do \
		cmp -s $(MESON_GCC)/cmd/$$p build/bin/$${p#*/} || \
		install -m 755 $(MESON_GCC)/cmd/$$p build/bin/$${p#*/}; done

image: programs ## build the guest image in build/image
	@image/build build/image build/bin/gcs

scrambled: $(MESON_WORDS)/build.ninja ## build programs and image with scrambled messages in build/words
	@ninja --quiet -C $(MESON_WORDS) cmd/lcow/lcow cmd/gcs/gcs cmd/shim/containerd-shim-lcow-v2
	@mkdir -p $(MESON_WORDS)/bin
	@install -m 755 $(MESON_WORDS)/cmd/lcow/lcow $(MESON_WORDS)/cmd/gcs/gcs \
		$(MESON_WORDS)/cmd/shim/containerd-shim-lcow-v2 $(MESON_WORDS)/bin
	@image/build $(MESON_WORDS)/image $(MESON_WORDS)/bin/gcs

demo: image ## run a pod under a private containerd, with a leak check
	@scripts/demo

check: deps ## run all tests; the last line is "N passed, N failed"
	@scripts/check

check-full: deps ## the same with more seeds, longer fuzzing, no retries
	@scripts/check --full --strict

unit sim asan fuzz-smoke integration host: deps ## run one suite of make check
	@scripts/check --only $@

e2e: image ## run the end-to-end tests (containerd 2.1, 1.6, 1.7)
	@tests/e2e/run

soak: image ## run 1000 containers in one VM, and more (30 min)
	@tests/e2e/soak

check-rooms: ## check which room may include which
	@scripts/check-rooms

check-format:
	@clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h')

format: ## format all C files with clang-format
	@clang-format -i $$(git ls-files '*.c' '*.h')

bench: image ## compare lcow with its peers; writes docs/performance.md
	@bench/run

fsm-docs: programs ## print the state tables as Markdown
	@$(MESON_GCC)/tests/fsm_docs

docs: ## build the pages as a site with search in build/docs
	@scripts/deps --docs
	@scripts/docs

man: programs ## build manual pages and default configuration in build/man
	@man/pages build/bin/lcow build/man

install: all man ## install to DESTDIR/PREFIX (PREFIX=/usr/local)
	@DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) scripts/install

deb: deps ## build the Debian packages from HEAD in build/deb
	@scripts/deps --deb
	@scripts/deb

clean: ## remove all build results except build/cache
	@find build -mindepth 1 -maxdepth 1 ! -name cache -exec rm -rf {} +
