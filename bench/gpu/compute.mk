# The program of bench/gpu/compute.py.
$(BUILD)/bench/busy: bench/gpu/busy.c bench/gpu/cuda.h bench/gpu/compute.mk | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target x86_64-linux-gnu.2.17 -std=gnu11 -D_GNU_SOURCE -O2 $(WARNINGS) -o $@ $< -ldl

FAKES += $(BUILD)/bench/busy
