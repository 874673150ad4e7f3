# Fuzz targets of the launcher: by libFuzzer in `make fuzz`, over the committed corpus in `make test`.
FUZZ_TARGETS := argv conf launcher marks wire
FUZZ_CLANG ?= clang
FUZZ_FLAGS := -std=gnu11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined \
	-fno-sanitize-recover=all -fno-omit-frame-pointer -Itests/fuzz -I$(LAUNCHER)
FUZZERS := $(addprefix $(BUILD)/fuzz/,$(FUZZ_TARGETS))
FUZZ_REPLAYS := $(addprefix $(BUILD)/tests/fuzz/,$(FUZZ_TARGETS))

C_TESTS += $(FUZZ_REPLAYS)
C_COMPONENTS += fuzz
C_INCLUDES_fuzz := -Itests/fuzz -I$(LAUNCHER)
C_FILES_fuzz := $(wildcard tests/fuzz/*.[ch])

# launcher.c has edges of its own, so it takes of the launcher only what does no I/O.
FUZZ_SOURCES := $(filter-out %/conf.c,$(LAUNCHER_PURE))
FUZZ_SOURCES_conf := $(LAUNCHER)/conf.c

.SECONDEXPANSION:
$(FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/%.c $$(FUZZ_SOURCES_$$*) tests/fuzz/fuzz.h \
		$(FUZZ_SOURCES) $(LAUNCHER)/main.c $(LAUNCHER_H)
	@mkdir -p $(@D)
	$(FUZZ_CLANG) $(FUZZ_FLAGS) -o $@ $< $(FUZZ_SOURCES_$*) $(FUZZ_SOURCES)

$(FUZZ_REPLAYS): $(BUILD)/tests/fuzz/%: tests/fuzz/%.c $$(FUZZ_SOURCES_$$*) tests/fuzz/replay.c \
		tests/fuzz/fuzz.h $(FUZZ_SOURCES) $(LAUNCHER)/main.c $(LAUNCHER_H)
	@mkdir -p $(@D)
	$(CC_TEST) -D_GNU_SOURCE $(SANITIZE) -Itests/fuzz -I$(LAUNCHER) \
		-o $@ $< tests/fuzz/replay.c $(FUZZ_SOURCES_$*) $(FUZZ_SOURCES)

# The launcher's search for marks, called by tests/fuzz/bundle.py.
FAKES += $(BUILD)/fuzz/libmarks.so
$(BUILD)/fuzz/libmarks.so: $(LAUNCHER)/marks.c $(LAUNCHER)/marks.h
	@mkdir -p $(@D)
	$(CC_TEST) -shared -fPIC -o $@ $<
