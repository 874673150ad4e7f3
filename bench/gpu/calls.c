/* SPDX-License-Identifier: Apache-2.0
 *
 * calls BURSTS: what single calls of the driver cost, as a program finds them and, in turn with
 * that, as the driver itself has them. Prints for each call three lines of one number a burst, the
 * mean of the burst's calls in ns: "NAME NS...", "NAME.real NS...", "NAME.added NS...", the
 * difference of two neighbours. In a bare process that difference is the noise.
 */
#include "cuda.h"
#include "real.h"

#define SMALL_BYTES ((size_t)64 << 10)
/* Of no step is the number a multiple of 32: the last slab of 2 MiB has room, so none is made. */
#define MOST_LIVE 100001
#define MOST_BURSTS 1000

struct calls {
	int (*allocate)(uint64_t *, size_t);
	int (*give_back)(uint64_t);
	int (*allocate_async)(uint64_t *, size_t, void *);
	int (*give_back_async)(uint64_t, void *);
	int (*memory_info)(size_t *, size_t *);
	int (*proc_address)(const char *, void **, int, uint64_t, int *);
	int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		      unsigned int, unsigned int, void *, void **, void **);
};

static struct calls found; /* by the look-up that programs use */
static struct calls real;
static const struct calls *cuda = &found;
static int (*stream_wait)(void *);
static void *kernel;

static void find_calls(struct calls *calls, void *(*find)(const char *))
{
	calls->allocate = find("cuMemAlloc_v2");
	calls->give_back = find("cuMemFree_v2");
	calls->allocate_async = find("cuMemAllocAsync");
	calls->give_back_async = find("cuMemFreeAsync");
	calls->memory_info = find("cuMemGetInfo_v2");
	calls->proc_address = find("cuGetProcAddress_v2");
	calls->launch = find("cuLaunchKernel");
}

static void one_pair(void)
{
	uint64_t address;

	must(cuda->allocate(&address, SMALL_BYTES), "cuMemAlloc");
	must(cuda->give_back(address), "cuMemFree");
}

static void one_large_pair(void)
{
	uint64_t address;

	must(cuda->allocate(&address, 4 * MIB), "cuMemAlloc");
	must(cuda->give_back(address), "cuMemFree");
}

static void one_async_pair(void)
{
	uint64_t address;

	must(cuda->allocate_async(&address, MIB, NULL), "cuMemAllocAsync");
	must(cuda->give_back_async(address, NULL), "cuMemFreeAsync");
}

static void one_info(void)
{
	size_t free_bytes;
	size_t total_bytes;

	must(cuda->memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
}

static void one_look_up(void)
{
	void *address;
	int status;

	must(cuda->proc_address("cuMemAlloc", &address, 12000, 0, &status), "cuGetProcAddress");
}

static void one_launch(void)
{
	must(cuda->launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static double time_burst(const struct calls *calls, void (*call)(void), int count)
{
	cuda = calls;

	int64_t start = now_ns();

	for (int i = 0; i < count; i++)
		call();

	int64_t elapsed_ns = now_ns() - start;

	cuda = &found;
	must(stream_wait(NULL), "cuStreamSynchronize"); /* outside the time */
	return (double)elapsed_ns / count;
}

static void print_line(const char *name, const char *suffix, const double *numbers, int count)
{
	printf("%s%s", name, suffix);
	for (int i = 0; i < count; i++)
		printf(" %.1f", numbers[i]);
	printf("\n");
}

static void measure(const char *name, void (*call)(void), int bursts, int count)
{
	static double as_found[MOST_BURSTS];
	static double as_real[MOST_BURSTS];
	static double added[MOST_BURSTS];

	time_burst(&found, call, count);
	time_burst(&real, call, count);
	for (int i = 0; i < bursts; i++) {
		if (i % 2 == 0)
			as_found[i] = time_burst(&found, call, count);
		as_real[i] = time_burst(&real, call, count);
		if (i % 2 != 0)
			as_found[i] = time_burst(&found, call, count);
		added[i] = as_found[i] - as_real[i];
	}
	print_line(name, "", as_found, bursts);
	print_line(name, ".real", as_real, bursts);
	print_line(name, ".added", added, bursts);
	fflush(stdout);
}

/* The 64 KiB pair beside ever more live allocations; one keeps its slab, so that none is made. */
static void measure_live(int bursts)
{
	static uint64_t held[MOST_LIVE];
	static const int steps[] = {1, 1000, 10000, MOST_LIVE};
	int live = 0;
	char name[32];

	for (size_t step = 0; step < sizeof(steps) / sizeof(steps[0]); step++) {
		for (; live < steps[step]; live++)
			must(cuda->allocate(&held[live], SMALL_BYTES), "cuMemAlloc");
		snprintf(name, sizeof(name), "pair_%d", live);
		measure(name, one_pair, bursts, 200);
	}
	int64_t start = now_ns();

	while (live > 0)
		must(cuda->give_back(held[--live]), "cuMemFree");
	printf("free_all %.1f\n", (double)(now_ns() - start) / MOST_LIVE);
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
	int bursts = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 40;
	int64_t init_ns;
	int64_t context_ns;
	uint64_t kept;

	if (bursts < 1 || bursts > MOST_BURSTS)
		bursts = MOST_BURSTS;
	stay_on_a_processor();
	cuda_start(&init_ns, &context_ns);
	find_calls(&found, cuda_function);
	find_calls(&real, real_function);
	stream_wait = cuda_function("cuStreamSynchronize");
	kernel = empty_kernel();
	if (real.allocate == NULL || real.launch == NULL)
		must(2, "the driver's own symbols");

	printf("cuInit %lld\n", (long long)init_ns);
	printf("context %lld\n", (long long)context_ns);
	measure("pair_4MiB", one_large_pair, bursts, 20);
	/* Keeps a step of the pool over the waits between bursts. */
	must(found.allocate_async(&kept, 1, NULL), "cuMemAllocAsync");
	measure("async_pair", one_async_pair, bursts, 200);
	must(found.give_back_async(kept, NULL), "cuMemFreeAsync");
	measure("cuMemGetInfo", one_info, bursts, 100);
	measure("cuGetProcAddress", one_look_up, bursts, 1000);
	measure("cuLaunchKernel", one_launch, bursts, 200);
	measure_live(bursts);
	return 0;
}
