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
#define SWITCH_NS (80 * SIM_US)
#define START_NS (4 * SIM_US)
#define EVENT_NS (2 * SIM_US)
#define WAKE_NS (20 * SIM_US)
#define SLACK_NS (55 * SIM_US)
#define NEVER UINT64_MAX

struct item {
	uint64_t ready_ns;
	uint64_t left_ns;
	struct sim_event *event; /* NULL: a kernel */
};

struct process {
	ucontext_t context;
	char *stack;
	void (*body)(unsigned int);
	uint64_t wake_ns; /* NEVER: stopped or over */
	const uint32_t *word;
	uint64_t head;
	uint64_t tail;
	struct item queue[QUEUE];
	uint64_t busy_ns;
	uint64_t last_end_ns;
	uint64_t stall_ns;
	uint64_t bin[SIM_BINS];
};

static struct process process[SIM_PROCESSES];
static unsigned int count;
static unsigned int self;
static uint64_t now;
static ucontext_t world;

static uint64_t card_ns;
static unsigned int owner;
static uint64_t slice_left;

void (*sim_switched)(unsigned int process);

void sim_begin(void)
{
	for (unsigned int i = 0; i < SIM_PROCESSES; i++) {
		free(process[i].stack);
		memset(&process[i], 0, sizeof(process[i]));
	}
	count = 0;
	now = card_ns = BEGIN_NS;
	owner = 0;
	slice_left = SLICE_NS;
}

/* The card. */

static struct item *first_of(unsigned int number)
{
	struct process *one = &process[number];
	struct item *item = &one->queue[one->tail % QUEUE];

	return one->tail < one->head && item->ready_ns <= card_ns ? item : NULL;
}

static void note_busy(struct process *one, uint64_t from_ns, uint64_t ns)
{
	if (one->last_end_ns != 0 && from_ns - one->last_end_ns > one->stall_ns)
		one->stall_ns = from_ns - one->last_end_ns;
	one->last_end_ns = from_ns + ns;
	one->busy_ns += ns;
	while (ns != 0) {
		uint64_t since = from_ns - BEGIN_NS;
		uint64_t part = SIM_BIN_NS - since % SIM_BIN_NS;

		part = part < ns ? part : ns;
		if (since / SIM_BIN_NS < SIM_BINS)
			one->bin[since / SIM_BIN_NS] += part;
		from_ns += part;
		ns -= part;
	}
}

static unsigned int next_ready(void)
{
	for (unsigned int i = 1; i <= count; i++)
		if (first_of((owner + i) % count) != NULL)
			return (owner + i) % count;
	return owner;
}

static uint64_t next_item_ns(uint64_t until_ns)
{
	for (unsigned int i = 0; i < count; i++) {
		const struct process *one = &process[i];

		if (one->tail < one->head && one->queue[one->tail % QUEUE].ready_ns < until_ns)
			until_ns = one->queue[one->tail % QUEUE].ready_ns;
	}
	return until_ns;
}

static void card_to(uint64_t until_ns)
{
	while (count != 0 && card_ns < until_ns) {
		struct item *item = first_of(owner);
		unsigned int next = next_ready();
		struct process *one;
		uint64_t ns;

		if (item == NULL || (slice_left == 0 && next != owner)) {
			if (next == owner && item == NULL) {
				uint64_t then = next_item_ns(until_ns);

				card_ns = then > card_ns ? then : card_ns;
				continue;
			}
			card_ns += item != NULL ? PREEMPT_NS : SWITCH_NS;
			owner = next;
			slice_left = SLICE_NS;
			continue;
		}
		if (slice_left == 0)
			slice_left = SLICE_NS;
		one = &process[owner];
		ns = item->left_ns < slice_left ? item->left_ns : slice_left;
		ns = ns < until_ns - card_ns ? ns : until_ns - card_ns;
		if (item->event == NULL)
			note_busy(one, card_ns, ns);
		card_ns += ns;
		slice_left -= ns;
		item->left_ns -= ns;
		if (item->left_ns != 0)
			continue;
		if (item->event != NULL) {
			item->event->is_done = true;
			item->event->time_ns = card_ns;
		}
		one->tail++;
	}
}

static void put(uint64_t ns, struct sim_event *event)
{
	struct process *one = &process[self];

	card_to(now);
	while (one->head - one->tail >= MOST_QUEUED) {
		sim_sleep(100 * SIM_US);
		card_to(now);
	}
	one->queue[one->head % QUEUE] =
		(struct item){.ready_ns = now + (one->head == one->tail ? START_NS : 0),
			      .left_ns = ns,
			      .event = event};
	one->head++;
}

void sim_launch(uint64_t duration_ns)
{
	sim_spend(3 * SIM_US);
	put(duration_ns, NULL);
}

void sim_record(struct sim_event *event)
{
	sim_spend(SIM_US);
	*event = (struct sim_event){.is_recorded = true};
	put(EVENT_NS, event);
}

bool sim_is_idle(void)
{
	card_to(now);
	return process[self].head == process[self].tail;
}

void sim_synchronize(void)
{
	sim_spend(3 * SIM_US);
	while (!sim_is_idle())
		sim_spend(5 * SIM_US);
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
	card_to(now);
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

void sim_sleep(uint64_t ns)
{
	wait_until(now + ns + SLACK_NS);
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
	for (unsigned int i = 0; i < count; i++)
		if (process[i].word == word && process[i].wake_ns > now + WAKE_NS)
			process[i].wake_ns = now + WAKE_NS;
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
	card_to(now);
}

/* The truth. */

uint64_t sim_busy_ns(unsigned int number)
{
	return process[number].busy_ns;
}

double sim_bin(unsigned int number, unsigned int bin)
{
	return (double)process[number].bin[bin] / (double)SIM_BIN_NS;
}

uint64_t sim_longest_stall_ns(unsigned int number)
{
	return process[number].stall_ns;
}
