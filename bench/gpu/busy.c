/* SPDX-License-Identifier: Apache-2.0
 *
 * busy KIND WORK_NS: keeps the card busy with kernels of about WORK_NS. KIND: `async` (as fast as
 * they can be launched), `sync` (each is waited for), `graph` (64 of them at a time).
 * Prints "ready", then reads lines "SECONDS" and prints what each run did, as JSON.
 *
 * Every kernel stamps its begin and end with %globaltimer into a ring of the card's memory: the
 * time for which the card was busy is what these say, whatever limits the program. A driver that
 * runs no kernels (the simulated one) stamps nothing; then it is the launches × WORK_NS.
 */
#include "cuda.h"

#include <inttypes.h>
#include <string.h>

#define RING ((uint64_t)1 << 20)
#define GRAPH_KERNELS 64
#define THREADS 256
#define BIN_NS 100000000
#define MOST_BINS 1200
#define TRIAL_ROUNDS 20000
#define PACE_EVENTS 8
#define PACE_NS 2000000

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry busy_param(.param .u64 work, .param .u64 ring, .param .u64 count, .param "
	".u64 room)\n"
	"{\n.reg .pred %p<5>;\n.reg .b32 %r<6>;\n.reg .f32 %f<4>;\n.reg .b64 %d<14>;\n"
	"ld.param.u64 %d1, [work];\nld.param.u64 %d2, [ring];\nld.param.u64 %d3, [count];\n"
	"ld.param.u64 %d10, [room];\n"
	"mov.u64 %d4, %globaltimer;\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\n"
	"cvt.rn.f32.u32 %f1, %r1;\nmov.f32 %f2, 0f3F7FFFFE;\nmov.u64 %d5, 0;\n"
	"LOOP:\nfma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"
	"fma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"
	"add.u64 %d5, %d5, 1;\nsetp.lt.u64 %p1, %d5, %d1;\n@%p1 bra LOOP;\n"
	"bar.sync 0;\nor.b32 %r3, %r1, %r2;\nsetp.ne.u32 %p2, %r3, 0;\n"
	"setp.neu.f32 %p3, %f1, 0f00000000;\nand.pred %p4, %p2, %p3;\n@%p2 bra DONE;\n"
	"mov.u64 %d6, %globaltimer;\natom.global.add.u64 %d7, [%d3], 1;\n"
	"rem.u64 %d7, %d7, %d10;\nshl.b64 %d8, %d7, 4;\nadd.u64 %d9, %d2, %d8;\n"
	"st.global.u64 [%d9], %d4;\nst.global.u64 [%d9+8], %d6;\n"
	"DONE:\n@%p4 bra END;\nst.global.f32 [%d3+8], %f1;\nEND:\nret;\n}\n";

static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, unsigned int, void *, void **, void **);
static int (*synchronize)(void *);
static int (*event_create)(void **, unsigned int);
static int (*event_record)(void *, void *);
static int (*event_wait)(void *);
static int (*graph_launch)(void *, void *);
static int (*to_host)(void *, uint64_t, size_t);
static int (*to_card)(uint64_t, const void *, size_t);

static void *kernel;
static void *stream;
static void *graph;
static unsigned int blocks = 132;
static uint64_t ring, count;
static uint64_t room = RING;
static uint64_t rounds;

static void go(void)
{
	void *parameters[] = {&rounds, &ring, &count, &room};

	must(launch(kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL),
	     "cuLaunchKernel");
}

static uint64_t stamped(void)
{
	uint64_t number = 0;

	must(synchronize(stream), "cuStreamSynchronize");
	must(to_host(&number, count, sizeof(number)), "cuMemcpyDtoH");
	return number;
}

/* Keeps the queue short, at some milliseconds of work: a run would not end else. */
static void pace(uint64_t launches, uint64_t work_ns)
{
	static void *event[PACE_EVENTS];
	static uint64_t next;
	uint64_t every = PACE_NS / (work_ns * (graph != NULL ? GRAPH_KERNELS : 1));

	if (every > 1 && launches % every != 0)
		return;
	if (event[next % PACE_EVENTS] == NULL)
		must(event_create(&event[next % PACE_EVENTS], 2), "cuEventCreate");
	else
		must(event_wait(event[next % PACE_EVENTS]), "cuEventSynchronize");
	must(event_record(event[next++ % PACE_EVENTS], stream), "cuEventRecord");
}

static void forget_stamps(void)
{
	static const uint64_t none[2];

	must(to_card(count, none, sizeof(none)), "cuMemcpyHtoD");
}

/* Rounds of the kernel's loop for so many ns; as many as ns where nothing is stamped. */
static uint64_t rounds_for(uint64_t work_ns)
{
	uint64_t stamp[8] = {0};
	uint64_t least_ns = UINT64_MAX;

	rounds = TRIAL_ROUNDS;
	forget_stamps();
	for (int i = 0; i < 4; i++)
		go();
	if (stamped() != 4)
		return work_ns;
	must(to_host(stamp, ring, sizeof(stamp)), "cuMemcpyDtoH");
	for (size_t i = 1; i < 4; i++)
		if (stamp[2 * i + 1] - stamp[2 * i] < least_ns)
			least_ns = stamp[2 * i + 1] - stamp[2 * i];
	return work_ns * TRIAL_ROUNDS / (least_ns == 0 ? 1 : least_ns) + 1;
}

