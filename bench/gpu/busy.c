/* SPDX-License-Identifier: Apache-2.0
 *
 * busy KIND WORK_NS: keeps the card busy with kernels of about WORK_NS. KIND: `async` (as fast as
 * they can be launched), `sync` (each is waited for), `graph` (64 of them at a time).
 * Prints "ready", then reads lines "SECONDS" and prints what each run did, as JSON.
 *
 * Every kernel stamps its begin and end with %globaltimer into the card's memory: the time for
 * which the card was busy is what these say, whatever limits the program. A kernel runs from the
 * begin of its first block to the end of its last one: equal blocks have been seen to end 3 % of
 * their time apart. A driver that runs no kernels (the simulated one)
 * stamps nothing; then it is the launches x WORK_NS.
 */
#include "cuda.h"

#include <inttypes.h>
#include <string.h>

#define RING ((uint64_t)1 << 20)
#define GRAPH_KERNELS 64
#define THREADS 256
#define BIN_NS 100000000
#define MOST_BINS 1200
#define TRIALS 4
#define TRIAL_ROUNDS 20000
#define PACE_EVENTS 8
#define PACE_NS 2000000

struct stamp {
	uint64_t inverted_begin_ns; /* of all blocks the greatest, so nought is none */
	uint64_t end_ns;
	uint64_t inverted_early_end_ns; /* of the block that ended first */
	uint64_t first_begin_ns;        /* block 0 alone, as this bench measured until 2026-11 */
	uint64_t first_end_ns;
	uint64_t unused[3]; /* a power of two bytes */
};

/* In the card's memory. Blocks draw a ticket each; kernels of one stream do not overlap, so the
 * number of a kernel is any of its blocks' tickets / blocks. */
struct progress {
	uint32_t tickets;
	uint32_t unused;
	float sink; /* for a result that is never needed: without it the loop would be removed */
	uint32_t unused_too;
};

/* Nothing waits at the end of a kernel: the ticket is drawn before the work, and `red` returns
 * nothing. */
#define ENTRY(name)                                                                                \
	".visible .entry " name "(.param .u64 rounds, .param .u64 ring, .param .u64 progress, "    \
	".param .u64 room)\n"                                                                      \
	"{\n.reg .pred %p<6>;\n.reg .b32 %r<6>;\n.reg .f32 %f<3>;\n.reg .b64 %d<13>;\n"            \
	"mov.u64 %d1, %globaltimer;\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\n"               \
	"mov.u32 %r3, %nctaid.x;\nld.param.u64 %d2, [rounds];\nld.param.u64 %d3, [ring];\n"        \
	"ld.param.u64 %d4, [progress];\nld.param.u64 %d5, [room];\n"                               \
	"mov.u32 %r4, 0;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 atom.global.add.u32 %r4, [%d4], 1;\n"     \
	"cvt.rn.f32.u32 %f1, %r1;\nmov.f32 %f2, 0f3F7FFFFE;\nmov.u64 %d6, 0;\n"                    \
	"LOOP:\nfma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"                  \
	"fma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"                         \
	"add.u64 %d6, %d6, 1;\nsetp.lt.u64 %p2, %d6, %d2;\n@%p2 bra LOOP;\n"                       \
	"setp.eq.f32 %p3, %f1, 0f00000000;\n@%p3 st.global.f32 [%d4+8], %f1;\n"                    \
	"bar.sync 0;\n@!%p1 bra END;\nmov.u64 %d7, %globaltimer;\n"                                \
	"div.u32 %r5, %r4, %r3;\ncvt.u64.u32 %d8, %r5;\nsetp.ge.u64 %p4, %d8, %d5;\n"              \
	"@%p4 bra END;\nshl.b64 %d9, %d8, 6;\nadd.u64 %d10, %d3, %d9;\nnot.b64 %d11, %d1;\n"       \
	"not.b64 %d12, %d7;\nred.global.max.u64 [%d10], %d11;\n"                                   \
	"red.global.max.u64 [%d10+8], %d7;\nred.global.max.u64 [%d10+16], %d12;\n"                 \
	"setp.ne.u32 %p5, %r2, 0;\n@%p5 bra END;\n"                                                \
	"st.global.u64 [%d10+24], %d1;\nst.global.u64 [%d10+32], %d7;\nEND:\nret;\n}\n"

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n" ENTRY("busy_param") ENTRY("trial_param");

