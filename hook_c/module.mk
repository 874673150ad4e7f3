# libvgpu.so and vgpu-probe. What is shipped is made with zig: it needs no symbol newer than glibc
# 2.17 (the oldest images that run CUDA), which Debian's own linker cannot promise.
HOOK_SOURCES := $(addprefix hook_c/src/,dev_env.c driver.c graph_use.c hook_array.c hook_device.c hook_freed.c hook_graph.c \
	hook_launch.c hook_local.c hook_memory.c hook_nvml.c hook_pool.c hook_refusal.c hook_sparse.c hook_streams.c hook_vmm.c image.c libc.c own_string.c slabs.c \
	launch_card.c launch_marks.c launch_pass.c launch_policy.c launch_streams.c launch_sync.c launch_window.c \
	last_work.c launch_clock.c limits.c log.c lookup.c pool_account.c quota.c rebind.c region.c table.c tenant.c throttle.c waits.c hooks.gen.c lookup_thunk.S)
HOOK_HEADERS := $(wildcard hook_c/src/*.h) hook_c/include/vgpu_abi.h hook_c/src/libvgpu.map \
	hook_c/module.mk
HOOK_INCLUDES := -Ihook_c/include -Ihook_c/src
# initial-exec and -z now: nothing is resolved inside a call of the driver. -Bsymbolic: our table
# holds our hooks, also where another preloaded library exports the same names.
HOOK_FLAGS := -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARNINGS) $(HOOK_INCLUDES) -fPIC \
	-fvisibility=hidden -fno-semantic-interposition -fno-plt -ftls-model=initial-exec
HOOK_LINK := -shared -Wl,-soname,libvgpu.so -Wl,-z,now -Wl,-z,relro -Wl,-z,defs -Wl,-Bsymbolic \
	-Wl,--version-script,hook_c/src/libvgpu.map

$(BUILD)/libvgpu.so: $(HOOK_SOURCES) $(HOOK_HEADERS) | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target x86_64-linux-gnu.2.17 $(HOOK_FLAGS) -s $(HOOK_LINK) -o $@ $(HOOK_SOURCES)

$(BUILD)/aarch64/libvgpu.so: $(HOOK_SOURCES) $(HOOK_HEADERS) | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target aarch64-linux-gnu.2.17 $(HOOK_FLAGS) -s $(HOOK_LINK) -o $@ $(HOOK_SOURCES)

$(BUILD)/vgpu-probe: PROBE_TARGET := x86_64-linux-gnu.2.17
$(BUILD)/aarch64/vgpu-probe: PROBE_TARGET := aarch64-linux-gnu.2.17
$(BUILD)/vgpu-probe $(BUILD)/aarch64/vgpu-probe: hook_c/probe/vgpu-probe.c hook_c/module.mk | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target $(PROBE_TARGET) -std=gnu11 -D_GNU_SOURCE -O2 -fPIE -pie $(WARNINGS) -s \
		-o $@ $< -ldl

# Pure modules: no driver, no CUDA type. The same tests under the address and undefined sanitizers,
# and those that have threads under the thread sanitizer (it does not know fences: every word that
# two threads share is an atomic one all the same, and that is what it checks).
HOOK_PURE := $(addprefix hook_c/src/,log.c last_work.c limits.c region.c quota.c table.c throttle.c dev_env.c waits.c)
HOOK_TESTS := $(patsubst hook_c/tests/%.c,%,$(wildcard hook_c/tests/test_*.c))
HOOK_TEST_FILES := hook_c/tests/files.c hook_c/tests/files.h hook_c/tests/check.h
HOOK_TEST_CC = $(CC_TEST) -D_GNU_SOURCE $(HOOK_INCLUDES) -pthread -o $@ $< hook_c/tests/files.c \
	$(HOOK_PURE)

$(BUILD)/tests/hook_c/%: hook_c/tests/%.c $(HOOK_PURE) $(HOOK_HEADERS) $(HOOK_TEST_FILES)
	@mkdir -p $(@D)
	$(HOOK_TEST_CC) $(SANITIZE)

$(BUILD)/tests/hook_c/%-tsan: hook_c/tests/%.c $(HOOK_PURE) $(HOOK_HEADERS) $(HOOK_TEST_FILES)
	@mkdir -p $(@D)
	$(HOOK_TEST_CC) -fsanitize=thread -Wno-tsan

C_TESTS += $(addprefix $(BUILD)/tests/hook_c/,$(HOOK_TESTS)) \
	$(addprefix $(BUILD)/tests/hook_c/,test_limits-tsan test_quota-tsan test_table-tsan \
	test_waits-tsan)

# Includes the sources that it searches through; its threads' stacks are none for the sanitizers.
$(BUILD)/tests/hook_c/test_interleavings: hook_c/tests/test_interleavings.c hook_c/src/quota.c \
		hook_c/src/region.c hook_c/src/pool_account.c hook_c/src/last_work.c \
		hook_c/src/throttle.c $(HOOK_HEADERS) hook_c/tests/check.h
	@mkdir -p $(@D)
	$(CC_TEST) -O2 -D_GNU_SOURCE $(HOOK_INCLUDES) -o $@ $< hook_c/src/last_work.c \
		hook_c/src/throttle.c

# The launch hooks and the arbiter's slots on a simulated card, in simulated time.
HOOK_SIM := $(addprefix hook_c/tests/,sim_launch.c sim.c) $(addprefix hook_c/src/,throttle.c \
	last_work.c hook_launch.c launch_card.c launch_marks.c launch_pass.c launch_policy.c launch_streams.c launch_sync.c \
	launch_window.c) hook_c/arbiter/slots.c

$(BUILD)/tests/hook_c/sim_launch: $(HOOK_SIM) $(HOOK_HEADERS) \
		hook_c/tests/check.h hook_c/tests/sim.h hook_c/arbiter/slots.h
	@mkdir -p $(@D)
	$(CC_TEST) -D_GNU_SOURCE $(HOOK_INCLUDES) -Ihook_c/arbiter -o $@ $(HOOK_SIM) $(SANITIZE) -lm

C_TESTS += $(BUILD)/tests/hook_c/sim_launch

# The whole library under the undefined-behaviour sanitizer. Not under the address sanitizer: its
# runtime calls dlsym, which is ours, before it has mapped the memory that instrumented code reads.
$(BUILD)/san/libvgpu-ubsan.so: $(HOOK_SOURCES) $(HOOK_HEADERS)
	@mkdir -p $(@D)
	$(CC_TEST) $(HOOK_FLAGS) -fsanitize=undefined -fno-sanitize-recover=all $(HOOK_LINK) -o $@ \
		$(HOOK_SOURCES)

SAN_PRODUCTS += $(BUILD)/san/libvgpu-ubsan.so

# The real CUDA runtimes, for tests/hook_c/test_cudart.py.
$(BUILD)/cudart/.fetched: tests/hook_c/cudart.txt scripts/cudart | $(SETUP)
	scripts/cudart $(@D)
	@touch $@

TEST_DATA += $(BUILD)/cudart/.fetched

.PHONY: hook-aarch64
hook-aarch64: $(BUILD)/aarch64/libvgpu.so

# make api HEADER="…/cuda.h …/cudaTypedefs.h": the headers of a CUDA release, once.
api:
	$(PY) hook_c/gen.py $(if $(HEADER),--header $(HEADER))

PRODUCTS += $(BUILD)/libvgpu.so $(BUILD)/vgpu-probe
C_COMPONENTS += hook
C_INCLUDES_hook := $(HOOK_INCLUDES) -Ihook_c/arbiter
C_FILES_hook := hook_c/probe/vgpu-probe.c hook_c/include/vgpu_abi.h \
	$(filter-out %.S,$(HOOK_SOURCES)) \
	$(wildcard hook_c/src/*.h hook_c/tests/*.[ch] tests/hook_c/programs/*.c)

include hook_c/arbiter/module.mk
include bench/gpu/compute.mk
