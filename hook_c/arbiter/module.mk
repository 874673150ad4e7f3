# libvgpu-arbiter.so: the slot arbiter, a thread of the node agent, loaded by runtime_shim/arbiter.py.
ARBITER := hook_c/arbiter
ARBITER_SOURCES := $(ARBITER)/arbiter.c $(ARBITER)/slots.c
ARBITER_HEADERS := $(wildcard $(ARBITER)/*.h) hook_c/include/vgpu_abi.h $(ARBITER)/module.mk
ARBITER_FLAGS := -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARNINGS) -I$(ARBITER) -Ihook_c/include -fPIC -shared \
	-fvisibility=hidden -pthread -s -Wl,-soname,libvgpu-arbiter.so -Wl,-z,now -Wl,-z,relro -Wl,-z,defs

$(BUILD)/libvgpu-arbiter.so: ARBITER_TARGET := x86_64-linux-gnu.2.17
$(BUILD)/aarch64/libvgpu-arbiter.so: ARBITER_TARGET := aarch64-linux-gnu.2.17
$(BUILD)/libvgpu-arbiter.so $(BUILD)/aarch64/libvgpu-arbiter.so: \
		$(ARBITER_SOURCES) $(ARBITER_HEADERS) | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target $(ARBITER_TARGET) $(ARBITER_FLAGS) -o $@ $(ARBITER_SOURCES)

PRODUCTS += $(BUILD)/libvgpu-arbiter.so
C_COMPONENTS += arbiter
C_INCLUDES_arbiter := -I$(ARBITER) -Ihook_c/include
C_FILES_arbiter := $(wildcard $(ARBITER)/*.[ch])
