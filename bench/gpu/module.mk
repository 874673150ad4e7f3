# The programs of bench/gpu: what is timed in nanoseconds or started 32 times is not Python.
BENCH_GPU := bench/gpu
BENCH_GPU_PROGRAMS := $(addprefix $(BUILD)/bench/,calls fill launch up waits)

FAKES += $(BENCH_GPU_PROGRAMS)
C_COMPONENTS += bench_gpu
C_INCLUDES_bench_gpu := -I$(BENCH_GPU)
C_FILES_bench_gpu := $(wildcard $(BENCH_GPU)/*.[ch])

$(BENCH_GPU_PROGRAMS): $(BUILD)/bench/%: $(BENCH_GPU)/%.c $(wildcard $(BENCH_GPU)/*.h) $(BENCH_GPU)/module.mk | $(SETUP)
	@mkdir -p $(@D)
	$(ZIG) cc -target x86_64-linux-gnu.2.17 -std=gnu11 -D_GNU_SOURCE -O2 $(WARNINGS) -o $@ $< -ldl
