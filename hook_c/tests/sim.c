// SPDX-License-Identifier: Apache-2.0
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define STACK_BYTES ((size_t)256 * 1024)
#define BEGIN_NS UINT64_C(1000000000000)
#define QUEUE 4096
#define MOST_QUEUED 1024
#define SLICE_NS (2 * SIM_MS)
#define PREEMPT_NS (150 * SIM_US)
#define SWITCH_NS (142 * SIM_US)
#define NOTICE_NS (20 * SIM_US)
#define EVENT_NS (2 * SIM_US) /* behind a kernel */
#define EVENT_ALONE_NS 100
#define POLL_NS 500
#define COLD_CALLS 4
#define SLACK_NS (55 * SIM_US)
#define NEVER UINT64_MAX

struct item {
	uint64_t ready_ns;
	uint64_t gap_left_ns; /* to the kernel before it */
	uint64_t left_ns;
	uint64_t collective;     /* of several cards: which one; 0: of one card */
	struct sim_event *event; /* NULL: a kernel */
	bool is_first;           /* behind nothing */
	bool is_dependent;       /* there is no gap before it */
};

struct queue {
	uint64_t head;
	uint64_t tail;
	struct item item[QUEUE];
	uint64_t busy_ns;
	uint64_t done_ns; /* busy, and no collective's wait for its peers */
	uint64_t last_end_ns;
	uint64_t stall_ns;
	uint64_t bin[SIM_BINS];
};

struct process {
	ucontext_t context;
	char *stack;
	void (*body)(unsigned int);
	uint64_t wake_ns; /* NEVER: stopped or over */
	const uint32_t *word;
	unsigned int cold; /* calls of the driver until its memory is in the caches again */
	struct queue queue[SIM_CARDS];
};

struct card {
	unsigned int owner;
	uint64_t slice_left;
	uint64_t switch_left; /* a change of contexts is under way */
	struct item *running;
	unsigned int last_busy; /* whose kernel ran last */
	uint64_t last_end_ns;
	uint64_t hand_overs;
	uint64_t hand_over_ns;
};

static struct process process[SIM_PROCESSES];
static unsigned int count;
static unsigned int self;
static uint64_t now;
static ucontext_t world;

static uint64_t cards_ns; /* so far the cards have been run */
static struct card card[SIM_CARDS];
static uint64_t dice;

const struct sim_latency sim_usual_latency = {.launch_ns = 3 * SIM_US,
					      .start_ns = 4 * SIM_US,
					      .drain_ns = 2 * SIM_US,
					      .cold_ns = 4 * SIM_US};
struct sim_latency sim_latency;
void (*sim_switched)(unsigned int process);

void sim_begin(void)
{
	for (unsigned int i = 0; i < SIM_PROCESSES; i++) {
		free(process[i].stack);
		memset(&process[i], 0, sizeof(process[i]));
	}
	memset(card, 0, sizeof(card));
	dice = 1;
	count = 0;
	sim_latency = sim_usual_latency;
	now = cards_ns = BEGIN_NS;
}

/* The cards. */

static struct item *first_of(unsigned int number, unsigned int on)
{
	struct queue *queue = &process[number].queue[on];
	struct item *item = &queue->item[queue->tail % QUEUE];

	return queue->tail < queue->head && item->ready_ns <= cards_ns ? item : NULL;
}

static void note_busy(struct queue *queue, uint64_t from_ns, uint64_t ns)
{
	if (queue->last_end_ns != 0 && from_ns - queue->last_end_ns > queue->stall_ns)
		queue->stall_ns = from_ns - queue->last_end_ns;
	queue->last_end_ns = from_ns + ns;
	queue->busy_ns += ns;
	while (ns != 0) {
		uint64_t since = from_ns - BEGIN_NS;
		uint64_t part = SIM_BIN_NS - since % SIM_BIN_NS;

		part = part < ns ? part : ns;
		if (since / SIM_BIN_NS < SIM_BINS)
			queue->bin[since / SIM_BIN_NS] += part;
		from_ns += part;
		ns -= part;
	}
}

static unsigned int next_ready(unsigned int on)
{
	for (unsigned int i = 1; i <= count; i++)
		if (first_of((card[on].owner + i) % count, on) != NULL)
			return (card[on].owner + i) % count;
	return card[on].owner;
}

static uint64_t next_item_ns(unsigned int on, uint64_t until_ns)
{
	for (unsigned int i = 0; i < count; i++) {
		const struct queue *queue = &process[i].queue[on];
		uint64_t ready_ns = queue->item[queue->tail % QUEUE].ready_ns;

		if (queue->tail < queue->head && ready_ns > cards_ns && ready_ns < until_ns)
			until_ns = ready_ns;
	}
	return until_ns;
}

