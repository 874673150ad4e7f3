# vgpu-container-runtime: one static program, nothing of the host's libc, no start-up work.
LAUNCHER := runtime_shim/launcher
LAUNCHER_PURE := $(addprefix $(LAUNCHER)/,argv.c conf.c marks.c text.c wire.c)
LAUNCHER_C := $(LAUNCHER_PURE) $(addprefix $(LAUNCHER)/,agent.c bundle.c main.c report.c runtime.c)
LAUNCHER_H := $(wildcard $(LAUNCHER)/*.h)
LAUNCHER_FLAGS := -std=gnu11 -D_GNU_SOURCE -Os $(WARNINGS) -fvisibility=hidden \
	-ffunction-sections -fdata-sections -static -s -Wl,--gc-sections
LAUNCHER_TESTS := $(patsubst tests/launcher/%.c,$(BUILD)/tests/launcher/%,$(wildcard tests/launcher/test_*.c))

PRODUCTS += $(BUILD)/vgpu-container-runtime
SAN_PRODUCTS += $(BUILD)/san/vgpu-container-runtime-asan
C_TESTS += $(LAUNCHER_TESTS)
FAKES += $(BUILD)/tests/launcher/recorder $(BUILD)/bench/spawn
C_COMPONENTS += launcher
C_INCLUDES_launcher := -I$(LAUNCHER)
C_FILES_launcher := $(LAUNCHER_C) $(LAUNCHER_H) $(wildcard tests/launcher/*.[ch]) bench/spawn.c

$(BUILD)/vgpu-container-runtime: LAUNCHER_TARGET := x86_64-linux-musl
$(BUILD)/aarch64/vgpu-container-runtime: LAUNCHER_TARGET := aarch64-linux-musl
$(BUILD)/vgpu-container-runtime $(BUILD)/aarch64/vgpu-container-runtime: \
		$(LAUNCHER_C) $(LAUNCHER_H) $(LAUNCHER)/module.mk | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target $(LAUNCHER_TARGET) $(LAUNCHER_FLAGS) -o $@ $(LAUNCHER_C)

$(BUILD)/san/vgpu-container-runtime-asan: $(LAUNCHER_C) $(LAUNCHER_H)
	@mkdir -p $(@D)
	$(CC_TEST) -D_GNU_SOURCE $(SANITIZE) -o $@ $(LAUNCHER_C)

$(LAUNCHER_TESTS): $(BUILD)/tests/launcher/%: tests/launcher/%.c tests/launcher/check.h \
		$(LAUNCHER_PURE) $(LAUNCHER_H)
	@mkdir -p $(@D)
	$(CC_TEST) -D_GNU_SOURCE $(SANITIZE) -I$(LAUNCHER) -o $@ $< $(LAUNCHER_PURE)

# A low-level runtime that only keeps what it was given, and the bench's clock: static, so that they
# cost next to nothing.
$(BUILD)/tests/launcher/recorder: tests/launcher/recorder.c | $(SETUP)
$(BUILD)/bench/spawn: bench/spawn.c | $(SETUP)
$(BUILD)/tests/launcher/recorder $(BUILD)/bench/spawn:
	@mkdir -p $(@D)
	$(ZIG) cc -target x86_64-linux-musl $(LAUNCHER_FLAGS) -o $@ $<
