# The simulated GPU: two libraries that several processes share as the same cards.
FAKE_DIR := tests/fakes/gpu
FAKE_SHARED_C := state.c clock.c
FAKE_CUDA_C := process.c device.c context.c address.c memory.c pool.c stream.c event.c \
	module.c launch.c graph.c graph_memory.c copy.c vmm.c ipc.c array.c error.c accepted.c lookup.c \
	lookup_table.c cuda_stubs.c
FAKE_NVML_C := nvml_system.c nvml_device.c nvml_mig.c nvml_memory.c nvml_process.c nvml_event.c \
	nvml_stubs.c

FAKE_CUDA := $(BUILD)/fake/libcuda.so.1
FAKE_NVML := $(BUILD)/fake/libnvidia-ml.so.1
FAKES += $(FAKE_CUDA) $(FAKE_NVML)
C_COMPONENTS += fake
C_FILES_fake := $(addprefix $(FAKE_DIR)/,$(FAKE_SHARED_C) $(FAKE_CUDA_C) $(FAKE_NVML_C)) \
	$(wildcard $(FAKE_DIR)/*.h)
C_INCLUDES_fake := -Ihook_c

FAKE_CC := $(CC_TEST) -D_GNU_SOURCE -fPIC -shared -fvisibility=hidden -Ihook_c \
	-Wl,--hash-style=gnu -Wl,-z,defs -Wl,-Bsymbolic -pthread

$(FAKE_CUDA): $(addprefix $(FAKE_DIR)/,$(FAKE_SHARED_C) $(FAKE_CUDA_C)) \
		$(wildcard $(FAKE_DIR)/*.h) hook_c/fake_driver.gen.h $(FAKE_DIR)/module.mk
	@mkdir -p $(@D)
	$(FAKE_CC) -Wl,-soname,libcuda.so.1 -o $@ $(filter %.c,$^)

$(FAKE_NVML): $(addprefix $(FAKE_DIR)/,$(FAKE_SHARED_C) $(FAKE_NVML_C)) \
		$(wildcard $(FAKE_DIR)/*.h) hook_c/fake_driver.gen.h $(FAKE_DIR)/module.mk
	@mkdir -p $(@D)
	$(FAKE_CC) -Wl,-soname,libnvidia-ml.so.1 -o $@ $(filter %.c,$^)
