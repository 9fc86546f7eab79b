# lcow - a utility VM for every pod. `make help` lists what there is.
# Meson does the building; this file only names what people and CI call.

MESON_GCC   := build/gcc
MESON_CLANG := build/clang
MESON_ASAN  := build/asan
MESON_FUZZ  := build/fuzz
JOBS        := $(shell nproc)

.DEFAULT_GOAL := all
.PHONY: all help deps programs image demo check check-full unit sim asan fuzz-smoke integration e2e soak \
        check-rooms check-format format bench fsm-docs man install deb clean

all: image ## programs in build/bin and the guest image in build/image

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Debian packages this needs (nothing happens when they are there)
	@scripts/deps

$(MESON_GCC)/build.ninja: | deps
	@echo "programs: compiling, some minutes the first time"
	@CC=gcc meson setup $(MESON_GCC) >build/setup-gcc.log 2>&1 || { cat build/setup-gcc.log; exit 1; }
# Nobody runs what clang makes here; it is asked for its warnings, and soonest without optimizing.
$(MESON_CLANG)/build.ninja: | deps
	@CC=clang meson setup $(MESON_CLANG) -Doptimization=0 -Ddebug=false >build/setup-clang.log 2>&1 || \
		{ cat build/setup-clang.log; exit 1; }
$(MESON_ASAN)/build.ninja: | deps
	@CC=gcc meson setup $(MESON_ASAN) -Db_sanitize=address,undefined -Doptimization=1 \
		>build/setup-asan.log 2>&1 || { cat build/setup-asan.log; exit 1; }
$(MESON_FUZZ)/build.ninja: | deps
	@CC=clang meson setup $(MESON_FUZZ) -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false \
		>build/setup-fuzz.log 2>&1 || { cat build/setup-fuzz.log; exit 1; }
$(MESON_GCC)/build.ninja $(MESON_CLANG)/build.ninja $(MESON_ASAN)/build.ninja $(MESON_FUZZ)/build.ninja: | build
build:
	@mkdir -p build

# NINJA_TARGETS: for those who want no tests built.
programs: $(MESON_GCC)/build.ninja ## build/bin
	@ninja --quiet -C $(MESON_GCC) $(NINJA_TARGETS)
	@mkdir -p build/bin
	@for p in lcow/lcow gcs/gcs shim/containerd-shim-lcow-v2; do \
		cmp -s $(MESON_GCC)/cmd/$$p build/bin/$${p#*/} || \
		install -m 755 $(MESON_GCC)/cmd/$$p build/bin/$${p#*/}; done

image: programs ## build/image: kernel, initrd, manifest
	@image/build build/image build/bin/gcs

demo: image ## a pod by the CRI under a private containerd 2.1: what happens, where the time goes, what stays
	@scripts/demo

check: deps ## every test; ends with "N passed, N failed"
	@scripts/check

check-full: deps ## the same with more seeds and longer fuzzing; nothing is run twice
	@scripts/check --full --strict

unit sim asan fuzz-smoke integration: deps ## one suite of make check
	@scripts/check --only $@

e2e: image ## all end-to-end tests: on containerd 2.1, a smoke set on 1.6 and 1.7
	@tests/e2e/run

soak: image ## 1000 containers in one VM and 1 GiB through a slow reader; about half an hour
	@tests/e2e/soak

check-rooms: ## what may include what
	@scripts/check-rooms

check-format:
	@clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h')

format: ## clang-format over everything
	@clang-format -i $$(git ls-files '*.c' '*.h')

bench: image ## lcow and its peers in one run: table, build/bench.json, docs/performance.md
	@bench/run

fsm-docs: programs ## the state tables as Markdown
	@$(MESON_GCC)/tests/fsm_docs

man: programs ## build/man: manual pages and the default configuration
	@man/pages build/bin/lcow build/man

install: all man ## DESTDIR= and PREFIX=/usr/local, as everywhere
	@DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) scripts/install

deb: deps ## build/deb: packages lcow and lcow-guest, of what is committed
	@scripts/deps --deb
	@scripts/deb

clean: ## everything that was built; downloads stay in build/cache
	@find build -mindepth 1 -maxdepth 1 ! -name cache -exec rm -rf {} +
