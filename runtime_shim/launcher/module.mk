# vgpu-container-runtime: one static program, no libc of the host, no start-up work.
LAUNCHER := runtime_shim/launcher
LAUNCHER_PURE := $(addprefix $(LAUNCHER)/,argv.c conf.c marks.c text.c wire.c)
LAUNCHER_C := $(LAUNCHER_PURE) $(addprefix $(LAUNCHER)/,agent.c bundle.c main.c report.c runtime.c)
LAUNCHER_H := $(wildcard $(LAUNCHER)/*.h)
LAUNCHER_FLAGS := -std=gnu11 -D_GNU_SOURCE -Os $(WARNINGS) -fvisibility=hidden \
	-ffunction-sections -fdata-sections -static -s -Wl,--gc-sections

PRODUCTS += $(BUILD)/vgpu-container-runtime
C_FILES += $(LAUNCHER_C) $(LAUNCHER_H)
C_INCLUDES += -I$(LAUNCHER)
SAN_PRODUCTS += $(BUILD)/san/vgpu-container-runtime-asan

$(BUILD)/vgpu-container-runtime: $(LAUNCHER_C) $(LAUNCHER_H) $(LAUNCHER)/module.mk | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target x86_64-linux-musl $(LAUNCHER_FLAGS) -o $@ $(LAUNCHER_C)

$(BUILD)/aarch64/vgpu-container-runtime: $(LAUNCHER_C) $(LAUNCHER_H) $(LAUNCHER)/module.mk | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target aarch64-linux-musl $(LAUNCHER_FLAGS) -o $@ $(LAUNCHER_C)

$(BUILD)/san/vgpu-container-runtime-asan: $(LAUNCHER_C) $(LAUNCHER_H)
	@mkdir -p $(@D)
	$(CC_TEST) -D_GNU_SOURCE $(SANITIZE) -o $@ $(LAUNCHER_C)