/* What the card does now. */
static void choose(unsigned int on)
{
	struct card *one = &card[on];
	struct item *item = first_of(one->owner, on);
	unsigned int next = next_ready(on);

	one->running = NULL;
	if (one->switch_left != 0)
		return;
	if (next != one->owner && (item == NULL || one->slice_left == 0)) {
		one->switch_left = item != NULL ? PREEMPT_NS : SWITCH_NS;
		one->owner = next;
		one->slice_left = SLICE_NS;
		return;
	}
	if (one->slice_left == 0)
		one->slice_left = SLICE_NS;
	one->running = item;
}

/* A collective gets on while all of its cards run it. */
static bool gets_on(const struct item *item)
{
	if (item->collective == 0)
		return true;
	for (unsigned int on = 0; on < SIM_CARDS; on++)
		if (card[on].running == NULL || card[on].running->gap_left_ns != 0 ||
		    card[on].running->collective != item->collective)
			return false;
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How long the card goes on as it does now. */
static uint64_t same_for(unsigned int on, uint64_t most_ns)
{
	const struct card *one = &card[on];

	if (one->switch_left != 0)
		return least(most_ns, one->switch_left);
	if (one->running == NULL)
		return next_item_ns(on, cards_ns + most_ns) - cards_ns;
	if (one->running->gap_left_ns != 0)
		most_ns = least(most_ns, one->running->gap_left_ns);
	else if (gets_on(one->running))
		most_ns = least(most_ns, one->running->left_ns);
	return least(most_ns, one->slice_left);
}

/* Before work of the card's owner. */
static void note_hand_over(struct card *one)
{
	if (one->last_end_ns != 0 && one->last_busy != one->owner) {
		one->hand_overs++;
		one->hand_over_ns += cards_ns - one->last_end_ns;
	}
	one->last_busy = one->owner;
}

static void run_for(unsigned int on, uint64_t ns, bool is_getting_on)
{
	struct card *one = &card[on];
	struct item *item = one->running;
	struct queue *queue = &process[one->owner].queue[on];

	if (one->switch_left != 0)
		one->switch_left -= ns;
	if (item == NULL)
		return;
	if (item->gap_left_ns != 0) {
		item->gap_left_ns -= ns;
		one->slice_left -= ns;
		return;
	}
	if (item->event == NULL) {
		note_hand_over(one);
		one->last_end_ns = cards_ns + ns;
		note_busy(queue, cards_ns, ns);
		queue->done_ns += is_getting_on ? ns : 0;
	}
	one->slice_left -= ns;
	item->left_ns -= is_getting_on ? ns : 0;
	if (item->left_ns != 0)
		return;
	if (item->event != NULL) {
		item->event->is_done = true;
		item->event->time_ns = cards_ns + ns;
	}
	queue->tail++;
}

static void cards_to(uint64_t until_ns)
{
	while (count != 0 && cards_ns < until_ns) {
		uint64_t ns = until_ns - cards_ns;
		bool is_getting_on[SIM_CARDS];

		for (unsigned int on = 0; on < SIM_CARDS; on++)
			choose(on);
		for (unsigned int on = 0; on < SIM_CARDS; on++) {
			is_getting_on[on] = card[on].running != NULL && gets_on(card[on].running);
			ns = same_for(on, ns);
		}
		for (unsigned int on = 0; on < SIM_CARDS; on++)
			run_for(on, ns, is_getting_on[on]);
		cards_ns += ns;
	}
}

static void put(unsigned int on, struct item item)
{
	struct queue *queue = &process[self].queue[on];

	cards_to(now);
	while (queue->head - queue->tail >= MOST_QUEUED) {
		sim_sleep(100 * SIM_US);
		cards_to(now);
	}

	const struct item *before = &queue->item[(queue->head - 1) % QUEUE];

	item.is_first = queue->head == queue->tail;
	if (item.event != NULL && item.is_first)
		item.left_ns = EVENT_ALONE_NS;
	if (item.event == NULL && !item.is_first && !item.is_dependent &&
	    !(before->event != NULL && before->is_first))
		item.gap_left_ns = SIM_GAP_NS;
	item.ready_ns = now + sim_latency.start_ns + (card[on].owner == self ? 0 : NOTICE_NS);
	queue->item[queue->head++ % QUEUE] = item;
}

/* A call of the driver: longer after a sleep. */
static void call_driver(uint64_t ns)
{
	if (process[self].cold != 0) {
		process[self].cold--;
		ns += sim_latency.cold_ns;
	}
	sim_spend(ns);
}

void sim_launch(unsigned int on, uint64_t duration_ns, uint64_t collective)
{
	call_driver(sim_latency.launch_ns);
	put(on, (struct item){.left_ns = duration_ns, .collective = collective});
}

void sim_launch_dependent(unsigned int on, uint64_t duration_ns)
{
	call_driver(sim_latency.launch_ns);
	put(on, (struct item){.left_ns = duration_ns, .is_dependent = true});
}

void sim_record(unsigned int on, struct sim_event *event)
{
	call_driver(SIM_US);
	*event = (struct sim_event){.is_recorded = true};
	put(on, (struct item){.left_ns = EVENT_NS, .event = event});
}

bool sim_is_idle(unsigned int on)
{
	cards_to(now);
	return process[self].queue[on].head == process[self].queue[on].tail;
}

void sim_synchronize(unsigned int on)
{
	sim_spend(SIM_US);
	if (sim_is_idle(on))
		return;
	while (!sim_is_idle(on))
		sim_spend(POLL_NS);
	sim_spend(sim_latency.drain_ns);
}

/* Time. */

static void switch_away(void)
{
	swapcontext(&process[self].context, &world);
}

static void wait_until(uint64_t ns)
{
	process[self].wake_ns = ns;
	switch_away();
}

unsigned int sim_self(void)
{
	return self;
}

uint64_t sim_now(void)
{
	cards_to(now);
	return now;
}

/* Whoever is due before goes first. */
void sim_spend(uint64_t ns)
{
	uint64_t then = now + ns;

	for (unsigned int i = 0; i < count; i++) {
		if (i != self && process[i].wake_ns < then) {
			wait_until(then);
			return;
		}
	}
	now = then;
	process[self].wake_ns = then;
	if (then >= process[SIM_PROCESSES - 1].wake_ns)
		switch_away();
}

/* From a wake to the first instruction after it, as it was measured: half of them take 17 us, one
 * in ten 38, one in a hundred 146, the longest 1.9 ms. */
uint64_t sim_wake_latency_ns(void)
{
	static const struct {
		uint64_t per_mille;
		uint64_t ns;
	} part[] = {{0, 8 * SIM_US},     {500, 17 * SIM_US},  {900, 38 * SIM_US},
		    {990, 146 * SIM_US}, {999, 500 * SIM_US}, {1000, 1900 * SIM_US}};
	uint64_t at;
	unsigned int i = 1;

	dice = dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	at = (dice >> 33) % 1000;
	while (part[i].per_mille <= at)
		i++;
	return part[i - 1].ns + (part[i].ns - part[i - 1].ns) * (at - part[i - 1].per_mille) /
					(part[i].per_mille - part[i - 1].per_mille);
}

void sim_sleep(uint64_t ns)
{
	wait_until(now + ns + SLACK_NS);
	process[self].cold = COLD_CALLS;
}

void sim_wait(const uint32_t *word, uint32_t seen, uint64_t ns)
{
	sim_spend(SIM_US);
	if (*word != seen)
		return;
	process[self].word = word;
	wait_until(now + ns);
	process[self].word = NULL;
}

void sim_wake(const uint32_t *word)
{
	for (unsigned int i = 0; i < count; i++) {
		uint64_t then = now + sim_wake_latency_ns();

		if (process[i].word == word && process[i].wake_ns > then)
			process[i].wake_ns = then;
	}
}

void sim_stop(unsigned int number)
{
	process[number].wake_ns = NEVER;
	process[number].word = NULL;
}

static void enter(void)
{
	process[self].body(self);
	sim_stop(self);
	switch_away();
}

unsigned int sim_spawn(void (*body)(unsigned int), uint64_t start_ns)
{
	struct process *one = &process[count];

	one->stack = malloc(STACK_BYTES);
	one->body = body;
	one->wake_ns = BEGIN_NS + start_ns;
	getcontext(&one->context);
	one->context.uc_stack.ss_sp = one->stack;
	one->context.uc_stack.ss_size = STACK_BYTES;
	one->context.uc_link = NULL;
	makecontext(&one->context, enter, 0);
	return count++;
}

void sim_run(uint64_t ns)
{
	uint64_t end_ns = now + ns;

	process[SIM_PROCESSES - 1].wake_ns = end_ns; /* a bound for sim_spend */
	for (;;) {
		unsigned int first = SIM_PROCESSES - 1;

		for (unsigned int i = 0; i < count; i++)
			if (process[i].wake_ns < process[first].wake_ns)
				first = i;
		if (process[first].wake_ns >= end_ns)
			break;
		self = first;
		if (process[first].wake_ns > now)
			now = process[first].wake_ns;
		if (sim_switched != NULL)
			sim_switched(self);
		swapcontext(&world, &process[self].context);
	}
	now = end_ns;
	cards_to(now);
}

/* The truth. */

uint64_t sim_busy_ns(unsigned int number, unsigned int on)
{
	return process[number].queue[on].busy_ns;
}

uint64_t sim_done_ns(unsigned int number, unsigned int on)
{
	return process[number].queue[on].done_ns;
}

uint64_t sim_hand_overs(unsigned int on)
{
	return card[on].hand_overs;
}

uint64_t sim_hand_over_ns(unsigned int on)
{
	return card[on].hand_over_ns;
}

double sim_bin(unsigned int number, unsigned int bin)
{
	return (double)process[number].queue[0].bin[bin] / (double)SIM_BIN_NS;
}

uint64_t sim_longest_stall_ns(unsigned int number)
{
	return process[number].queue[0].stall_ns;
}
