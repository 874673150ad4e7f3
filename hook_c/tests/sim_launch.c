// SPDX-License-Identifier: Apache-2.0
/* The launch hooks and the arbiter's slots on a simulated card. Shares are those of the card's own
 * count of busy time. Each simulated process has its own copy of the hooks' state, which takes the
 * place of the others' whenever it goes on. */
#include "check.h"
#include "hook_launch.h"
#include "launch_card.h"
#include "sim.h"
#include "slots.h"
#include "training_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONTAINERS 8
#define TRAINING_LAUNCHES (sizeof(training_step) / sizeof(training_step[0]))
#define SECOND 0x10000 /* a bit of the streams on a container's second card */

struct driver driver;
static const uint32_t not_free = 1;

static struct vgpu_limits *limits;
static struct vgpu_usage *usage;
static struct slots slots;

/* How a program learns that what it has launched has ended. */
enum way {
	WAY_NONE,
	WAY_STREAM,
	WAY_CONTEXT,
	WAY_COPY,
	WAY_EVENT,
	WAY_EVENT_QUERY,
	WAY_STREAM_QUERY,
	WAY_FREE,
	WAY_CALLBACK, /* which sets a word of memory */
	WAY_MEMORY,   /* that a kernel writes, looked at without a pause */
	WAY_MEMORY_NOW_AND_THEN,
	WAYS,
};

static const char *const way_names[WAYS] = {"nothing",
					    "stream",
					    "context",
					    "copy",
					    "event",
					    "event query",
					    "stream query",
					    "free",
					    "callback",
					    "memory",
					    "memory, now and then"};

/* A simulated process: its container, its work, its copy of the hooks' state. */
struct program {
	uint64_t kernel_ns;
	uint64_t other_ns; /* every second kernel; 0: all are alike */
	uint64_t burst;    /* kernels, then a pause; 0: no pause */
	uint64_t pause_ns;
	uint64_t copy_ns;  /* after a pause it waits so long for what is no kernel */
	uint64_t fill_ns;  /* after a pause this is before the first kernel, and is none */
	uint64_t first_ns; /* the first ones take so long, of the same class */
	uint64_t firsts;   /* 0: 50 */
	uint64_t again;    /* launches after which it begins anew; 0: never */
	uint64_t each;     /* so many launches it waits; 0: each */
	uint64_t contexts; /* made after the first one */
	uint64_t extra;  /* each so-manieth launch has no counterpart on the other card; 0: none */
	uint64_t extras; /* so far */
	uint64_t collective_ns; /* each fifth kernel is a collective of the container's cards */
	enum way way;
	unsigned int container;
	unsigned int streams;
	unsigned int index; /* of the container's card that it works on */
	uint32_t gaps;      /* inside of each launch, of a graph */
	bool is_on_both;    /* one thread, its launches in turn on both cards */
	bool is_synchronous;
	bool is_paced;     /* waits for what it has launched 2 ms of work or 8 launches ago */
	bool is_varied;    /* one function of 10 us to 3 ms */
	bool is_training;  /* the steps of training_step.h, each of them waited for */
	bool is_new;       /* each launch is of another shape */
	bool is_silent;    /* there is no wait before a pause */
	bool is_dependent; /* programmatic launches */
	bool is_legacy;    /* launches in the default stream of old */
	bool is_querying;  /* at this moment */
	bool is_leaving;   /* destroys its context before each pause, and makes another one */
	void *pushed;      /* context; NULL: the one that is current by itself is */
	struct launch_words words;
	uint64_t return_ns; /* that the driver's launch takes while the card is at it */
	uint64_t launches;
	uint64_t marks;    /* events of the hooks */
	uint64_t barriers; /* of them: by a query, in the default stream of old */
	uint64_t events;
	struct sim_event event[8];
	struct tenant tenant;
};

static struct program program[SIM_PROCESSES];
static unsigned int programs;
static unsigned int first_card[CONTAINERS];
static bool is_arbiter_old;                  /* gives no beginnings */
static double card_is_fast_ppm;              /* its clock, against the machine's */
static bool is_library_old;                  /* heeds none */
static uint32_t want[CONTAINERS][SIM_CARDS]; /* as the arbiter has last seen it */

/* What the hooks ask of the world. */

uint64_t clock_ns(void)
{
	sim_spend(20);
	return sim_now();
}

struct clock_anchor clock_anchor; /* of no counter: each look at the clock is one at clock_ns */

void clock_sleep(uint64_t ns)
{
	sim_sleep(ns);
}

void clock_spin(uint64_t until_ns)
{
	if (until_ns > sim_now())
		sim_spend(until_ns - sim_now());
}

void clock_wait(const uint32_t *word, uint32_t seen, uint64_t ns)
{
	sim_wait(word, seen, ns);
}

void clock_wake(uint32_t *word)
{
	sim_wake(word);
}

void region_tend(struct region *region, bool now)
{
	(void)region;
	(void)now;
}

void wait_begin(struct hook_call *call)
{
	(void)call;
}

int wait_end(struct hook_call *call, int status)
{
	(void)call;
	return status;
}

void streams_forget(void *stream)
{
	(void)stream;
}

int device_card(struct tenant *tenant, int device)
{
	(void)tenant;
	return device;
}

/* The streams of a process's one card have no bit for it. */
static unsigned int index_of(const void *stream)
{
	return ((uintptr_t)stream & SECOND) != 0 ? 1 : 0;
}

static unsigned int card_under(const void *stream)
{
	return first_card[program[sim_self()].container] + index_of(stream);
}

int stream_device(void *stream, void **context)
{
	const struct program *own = &program[sim_self()];

	*context = (void *)(uintptr_t)(sim_self() + 1 + own->contexts * SIM_PROCESSES +
				       index_of(stream) * UINT64_C(0x1000000));
	return (int)index_of(stream);
}

struct tenant *tenant_joined(void)
{
	return &program[sim_self()].tenant;
}

/* Never the one that anything is launched in. */
#define CURRENT ((void *)UINTPTR_MAX)

static int context_current(void **context)
{
	void *pushed = program[sim_self()].pushed;

	*context = pushed != NULL ? pushed : CURRENT;
	return CUDA_SUCCESS;
}

static int context_push(void *context)
{
	CHECK(program[sim_self()].pushed == NULL);
	program[sim_self()].pushed = context;
	return CUDA_SUCCESS;
}

static int context_pop(void **context)
{
	CHECK(program[sim_self()].pushed != NULL);
	*context = program[sim_self()].pushed;
	program[sim_self()].pushed = NULL;
	return CUDA_SUCCESS;
}

struct event {
	struct sim_event event;
	void *context;
};

static int event_create(void **out, unsigned int flags)
{
	struct event *event = calloc(1, sizeof(*event));

	(void)flags;
	context_current(&event->context);
	*out = &event->event;
	return CUDA_SUCCESS;
}

static int event_destroy(void *event)
{
	free(event);
	return CUDA_SUCCESS;
}

static int event_record(void *event, void *stream)
{
	void *context;

	stream_device(stream, &context);
	CHECK(((const struct event *)event)->context == context);
	program[sim_self()].marks++;
	if (program[sim_self()].is_querying && (uintptr_t)stream < STREAM_PER_THREAD)
		program[sim_self()].barriers++;
	sim_record(card_under(stream), event);
	return CUDA_SUCCESS;
}

static int event_elapsed(float *ms, void *from, void *to)
{
	const struct sim_event *begin = from;
	const struct sim_event *end = to;

	sim_spend(100);
	sim_is_idle(0); /* brings the cards up to now */
	if (!begin->is_done || !end->is_done)
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)((int64_t)end->time_ns - (int64_t)begin->time_ns) *
		      (1 + card_is_fast_ppm / 1e6) / 1e6);
	return CUDA_SUCCESS;
}

