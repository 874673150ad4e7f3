/* SPDX-License-Identifier: Apache-2.0
 *
 * waits WAY SHORT_NS LONG_NS SECONDS: launches one function in one shape that takes now SHORT_NS
 * and now LONG_NS, waits for each launch in one way, and prints what the card did, as JSON. `waits
 * WAY drift LONG_NS SECONDS`: the length grows from a tenth of LONG_NS to all of it, and back.
 * `waits last WAY LONG_NS`: one launch, a wait for it, and the end without a clean-up.
 * WAY: stream context copy event event-query stream-query free memory callback; for `last` also
 * `kill`: memory, and the end by SIGKILL.
 *
 * Each kernel stamps its begin and end with %globaltimer. A driver that runs no kernels (the
 * simulated one) stamps nothing; then it is the launches x their lengths.
 */
#include "cuda.h"

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define RING ((uint64_t)1 << 20)
#define BIN_NS 100000000
#define MOST_BINS 6000
#define DRIFT_LAUNCHES 64
#define SCRATCH_BYTES MIB

struct stamp {
	uint64_t begin_ns;
	uint64_t end_ns;
};

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry busy_param(.param .u64 length, .param .u64 stamps, .param .u64 number, "
	".param .u64 word)\n{\n.reg .pred %p<3>;\n.reg .b64 %d<11>;\n"
	"mov.u64 %d1, %globaltimer;\nld.param.u64 %d2, [length];\nld.param.u64 %d3, [stamps];\n"
	"ld.param.u64 %d4, [number];\nld.param.u64 %d5, [word];\n"
	"LOOP:\nmov.u64 %d6, %globaltimer;\nsub.u64 %d7, %d6, %d1;\n"
	"setp.lt.u64 %p1, %d7, %d2;\n@%p1 bra LOOP;\n"
	"shl.b64 %d8, %d4, 4;\nadd.u64 %d9, %d3, %d8;\nst.global.u64 [%d9], %d1;\n"
	"st.global.u64 [%d9+8], %d6;\nsetp.eq.u64 %p2, %d5, 0;\n@%p2 bra END;\n"
	"membar.sys;\nadd.u64 %d10, %d4, 1;\nst.volatile.global.u64 [%d5], %d10;\nEND:\nret;\n}\n";

static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, unsigned int, void *, void **, void **);
static int (*stream_synchronize)(void *);
static int (*context_synchronize)(void);
static int (*stream_query)(void *);
static int (*event_record)(void *, void *);
static int (*event_synchronize)(void *);
static int (*event_query)(void *);
static int (*to_host)(void *, uint64_t, size_t);
static int (*allocate)(uint64_t *, size_t);
static int (*release)(uint64_t);
static int (*host_function)(void *, void (*)(void *), void *);

static void *kernel, *stream, *event;
static uint64_t stamps;
static uint64_t word_on_card;
static volatile uint64_t *word; /* that a kernel or a callback writes */
static uint64_t launches;
static bool is_simulated;

static void called_back(void *number)
{
	*word = (uint64_t)(uintptr_t)number;
}

static void go(uint64_t length_ns, bool writes_word)
{
	uint64_t target = writes_word ? word_on_card : 0;
	void *parameters[] = {&length_ns, &stamps, &launches, &target};

	must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
	launches++;
}

/* The simulated driver runs no kernel that could write it. */
static void wait_for_word(void)
{
	if (is_simulated)
		must(stream_synchronize(stream), "cuStreamSynchronize");
	else
		while (*word != launches)
			;
}

static void launch_and_wait(const char *way, uint64_t length_ns)
{
	bool is_memory = strcmp(way, "memory") == 0 || strcmp(way, "kill") == 0;
	uint64_t scratch = 0;

	if (strcmp(way, "free") == 0)
		must(allocate(&scratch, SCRATCH_BYTES), "cuMemAlloc");
	go(length_ns, is_memory);
	if (strcmp(way, "stream") == 0) {
		must(stream_synchronize(stream), "cuStreamSynchronize");
	} else if (strcmp(way, "context") == 0) {
		must(context_synchronize(), "cuCtxSynchronize");
	} else if (strcmp(way, "copy") == 0) {
		uint64_t ignored;

		must(to_host(&ignored, stamps, sizeof(ignored)), "cuMemcpyDtoH");
	} else if (strcmp(way, "event") == 0) {
		must(event_record(event, stream), "cuEventRecord");
		must(event_synchronize(event), "cuEventSynchronize");
	} else if (strcmp(way, "event-query") == 0) {
		must(event_record(event, stream), "cuEventRecord");
		while (event_query(event) != 0)
			;
	} else if (strcmp(way, "stream-query") == 0) {
		while (stream_query(stream) != 0)
			;
	} else if (strcmp(way, "free") == 0) {
		must(release(scratch), "cuMemFree");
	} else if (strcmp(way, "callback") == 0) {
		must(host_function(stream, called_back, (void *)(uintptr_t)launches), /* NOLINT */
		     "cuLaunchHostFunc");
		wait_for_word();
	} else if (is_memory) {
		wait_for_word();
	} else {
		fprintf(stderr, "%s: no way to wait\n", way);
		exit(2);
	}
}

