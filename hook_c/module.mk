# libvgpu.so and vgpu-probe. Shipped builds are made with zig: they need no symbol newer than
# glibc 2.17 (the oldest images that run CUDA), which Debian's own linker cannot promise.
ZIG_GNU := $(ZIG) cc -target x86_64-linux-gnu.2.17

$(BUILD)/vgpu-probe: hook_c/probe/vgpu-probe.c | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG_GNU) -std=gnu11 -D_GNU_SOURCE -O2 $(WARNINGS) -s -o $@ $< -ldl

PRODUCTS += $(BUILD)/vgpu-probe
C_FILES += hook_c/probe/vgpu-probe.c