static int stream_query(void *stream)
{
	sim_spend(300);
	return sim_is_idle(card_under(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* The current context is always one of the second card, the streams are the first one's. */
static int current_device(int *device)
{
	*device = 1;
	return CUDA_SUCCESS;
}

static int exchange(int *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

/* Programs. */

static void switched(unsigned int number)
{
	static unsigned int before;

	program[before].words = launch_words;
	before = number;
	launch_words = program[number].words;
}

static uint64_t duration_of(struct program *own)
{
	static uint64_t dice = 1;

	dice = dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	if (own->first_ns != 0) {
		uint64_t turn = own->again == 0 ? own->launches : own->launches % own->again;

		return turn < (own->firsts == 0 ? 50 : own->firsts) ? own->first_ns
								    : own->kernel_ns;
	}
	if (own->is_varied)
		return 10 * SIM_US + (dice >> 33) % (3 * SIM_MS);
	return own->other_ns != 0 && own->launches % 2 == 1 ? own->other_ns : own->kernel_ns;
}

static void end_burst(struct program *own)
{
	struct hook_call call = {0};
	void *context;

	if (own->is_leaving) {
		(void)stream_device(NULL, &context);
		sim_synchronize(0); /* as the driver does before it destroys a context */
		gate_forget_context((uint64_t)(uintptr_t)context);
		own->contexts++;
		return;
	}
	sync_begin(&call);
	sim_synchronize(card_under(NULL));
	context_sync_end(&call, CUDA_SUCCESS);
}

static void wait_for_copy(const struct program *own)
{
	struct hook_call call = {0};

	sync_begin(&call);
	sim_spend(own->copy_ns);
	context_sync_end(&call, CUDA_SUCCESS);
}

/* As bench/gpu/busy.c does it. */
static void pace(struct program *own, uint64_t ns, void *stream)
{
	uint64_t every = 2 * SIM_MS / ns;
	struct sim_event *event;

	if (every > 1 && own->launches % every != 0)
		return;
	event = &own->event[own->events++ % 8];
	while (event->is_recorded && !event->is_done) {
		sim_spend(2 * SIM_US);
		sim_is_idle(0);
	}
	sim_record(card_under(stream), event);
}

/* As the stubs do it. */
static void let_through(struct hook_call *call, struct program *own, struct launch launch,
			void *stream)
{
	if (!launch_is_free() && (launch.is_graph || !gate_passes(launch.key, stream)))
		gate_begin(call, &own->tenant, launch, stream);
}

static void train(unsigned int number)
{
	struct program *own = &program[number];
	void *stream = (void *)16;

	for (;; own->launches++) {
		const struct training_launch *launch =
			&training_step[own->launches % TRAINING_LAUNCHES];
		struct hook_call call = {0};

		sim_spend(launch->host_us * SIM_US);
		let_through(&call, own, (struct launch){.key = launch->key + 1}, stream);
		sim_launch(card_under(stream), launch->kernel_tenth_us * SIM_US / 10, 0);
		gate_end(&call);
		if (own->launches % TRAINING_LAUNCHES != TRAINING_LAUNCHES - 1)
			continue;
		call = (struct hook_call){0};
		sync_begin(&call);
		sim_synchronize(card_under(stream));
		context_sync_end(&call, CUDA_SUCCESS);
	}
}

static void synchronize_event(unsigned int on, const struct sim_event *event)
{
	while (!event->is_done) {
		sim_spend(500);
		sim_is_idle(on);
	}
	sim_spend(sim_latency.drain_ns);
}

/* Asks until it has ended, an event if there is one. */
static void query(unsigned int on, void *stream, const struct sim_event *event)
{
	for (int status = CUDA_ERROR_NOT_READY; status != CUDA_SUCCESS;) {
		struct hook_call call = {0};

		sim_spend(SIM_US);
		program[sim_self()].is_querying = true;
		query_begin(&call);
		status = stream_query(stream);
		if (event != NULL)
			status = event->is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
		query_end(&call, status);
		program[sim_self()].is_querying = false;
	}
	sim_is_idle(on);
}

static void look_at_memory(unsigned int on, bool is_now_and_then)
{
	while (!sim_is_idle(on)) {
		if (is_now_and_then)
			sim_sleep(0);
		else
			sim_spend(SIM_US);
	}
}

static void wait_by(enum way way, void *stream)
{
	unsigned int on = card_under(stream);
	struct hook_call call = {0};
	struct sim_event event;

	switch (way) {
	case WAY_STREAM:
		sync_begin(&call);
		sim_synchronize(on);
		stream_sync_end(&call, CUDA_SUCCESS, stream, false);
		break;
	case WAY_CONTEXT:
		sync_begin(&call);
		sim_synchronize(on);
		context_sync_end(&call, CUDA_SUCCESS);
		break;
	case WAY_COPY:
		copy_begin(&call);
		sim_synchronize(on);
		sim_spend(5 * SIM_US);
		sync_end(&call, CUDA_SUCCESS);
		break;
	case WAY_EVENT:
		sim_record(on, &event);
		event_sync_begin(&call);
		synchronize_event(on, &event);
		sync_end(&call, CUDA_SUCCESS);
		break;
	case WAY_EVENT_QUERY:
		sim_record(on, &event);
		query(on, stream, &event);
		break;
	case WAY_STREAM_QUERY:
		query(on, stream, NULL);
		break;
	case WAY_FREE:
		hidden_wait_begin();
		sim_synchronize(on);
		hidden_wait_end(CUDA_SUCCESS);
		break;
	case WAY_CALLBACK:
		hidden_wait_begin();
		hidden_wait_end(CUDA_SUCCESS);
		look_at_memory(on, false);
		break;
	case WAY_MEMORY:
	case WAY_MEMORY_NOW_AND_THEN:
		look_at_memory(on, way == WAY_MEMORY_NOW_AND_THEN);
		break;
	case WAY_NONE:
	case WAYS:
		break;
	}
}

static void work(unsigned int number)
{
	struct program *own = &program[number];

	if (own->is_training)
		train(number);
	for (;; own->launches++) {
		struct hook_call call = {0};
		uint64_t round = own->is_on_both ? own->launches / 2 : own->launches;
		uint64_t collective = 0;
		uint64_t ns = duration_of(own);
		uint64_t key = own->is_varied || own->first_ns != 0 ? 1 : ns;

		key = own->is_new ? own->launches + 1 : key;

		uintptr_t stream = 16 + own->launches % (own->streams == 0 ? 1 : own->streams);

		if (own->is_legacy)
			stream = 0;
		if (own->is_on_both ? own->launches % 2 == 1 : own->index == 1)
			stream |= SECOND;
		if (own->extra != 0 && own->launches % own->extra == 0) {
			round = 0;
			own->extras++;
		} else {
			round -= own->extras;
		}
		if (own->collective_ns != 0 && round % 5 == 4) {
			collective = (uint64_t)(own->container + 1) << 32 | round;
			ns = own->collective_ns;
			key = 2;
		}
		let_through(&call, own,
			    (struct launch){.key = key,
					    .gaps = own->gaps,
					    .is_graph = own->gaps != 0,
					    .is_dependent = own->is_dependent},
			    (void *)stream);
		if (own->is_dependent)
			sim_launch_dependent(card_under((void *)stream), ns);
		else
			sim_launch(card_under((void *)stream), ns, collective);
		if (own->return_ns != 0)
			sim_spend(own->return_ns);
		gate_end(&call);
		if (own->is_paced)
			pace(own, ns, (void *)stream);
		if (own->launches % (own->each == 0 ? 1 : own->each) ==
		    (own->each == 0 ? 0 : own->each - 1))
			wait_by(own->way, (void *)stream);
		if (own->is_synchronous) {
			sync_begin(&call);
			sim_synchronize(card_under((void *)stream));
			stream_sync_end(&call, CUDA_SUCCESS, (void *)stream, false);
		}
		if (own->burst != 0 && own->launches % own->burst == own->burst - 1) {
			if (!own->is_silent)
				end_burst(own);
			sim_sleep(own->pause_ns);
			if (own->copy_ns != 0)
				wait_for_copy(own);
			if (own->fill_ns != 0)
				sim_launch(card_under((void *)stream), own->fill_ns, 0);
		}
	}
}

/* As arbiter.c does it. */
static void hear(unsigned int number, uint64_t now_ns)
{
	struct slots_tenant *tenant = &slots.tenant[number];

	tenant->queue_end_ns = 0;
	tenant->is_syncing = false;
	tenant->is_punctual = !is_library_old;
	for (unsigned int i = 0; i < limits[number].ndev; i++) {
		if (usage[number].turn[i].want != want[number][i]) {
			want[number][i] = usage[number].turn[i].want;
			tenant->wanted_ns = now_ns;
		}
		for (unsigned int j = 0; j < usage[number].slots_high; j++) {
			uint64_t end_ns = usage[number].slot[j].dev[i].queue_end_ns;

			tenant->is_syncing |= (end_ns & 1) != 0;
			if (end_ns > tenant->queue_end_ns)
				tenant->queue_end_ns = end_ns;
		}
	}
	limits[number].arbiter_ns = now_ns;
}

static void tell(unsigned int number)
{
	const struct slots_tenant *tenant = &slots.tenant[number];

	for (unsigned int i = 0; i < limits[number].ndev; i++) {
		struct vgpu_limits_device *dev = &limits[number].dev[i];

		if (dev->grant_until_ns == tenant->grant_until_ns)
			continue;
		if (!is_arbiter_old && !is_library_old)
			dev->grant_from_ns = tenant->grant_from_ns;
		dev->grant_until_ns = tenant->grant_until_ns;
		dev->gate++;
		sim_wake(&dev->gate);
	}
}

static bool is_wanted_anew(void)
{
	for (unsigned int i = 0; i < CONTAINERS; i++)
		for (unsigned int j = 0; slots.tenant[i].is_used && j < limits[i].ndev; j++)
			if (usage[i].turn[j].want != want[i][j])
				return true;
	return false;
}

/* Sleeps until a want or its time, as one who is woken late, a timer's by half of what a wake
 * takes. One word for all wants would miss some: it looks at them every 20 us instead. */
static void arbitrate(unsigned int number)
{
	(void)number;
	for (;;) {
		uint64_t now_ns = sim_now();
		uint64_t again_ns;

		for (unsigned int i = 0; i < CONTAINERS; i++)
			if (slots.tenant[i].is_used)
				hear(i, now_ns);
		again_ns = slots_step(&slots, now_ns);
		for (unsigned int i = 0; i < CONTAINERS; i++)
			if (slots.tenant[i].is_used)
				tell(i);
		if (again_ns > now_ns + 50 * SIM_MS)
			again_ns = now_ns + 50 * SIM_MS;
		again_ns += sim_wake_latency_ns() / 2;
		while (sim_now() < again_ns && !is_wanted_anew())
			sim_spend(again_ns - sim_now() < 20 * SIM_US ? again_ns - sim_now()
								     : 20 * SIM_US);
	}
}

static void begin(void)
{
	free(limits);
	free(usage);
	limits = calloc(CONTAINERS, sizeof(*limits));
	usage = calloc(CONTAINERS, sizeof(*usage));
	memset(&slots, 0, sizeof(slots));
	for (unsigned int i = 0; i < programs; i++)
		if (program[i].words.cards != NULL)
			sys_unmap(program[i].words.cards,
				  sizeof(struct launch_card) * VGPU_MAX_DEVICES);
	memset(program, 0, sizeof(program));
	memset(first_card, 0, sizeof(first_card));
	memset(want, 0, sizeof(want));
	launch_words = (struct launch_words){.seq = &not_free};
	programs = 0;
	driver = (struct driver){.cuCtxGetDevice = current_device,
				 .cuCtxGetCurrent = context_current,
				 .cuCtxPushCurrent_v2 = context_push,
				 .cuCtxPopCurrent_v2 = context_pop,
				 .cuEventCreate = event_create,
				 .cuEventDestroy_v2 = event_destroy,
				 .cuEventRecord = event_record,
				 .cuEventElapsedTime = event_elapsed,
				 .cuStreamQuery = stream_query,
				 .cuThreadExchangeStreamCaptureMode = exchange};
	sim_begin();
	sim_switched = switched;
}

static void contain_on(unsigned int number, uint64_t cards, uint32_t percent, uint32_t alone)
{
	limits[number].ndev = (uint32_t)__builtin_popcountll(cards);
	first_card[number] = (unsigned int)__builtin_ctzll(cards);
	for (unsigned int i = 0; i < limits[number].ndev; i++) {
		limits[number].dev[i].cores_percent = percent;
		limits[number].dev[i].cores_max_percent = percent;
		limits[number].dev[i].mode = VGPU_MODE_HARD;
		limits[number].dev[i].alone = alone;
	}
	slots.tenant[number] =
		(struct slots_tenant){.is_used = alone == 0, .weight = percent, .cards = cards};
	slots_regroup(&slots);
}

static void contain(unsigned int number, uint32_t percent, uint32_t alone)
{
	contain_on(number, 1, percent, alone);
}

static unsigned int start_as(struct program what, uint64_t start_ns, void (*body)(unsigned int))
{
	struct program *own = &program[programs++];
	unsigned int slot = usage[what.container].slots_high++;

	*own = what;
	own->words.seq = &not_free;
	own->tenant.limits.file = &limits[what.container];
	own->tenant.limits.count = limits[what.container].ndev;
	own->words.contexts = what.is_on_both ? 2 : 1;
	own->tenant.contexts = own->words.contexts;
	own->tenant.region.usage = &usage[what.container];
	own->tenant.region.slot = slot;
	usage[what.container].slot[slot].state = VGPU_SLOT_LIVE;
	return sim_spawn(body, start_ns);
}

static unsigned int start(struct program what, uint64_t start_ns)
{
	return start_as(what, start_ns, work);
}

static void start_arbiter(void)
{
	programs++;
	sim_spawn(arbitrate, 0);
}

static uint64_t busy_ns(unsigned int number)
{
	return sim_busy_ns(number, 0);
}

static double share_on(unsigned int number, unsigned int card, uint64_t ns)
{
	return 100.0 * (double)sim_busy_ns(number, card) / (double)ns;
}

static double share(unsigned int number, uint64_t ns)
{
	return share_on(number, 0, ns);
}

static bool is_near(const char *what, double found, double wanted, double allowed)
{
	if (found >= wanted - allowed && found <= wanted + allowed)
		return true;
	printf("%s: %.2f, wanted %.2f +- %.2f\n", what, found, wanted, allowed);
	return false;
}

#define RUN_NS (5000 * SIM_MS)

/* The share in which kernels one after the other keep the card busy without a limit. */
static double bare(uint64_t kernel_ns)
{
	return 100.0 * (double)kernel_ns / (double)(kernel_ns + SIM_GAP_NS);
}

static double alone_at(struct program what, uint32_t percent, const struct sim_latency *latency)
{
	begin();
	sim_latency = *latency;
	contain(0, percent, 1);
	start(what, 0);
	sim_run(RUN_NS);
	return share(0, RUN_NS);
}

static double alone(struct program what, uint32_t percent)
{
	return alone_at(what, percent, &sim_usual_latency);
}

static void test_every_limit_holds_for_every_length(void)
{
	static const uint32_t percents[] = {10, 25, 50, 75, 90};
	static const uint64_t lengths_us[] = {5, 20, 200, 1000, 5000, 150000};

	for (unsigned int i = 0; i < 5; i++) {
		for (unsigned int j = 0; j < 6; j++) {
			struct program what = {.kernel_ns = lengths_us[j] * SIM_US};
			double kernel = 100.0 * (double)what.kernel_ns / (double)RUN_NS;
			double found = alone(what, percents[i]);
			double allowed = kernel > 2 ? kernel : 2;
			char name[64];

			snprintf(name, sizeof(name), "%u %% of %llu us", percents[i],
				 (unsigned long long)lengths_us[j]);
			double most = bare(what.kernel_ns);

			CHECK(is_near(name, found, percents[i] < most ? percents[i] : most,
				      allowed));
		}
	}
}

/* Their credit never is as much as larger shares wait for. */
static void test_the_least_shares_are_given(void)
{
	for (uint32_t percent = 1; percent <= 3; percent++) {
		double found = alone((struct program){.kernel_ns = 20 * SIM_US}, percent);

		CHECK(is_near("a few percent of 20 us", found, percent, 0.5));
	}
}

static void test_what_is_waited_for_is_paid_for(void)
{
	struct program what = {.kernel_ns = 20 * SIM_US, .is_synchronous = true};

	CHECK(is_near("30 % of 20 us, sync", alone(what, 30), 30, 2));
	what.kernel_ns = 200 * SIM_US;
	CHECK(is_near("30 % of 200 us, sync", alone(what, 30), 30, 2));
	what.kernel_ns = 150 * SIM_MS;
	CHECK(is_near("30 % of 150 ms, sync", alone(what, 30), 30, 2));
}

/* One function and shape that takes now this and now that: what it took is known, whatever tells
 * the program that it has ended. */
static void test_every_way_of_waiting_teaches_what_a_launch_took(void)
{
	static const uint32_t percents[] = {10, 50};
	static const uint64_t lengths_us[][2] = {{20, 50000}, {20, 2000}, {200, 5000}};
	static const uint64_t each[] = {1, 10}; /* launches before a wait; the last one is longer */

	for (enum way way = WAY_STREAM; way < WAYS; way++) {
		for (unsigned int i = 0; i < 24; i++) {
			const uint64_t *us = lengths_us[i / 4 % 3];
			uint32_t percent = percents[i / 2 % 2];
			struct program what = {.kernel_ns = us[1] * SIM_US,
					       .first_ns = us[0] * SIM_US,
					       .way = way,
					       .each = each[i % 2],
					       .is_legacy = i >= 12};
			char name[96];

			what.firsts = what.each == 1 ? 1 : what.each - 1;
			what.again = what.firsts + 1;
			(void)alone(what, percent);
			sim_run(RUN_NS);
			snprintf(name, sizeof(name), "%u %%, %llu us to %llu us, %llu a time, %s%s",
				 percent, (unsigned long long)us[0], (unsigned long long)us[1],
				 (unsigned long long)what.each, way_names[way],
				 what.is_legacy ? ", legacy" : "");
			CHECK(is_near(name, share(0, 2 * RUN_NS), percent, 2));
		}
	}
}

/* Whatever the way to the card and back takes: it is idle time, and not charged. */
static void test_starts_from_idle_are_not_charged(void)
{
	static const uint32_t percents[] = {10, 50, 75};
	static const uint64_t lengths_us[] = {5, 20, 200};
	static const struct sim_latency latency[] = {
		{2000, 2000, 1000, 2000}, {2400, 4000, 2000, 0},    {2400, 4000, 2000, 8000},
		{2400, 6000, 5000, 4000}, {3000, 9000, 8000, 4000},
	};

	for (unsigned int i = 0; i < 5; i++) {
		for (unsigned int j = 0; j < 3; j++) {
			struct program what = {.kernel_ns = lengths_us[j] * SIM_US,
					       .is_synchronous = true};
			double most = alone_at(what, 100, &latency[i]);

			for (unsigned int k = 0; k < 3; k++) {
				double found = alone_at(what, percents[k], &latency[i]);
				double wanted = percents[k] < most ? percents[k] : most;
				char name[64];

				snprintf(name, sizeof(name), "latency %u, %u %% of %llu us, sync",
					 i, percents[k], (unsigned long long)lengths_us[j]);
				CHECK(is_near(name, found, wanted, lengths_us[j] < 200 ? 3 : 2));
			}
		}
	}
}

/* The clocks of a card and of its machine differ by some 10 ppm, and by more while NTP slews. */
static void test_clocks_may_drift(void)
{
	for (int ppm = -100; ppm <= 100; ppm += 200) {
		for (uint64_t us = 20; us <= 200; us += 180) {
			struct program what = {.kernel_ns = us * SIM_US};
			char name[64];

			card_is_fast_ppm = ppm;
			snprintf(name, sizeof(name), "50 %% of %u us, %d ppm", (unsigned int)us,
				 ppm);
			(void)alone(what, 50);
			sim_run(RUN_NS);
			CHECK(is_near(name, share(0, 2 * RUN_NS), 50, 1));
		}
	}
	card_is_fast_ppm = 0;
}

static void test_mixed_kernels_and_several_streams(void)
{
	struct program what = {.kernel_ns = 20 * SIM_US, .other_ns = 700 * SIM_US};

	CHECK(is_near("40 % of two lengths", alone(what, 40), 40, 2));
	what.streams = 12;
	CHECK(is_near("40 % in twelve streams", alone(what, 40), 40, 2));
	what = (struct program){.is_varied = true};
	CHECK(is_near("30 % of one function of many lengths", alone(what, 30), 30, 2));
}

/* 64 kernels of 20 us and the gaps between them are one launch. */
/* Its kernels of one function and shape take what they take, from 48 us to 1.3 ms, and after each
 * wait for credit its thread is no faster than the card. */
static void test_what_training_leaves_idle_is_not_charged(void)
{
	static const uint32_t percents[] = {10, 25, 50, 75, 90};
	const struct program what = {.is_training = true};

	for (uint64_t launch_us = 3; launch_us <= 6; launch_us += 3) { /* 6: while it is traced */
		struct sim_latency latency = sim_usual_latency;

		latency.launch_ns = launch_us * SIM_US;

		double most = alone_at(what, 100, &latency);

		for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]); i++) {
			double wanted = percents[i] < most ? percents[i] : most;
			char name[64];

			snprintf(name, sizeof(name), "%u %% of training, launches of %u us",
				 percents[i], (unsigned int)launch_us);
			CHECK(is_near(name, alone_at(what, percents[i], &latency), wanted, 1));
		}
	}
}

static void test_gaps_in_graphs_are_not_charged(void)
{
	struct program what = {.kernel_ns = (UINT64_C(64) * 20 + 63) * SIM_US, .gaps = 63};
	double work = 64 * 20.0 / (64 * 20 + 63);

	CHECK(is_near("25 % of graphs", alone(what, 25) * work, 25, 1));
	CHECK(is_near("50 % of graphs", alone(what, 50) * work, 50, 1));
	CHECK(is_near("90 % of graphs", alone(what, 90) * work, 90, 1));

	/* Eight of 5 us, waited for. */
	what = (struct program){.kernel_ns = (UINT64_C(8) * 5 + 7) * SIM_US,
				.gaps = 7,
				.return_ns = 20 * SIM_US,
				.is_synchronous = true};
	CHECK(is_near("25 % of short graphs", alone(what, 25) * 40 / 47, 25, 2));
}

static void test_dependent_launches_have_no_gaps(void)
{
	struct cuda_launch_attribute attribute[] = {
		{.id = 4, .value.allowed = 1},
		{.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .value.allowed = 1},
	};
	struct cuda_launch_config config = {.attributes = attribute, .attribute_count = 2};
	struct program what = {.kernel_ns = 20 * SIM_US, .is_dependent = true};

	CHECK(launch_is_dependent(&config));
	attribute[1].value.allowed = 0;
	CHECK(!launch_is_dependent(&config));
	config.attribute_count = 1;
	CHECK(!launch_is_dependent(&config));
	config.attributes = NULL;
	CHECK(!launch_is_dependent(&config));
	CHECK(is_near("50 % of dependent launches", alone(what, 50), 50, 1));
	CHECK(is_near("90 % of dependent launches", alone(what, 90), 90, 1));
}

static void test_idle_time_is_not_charged(void)
{
	struct program what = {.kernel_ns = 200 * SIM_US, .burst = 10, .pause_ns = 8 * SIM_MS};

	/* About 20 % of the card, far below the limit: as if there was none. */
	double unlimited = alone(what, 100);

	CHECK(is_near("bursts under 50 %", alone(what, 50), unlimited, 0.5));
}

/* A wait that takes long has not waited for kernels that had ended long before. */
static void test_idle_time_before_a_wait_is_not_charged(void)
{
	for (unsigned int silent = 0; silent < 2; silent++) {
		struct program what = {.kernel_ns = 20 * SIM_US,
				       .burst = 1010,
				       .pause_ns = 200 * SIM_MS,
				       .copy_ns = 50 * SIM_US,
				       .is_silent = silent != 0};
		double free = alone(what, 100);

		CHECK(is_near(silent != 0 ? "pause, copy" : "wait, pause, copy", alone(what, 50),
			      free, 1));
	}
}

static void test_idle_time_before_a_fill_is_not_charged(void)
{
	struct program what = {.kernel_ns = 20 * SIM_US,
			       .burst = 1010,
			       .pause_ns = 200 * SIM_MS,
			       .fill_ns = 100 * SIM_US};

	CHECK(is_near("wait, pause, fill", alone(what, 50), alone(what, 100), 0.5));
}

static bool seen_dry[4];

static void launch_once(unsigned int number, uintptr_t stream)
{
	struct hook_call call = {0};

	gate_begin(&call, &program[number].tenant, (struct launch){.key = 1}, (void *)stream);
	sim_launch(card_under((void *)stream), 400 * SIM_US, 0);
	gate_end(&call);
}

/* Waits that do not wait for what was launched last, and one that does. */
static void wait_for_less(unsigned int number)
{
	const struct throttle *throttle;
	struct hook_call call = {0};
	struct hook_call whole = {0};

	for (unsigned int i = 0; i < 3; i++) {
		launch_once(number, 16);
		launch_once(number, 17);
	}
	throttle = &launch_words.cards[0].throttle;
	sync_begin(&call);
	stream_sync_end(&call, CUDA_SUCCESS, (void *)STREAM_PER_THREAD, false);
	seen_dry[0] = throttle->is_known_dry;
	sync_begin(&call);
	stream_sync_end(&call, CUDA_SUCCESS, NULL, true);
	seen_dry[1] = throttle->is_known_dry;
	sync_begin(&call);
	sim_synchronize(0);
	launch_once(number, 16); /* another thread's */
	context_sync_end(&call, CUDA_SUCCESS);
	seen_dry[2] = throttle->is_known_dry;
	sync_begin(&whole);
	sim_synchronize(0);
	context_sync_end(&whole, CUDA_SUCCESS);
	seen_dry[3] = throttle->is_known_dry;
}

static void test_a_wait_for_less_than_everything_leaves_the_card_busy(void)
{
	begin();
	contain(0, 50, 1);
	start_as((struct program){.kernel_ns = 400 * SIM_US}, 0, wait_for_less);
	sim_run(100 * SIM_MS);
	CHECK(!seen_dry[0] && !seen_dry[1] && !seen_dry[2]);
	CHECK(seen_dry[3]);
}

/* Launches whose last one takes another time, each waited for; then the program ends. */
static void wait_and_end(unsigned int number)
{
	struct program *own = &program[number];
	uintptr_t stream = own->is_legacy ? 0 : 16;

	for (; own->launches < 20; own->launches++) {
		struct hook_call call = {0};

		let_through(&call, own, (struct launch){.key = 1}, (void *)stream);
		sim_launch(0, own->launches < 19 ? own->kernel_ns : own->other_ns, 0);
		gate_end(&call);
		wait_by(own->way, (void *)stream);
	}
}

static void test_work_that_a_program_has_seen_end_is_over(void)
{
	static const uint64_t lengths_us[] = {50, 100, 110, 150, 3000};

	for (unsigned int i = 0; i < 5 * 2 * (WAY_FREE - WAY_STREAM + 1); i++) {
		enum way way = WAY_STREAM + i / 10;
		const struct vgpu_usage_device *left;
		char name[96];

		begin();
		contain(0, 90, 1);
		start_as((struct program){.kernel_ns = 100 * SIM_US,
					  .other_ns = lengths_us[i / 2 % 5] * SIM_US,
					  .way = way,
					  .is_legacy = i % 2 == 1},
			 0, wait_and_end);
		snprintf(name, sizeof(name), "%s, last %llu us%s: charged or left, us",
			 way_names[way], (unsigned long long)lengths_us[i / 2 % 5],
			 i % 2 == 1 ? ", legacy" : "");

		sim_run(100 * SIM_MS);
		CHECK(program[0].launches == 20);
		left = &usage[0].slot[0].dev[0];
		CHECK(is_near(name, (double)(left->pending_ns & 1), 0, 0));
		CHECK(is_near(name, (double)(left->busy_ns + left->pending_ns) / 1e3,
			      (double)busy_ns(0) / 1e3, 80));
		CHECK(program[0].barriers == 0);
	}
}

static void test_a_stream_that_ends_is_left_when_all_marks_are_taken(void)
{
	void *stream = (void *)16;
	struct launch_card *card;

	begin();
	contain(0, 50, 1);
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	sim_run(10 * SIM_MS);
	card = &launch_words.cards[0];
	for (unsigned int i = 0; i < MARKS; i++)
		card->mark[i].state = MARK_RECORDING;
	card->stream[0] = stream;
	card->stream_count = 1;
	card->throttle.open.launches = 1;
	stream_destroy_begin(stream);
	CHECK(card->stream_count == 0);
}

static void test_idle_time_after_a_context_is_not_charged(void)
{
	struct program what = {
		.kernel_ns = 200 * SIM_US, .burst = 10, .pause_ns = 8 * SIM_MS, .is_leaving = true};
	double unlimited = alone(what, 100);

	CHECK(is_near("contexts under 50 %", alone(what, 50), unlimited, 0.5));
	what.burst = 1000;
	CHECK(is_near("long contexts under 20 %", alone(what, 20), 20, 1));
}

static void test_a_launch_counts_on_the_card_of_its_stream(void)
{
	begin();
	contain(0, 20, 1);
	limits[0].dev[1] = limits[0].dev[0];
	limits[0].dev[1].cores_percent = limits[0].dev[1].cores_max_percent = 100;
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	program[0].tenant.limits.count = 2;
	sim_run(RUN_NS);
	CHECK(is_near("under 20 %", share(0, RUN_NS), 20, 1));
	CHECK(usage[0].slot[0].dev[1].launches == 0);
}

static void test_what_is_no_share_gets_the_least(void)
{
	struct program what = {.kernel_ns = 200 * SIM_US};

	CHECK(is_near("a share of 0", alone(what, 0), 1, 0.5));
	CHECK(is_near("a share of 101", alone(what, 101), 1, 0.5));
}

/* The others count what is under way there, and the arbiter waits for it. */
static void test_who_has_lost_its_slot_is_seen_in_its_new_one(void)
{
	begin();
	contain(0, 25, 1);
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	sim_run(RUN_NS / 2);

	struct vgpu_usage_slot *slot = usage[0].slot;
	struct vgpu_usage_device before = slot[0].dev[0];

	usage[0].slots_high = 2;
	slot[0].state = VGPU_SLOT_FREE;
	slot[1].state = VGPU_SLOT_LIVE;
	program[0].tenant.region.slot = 1;
	sim_run(RUN_NS / 2);
	CHECK(memcmp(&before, &slot[0].dev[0], sizeof(before)) == 0);
	CHECK(slot[1].dev[0].launches != 0 && slot[1].dev[0].busy_ns > before.busy_ns);
	CHECK(slot[1].dev[0].queue_end_ns > before.queue_end_ns);
}

/* What the credit of 20 us kernels has let through at once is owed, and worked off. */
static double paid(double found)
{
	int64_t deferred_ns = (int64_t)usage[0].turn[0].deferred_ns;
	int64_t balance_ns = usage[0].turn[0].balance_ns;

	return found + 100.0 * (double)(balance_ns - deferred_ns) / (double)RUN_NS;
}

static void test_kernels_that_begin_to_take_longer_are_paid_for(void)
{
	for (unsigned int sync = 0; sync < 2; sync++) {
		struct program what = {.kernel_ns = 5 * SIM_MS,
				       .first_ns = 20 * SIM_US,
				       .is_synchronous = sync == 1};

		CHECK(is_near("from 20 us to 5 ms", paid(alone(what, 20)), 20, 2.5));
		what.kernel_ns = SIM_MS;
		CHECK(is_near("from 20 us to 1 ms", paid(alone(what, 20)), 20, 2.5));
		what = (struct program){.kernel_ns = 20 * SIM_US,
					.first_ns = 5 * SIM_MS,
					.is_synchronous = sync == 1};
		CHECK(is_near("from 5 ms to 20 us", alone(what, 20), 20, 4));
	}
}

/* Of what was never seen before only few launches are under way, and all of it is paid for. */
static void test_what_is_never_seen_twice_is_paid_for(void)
{
	static const uint32_t percents[] = {10, 50};
	static const uint64_t lengths_ms[] = {50, 1000, 5000};

	for (unsigned int i = 0; i < 6; i++) {
		struct program what = {.kernel_ns = lengths_ms[i / 2] * SIM_MS, .is_new = true};
		uint64_t run_ns = 200 * what.kernel_ns;
		char name[64];

		(void)alone(what, percents[i % 2]);
		CHECK(program[0].launches * what.kernel_ns <= 2500 * SIM_MS + 9 * what.kernel_ns);
		sim_run(run_ns);
		snprintf(name, sizeof(name), "%u %% of new kernels of %u ms", percents[i % 2],
			 (unsigned int)lengths_ms[i / 2]);
		CHECK(is_near(name, share(0, RUN_NS + run_ns), percents[i % 2], 5.5));
	}
}

/* The card is never dry while they are measured. */
static void test_what_is_never_seen_twice_may_be_short(void)
{
	struct program what = {.kernel_ns = 200 * SIM_US, .is_new = true};

	CHECK(is_near("90 % of new kernels of 200 us", alone(what, 90), 90, 2));
	what.kernel_ns = 20 * SIM_US;
	CHECK(is_near("50 % of new kernels of 20 us", alone(what, 50), 50, 2));
}

/* A kernel of 2 s that a program with a latch would end after its last launch; 400 launches of what
 * follows were measured. */
static uint64_t latch_ns;
static uint64_t behind_latch;
static uint64_t latch_work_ns;

static void launch_of(unsigned int number, uint64_t key, uint64_t ns)
{
	struct hook_call call = {0};

	let_through(&call, &program[number], (struct launch){.key = key}, (void *)16);
	sim_launch(0, ns, 0);
	gate_end(&call);
}

static void launch_behind_a_latch(unsigned int number)
{
	for (unsigned int i = 0; i < 400; i++)
		launch_of(number, 1, latch_work_ns);
	end_burst(&program[number]);
	launch_of(number, 2, 2000 * SIM_MS);
	latch_ns = sim_now();
	for (behind_latch = 0; behind_latch < 300; behind_latch++)
		launch_of(number, 1, latch_work_ns);
	latch_ns = sim_now() - latch_ns;
	for (;;)
		launch_of(number, 1, latch_work_ns);
}

static void test_launches_behind_a_latch_return(void)
{
	static const uint32_t percents[] = {10, 50, 90};

	latch_work_ns = 10 * SIM_US;
	for (unsigned int i = 0; i < 3; i++) {
		begin();
		contain(0, percents[i], 1);
		start_as((struct program){0}, 0, launch_behind_a_latch);
		sim_run(4 * RUN_NS);
		CHECK(behind_latch == 300 && latch_ns < 300 * SIM_MS);
		sim_run(4 * RUN_NS);
		CHECK(is_near("with a latch", share(0, 8 * RUN_NS), percents[i],
			      percents[i] == 90 ? 10 : 2));
	}
	/* Of long ones no more goes than twice before it ends. */
	latch_work_ns = 100 * SIM_MS;
	begin();
	contain(0, 50, 1);
	start_as((struct program){0}, 0, launch_behind_a_latch);
	sim_run(100 * SIM_MS * 400 * 2);
	CHECK(behind_latch <= 3);
}

static const uint32_t thirty_seventy[] = {30, 70};

/* Beside others that want all they may have. */
static void change_beside(struct program what, unsigned int count, const uint32_t percents[])
{
	begin();
	for (unsigned int i = 0; i < count; i++) {
		struct program one = {.kernel_ns = (i == 1 ? 20 : 200) * SIM_US};

		one = i == 0 ? what : one;
		one.container = i;
		contain(i, percents[i], 0);
		start(one, 700 * SIM_US * i);
	}
	start_arbiter();
	sim_run(RUN_NS);
}

/* A trial of a function, and then its work. */
static void test_kernels_that_begin_to_take_longer_stall_nobody(void)
{
	static const uint32_t four[] = {10, 20, 30, 40};
	static const struct {
		uint64_t us;
		uint64_t number;
	} trial[] = {{100, 8}, {20, 50}, {100, 300}, {100, 3000}};

	for (unsigned int i = 0; i < 8; i++) {
		struct program what = {.kernel_ns = 5 * SIM_MS,
				       .first_ns = trial[i % 4].us * SIM_US,
				       .firsts = trial[i % 4].number,
				       .is_paced = i >= 4};

		CHECK(is_near("10 % of 5 ms", alone(what, 10), 10, 1));
		CHECK(sim_longest_stall_ns(0) <= 100 * SIM_MS);
		change_beside(what, 2, thirty_seventy);
		CHECK(is_near("30 % of 5 ms", share(0, RUN_NS), 30, 2.5));
		CHECK(sim_longest_stall_ns(0) <= 100 * SIM_MS);
		CHECK(sim_longest_stall_ns(1) <= 100 * SIM_MS);
		change_beside(what, 4, four);
		CHECK(is_near("10 % of 5 ms", share(0, RUN_NS), 10, 2));
		for (unsigned int j = 0; j < 4; j++)
			CHECK(sim_longest_stall_ns(j) <= 100 * SIM_MS);
	}
}

/* One function in turn of 20 us and of 5 ms has what it may have, and no more than what is deferred
 * beyond it, once. */
static void test_who_alternates_gains_and_loses_nothing(void)
{
	static const uint64_t shorts[] = {4, 20, 200};
	static const uint64_t longs[] = {1, 4, 16};

	for (unsigned int i = 0; i < 9; i++) {
		struct program what = {
			.kernel_ns = 5 * SIM_MS, .first_ns = 20 * SIM_US, .firsts = shorts[i / 3]};

		what.again = what.firsts + longs[i % 3];
		CHECK(is_near("20 % of 20 us and 5 ms", paid(alone(what, 20)), 20, 2.5));
		CHECK(usage[0].turn[0].deferred_ns <= THROTTLE_DEFERRED_NS);
		sim_run(RUN_NS);
		CHECK(share(0, 2 * RUN_NS) <= 21.5);
		change_beside(what, 2, thirty_seventy);
		CHECK(share(0, RUN_NS) <= 32);
		CHECK(share(1, RUN_NS) >= 56); /* of 64 */
	}
}

/* Who does not use up what it may have, and launches what always takes the same. */
static const struct program modest = {
	.kernel_ns = 20 * SIM_US, .burst = 40, .pause_ns = SIM_MS, .is_silent = true};

static void test_what_is_well_known_is_marked_seldom(void)
{
	double most = alone(modest, 100);

	CHECK(is_near("pauses under 90 %", alone(modest, 90), most, 0.5));
	CHECK(program[0].marks * 70 < program[0].launches);
	/* Who needs all of its credit is looked at as often as ever. */
	CHECK(is_near("60 % of what wants more", alone(modest, 60), 60, 1));
	CHECK(program[0].marks * 70 > program[0].launches);
}

/* Of what is launched meanwhile, no more goes at the old price. */
static void test_what_is_marked_seldom_may_change(void)
{
	for (uint32_t percent = 60; percent <= 90; percent += 30) {
		struct program what = modest;

		what.first_ns = what.kernel_ns;
		what.firsts = 30000;
		what.kernel_ns = 200 * SIM_US;
		CHECK(paid(alone(what, percent)) < percent + 1);
		CHECK(sim_longest_stall_ns(0) <= 5 * SIM_MS);
		what.kernel_ns = 5 * SIM_MS;
		CHECK(paid(alone(what, percent)) < percent + 1);
		CHECK(sim_longest_stall_ns(0) <= 600 * SIM_MS);
	}
}

static void test_who_is_marked_seldom_makes_room(void)
{
	begin();
	contain(0, 90, 1);
	contain(1, 50, 1);
	start(modest, 0);
	start((struct program){.container = 1, .kernel_ns = 200 * SIM_US}, 1000 * SIM_MS);
	sim_run(1000 * SIM_MS);
	CHECK(program[0].marks * 50 < program[0].launches); /* since it began */
	contain(0, 50, 0);
	contain(1, 50, 0);
	start_arbiter();
	sim_run(RUN_NS);
	CHECK(is_near("beside it", share(1, RUN_NS), 50 * bare(200 * SIM_US) / 100, 3));
	CHECK(sim_longest_stall_ns(1) <= 20 * SIM_MS);
}

static void test_bins_are_even_and_stalls_short(void)
{
	struct program what = {.kernel_ns = 5 * SIM_MS};
	double worst = 0;

	alone(what, 25);
	for (unsigned int bin = 5; bin < 49; bin++) {
		double off = 100 * sim_bin(0, bin) - 25;

		worst = off > worst ? off : -off > worst ? -off : worst;
	}
	CHECK(is_near("worst bin of 5 ms kernels", worst, 0, 5.01));
	CHECK(sim_longest_stall_ns(0) <= 100 * SIM_MS);
	what.kernel_ns = 20 * SIM_US;
	alone(what, 25);
	CHECK(sim_longest_stall_ns(0) <= 10 * SIM_MS);
}

static void test_no_limit_is_free(void)
{
	struct program what = {.kernel_ns = 20 * SIM_US};

	CHECK(is_near("100 %", alone(what, 100), bare(what.kernel_ns), 0.1));
	CHECK(usage[0].slot[0].dev[0].busy_ns == 0);
	CHECK(program[0].words.free_seq == limits[0].seq);
}

static void test_processes_of_a_container_share_its_balance(void)
{
	begin();
	contain(0, 40, 1);
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	start((struct program){.kernel_ns = 20 * SIM_US}, 3 * SIM_MS);
	start((struct program){.kernel_ns = SIM_MS, .is_synchronous = true}, 7 * SIM_MS);
	sim_run(RUN_NS);

	double sum = share(0, RUN_NS) + share(1, RUN_NS) + share(2, RUN_NS);

	/* Less is lost to the card's own change of contexts, which is charged. */
	CHECK(sum <= 42);
	CHECK(sum >= 30);
}

/* One number for each card that there may be; the program uses one. */
static void test_a_developers_limit_has_no_windows(void)
{
	begin();
	contain(0, 25, 1);
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	program[0].tenant.limits.file = NULL;
	program[0].tenant.limits.count = VGPU_MAX_DEVICES;
	for (unsigned int i = 0; i < VGPU_MAX_DEVICES; i++)
		program[0].tenant.limits.card[i].cores_percent = 25;
	sim_run(RUN_NS);
	CHECK(is_near("a developer's 25 %", share(0, RUN_NS), 25, 1));
	/* Half a ms of credit, and a ms of work that nobody looks at. */
	CHECK(sim_longest_stall_ns(0) < 6 * SIM_MS);
	CHECK(usage[0].turn[0].window_end_ns == 0);
}

static void test_a_changed_limit_is_heeded(void)
{
	begin();
	contain(0, 100, 1);
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	sim_run(1000 * SIM_MS);
	CHECK(busy_ns(0) > 990 * SIM_MS);

	uint64_t before = busy_ns(0);

	limits[0].seq += 2;
	limits[0].dev[0].cores_percent = 20;
	sim_run(1000 * SIM_MS);
	CHECK(is_near("after the change", (double)(busy_ns(0) - before) / 1e7, 20, 2));
}

/* Containers. */

static double rms_of_bins(unsigned int number, uint64_t ns)
{
	unsigned int count = (unsigned int)(ns / SIM_BIN_NS);
	double mean = share(number, ns);
	double sum = 0;

	for (unsigned int bin = 5; bin < count; bin++) {
		double off = 100 * sim_bin(number, bin) - mean;

		sum += off * off;
	}
	return sqrt(sum / (count - 5));
}

/* Each within `allowed` points of its part of what its work does alone, and all within `idle`. */
static void together(unsigned int count, const uint32_t percents[], const struct program whats[],
		     double allowed, double idle)
{
	double sum = 0;
	double most = 0;
	bool are_old = is_arbiter_old || is_library_old;

	begin();
	for (unsigned int i = 0; i < count; i++) {
		struct program what = whats[i];

		what.container = i;
		contain(i, percents[i], 0);
		start(what, 700 * SIM_US * i);
	}
	start_arbiter();
	sim_run(RUN_NS);
	for (unsigned int i = 0; i < count; i++) {
		double wanted = percents[i] * bare(whats[i].kernel_ns) / 100;
		char name[64];

		snprintf(name, sizeof(name), "container %u of %u", i, count);
		CHECK(is_near(name, share(i, RUN_NS), wanted, allowed));
		CHECK(are_old || is_near(name, rms_of_bins(i, RUN_NS), 0, count > 4 ? 4 : 3));
		CHECK(sim_longest_stall_ns(i) <= 100 * SIM_MS);
		sum += share(i, RUN_NS);
		most += wanted;
	}
	CHECK(is_near("together", sum, most, idle));
	/* The card's own change takes 142 us. */
	CHECK(are_old ||
	      is_near("a hand-over, us",
		      (double)sim_hand_over_ns(0) / 1e3 / (double)sim_hand_overs(0), 142, 25));
}

static const struct program us20 = {.kernel_ns = 20 * SIM_US};
static const struct program us200 = {.kernel_ns = 200 * SIM_US};
static const struct program ms1 = {.kernel_ns = SIM_MS};
static const struct program ms2 = {.kernel_ns = 2 * SIM_MS};
static const struct program ms3 = {.kernel_ns = 3 * SIM_MS};
static const struct program ms5 = {.kernel_ns = 5 * SIM_MS};

static void test_containers_get_what_they_were_promised(void)
{
	static const uint32_t halves[] = {50, 50};
	static const uint32_t little[] = {10, 90};
	static const uint32_t three[] = {25, 25, 50};
	static const uint32_t four[] = {10, 20, 30, 40};
	static const uint32_t eight[] = {12, 12, 12, 12, 12, 12, 14, 14};
	struct program all[CONTAINERS];

	together(2, thirty_seventy, (const struct program[]){us20, us20}, 1.2, 2.2);
	together(2, thirty_seventy, (const struct program[]){ms5, us20}, 1.2, 2.2);
	together(2, thirty_seventy, (const struct program[]){us20, ms5}, 1.2, 2.2);
	together(2, thirty_seventy, (const struct program[]){us200, us200}, 1.2, 2.2);
	together(2, thirty_seventy, (const struct program[]){ms3, ms2}, 1.2, 2.2);
	together(2, halves, (const struct program[]){ms5, ms5}, 1.2, 2.2);
	together(2, little, (const struct program[]){ms5, us200}, 1.2, 2.2);
	together(3, three, (const struct program[]){us200, us200, us200}, 1.2, 2.2);
	together(3, three, (const struct program[]){us200, us20, ms5}, 1.2, 2.2);
	together(4, four, (const struct program[]){us200, us200, us200, us200}, 1.2, 2.2);
	together(4, four, (const struct program[]){ms5, us20, ms1, us200}, 1.2, 2.2);
	together(4, four, (const struct program[]){ms5, ms5, ms5, ms5}, 1.2, 2.2);
	for (unsigned int i = 0; i < CONTAINERS; i++)
		all[i] = us200;
	together(8, eight, all, 1.2, 2.9);
}

/* A library or an arbiter of the minor version before. */
static void test_who_knows_no_beginnings_is_served_as_before(void)
{
	is_arbiter_old = true;
	together(2, thirty_seventy, (const struct program[]){us200, us200}, 2, 3);
	together(2, thirty_seventy, (const struct program[]){us20, ms5}, 2, 3);
	is_arbiter_old = false;
	is_library_old = true;
	together(2, thirty_seventy, (const struct program[]){us200, us200}, 2, 3);
	together(2, thirty_seventy, (const struct program[]){us20, ms5}, 2, 3);
	is_library_old = false;
}

/* Who had to wait for a kernel of 150 ms has lost no credit meanwhile. */
static void test_time_behind_a_long_kernel_is_made_up_for(void)
{
	const struct program long_ones = {.kernel_ns = 150 * SIM_MS, .is_synchronous = true};

	for (unsigned int i = 0; i < 2; i++) {
		begin();
		for (unsigned int j = 0; j < 2; j++) {
			struct program what = i == j ? long_ones : us20;

			what.container = j;
			contain(j, thirty_seventy[j], 0);
			start(what, 700 * SIM_US * j);
		}
		start_arbiter();
		sim_run(4 * RUN_NS);
		for (unsigned int j = 0; j < 2; j++) {
			double most = i == j ? 100 : bare(us20.kernel_ns);

			CHECK(is_near("beside the other", share(j, 4 * RUN_NS),
				      thirty_seventy[j] * most / 100, 2));
		}
	}
}

static void test_a_hard_share_leaves_the_rest_idle(void)
{
	begin();
	for (unsigned int i = 0; i < 2; i++) {
		contain(i, 30, 0);
		start((struct program){.container = i, .kernel_ns = 200 * SIM_US}, 0);
	}
	start_arbiter();
	sim_run(RUN_NS);
	CHECK(is_near("first of 30/30", share(0, RUN_NS), 30, 2));
	CHECK(is_near("second of 30/30", share(1, RUN_NS), 30, 2));
}

static void test_burst_uses_what_is_idle_and_gives_it_back(void)
{
	uint64_t before_ns;

	begin();
	contain(0, 30, 0);
	limits[0].dev[0].mode = VGPU_MODE_BURST;
	limits[0].dev[0].cores_max_percent = 100;
	contain(1, 70, 0);
	start((struct program){.container = 0, .kernel_ns = 200 * SIM_US}, 0);
	start((struct program){.container = 1, .kernel_ns = 200 * SIM_US}, 3000 * SIM_MS);
	start_arbiter();
	sim_run(3000 * SIM_MS);
	CHECK(is_near("burst, alone", share(0, 3000 * SIM_MS), 100, 2));
	sim_run(10 * SIM_MS);
	CHECK(busy_ns(1) > 0);
	before_ns = busy_ns(0);
	sim_run(5000 * SIM_MS);
	CHECK(is_near("burst, with another", (double)(busy_ns(0) - before_ns) / 5e7, 30, 2));
}

/* Pauses of 3 ms after each 2 ms of work: what they leave is not lost, nor saved up. */
static void test_burst_uses_what_short_pauses_leave(void)
{
	static const uint64_t lengths_us[] = {20, 200, 5000};

	for (unsigned int i = 0; i < 3; i++) {
		begin();
		contain(0, 30, 0);
		limits[0].dev[0].mode = VGPU_MODE_BURST;
		limits[0].dev[0].cores_max_percent = 100;
		contain(1, 70, 0);
		start((struct program){.kernel_ns = lengths_us[i] * SIM_US}, 0);
		start((struct program){.container = 1,
				       .kernel_ns = 200 * SIM_US,
				       .burst = 10,
				       .pause_ns = 3 * SIM_MS},
		      0);
		start_arbiter();
		sim_run(RUN_NS);
		CHECK(share(0, RUN_NS) > 55);
		CHECK(share(1, RUN_NS) > 24); /* of 39 alone */
	}
}

static void test_without_the_arbiter_nobody_gets_more(void)
{
	unsigned int arbiter;
	uint64_t before[2];

	begin();
	contain(0, 30, 0);
	contain(1, 70, 0);
	start((struct program){.container = 0, .kernel_ns = 200 * SIM_US}, 0);
	start((struct program){.container = 1, .kernel_ns = 200 * SIM_US}, 0);
	arbiter = programs;
	start_arbiter();
	sim_run(1000 * SIM_MS);
	sim_stop(arbiter);
	sim_run(300 * SIM_MS);
	before[0] = busy_ns(0);
	before[1] = busy_ns(1);
	sim_run(5000 * SIM_MS);
	CHECK((double)(busy_ns(0) - before[0]) / 5e7 <= 31);
	CHECK((double)(busy_ns(0) - before[0]) / 5e7 >= 10);
	CHECK((double)(busy_ns(1) - before[1]) / 5e7 <= 71);
	CHECK((double)(busy_ns(1) - before[1]) / 5e7 >= 30);
	CHECK(sim_longest_stall_ns(0) <= 300 * SIM_MS);
}

/* A thread that waits for a copy keeps no turn for its container, which would pay for that. */
static void test_who_waits_for_no_work_keeps_no_turn(void)
{
	struct program copies = {
		.kernel_ns = 20 * SIM_US, .burst = 1, .pause_ns = SIM_MS, .copy_ns = 50 * SIM_MS};
	double found[2];

	for (unsigned int i = 0; i < 2; i++) {
		begin();
		contain(0, 30, 0);
		contain(1, 70, 0);
		start((struct program){.kernel_ns = 200 * SIM_US,
				       .burst = 5,
				       .pause_ns = 8 * SIM_MS},
		      0);
		start((struct program){.container = 1, .kernel_ns = 200 * SIM_US}, 700 * SIM_US);
		if (i == 1)
			start(copies, 0);
		start_arbiter();
		sim_run(RUN_NS);
		found[i] = share(0, RUN_NS);
		CHECK(is_near("beside it", share(1, RUN_NS), 70, 3));
	}
	CHECK(is_near("beside a copy", found[1], found[0], 0.5));
}

static void test_a_stopped_owner_does_not_keep_the_card(void)
{
	uint64_t before;

	begin();
	contain(0, 50, 0);
	contain(1, 50, 0);
	start((struct program){.container = 0, .kernel_ns = 200 * SIM_US}, 0);
	start((struct program){.container = 1, .kernel_ns = 200 * SIM_US}, 0);
	start_arbiter();
	sim_run(1003 * SIM_MS);
	sim_stop(0);
	before = busy_ns(1);
	sim_run(1000 * SIM_MS);
	CHECK(is_near("beside a stopped one", (double)(busy_ns(1) - before) / 1e7, 50, 2));
	CHECK(sim_longest_stall_ns(1) <= 100 * SIM_MS);
}

/* Says that its work ends so much later than its turn does, and asks for the card all the time. */
static uint64_t late_ns;

static void lie(unsigned int number)
{
	struct vgpu_usage_device *said = &usage[0].slot[0].dev[0];
	uint64_t granted_ns = 0;

	(void)number;
	for (;;) {
		uint64_t until_ns = limits[0].dev[0].grant_until_ns;

		if (until_ns != 0 && until_ns != UINT64_MAX && until_ns != granted_ns) {
			granted_ns = until_ns;
			said->queue_end_ns = (until_ns + late_ns) & ~UINT64_C(1);
			usage[0].turn[0].want++;
		}
		if (granted_ns == 0 || sim_now() > granted_ns)
			usage[0].turn[0].want++;
		sim_spend(400 * SIM_US);
	}
}

static void test_who_says_that_it_is_never_done_takes_nothing_of_the_others(void)
{
	static const uint64_t lates_ms[] = {20, 150, 450, 700, 100000};
	static const uint32_t percents[] = {50, 66, 90};

	for (unsigned int i = 0; i < 15; i++) {
		uint32_t percent = percents[i % 3];

		begin();
		contain(0, 100 - percent, 0);
		contain(1, percent, 0);
		late_ns = lates_ms[i / 3] * SIM_MS;
		usage[0].slots_high = 1;
		usage[0].slot[0].state = VGPU_SLOT_LIVE;
		programs++;
		sim_spawn(lie, 0);
		start((struct program){.kernel_ns = 200 * SIM_US, .container = 1}, 700 * SIM_US);
		start_arbiter();
		sim_run(4 * RUN_NS);
		CHECK(is_near("beside a liar", share(1, 4 * RUN_NS), percent, 2.6));
		CHECK(sim_longest_stall_ns(1) <= 520 * SIM_MS);
	}
}

static void test_forged_accounts_make_nobody_wait_for_ever(void)
{
	begin();
	contain(0, 50, 1);
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	sim_run(100 * SIM_MS);
	usage[0].turn[0].balance_ns = INT64_MIN;
	usage[0].turn[0].refilled_ns = UINT64_MAX;
	usage[0].turn[0].stretch = UINT64_MAX;
	usage[0].turn[0].deferred_ns = UINT64_MAX;
	usage[0].slots_high = UINT32_MAX;
	sim_run(21000 * SIM_MS);
	CHECK(share(0, 21100 * SIM_MS) < 51);

	uint64_t before = busy_ns(0);

	sim_run(1000 * SIM_MS);
	CHECK(busy_ns(0) > before + 400 * SIM_MS);
}

/* Several cards. */

static double done(unsigned int number, unsigned int card, uint64_t ns)
{
	return 100.0 * (double)sim_done_ns(number, card) / (double)ns;
}

/* A process on each of the container's cards. */
static void start_ranks(struct program what)
{
	start(what, 0);
	what.index = 1;
	what.extra = 0;
	start(what, 300 * SIM_US);
}

static void start_neighbours(uint32_t percent)
{
	for (unsigned int i = 1; i <= SIM_CARDS; i++) {
		contain_on(i, UINT64_C(1) << (i - 1), percent, 0);
		start((struct program){.container = i, .kernel_ns = 200 * SIM_US},
		      SIM_US * 700 * i);
	}
}

/* Whoever is behind when a window ends makes up for it at once: no rank's kernel waits for
 * another's until the next one. */
static void test_collectives_get_on_under_a_limit(void)
{
	static const uint64_t lengths_us[] = {20, 60, 100, 150, 200, 5000};
	static const struct {
		uint32_t percent;
		double least;
	} limit[] = {{10, 9.5}, {40, 39}, {90, 89}};

	for (unsigned int i = 0; i < 6; i++) {
		for (unsigned int j = 0; j < 3; j++) {
			begin();
			contain_on(0, 3, limit[j].percent, 1);
			start_ranks((struct program){.kernel_ns = lengths_us[i] * SIM_US,
						     .collective_ns = 200 * SIM_US});
			sim_run(RUN_NS);
			CHECK(done(0, 0, RUN_NS) > limit[j].least);
			CHECK(share(0, RUN_NS) < limit[j].percent + 1.5);
			CHECK(share_on(1, 1, RUN_NS) < limit[j].percent + 1.5);
		}
	}
}

static void test_collectives_get_on_beside_others(void)
{
	static const uint64_t lengths_us[] = {20, 200, 1000, 5000};

	for (unsigned int i = 0; i < 4; i++) {
		begin();
		contain_on(0, 3, 40, 0);
		start_ranks((struct program){.kernel_ns = lengths_us[i] * SIM_US,
					     .collective_ns = 200 * SIM_US});
		start_neighbours(60);
		start_arbiter();
		sim_run(RUN_NS);
		CHECK(done(0, 0, RUN_NS) > 36.5);
		CHECK(share(0, RUN_NS) < 41);
		CHECK(is_near("beside them", share(2, RUN_NS), 60, 3));
		CHECK(is_near("beside them", share_on(3, 1, RUN_NS), 60, 3));
	}
}

/* One rank has work that the other one does not know. */
static void test_ranks_that_differ_block_nobody(void)
{
	begin();
	contain_on(0, 3, 40, 0);
	start_ranks((struct program){
		.kernel_ns = 20 * SIM_US, .collective_ns = 100 * SIM_US, .extra = 7});
	start_neighbours(60);
	start_arbiter();
	sim_run(RUN_NS);
	CHECK(done(0, 0, RUN_NS) > 25);
	CHECK(share(0, RUN_NS) < 42);
	CHECK(is_near("beside them", share(2, RUN_NS), 60, 9));
	CHECK(is_near("beside them", share_on(3, 1, RUN_NS), 60, 9));
}

static void test_two_cards_without_collectives(void)
{
	begin();
	contain_on(0, 3, 20, 0);
	start((struct program){.kernel_ns = 200 * SIM_US, .is_on_both = true}, 0);
	start_neighbours(80);
	start_arbiter();
	sim_run(RUN_NS);
	for (unsigned int card = 0; card < SIM_CARDS; card++) {
		CHECK(is_near("on both", share_on(0, card, RUN_NS), 20, 2));
		CHECK(is_near("beside it", share_on(1 + card, card, RUN_NS), 80, 2));
	}
}

/* A kernel of 150 ms in a turn of 5: what it takes is paid for with turns that go to others, also
 * when those rest for a moment. */
static void test_a_turn_that_was_overdrawn_is_not_forgiven(void)
{
	uint64_t before;

	begin();
	contain_on(0, 3, 20, 0);
	for (unsigned int i = 0; i < SIM_CARDS; i++) {
		limits[0].dev[i].mode = VGPU_MODE_BURST;
		limits[0].dev[i].cores_max_percent = 100;
	}
	start((struct program){.kernel_ns = 200 * SIM_US}, 0);
	start((struct program){.kernel_ns = 150 * SIM_MS, .index = 1}, 300 * SIM_US);
	start_neighbours(80);
	start_arbiter();
	sim_run(RUN_NS);
	before = sim_busy_ns(1, 1);
	sim_run(3 * RUN_NS);
	CHECK(is_near("kernels of 150 ms", share_on(1, 1, 4 * RUN_NS), 20, 4));
	CHECK((double)(sim_busy_ns(1, 1) - before) / (double)(3 * RUN_NS) < 0.22);
}

int main(void)
{
	RUN(test_every_limit_holds_for_every_length);
	RUN(test_the_least_shares_are_given);
	RUN(test_what_is_waited_for_is_paid_for);
	RUN(test_every_way_of_waiting_teaches_what_a_launch_took);
	RUN(test_starts_from_idle_are_not_charged);
	RUN(test_clocks_may_drift);
	RUN(test_mixed_kernels_and_several_streams);
	RUN(test_what_training_leaves_idle_is_not_charged);
	RUN(test_gaps_in_graphs_are_not_charged);
	RUN(test_dependent_launches_have_no_gaps);
	RUN(test_idle_time_is_not_charged);
	RUN(test_idle_time_before_a_wait_is_not_charged);
	RUN(test_idle_time_before_a_fill_is_not_charged);
	RUN(test_a_wait_for_less_than_everything_leaves_the_card_busy);
	RUN(test_work_that_a_program_has_seen_end_is_over);
	RUN(test_a_stream_that_ends_is_left_when_all_marks_are_taken);
	RUN(test_idle_time_after_a_context_is_not_charged);
	RUN(test_a_launch_counts_on_the_card_of_its_stream);
	RUN(test_what_is_no_share_gets_the_least);
	RUN(test_who_has_lost_its_slot_is_seen_in_its_new_one);
	RUN(test_what_is_never_seen_twice_is_paid_for);
	RUN(test_what_is_never_seen_twice_may_be_short);
	RUN(test_launches_behind_a_latch_return);
	RUN(test_kernels_that_begin_to_take_longer_are_paid_for);
	RUN(test_kernels_that_begin_to_take_longer_stall_nobody);
	RUN(test_who_alternates_gains_and_loses_nothing);
	RUN(test_what_is_well_known_is_marked_seldom);
	RUN(test_what_is_marked_seldom_may_change);
	RUN(test_who_is_marked_seldom_makes_room);
	RUN(test_bins_are_even_and_stalls_short);
	RUN(test_no_limit_is_free);
	RUN(test_processes_of_a_container_share_its_balance);
	RUN(test_a_developers_limit_has_no_windows);
	RUN(test_a_changed_limit_is_heeded);
	RUN(test_containers_get_what_they_were_promised);
	RUN(test_who_knows_no_beginnings_is_served_as_before);
	RUN(test_time_behind_a_long_kernel_is_made_up_for);
	RUN(test_a_hard_share_leaves_the_rest_idle);
	RUN(test_burst_uses_what_is_idle_and_gives_it_back);
	RUN(test_burst_uses_what_short_pauses_leave);
	RUN(test_without_the_arbiter_nobody_gets_more);
	RUN(test_who_waits_for_no_work_keeps_no_turn);
	RUN(test_a_stopped_owner_does_not_keep_the_card);
	RUN(test_collectives_get_on_under_a_limit);
	RUN(test_collectives_get_on_beside_others);
	RUN(test_ranks_that_differ_block_nobody);
	RUN(test_two_cards_without_collectives);
	RUN(test_a_turn_that_was_overdrawn_is_not_forgiven);
	RUN(test_who_says_that_it_is_never_done_takes_nothing_of_the_others);
	RUN(test_forged_accounts_make_nobody_wait_for_ever);
	return check_end();
}
