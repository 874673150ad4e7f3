/* SPDX-License-Identifier: Apache-2.0
 *
 * launch KERNEL_NS TURNS: what a kernel launch costs the processor, call by call, directly and
 * through whatever hook is preloaded, in turn. Prints one JSON object, in ns:
 * `whole` is the call as the program sees it, `beside` is the part of it outside the driver.
 *
 * The driver's noise hides a hook of some ns, so the driver's own part is taken off in each call:
 * the entry of its cuLaunchKernel is overwritten, in this process alone, with a jump to `relay`,
 * which notes the time, launches through cuLaunchKernel_ptsz (the same for a stream of one's own)
 * and notes the time again. `beside` of a direct call is what this costs itself; the hook is what
 * it has more.
 */
#include "cuda.h"
#include "real.h"

#include <errno.h>
#include <stdbool.h>
#include <x86intrin.h>

#define CALLS 50 /* in a block; no more than the driver queues without a wait */
#define TURN_BLOCKS 100
#define MOST_TURNS 1000
#define UNCOUNTED_BLOCKS                                                                           \
	10 /* at the begin of a turn: a limiter does not see the direct launches                   \
	    */

typedef int (*launch_function)(void *, unsigned int, unsigned int, unsigned int, unsigned int,
			       unsigned int, unsigned int, unsigned int, void *, void **, void **);

enum way { DIRECT, HOOK, WAYS };

struct samples {
	uint32_t *cycles;
	size_t count;
};

static launch_function way_in[WAYS];
static launch_function below;
static struct samples whole[WAYS], beside[WAYS], driver[WAYS];
static uint64_t entered, left;
static uint64_t relayed;
static bool inside;
static double ns_per_cycle;

/* Everything before it has ended, nothing after it has begun. */
static inline uint64_t now_cycles(void)
{
	unsigned int processor;
	uint64_t now = __rdtscp(&processor);

	_mm_lfence();
	return now;
}