static void start(void)
{
	int64_t ignored;
	void *module = NULL;
	void *page = NULL;

	cuda_start(&ignored, &ignored);

	int (*load)(void **, const void *) = cuda_function("cuModuleLoadData");
	int (*get)(void **, void *, const char *) = cuda_function("cuModuleGetFunction");
	int (*make_event)(void **, unsigned int) = cuda_function("cuEventCreate");
	int (*host_memory)(void **, size_t, unsigned int) = cuda_function("cuMemHostAlloc");
	int (*on_card)(uint64_t *, void *, unsigned int) =
		cuda_function("cuMemHostGetDevicePointer_v2");

	launch = cuda_function("cuLaunchKernel");
	stream_synchronize = cuda_function("cuStreamSynchronize");
	context_synchronize = cuda_function("cuCtxSynchronize");
	stream_query = cuda_function("cuStreamQuery");
	event_record = cuda_function("cuEventRecord");
	event_synchronize = cuda_function("cuEventSynchronize");
	event_query = cuda_function("cuEventQuery");
	to_host = cuda_function("cuMemcpyDtoH_v2");
	allocate = cuda_function("cuMemAlloc_v2");
	release = cuda_function("cuMemFree_v2");
	host_function = cuda_function("cuLaunchHostFunc");
	must(load(&module, ptx), "cuModuleLoadData");
	must(get(&kernel, module, "busy_param"), "cuModuleGetFunction");
	must(allocate(&stamps, RING * sizeof(struct stamp)), "cuMemAlloc");
	must(make_event(&event, 2), "cuEventCreate");
	must(host_memory(&page, sizeof(uint64_t), 2), "cuMemHostAlloc");
	must(on_card(&word_on_card, page, 0), "cuMemHostGetDevicePointer");
	word = page;
	*word = 0;
	is_simulated = getenv("FAKE_GPU_DIR") != NULL;
}

static uint64_t length_of(uint64_t number, uint64_t short_ns, uint64_t long_ns)
{
	uint64_t step = number % DRIFT_LAUNCHES;

	if (short_ns != 0)
		return number % 2 == 0 ? short_ns : long_ns;
	if (step >= DRIFT_LAUNCHES / 2)
		step = DRIFT_LAUNCHES - 1 - step;
	return long_ns / 10 + (long_ns - long_ns / 10) * step / (DRIFT_LAUNCHES / 2 - 1);
}

static void report(double seconds, int64_t wall_ns, double wanted_ns)
{
	struct stamp *found = calloc(launches + 1, sizeof(*found));
	double bin_ns[MOST_BINS] = {0};
	unsigned int bins = (unsigned int)(seconds * 1e9 / BIN_NS + 0.5);
	double busy_ns = 0;

	must(stream_synchronize(stream), "cuStreamSynchronize");
	if (found == NULL || bins > MOST_BINS || launches > RING) {
		fprintf(stderr, "no room for %" PRIu64 " launches in %.0f s\n", launches, seconds);
		exit(1);
	}
	must(to_host(found, stamps, launches * sizeof(*found)), "cuMemcpyDtoH");
	for (uint64_t i = 0; !is_simulated && i < launches; i++) {
		uint64_t from = found[i].begin_ns - found[0].begin_ns;
		uint64_t to = found[i].end_ns - found[0].begin_ns;

		busy_ns += (double)(to - from);
		for (uint64_t bin = from / BIN_NS; bin <= to / BIN_NS && bin < bins; bin++) {
			uint64_t begin = bin * BIN_NS > from ? bin * BIN_NS : from;
			uint64_t end = (bin + 1) * BIN_NS < to ? (bin + 1) * BIN_NS : to;

			bin_ns[bin] += (double)(end - begin);
		}
	}
	for (unsigned int i = 0; is_simulated && i < bins; i++)
		bin_ns[i] = wanted_ns * BIN_NS / (double)wall_ns;
	printf("{\"launches\": %" PRIu64 ", \"wall_s\": %.6f, \"busy_s\": %.6f, \"bins\": [",
	       launches, (double)wall_ns / 1e9, (is_simulated ? wanted_ns : busy_ns) / 1e9);
	for (unsigned int i = 0; i < bins; i++)
		printf("%s%.5f", i == 0 ? "" : ", ", bin_ns[i] / BIN_NS);
	printf("]}\n");
	free(found);
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "last") == 0) {
		start();
		launch_and_wait(argv[2], strtoull(argv[3], NULL, 10));
		if (strcmp(argv[2], "kill") == 0)
			raise(SIGKILL);
		_exit(0);
	}
	if (argc != 5) {
		fprintf(stderr,
			"waits WAY SHORT_NS|drift LONG_NS SECONDS, waits last WAY LONG_NS\n");
		return 2;
	}

	uint64_t short_ns = strcmp(argv[2], "drift") == 0 ? 0 : strtoull(argv[2], NULL, 10);
	uint64_t long_ns = strtoull(argv[3], NULL, 10);
	double seconds = strtod(argv[4], NULL);
	double wanted_ns = 0;
	int64_t begun;

	start();
	begun = now_ns();
	while (now_ns() - begun < (int64_t)(seconds * 1e9) && launches < RING) {
		uint64_t length_ns = length_of(launches, short_ns, long_ns);

		wanted_ns += (double)length_ns;
		launch_and_wait(argv[1], length_ns);
	}
	report(seconds, now_ns() - begun, wanted_ns);
	return 0;
}