static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, unsigned int, void *, void **, void **);
static int (*synchronize)(void *);
static int (*event_create)(void **, unsigned int);
static int (*event_record)(void *, void *);
static int (*event_wait)(void *);
static int (*graph_launch)(void *, void *);
static int (*to_host)(void *, uint64_t, size_t);
static int (*to_card)(uint64_t, const void *, size_t);
static int (*fill)(uint64_t, unsigned char, size_t);

static void *kernel, *trial;
static void *stream;
static void *graph;
static unsigned int blocks = 132;
static uint64_t ring, progress;
static uint64_t room = RING;
static uint64_t rounds;

static void go(void *function)
{
	void *parameters[] = {&rounds, &ring, &progress, &room};

	must(launch(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL),
	     "cuLaunchKernel");
}

/* The number of kernels that have run. */
static uint64_t stamped(void)
{
	struct progress now = {0};

	must(synchronize(stream), "cuStreamSynchronize");
	must(to_host(&now, progress, sizeof(now)), "cuMemcpyDtoH");
	if (now.tickets / blocks > RING) {
		fprintf(stderr, "%u kernels, room for the stamps of %" PRIu64 "\n",
			now.tickets / blocks, RING);
		exit(1);
	}
	return now.tickets / blocks;
}

static void read_stamps(struct stamp *stamps, uint64_t number)
{
	if (number != 0)
		must(to_host(stamps, ring, number * sizeof(*stamps)), "cuMemcpyDtoH");
}

static uint64_t begin_ns(const struct stamp *stamp)
{
	return ~stamp->inverted_begin_ns;
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
	static const struct progress none;

	must(to_card(progress, &none, sizeof(none)), "cuMemcpyHtoD");
	must(fill(ring, 0, RING * sizeof(struct stamp)), "cuMemsetD8");
	must(synchronize(NULL), "cuStreamSynchronize");
}

/* Rounds of the kernel's loop for so many ns; as many as ns where nothing is stamped. Tried with
 * another function: what a limiter learns of kernels must not begin with these. */
static uint64_t rounds_for(uint64_t work_ns)
{
	struct stamp stamps[TRIALS];
	uint64_t least_ns = UINT64_MAX;

	rounds = TRIAL_ROUNDS;
	forget_stamps();
	for (int i = 0; i < TRIALS; i++)
		go(trial);
	if (stamped() != TRIALS)
		return work_ns;
	read_stamps(stamps, TRIALS);
	for (int i = 1; i < TRIALS; i++)
		if (stamps[i].end_ns - begin_ns(&stamps[i]) < least_ns)
			least_ns = stamps[i].end_ns - begin_ns(&stamps[i]);
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
		go(kernel);
	must(end(stream, &captured), "cuStreamEndCapture");
	must(instantiate(&graph, captured, 0), "cuGraphInstantiate");
}

/* The part of a span that lies in another one. */
static double overlap_ns(uint64_t from, uint64_t to, uint64_t begin, uint64_t end)
{
	uint64_t later = from > begin ? from : begin;
	uint64_t earlier = to < end ? to : end;

	return earlier > later ? (double)(earlier - later) : 0;
}

struct run {
	uint64_t launches;
	int64_t wall_ns;
	int64_t first_ns; /* from the first launch until that has run */
	int64_t stall_ns; /* the longest time from launch to launch */
};

