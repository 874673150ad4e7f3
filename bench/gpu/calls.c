/* SPDX-License-Identifier: Apache-2.0
 *
 * calls BATCHES: what single calls of the driver cost. Prints a line "NAME NS..." for each call,
 * one number a batch: the mean of the batch's calls.
 */
#include "cuda.h"

#include <sched.h>

#define PROCESSOR 1
#define SMALL_BYTES ((size_t)64 << 10)
/* Of no step is the number a multiple of 32: the last slab of 2 MiB has room, so none is made. */
#define MOST_LIVE 100001

static int (*allocate)(uint64_t *, size_t);
static int (*give_back)(uint64_t);
static int (*allocate_async)(uint64_t *, size_t, void *);
static int (*give_back_async)(uint64_t, void *);
static int (*memory_info)(size_t *, size_t *);
static int (*proc_address)(const char *, void **, int, uint64_t, int *);
static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, unsigned int, void *, void **, void **);
static int (*stream_wait)(void *);
static void *kernel;

static void one_pair(void)
{
	uint64_t address;

	must(allocate(&address, SMALL_BYTES), "cuMemAlloc");
	must(give_back(address), "cuMemFree");
}

static void one_large_pair(void)
{
	uint64_t address;

	must(allocate(&address, 4 * MIB), "cuMemAlloc");
	must(give_back(address), "cuMemFree");
}

static void one_async_pair(void)
{
	uint64_t address;

	must(allocate_async(&address, MIB, NULL), "cuMemAllocAsync");
	must(give_back_async(address, NULL), "cuMemFreeAsync");
}

static void one_info(void)
{
	size_t free_bytes;
	size_t total_bytes;

	must(memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
}

static void one_look_up(void)
{
	void *address;
	int status;

	must(proc_address("cuMemAlloc", &address, 12000, 0, &status), "cuGetProcAddress");
}

static void one_launch(void)
{
	must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

/* After each batch the stream is waited for, outside the time. */
static void measure(const char *name, void (*call)(void), int batches, int calls)
{
	printf("%s", name);
	for (int batch = -2; batch < batches; batch++) {
		int64_t start = now_ns();

		for (int i = 0; i < calls; i++)
			call();

		int64_t elapsed_ns = now_ns() - start;

		must(stream_wait(NULL), "cuStreamSynchronize");
		if (batch >= 0) /* the first two warm up */
			printf(" %.1f", (double)elapsed_ns / calls);
	}
	printf("\n");
	fflush(stdout);
}

/* The 64 KiB pair beside ever more live allocations; one keeps its slab, so that none is made. */
static void measure_live(int batches)
{
	static uint64_t held[MOST_LIVE];
	static const int steps[] = {1, 1000, 10000, MOST_LIVE};
	int live = 0;
	char name[32];

	for (size_t step = 0; step < sizeof(steps) / sizeof(steps[0]); step++) {
		for (; live < steps[step]; live++)
			must(allocate(&held[live], SMALL_BYTES), "cuMemAlloc");
		snprintf(name, sizeof(name), "pair_%d", live);
		measure(name, one_pair, batches, 500);
	}
	int64_t start = now_ns();

	while (live > 0)
		must(give_back(held[--live]), "cuMemFree");
	printf("free_all %.1f\n", (double)(now_ns() - start) / MOST_LIVE);
}

/* Both variants on the same processor: they differ in speed. */
static void stay_on_a_processor(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(PROCESSOR, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		fprintf(stderr, "not on one processor\n");
}

static void *empty_kernel(void)
{
	static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				   ".visible .entry empty()\n{\n\tret;\n}\n";
	int (*load)(void **, const void *) = cuda_function("cuModuleLoadData");
	int (*find)(void **, void *, const char *) = cuda_function("cuModuleGetFunction");
	void *module = NULL;
	void *function = NULL;

	must(load(&module, text), "cuModuleLoadData");
	must(find(&function, module, "empty"), "cuModuleGetFunction");
	return function;
}

int main(int argc, char **argv)
{
	int batches = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 15;
	int64_t init_ns;
	int64_t context_ns;

	stay_on_a_processor();
	cuda_start(&init_ns, &context_ns);
	allocate = cuda_function("cuMemAlloc_v2");
	give_back = cuda_function("cuMemFree_v2");
	allocate_async = cuda_function("cuMemAllocAsync");
	give_back_async = cuda_function("cuMemFreeAsync");
	memory_info = cuda_function("cuMemGetInfo_v2");
	proc_address = cuda_function("cuGetProcAddress_v2");
	launch = cuda_function("cuLaunchKernel");
	stream_wait = cuda_function("cuStreamSynchronize");
	kernel = empty_kernel();

	printf("cuInit %lld\n", (long long)init_ns);
	printf("context %lld\n", (long long)context_ns);
	measure("pair_4MiB", one_large_pair, batches, 100);
	measure("async_pair", one_async_pair, batches, 500);
	measure("cuMemGetInfo", one_info, batches, 200);
	measure("cuGetProcAddress", one_look_up, batches, 2000);
	measure("cuLaunchKernel", one_launch, batches, 500);
	measure_live(batches);
	return 0;
}