static void make_graph(void)
{
	int (*begin)(void *, int) = cuda_function("cuStreamBeginCapture_v2");
	int (*end)(void *, void **) = cuda_function("cuStreamEndCapture");
	int (*instantiate)(void **, void *, uint64_t) =
		cuda_function("cuGraphInstantiateWithFlags");
	void *captured = NULL;

	must(begin(stream, 0), "cuStreamBeginCapture");
	for (int i = 0; i < GRAPH_KERNELS; i++)
		go();
	must(end(stream, &captured), "cuStreamEndCapture");
	must(instantiate(&graph, captured, 0), "cuGraphInstantiate");
}

static int by_begin(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a;
	uint64_t other = *(const uint64_t *)b;

	return one < other ? -1 : one > other;
}

/* From the first kernel on, `seconds` long. */
static void report(double seconds, uint64_t launches, double wall, uint64_t work_ns, int64_t stall)
{
	uint64_t number = stamped();
	uint64_t *stamp = calloc(2 * RING, sizeof(*stamp));
	double bin_ns[MOST_BINS] = {0};
	unsigned int bins = (unsigned int)(seconds * 1e9 / BIN_NS + 0.5);
	uint64_t longest_gap = 0;
	double kernel_ns = 0;

	if (bins > MOST_BINS)
		bins = MOST_BINS;
	if (number > RING)
		number = RING; /* the oldest are lost; no run is that long */
	must(to_host(stamp, ring, number * 16), "cuMemcpyDtoH");
	qsort(stamp, number, 16, by_begin);
	for (uint64_t i = 0; i < number; i++) {
		uint64_t from = stamp[2 * i] - stamp[0];
		uint64_t to = stamp[2 * i + 1] - stamp[0];

		kernel_ns += (double)(to - from);
		if (i > 0 && stamp[2 * i] > stamp[2 * i - 1] &&
		    stamp[2 * i] - stamp[2 * i - 1] > longest_gap)
			longest_gap = stamp[2 * i] - stamp[2 * i - 1];
		for (uint64_t bin = from / BIN_NS; bin <= to / BIN_NS && bin < bins; bin++) {
			uint64_t begin = bin * BIN_NS > from ? bin * BIN_NS : from;
			uint64_t end = (bin + 1) * BIN_NS < to ? (bin + 1) * BIN_NS : to;

			bin_ns[bin] += (double)(end - begin);
		}
	}
	printf("{\"launches\": %" PRIu64 ", \"wall_s\": %.6f, \"stamps\": %" PRIu64
	       ", \"mean_ns\": %.0f, \"gap_ms\": %.3f, \"launch_stall_ms\": %.3f, \"bins\": [",
	       launches, wall, number, number == 0 ? (double)work_ns : kernel_ns / (double)number,
	       (double)longest_gap / 1e6, (double)stall / 1e6);
	for (unsigned int i = 0; i < bins && number != 0; i++)
		printf("%s%.5f", i == 0 ? "" : ", ", bin_ns[i] / BIN_NS);
	printf("]}\n");
	fflush(stdout);
	free(stamp);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "async";
	uint64_t work_ns = argc > 2 ? strtoull(argv[2], NULL, 10) : 200000;
	int64_t ignored;
	void *module = NULL;
	int processors = 0;
	char line[64];

	cuda_start(&ignored, &ignored);

	int (*load)(void **, const void *) = cuda_function("cuModuleLoadData");
	int (*get)(void **, void *, const char *) = cuda_function("cuModuleGetFunction");
	int (*allocate)(uint64_t *, size_t) = cuda_function("cuMemAlloc_v2");
	int (*make_stream)(void **, unsigned int) = cuda_function("cuStreamCreate");
	int (*attribute)(int *, int, int) = cuda_function("cuDeviceGetAttribute");

	launch = cuda_function("cuLaunchKernel");
	synchronize = cuda_function("cuStreamSynchronize");
	event_create = cuda_function("cuEventCreate");
	event_record = cuda_function("cuEventRecord");
	event_wait = cuda_function("cuEventSynchronize");
	graph_launch = cuda_function("cuGraphLaunch");
	to_host = cuda_function("cuMemcpyDtoH_v2");
	to_card = cuda_function("cuMemcpyHtoD_v2");
	must(load(&module, ptx), "cuModuleLoadData");
	must(get(&kernel, module, "busy_param"), "cuModuleGetFunction");
	must(allocate(&ring, RING * 16), "cuMemAlloc");
	must(allocate(&count, 16), "cuMemAlloc");
	must(make_stream(&stream, 1), "cuStreamCreate");
	if (attribute(&processors, 16, 0) == 0 && processors > 0)
		blocks = (unsigned int)processors;
	rounds_for(work_ns); /* the first one wakes the card */
	rounds = rounds_for(work_ns);
	if (strcmp(kind, "graph") == 0)
		make_graph();
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		double seconds = strtod(line, NULL);
		int64_t begun;
		int64_t last;
		int64_t stall = 0;
		uint64_t launches = 0;
		uint64_t turns = 0;

		forget_stamps();
		begun = last = now_ns();
		while (last - begun < (int64_t)(seconds * 1e9)) {
			if (graph != NULL)
				must(graph_launch(graph, stream), "cuGraphLaunch");
			else
				go();
			if (strcmp(kind, "sync") == 0)
				must(synchronize(stream), "cuStreamSynchronize");
			else
				pace(turns++, work_ns);
			launches += graph != NULL ? GRAPH_KERNELS : 1;

			int64_t now = now_ns();

			if (now - last > stall)
				stall = now - last;
			last = now;
		}
		must(synchronize(stream), "cuStreamSynchronize");
		report(seconds, launches, (double)(now_ns() - begun) / 1e9, work_ns, stall);
	}
	return 0;
}