static int relay(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
		 unsigned int by, unsigned int bz, unsigned int shared, void *stream,
		 void **parameters, void **extra)
{
	int status;

	if (inside) {
		fprintf(stderr, "cuLaunchKernel_ptsz comes back through cuLaunchKernel\n");
		exit(2);
	}
	inside = true;
	entered = now_cycles();
	status = below(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
	left = now_cycles();
	inside = false;
	relayed++;
	return status;
}

/* movabs $relay, %rax; jmp *%rax. A function's entry is aligned to 16 bytes and nothing jumps into
 * its first 12. */
static void divert_to_relay(void *entry)
{
	unsigned char jump[12] = {0x48, 0xb8, [10] = 0xff, [11] = 0xe0};
	uintptr_t target = (uintptr_t)relay;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = (uintptr_t)entry & ~(page - 1);
	size_t length = (uintptr_t)entry + sizeof(jump) - begin;

	memcpy(jump + 2, &target, sizeof(target));
	if (mprotect((void *)begin, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		must(errno, "mprotect of the driver's code");
	memcpy(entry, jump, sizeof(jump));
	must(mprotect((void *)begin, length, PROT_READ | PROT_EXEC), "mprotect");
}

static void note(struct samples *samples, uint64_t cycles)
{
	samples->cycles[samples->count++] = cycles > UINT32_MAX ? UINT32_MAX : (uint32_t)cycles;
}

static int by_size(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a;
	uint32_t other = *(const uint32_t *)b;

	return one < other ? -1 : one > other;
}

static double quantile_ns(const struct samples *sorted, double part)
{
	return ns_per_cycle * sorted->cycles[(size_t)(part * (double)(sorted->count - 1))];
}

static double mean_ns(const struct samples *sorted, double from, double to)
{
	size_t first = (size_t)(from * (double)sorted->count);
	size_t past = (size_t)(to * (double)sorted->count);
	double sum = 0;

	for (size_t i = first; i < past; i++)
		sum += sorted->cycles[i];
	return ns_per_cycle * sum / (double)(past - first);
}

/* The part of the samples that are the median, within one cycle. */
static double share_at_median(const struct samples *sorted)
{
	uint32_t median = sorted->cycles[sorted->count / 2];
	size_t ties = 0;

	for (size_t i = 0; i < sorted->count; i++)
		ties += sorted->cycles[i] <= median + 1 && sorted->cycles[i] + 1 >= median;
	return (double)ties / (double)sorted->count;
}

/* `middle` is the mean without the lowest and the highest tenth. It stands for the median where the
 * clock ticks in steps of some ns (10 on one machine), by which a median jumps: `at_p50` tells. */
static void print(const char *name, struct samples *samples)
{
	qsort(samples->cycles, samples->count, sizeof(*samples->cycles), by_size);
	printf("\"%s\": {\"p50\": %.2f, \"middle\": %.2f, \"mean\": %.2f, \"p90\": %.2f, "
	       "\"p99\": %.2f, \"p999\": %.2f, \"max\": %.0f, \"at_p50\": %.3f}",
	       name, quantile_ns(samples, 0.5), mean_ns(samples, 0.1, 0.9), mean_ns(samples, 0, 1),
	       quantile_ns(samples, 0.9), quantile_ns(samples, 0.99), quantile_ns(samples, 0.999),
	       quantile_ns(samples, 1), share_at_median(samples));
}

/* A kernel of one thread that looks at the clock until its time is over. */
static void *load_kernel(void)
{
	static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				   ".visible .entry busy_param(.param .u64 work_ns)\n"
				   "{\n.reg .pred %p<2>;\n.reg .b64 %d<5>;\n"
				   "mov.u64 %d1, %globaltimer;\nld.param.u64 %d2, [work_ns];\n"
				   "LOOP:\nmov.u64 %d3, %globaltimer;\nsub.u64 %d4, %d3, %d1;\n"
				   "setp.lt.u64 %p1, %d4, %d2;\n@%p1 bra LOOP;\nret;\n}\n";
	int (*load)(void **, const void *) = cuda_function("cuModuleLoadData");
	int (*find)(void **, void *, const char *) = cuda_function("cuModuleGetFunction");
	void *module = NULL;
	void *function = NULL;

	must(load(&module, text), "cuModuleLoadData");
	must(find(&function, module, "busy_param"), "cuModuleGetFunction");
	return function;
}

int main(int argc, char **argv)
{
	uint64_t work_ns = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	long turns = argc > 2 ? strtol(argv[2], NULL, 10) : 40;
	void *parameters[] = {&work_ns};
	void *stream = NULL;
	void *kernel;
	int64_t ignored;

	if (turns < 1 || turns > MOST_TURNS)
		turns = MOST_TURNS;
	for (int way = 0; way < WAYS; way++) {
		size_t bytes = (size_t)turns * TURN_BLOCKS * CALLS * sizeof(uint32_t);

		whole[way] = (struct samples){.cycles = malloc(bytes)};
		beside[way] = (struct samples){.cycles = malloc(bytes)};
		driver[way] = (struct samples){.cycles = malloc(bytes)};
		if (whole[way].cycles == NULL || beside[way].cycles == NULL ||
		    driver[way].cycles == NULL)
			must(2, "malloc");
	}
	stay_on_a_processor();
	cuda_start(&ignored, &ignored);

	int (*make_stream)(void **, unsigned int) = cuda_function("cuStreamCreate");
	int (*synchronize)(void *) = cuda_function("cuStreamSynchronize");

	must(make_stream(&stream, 1), "cuStreamCreate");
	kernel = load_kernel();
	way_in[DIRECT] = real_function("cuLaunchKernel");
	way_in[HOOK] = cuda_function("cuLaunchKernel");
	below = real_function("cuLaunchKernel_ptsz");
	if (way_in[DIRECT] == NULL || below == NULL)
		must(2, "the driver's own symbols");
	divert_to_relay((void *)way_in[DIRECT]);

	uint64_t begun_cycles = now_cycles();
	int64_t begun_ns = now_ns();
	uint64_t calls = 0;

	for (long turn = 0; turn < turns * WAYS; turn++) {
		/* Not always one after the other: what drifts is the same for both. */
		enum way way = (enum way)((turn + turn / WAYS) % WAYS);

		for (int block = 0; block < UNCOUNTED_BLOCKS + TURN_BLOCKS; block++) {
			for (int i = 0; i < CALLS; i++) {
				uint64_t begun = now_cycles();
				int status = way_in[way](kernel, 1, 1, 1, 1, 1, 1, 0, stream,
							 parameters, NULL);
				uint64_t ended = now_cycles();

				calls++;
				must(status, "cuLaunchKernel");
				if (block < UNCOUNTED_BLOCKS)
					continue;
				note(&whole[way], ended - begun);
				note(&driver[way], left - entered);
				note(&beside[way], ended - begun - (left - entered));
			}
			must(synchronize(stream), "cuStreamSynchronize");
		}
	}
	if (relayed != calls) {
		fprintf(stderr, "%llu launches, %llu reached the driver's cuLaunchKernel\n",
			(unsigned long long)calls, (unsigned long long)relayed);
		return 2;
	}
	ns_per_cycle = (double)(now_ns() - begun_ns) / (double)(now_cycles() - begun_cycles);

	static const char *const names[WAYS] = {"direct", "hook"};

	printf("{\"calls\": %zu, \"cycles_per_ns\": %.3f", whole[DIRECT].count, 1 / ns_per_cycle);
	for (int way = 0; way < WAYS; way++) {
		printf(", \"%s\": {", names[way]);
		print("whole", &whole[way]);
		printf(", ");
		print("driver", &driver[way]);
		printf(", ");
		print("beside", &beside[way]);
		printf("}");
	}
	printf("}\n");
	return 0;
}