/* From the first kernel on, `seconds` long. */
static void report(double seconds, const struct run *run, uint64_t work_ns)
{
	uint64_t number = stamped();
	struct stamp *stamps = calloc(number + 1, sizeof(*stamps));
	double bin_ns[MOST_BINS] = {0};
	unsigned int bins = (unsigned int)(seconds * 1e9 / BIN_NS + 0.5);
	uint64_t longest_gap = 0;
	double kernel_ns = 0;
	double first_block_ns = 0;
	double apart_ns = 0;
	uint64_t origin;

	if (stamps == NULL || bins > MOST_BINS) {
		fprintf(stderr, "no room for a run of %.0f s\n", seconds);
		exit(1);
	}
	read_stamps(stamps, number);
	origin = begin_ns(&stamps[0]);
	for (uint64_t i = 0; i < number; i++) {
		uint64_t from = begin_ns(&stamps[i]) - origin;
		uint64_t to = stamps[i].end_ns - origin;

		kernel_ns += (double)(to - from);
		apart_ns += (double)(stamps[i].end_ns - ~stamps[i].inverted_early_end_ns);
		first_block_ns +=
			overlap_ns(stamps[i].first_begin_ns - origin,
				   stamps[i].first_end_ns - origin, 0, (uint64_t)bins * BIN_NS);
		if (i > 0 && begin_ns(&stamps[i]) > stamps[i - 1].end_ns &&
		    begin_ns(&stamps[i]) - stamps[i - 1].end_ns > longest_gap)
			longest_gap = begin_ns(&stamps[i]) - stamps[i - 1].end_ns;
		for (uint64_t bin = from / BIN_NS; bin <= to / BIN_NS && bin < bins; bin++)
			bin_ns[bin] += overlap_ns(from, to, bin * BIN_NS, (bin + 1) * BIN_NS);
	}
	printf("{\"launches\": %" PRIu64 ", \"kernel_rounds\": %" PRIu64
	       ", \"wall_s\": %.6f, \"stamps\": %" PRIu64
	       ", \"mean_ns\": %.0f, \"gap_ms\": %.3f, \"launch_stall_ms\": %.3f"
	       ", \"first_ms\": %.3f, \"first_block_share\": %.5f, \"ends_apart\": %.5f, \"bins\": "
	       "[",
	       run->launches, rounds, (double)run->wall_ns / 1e9, number,
	       number == 0 ? (double)work_ns : kernel_ns / (double)number,
	       (double)longest_gap / 1e6, (double)run->stall_ns / 1e6, (double)run->first_ns / 1e6,
	       bins == 0 ? 0 : first_block_ns / bins / BIN_NS,
	       kernel_ns == 0 ? 0 : apart_ns / kernel_ns);
	for (unsigned int i = 0; i < bins && number != 0; i++)
		printf("%s%.5f", i == 0 ? "" : ", ", bin_ns[i] / BIN_NS);
	printf("]}\n");
	fflush(stdout);
	free(stamps);
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
	fill = cuda_function("cuMemsetD8_v2");
	must(load(&module, ptx), "cuModuleLoadData");
	must(get(&kernel, module, "busy_param"), "cuModuleGetFunction");
	must(get(&trial, module, "trial_param"), "cuModuleGetFunction");
	must(allocate(&ring, RING * sizeof(struct stamp)), "cuMemAlloc");
	must(allocate(&progress, sizeof(struct progress)), "cuMemAlloc");
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
		struct run run = {0};
		uint64_t turns = 0;
		int64_t begun;
		int64_t last;

		forget_stamps();
		begun = last = now_ns();
		while (last - begun < (int64_t)(seconds * 1e9)) {
			if (graph != NULL)
				must(graph_launch(graph, stream), "cuGraphLaunch");
			else
				go(kernel);
			if (strcmp(kind, "sync") == 0 || run.launches == 0)
				must(synchronize(stream), "cuStreamSynchronize");
			else
				pace(turns++, work_ns);

			int64_t now = now_ns();

			if (run.launches == 0)
				run.first_ns = now - begun;
			if (now - last > run.stall_ns)
				run.stall_ns = now - last;
			run.launches += graph != NULL ? GRAPH_KERNELS : 1;
			last = now;
		}
		must(synchronize(stream), "cuStreamSynchronize");
		run.wall_ns = now_ns() - begun;
		report(seconds, &run, work_ns);
	}
	return 0;
}
