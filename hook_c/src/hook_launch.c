// SPDX-License-Identifier: Apache-2.0
/* The compute limit at the driver's door. throttle.h says how time is counted; here are the marks
 * that measure it, the waits, and what the agent has to say.
 *
 * A launch waits, and nothing else does: not a copy, not a synchronisation. A mark is a timing
 * event behind the last launch in every stream that the interval has launches in. Nothing is
 * recorded in a stream that is being captured, and what is launched there counts when its graph is
 * launched. No lock is held over a call of the driver: a record may block until another thread's
 * launch. */
#include "hook_launch.h"

#include "launch_clock.h"
#include "sys.h"
#include "throttle.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define MARKS 64   /* that the card has not come to yet */
#define STREAMS 8  /* of one interval */
#define LINES 8    /* contexts of one process on one card */
#define EVENTS 256 /* kept of one context */

#define WINDOW_NS 5000000      /* under way, under a share of one's own */
#define OPEN_WINDOW_NS 2000000 /* under way while another container may want the card back */
#define BATCH_NS 500000
#define SLOT_BATCH_NS 4000000   /* beside others: each turn costs a change of contexts */
#define IN_PIECES_NS 10000000   /* beyond the horizon: slots and windows come in one piece */
#define WINDOW_BATCH_NS 4000000 /* of credit on each card, before a window of several begins */
#define LONGEST_WINDOW_NS UINT64_C(40000000)
#define OVERDUE_NS 200000             /* a card's work may wait for another card's */
#define CATCH_UP_IN_TURN_NS 200000000 /* while containers on other cards wait, too */
#define CATCH_UP_NS 20000000          /* that a card may owe for what others wait for */
#define HEARTBEAT_NS 200000000        /* an arbiter that is silent for longer is gone */
#define LEAVE_WAITS 250               /* of 20 us and the sleep's own length */
#define UNKNOWN_WAITS 2500 /* of 20 us, for the first launch of a kernel to be measured */
#define SHORT_SLEEP_NS 20000
#define POLL_NS 50000
#define GATE_NS 2000000 /* after which a thread in want says so again */
#define SYNC_MARK_NS 500000
#define SHORT_WAIT_NS 12000 /* a wait for nothing */

enum mark_state {
	MARK_FREE,
	MARK_RECORDING,
	MARK_RECORDED,
};

struct mark {
	uint32_t state;
	uint32_t count; /* of events; 0: none could be recorded, the time of finding out counts */
	uint64_t context;
	uint64_t closed_ns;
	struct throttle_interval interval;
	void *event[STREAMS];
};

/* A context's own line of time. */
struct line {
	uint64_t context; /* 0: free */
	void *reference;  /* an event that has happened */
	uint64_t reference_ns;
	uint32_t count;
	void *spare[EVENTS];
};

struct launch_card {
	uint32_t locked;
	uint32_t harvesting; /* one thread at a time, and never waited for */
	uint32_t is_ready;
	uint32_t touching; /* threads that have streams of the open interval in hand */
	uint32_t index;
	const struct region *region;
	struct vgpu_usage_turn *turn;
	const struct vgpu_limits_device *limits; /* NULL: developer mode */
	const uint64_t *gate_end;                /* of the slot; never_ends without an arbiter */
	const uint64_t *window_end;              /* of all cards; never_ends for a single one */
	uint64_t window_ns;
	uint64_t wanted_ns; /* when the arbiter was last told that we want the card */
	uint32_t syncing;   /* threads that wait for the card */
	uint32_t stream_count;
	uint64_t context; /* of the open interval */
	void *stream[STREAMS];
	void *only_stream; /* since the card was last known to be dry */
	uint32_t head;     /* of the marks; the next to be taken */
	uint32_t tail;     /* the oldest unfinished */
	struct mark mark[MARKS];
	struct line line[LINES];
	struct throttle throttle;
};

#define NO_STREAM ((void *)~(uintptr_t)0)
#define SEVERAL_STREAMS ((void *)(~(uintptr_t)0 - 1))

struct policy {
	uint32_t percent;
	bool is_gated;
	bool is_settled; /* nothing changes but with the limits' sequence word */
	uint64_t horizon_ns;
	uint64_t batch_ns; /* of credit that who has none waits for */
};

static const uint32_t not_free = 1;
static const uint64_t never_ends = UINT64_MAX;
const uint32_t *launch_seq = &not_free;
uint32_t launch_free_seq;

static struct launch_card *the_cards; /* wiped by fork, never unmapped */
static uint32_t captures;             /* that have begun and not ended */

static struct launch_card *cards_of_process(void)
{
	struct launch_card *cards = __atomic_load_n(&the_cards, __ATOMIC_ACQUIRE);
	size_t size = sizeof(*cards) * VGPU_MAX_DEVICES;

	if (cards != NULL)
		return cards;

	struct launch_card *fresh = sys_map(size, PROT_READ | PROT_WRITE, -1);

	if (fresh == NULL)
		return NULL;
	if (sys_advise(fresh, size, MADV_WIPEONFORK) == 0 &&
	    __atomic_compare_exchange_n(&the_cards, &cards, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	sys_unmap(fresh, size);
	return cards;
}

bool launch_prepare(void)
{
	return cards_of_process() != NULL;
}

static void lock(struct launch_card *card)
{
	while (__atomic_exchange_n(&card->locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static void unlock(struct launch_card *card)
{
	__atomic_store_n(&card->locked, 0, __ATOMIC_RELEASE);
}

static struct throttle_account account_of(struct vgpu_usage_turn *turn)
{
	return (struct throttle_account){.balance_ns = &turn->balance_ns,
					 .refilled_ns = &turn->refilled_ns,
					 .stretch = &turn->stretch};
}

/* Under the lock. */
static void prepare(struct launch_card *card, struct tenant *tenant, unsigned int index)
{
	struct vgpu_usage *usage = tenant->region.usage;

	card->index = index;
	card->region = &tenant->region;
	card->turn = &usage->turn[index];
	card->limits = tenant->limits.file == NULL ? NULL : &tenant->limits.file->dev[index];
	card->gate_end = &never_ends;
	card->window_end = &never_ends;
	card->window_ns = WINDOW_NS;
	card->only_stream = NO_STREAM;
	card->throttle.account = account_of(card->turn);
	card->is_ready = 1;
}

/* The card of the stream, which need not be the current context's. */
static struct launch_card *card_of(struct tenant *tenant, void *stream)
{
	struct launch_card *cards = cards_of_process();
	int index = 0;

	if (cards == NULL)
		return NULL;
	if (tenant->limits.count != 1) {
		void *context;
		int device = stream_device(stream, &context);

		if (device < 0)
			return NULL; /* no context: the driver says so itself */
		index = device_card(tenant, device);
	}
	if (index < 0)
		return NULL;

	struct launch_card *card = &cards[index];

	if (__atomic_load_n(&card->is_ready, __ATOMIC_ACQUIRE) == 0) {
		lock(card);
		if (card->is_ready == 0)
			prepare(card, tenant, (unsigned int)index);
		unlock(card);
	}
	return card;
}

/* Whoever writes limits writes 1 to 100. What is none of these promises nothing, and gets the
 * least. */
static uint32_t percent_of(uint32_t number)
{
	return number == 0 || number > 100 ? 1 : number;
}

/* Whether the container has several cards. A developer's limit is one for each card that there is,
 * of which a program may use a single one. */
static bool is_joint(const struct tenant *tenant)
{
	return tenant->limits.file != NULL && tenant->limits.count > 1;
}

/* What holds for the card now. Of numbers that are changed while they are read each is an old or a
 * new one, and the next look is a millisecond of work away. */
static struct policy look(const struct tenant *tenant, unsigned int index, uint64_t now_ns)
{
	const struct vgpu_limits *file = tenant->limits.file;
	const struct vgpu_limits_device *dev = file == NULL ? NULL : &file->dev[index];
	uint64_t beyond_ns = is_joint(tenant) ? IN_PIECES_NS : 0;
	struct policy policy = {.is_settled = true, .batch_ns = BATCH_NS};

	if (dev == NULL) {
		policy.percent = percent_of(tenant->limits.card[index].cores_percent);
		policy.horizon_ns = policy.percent * THROTTLE_HORIZON_NS / 100;
		return policy;
	}

	uint32_t cores = percent_of(__atomic_load_n(&dev->cores_percent, __ATOMIC_RELAXED));
	uint32_t ceiling = percent_of(__atomic_load_n(&dev->cores_max_percent, __ATOMIC_RELAXED));
	bool is_burst = __atomic_load_n(&dev->mode, __ATOMIC_RELAXED) == VGPU_MODE_BURST;
	bool is_alone = __atomic_load_n(&dev->alone, __ATOMIC_RELAXED) == 1;
	uint64_t sign_ns = __atomic_load_n(&file->arbiter_ns, __ATOMIC_RELAXED);

	policy.is_gated = !is_alone && sign_ns != 0 && now_ns < sign_ns + HEARTBEAT_NS;
	policy.is_settled = is_alone || sign_ns == 0;
	/* Beyond one's own share only where somebody sees to it that it is idle time. */
	policy.percent =
		is_burst && (is_alone || policy.is_gated) && ceiling > cores ? ceiling : cores;
	if (!policy.is_settled) {
		beyond_ns = IN_PIECES_NS;
		policy.batch_ns = SLOT_BATCH_NS;
	}
	policy.horizon_ns = policy.percent * THROTTLE_HORIZON_NS / 100 + beyond_ns;
	return policy;
}

/* Whether no card of this process has a limit; then launches ask no more until the file changes. */
static bool try_to_be_free(struct tenant *tenant, uint64_t now_ns)
{
	const struct vgpu_limits *file = tenant->limits.file;
	const uint32_t *word = file == NULL ? &not_free : &file->seq;
	uint32_t seq = __atomic_load_n(word, __ATOMIC_ACQUIRE);

	if (file != NULL && seq % 2 != 0)
		return false;
	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		struct policy policy = look(tenant, i, now_ns);

		if (policy.percent < 100 || policy.is_gated || !policy.is_settled)
			return false;
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(word, __ATOMIC_RELAXED) != seq)
		return false;
	__atomic_store_n(&launch_free_seq, seq, __ATOMIC_RELAXED);
	__atomic_store_n(&launch_seq, word, __ATOMIC_RELAXED);
	return true;
}

void launch_is_inert(void)
{
	__atomic_store_n(&launch_free_seq, not_free, __ATOMIC_RELAXED);
}

/* Where the others see what we do; another place once the slot was lost. */
static struct vgpu_usage_device *published(const struct launch_card *card)
{
	uint32_t slot = __atomic_load_n(&card->region->slot, __ATOMIC_RELAXED);

	return &card->region->usage->slot[slot].dev[card->index];
}

static void publish_pending(const struct launch_card *card)
{
	__atomic_store_n(&published(card)->pending_ns, card->throttle.pending_ns, __ATOMIC_RELAXED);
}

/* Under the lock. */
static void publish(const struct launch_card *card)
{
	uint64_t end = card->throttle.queue_end_ns & ~UINT64_C(1);

	__atomic_store_n(&published(card)->queue_end_ns,
			 end | (__atomic_load_n(&card->syncing, __ATOMIC_RELAXED) != 0),
			 __ATOMIC_RELAXED);
}

static uint64_t pending_of_container(const struct tenant *tenant, unsigned int index)
{
	const struct vgpu_usage *usage = tenant->region.usage;
	uint32_t count = __atomic_load_n(&usage->slots_high, __ATOMIC_RELAXED);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count && i < VGPU_MAX_SLOTS; i++) {
		uint64_t pending =
			__atomic_load_n(&usage->slot[i].dev[index].pending_ns, __ATOMIC_RELAXED);

		if (__atomic_load_n(&usage->slot[i].state, __ATOMIC_RELAXED) == VGPU_SLOT_LIVE &&
		    pending < THROTTLE_OWED_NS)
			sum += pending;
	}
	return sum;
}

/* The cards of a container are launched on in the same windows of time, since their kernels may
 * wait for each other: a collective whose peer has to wait for credit would keep its card busy, be
 * charged for that, and have to wait when its peer may go. Whoever finds credit for all of them
 * opens the window for all processes. 0: it is open; else for how long to wait. */
static uint64_t wait_for_window(const struct tenant *tenant, uint64_t start_ns, uint64_t now_ns)
{
	struct vgpu_usage *usage = tenant->region.usage;
	uint64_t *word = &usage->turn[0].window_end_ns;
	uint64_t seen_ns = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	uint64_t end_ns = seen_ns > now_ns + LONGEST_WINDOW_NS ? 0 : seen_ns; /* forged */
	uint64_t length_ns = LONGEST_WINDOW_NS;
	uint64_t wait_ns = 0;

	if (start_ns < end_ns)
		return 0;
	if (now_ns < end_ns)
		return end_ns - now_ns;
	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		struct policy policy = look(tenant, i, now_ns);
		struct throttle_account account = account_of(&usage->turn[i]);
		uint64_t pending_ns = pending_of_container(tenant, i);

		if (policy.percent == 100)
			continue;
		throttle_refill(&account, policy.percent, policy.horizon_ns, pending_ns, now_ns);

		int64_t available_ns = throttle_available(&account, pending_ns);

		if (available_ns < WINDOW_BATCH_NS) {
			uint64_t lack_ns =
				throttle_lack_ns(available_ns, policy.percent, WINDOW_BATCH_NS);

			wait_ns = lack_ns > wait_ns ? lack_ns : wait_ns;
		} else {
			uint64_t lasts_ns = (uint64_t)available_ns * 100 / (100 - policy.percent);

			length_ns = lasts_ns < length_ns ? lasts_ns : length_ns;
		}
	}
	if (wait_ns != 0)
		return wait_ns;
	if (__atomic_compare_exchange_n(word, &seen_ns, now_ns + length_ns, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		clock_wake((uint32_t *)word);
	return SHORT_SLEEP_NS;
}

/* Whether other cards of the container are at work, and one of them for longer than it should be:
 * its kernel may wait for what comes next on this one. Threads that launch on several cards are
 * never quite at the same place when a window ends. */
static bool others_are_at_work(const struct launch_card *card, const struct tenant *tenant,
			       uint64_t now_ns, bool *is_overdue)
{
	const struct vgpu_usage_turn *turn = tenant->region.usage->turn;
	bool are_at_work = false;

	*is_overdue = false;
	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		if (i == card->index || pending_of_container(tenant, i) == 0)
			continue;
		are_at_work = true;
		*is_overdue |=
			now_ns >= __atomic_load_n(&turn[i].due_ns, __ATOMIC_RELAXED) + OVERDUE_NS;
	}
	return are_at_work;
}

/* For how long a launch has to wait for a window; 0: it may go. */
static uint64_t wait_with_others(const struct launch_card *card, const struct tenant *tenant,
				 uint64_t pending_ns, bool has_end, uint64_t start_ns,
				 uint64_t now_ns)
{
	uint64_t wait_ns = wait_for_window(tenant, start_ns, now_ns);
	bool is_overdue;

	if (wait_ns == 0 || !others_are_at_work(card, tenant, now_ns, &is_overdue))
		return wait_ns;
	/* One at a time: more than what the other waits for would soon have it wait for us. */
	if (is_overdue && card->throttle.queue_end_ns <= now_ns &&
	    throttle_available(&card->throttle.account, pending_ns) >
		    (has_end ? -CATCH_UP_IN_TURN_NS : -CATCH_UP_NS))
		return 0;

	uint64_t most_ns = is_overdue ? SHORT_SLEEP_NS : OVERDUE_NS;

	return wait_ns < most_ns ? wait_ns : most_ns;
}

/* Marks. */

bool stream_is_captured(void *stream)
{
	int status = 0;

	return __atomic_load_n(&captures, __ATOMIC_RELAXED) != 0 &&
	       driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != 0;
}

bool stream_is_untouchable(void *stream)
{
	return __atomic_load_n(&captures, __ATOMIC_RELAXED) != 0 &&
	       ((uintptr_t)stream < STREAM_PER_THREAD || stream_is_captured(stream));
}

static struct line *line_of(struct launch_card *card, uint64_t context)
{
	struct line *empty = NULL;

	for (unsigned int i = 0; i < LINES; i++) {
		if (card->line[i].context == context)
			return &card->line[i];
		if (card->line[i].context == 0 && empty == NULL)
			empty = &card->line[i];
	}
	if (empty != NULL)
		*empty = (struct line){.context = context};
	return empty;
}

static void *take_event(struct launch_card *card, uint64_t context)
{
	void *event = NULL;

	lock(card);

	struct line *line = line_of(card, context);

	if (line != NULL && line->count != 0)
		event = line->spare[--line->count];
	unlock(card);
	if (line == NULL || event != NULL || driver.cuEventCreate(&event, 0) == CUDA_SUCCESS)
		return event;
	return NULL;
}

static void give_event(struct launch_card *card, uint64_t context, void *event)
{
	bool is_kept;

	lock(card);

	struct line *line = line_of(card, context);

	is_kept = line != NULL && line->count < EVENTS;
	if (is_kept)
		line->spare[line->count++] = event;
	unlock(card);
	if (!is_kept)
		driver.cuEventDestroy_v2(event);
}

static void *record(struct launch_card *card, uint64_t context, void *stream)
{
	void *event = stream_is_untouchable(stream) ? NULL : take_event(card, context);

	if (event == NULL || driver.cuEventRecord(event, stream) == CUDA_SUCCESS)
		return event;
	give_event(card, context, event);
	return NULL;
}

/* The first event of a context, from which the others are measured. */
static void begin_line(struct launch_card *card, uint64_t context, void *stream)
{
	lock(card);

	struct line *line = line_of(card, context);
	bool is_new = line != NULL && line->reference == NULL;

	unlock(card);
	if (!is_new)
		return;

	uint64_t now_ns = clock_ns();
	void *event = record(card, context, stream);

	lock(card);
	line = line_of(card, context);
	if (event != NULL && line != NULL && line->reference == NULL) {
		line->reference = event;
		line->reference_ns = now_ns + THROTTLE_START_NS;
		event = NULL;
	}
	unlock(card);
	if (event != NULL)
		give_event(card, context, event);
}

static bool are_idle(void *const *stream, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		if (stream_is_untouchable(stream[i]) ||
		    driver.cuStreamQuery(stream[i]) != CUDA_SUCCESS)
			return false;
	return true;
}

/* Ends the open interval. `start`: also one without launches, before a launch in this stream. */
static void set_mark(struct launch_card *card, void *start, uint64_t context)
{
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *stream[STREAMS];
	unsigned int count;

	lock(card);

	struct mark *mark = &card->mark[card->head % MARKS];

	if (mark->state != MARK_FREE || (card->throttle.open.launches == 0 && start == NO_STREAM)) {
		unlock(card);
		return;
	}
	mark->state = MARK_RECORDING;
	__atomic_add_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	card->head++;
	count = card->stream_count;
	for (unsigned int i = 0; i < count; i++)
		stream[i] = card->stream[i];
	if (count == 0 && start != NO_STREAM)
		stream[count++] = start;
	mark->context = card->context != 0 ? card->context : context;
	mark->closed_ns = clock_ns();
	mark->interval = throttle_close(&card->throttle);
	mark->interval.is_in_order = count == 1;
	card->stream_count = 0;
	card->context = 0;

	uint64_t dry_ns = card->throttle.queue_end_ns;

	unlock(card);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	if (mark->interval.launches != 0 && mark->closed_ns > dry_ns && are_idle(stream, count)) {
		lock(card);
		throttle_late(&card->throttle, &mark->interval, mark->closed_ns - dry_ns);
		unlock(card);
	}
	mark->count = 0;
	for (unsigned int i = 0; i < count; i++) {
		void *event = record(card, mark->context, stream[i]);

		if (event != NULL)
			mark->event[mark->count++] = event;
	}
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	__atomic_sub_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&mark->state, MARK_RECORDED, __ATOMIC_RELEASE);
}

/* When the last of the mark's events happened: 0 if one has not. */
static uint64_t end_of(const struct mark *mark, const struct line *line, uint64_t now_ns,
		       void **last)
{
	uint64_t end = 0;

	*last = NULL;
	if (line == NULL || line->reference == NULL || mark->count == 0)
		return now_ns;
	for (unsigned int i = 0; i < mark->count; i++) {
		float passed_ms = 0;
		int status = driver.cuEventElapsedTime(&passed_ms, line->reference, mark->event[i]);
		uint64_t then = now_ns;

		if (status == CUDA_ERROR_NOT_READY)
			return 0;
		if (status == CUDA_SUCCESS)
			then = line->reference_ns + (uint64_t)(int64_t)((double)passed_ms * 1e6);
		if (then >= end) {
			end = then;
			*last = status == CUDA_SUCCESS ? mark->event[i] : NULL;
		}
	}
	return end;
}

/* Takes account of the oldest mark; false: it has not been reached. */
static bool finish(struct launch_card *card, struct mark *mark)
{
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *last;

	lock(card);

	struct line *line = line_of(card, mark->context);

	unlock(card);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);

	uint64_t end_ns = end_of(mark, line, clock_ns(), &last);

	driver.cuThreadExchangeStreamCaptureMode(&relaxed);

	/* Once the answers are there: an event that has happened has done so by now, and none
	 * happens before it was recorded. Keeps the card's clock and ours together. */
	uint64_t now_ns = clock_ns();

	lock(card);
	if (end_ns == 0) {
		throttle_unfinished(&card->throttle, &mark->interval, now_ns);
		publish(card);
		unlock(card);
		return false;
	}
	end_ns = end_ns > now_ns ? now_ns : end_ns < mark->closed_ns ? mark->closed_ns : end_ns;

	uint64_t busy_ns = throttle_finish(&card->throttle, &mark->interval, end_ns, now_ns);

	if (last != NULL) {
		void *old = line->reference;

		line->reference = last;
		line->reference_ns = end_ns;
		for (unsigned int i = 0; i < mark->count; i++)
			if (mark->event[i] == last)
				mark->event[i] = old;
	}
	if (mark->interval.launches != 0) {
		throttle_charge(&card->throttle.account, busy_ns, end_ns);

		struct vgpu_usage_device *seen = published(card);

		__atomic_store_n(&seen->busy_ns, card->throttle.busy_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&seen->launches, seen->launches + mark->interval.launches,
				 __ATOMIC_RELAXED);
	}
	publish_pending(card);
	publish(card);
	unlock(card);
	for (unsigned int i = 0; i < mark->count; i++)
		give_event(card, mark->context, mark->event[i]);
	return true;
}

static void harvest(struct launch_card *card)
{
	if (__atomic_exchange_n(&card->harvesting, 1, __ATOMIC_ACQUIRE) != 0)
		return;
	for (;;) {
		struct mark *mark = &card->mark[card->tail % MARKS];

		if (__atomic_load_n(&mark->state, __ATOMIC_ACQUIRE) != MARK_RECORDED ||
		    !finish(card, mark))
			break;
		card->tail++;
		__atomic_store_n(&mark->state, MARK_FREE, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&card->harvesting, 0, __ATOMIC_RELEASE);
}

/* Waiting. */

enum verdict {
	VERDICT_GO,
	VERDICT_SLEEP,
	VERDICT_GATE,
};

/* Under the lock. */
static enum verdict judge(struct launch_card *card, const struct tenant *tenant,
			  struct throttle_class *class, const struct policy *policy,
			  uint64_t pending_ns, uint64_t now_ns, uint64_t *sleep_ns)
{
	uint64_t start_ns = throttle_start(&card->throttle, now_ns);
	uint64_t end_ns = __atomic_load_n(card->gate_end, __ATOMIC_RELAXED);

	*sleep_ns = SHORT_SLEEP_NS;
	if (class->is_out)
		return VERDICT_SLEEP;
	if (start_ns >= end_ns)
		return VERDICT_GATE;
	if (card->window_end != &never_ends) {
		*sleep_ns = wait_with_others(card, tenant, pending_ns, end_ns != UINT64_MAX,
					     start_ns, now_ns);
	} else if (policy->percent < 100)
		*sleep_ns = throttle_wait_ns(&card->throttle, class, policy->percent,
					     policy->batch_ns, pending_ns);
	else
		*sleep_ns = 0;
	if (*sleep_ns != 0)
		return VERDICT_SLEEP;
	/* A mark that cannot be taken because all are: as good as too much under way. */
	if ((end_ns == UINT64_MAX && start_ns - now_ns >= card->window_ns) ||
	    card->mark[card->head % MARKS].state != MARK_FREE) {
		*sleep_ns = card->window_ns / 4;
		return VERDICT_SLEEP;
	}
	return VERDICT_GO;
}

/* Our own queue running dry is what the arbiter waits for: looked at every 50 us until it is. */
static void wait_at_gate(struct launch_card *card, uint32_t seen)
{
	uint64_t now_ns = clock_ns();
	bool is_dry = __atomic_load_n(&card->mark[card->tail % MARKS].state, __ATOMIC_RELAXED) ==
		      MARK_FREE;

	if (now_ns - __atomic_load_n(&card->wanted_ns, __ATOMIC_RELAXED) >= GATE_NS ||
	    card->wanted_ns == 0) {
		__atomic_store_n(&card->wanted_ns, now_ns, __ATOMIC_RELAXED);
		__atomic_add_fetch(&card->turn->want, 1, __ATOMIC_RELEASE);
		clock_wake(&card->turn->want);
	}
	clock_wait(&card->limits->gate, seen, is_dry ? GATE_NS : POLL_NS);
}

/* Under the lock: whether the open interval must end before a launch in this stream. The default
 * stream of old waits for the others: a mark in it must not come later than its own launches. */
static bool is_apart(const struct launch_card *card, const void *stream, uint64_t context)
{
	bool is_legacy = (uintptr_t)card->stream[0] < STREAM_PER_THREAD;

	if (card->stream_count == 0)
		return false;
	if (card->context != context)
		return true;
	for (unsigned int i = 0; i < card->stream_count; i++)
		if (card->stream[i] == stream)
			return false;
	return card->stream_count == STREAMS || is_legacy || (uintptr_t)stream < STREAM_PER_THREAD;
}

/* Under the lock. */
static void note_stream(struct launch_card *card, void *stream, uint64_t context)
{
	card->context = context;
	if (card->only_stream == NO_STREAM)
		card->only_stream = stream;
	else if (card->only_stream != stream)
		card->only_stream = SEVERAL_STREAMS;
	for (unsigned int i = 0; i < card->stream_count; i++)
		if (card->stream[i] == stream)
			return;
	if (card->stream_count < STREAMS)
		card->stream[card->stream_count++] = stream;
}

static uint64_t context_of(void *stream)
{
	void *context = NULL;

	(void)stream_device(stream, &context);
	return (uint64_t)(uintptr_t)context;
}

/* Who waits for one card is the one who could tell how far the others are. */
static void harvest_all(const struct tenant *tenant)
{
	struct launch_card *cards = __atomic_load_n(&the_cards, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; cards != NULL && i < tenant->limits.count; i++)
		if (__atomic_load_n(&cards[i].is_ready, __ATOMIC_ACQUIRE) != 0)
			harvest(&cards[i]);
}

/* As a futex word: it changes when a window is opened. */
static uint32_t window_word(const struct tenant *tenant)
{
	return (uint32_t)__atomic_load_n(&tenant->region.usage->turn[0].window_end_ns,
					 __ATOMIC_ACQUIRE);
}

/* The long way: looks at everything, and waits as long as it has to. Returns with the lock held. */
static struct throttle_class *pass(struct launch_card *card, struct tenant *tenant, uint64_t key,
				   bool *has_waited)
{
	for (unsigned int unknown = 0;;) {
		harvest_all(tenant);
		region_tend(&tenant->region, false);

		uint32_t seen = card->limits == NULL
					? 0
					: __atomic_load_n(&card->limits->gate, __ATOMIC_ACQUIRE);
		uint64_t now_ns = clock_ns();
		struct policy policy = look(tenant, card->index, now_ns);
		uint32_t seen_window = window_word(tenant);
		uint64_t sleep_ns;

		lock(card);
		card->gate_end = policy.is_gated ? &card->limits->grant_until_ns : &never_ends;
		card->window_ns = policy.is_gated ? OPEN_WINDOW_NS : WINDOW_NS;
		card->window_end = is_joint(tenant) && (policy.percent < 100 || policy.is_gated)
					   ? &tenant->region.usage->turn[0].window_end_ns
					   : &never_ends;
		publish_pending(card);
		card->throttle.may_wait = card->window_end != &never_ends;

		uint64_t pending_ns = pending_of_container(tenant, card->index);

		throttle_refill(&card->throttle.account, policy.percent, policy.horizon_ns,
				pending_ns, now_ns);

		struct throttle_class *class = throttle_class(&card->throttle, key);

		if (class->is_out && ++unknown > UNKNOWN_WAITS)
			class->is_out = 0; /* another thread's launch may be what it waits for */

		enum verdict verdict =
			judge(card, tenant, class, &policy, pending_ns, now_ns, &sleep_ns);

		if (verdict == VERDICT_GO) {
			card->wanted_ns = 0;
			return class;
		}
		bool is_windowed = card->window_end != &never_ends;

		unlock(card);
		set_mark(card, NO_STREAM, 0);
		*has_waited |= verdict == VERDICT_GATE;
		if (verdict == VERDICT_GATE)
			wait_at_gate(card, seen);
		else if (is_windowed)
			clock_wait((const uint32_t *)&tenant->region.usage->turn[0].window_end_ns,
				   seen_window, sleep_ns);
		else
			clock_sleep(sleep_ns);
	}
}

/* Asks the card whether it has anything left of the open interval. Under the lock, which it lets go
 * of meanwhile. */
static bool is_busy(struct launch_card *card)
{
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *stream[STREAMS];
	unsigned int count = card->stream_count;
	bool is_idle;

	for (unsigned int i = 0; i < count; i++)
		stream[i] = card->stream[i];
	__atomic_add_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	unlock(card);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	is_idle = are_idle(stream, count);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	__atomic_sub_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	lock(card);
	return !is_idle;
}

static inline void add_launch(struct launch_card *card, struct throttle_class *class,
			      uint64_t now_ns)
{
	throttle_add(&card->throttle, class, now_ns);
	if (card->window_end != &never_ends)
		__atomic_store_n(&card->turn->due_ns, card->throttle.queue_end_ns,
				 __ATOMIC_RELAXED);
}

static void gate_slowly(struct hook_call *call, struct launch_card *card, struct tenant *tenant,
			uint64_t key, void *stream)
{
	if (stream_is_captured(stream))
		return;
	if (try_to_be_free(tenant, clock_ns()))
		return;

	uint64_t context = context_of(stream);

	if (context == 0)
		return; /* the driver says so itself */
	begin_line(card, context, stream);

	bool has_waited = false;
	struct throttle_class *class = pass(card, tenant, key, &has_waited);
	uint64_t now_ns = clock_ns();
	bool is_sampled = throttle_must_sample(class) || class->cost_ns >= THROTTLE_LONG_NS;

	if (throttle_is_in_doubt(&card->throttle, now_ns) && is_busy(card)) {
		now_ns = clock_ns();
		throttle_not_dry(&card->throttle, now_ns);
	}
	/* A sample lies between two marks of its own. A turn begins with one: the card's change of
	 * contexts is nobody's work. */
	if (is_apart(card, stream, context) || has_waited ||
	    throttle_is_old(&card->throttle, now_ns) ||
	    (is_sampled &&
	     (card->throttle.open.launches != 0 || card->throttle.queue_end_ns < now_ns))) {
		unlock(card);
		set_mark(card, stream, context);
		lock(card);
		class = throttle_class(&card->throttle, key);
		now_ns = clock_ns();
	}
	call->gate = card;
	call->is_marked = is_sampled || card->throttle.tokens_ns <= 0;
	if (card->throttle.tokens_ns <= 0)
		card->throttle.tokens_ns = (int64_t)THROTTLE_MARK_EVERY_NS;
	note_stream(card, stream, context);
	add_launch(card, class, now_ns);
	publish_pending(card);
	publish(card);
	unlock(card);
}

void gate_begin(struct hook_call *call, struct tenant *tenant, uint64_t key, void *stream)
{
	struct launch_card *card = card_of(tenant, stream);

	call->gate = NULL;
	call->is_marked = false;
	if (card == NULL)
		return;
	lock(card);

	bool is_usual = card->stream_count == 1 && card->stream[0] == stream &&
			__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0 &&
			__atomic_load_n(&tenant->contexts, __ATOMIC_RELAXED) == 1;

	if (is_usual) {
		uint64_t now_ns = clock_near_ns();
		struct throttle_class *class = throttle_class(&card->throttle, key);
		uint64_t end_ns = __atomic_load_n(card->gate_end, __ATOMIC_RELAXED);
		uint64_t window_ns = __atomic_load_n(card->window_end, __ATOMIC_RELAXED);

		if (window_ns < end_ns)
			end_ns = window_ns;

		struct throttle_gate gate = {.end_ns = end_ns,
					     .window_ns = end_ns == UINT64_MAX ? card->window_ns
									       : UINT64_MAX};

		if (throttle_passes(&card->throttle, class, &gate, now_ns)) {
			add_launch(card, class, now_ns);
			publish(card);
			unlock(card);
			return;
		}
	}
	unlock(card);
	gate_slowly(call, card, tenant, key, stream);
}

void gate_end(struct hook_call *call)
{
	if (call->gate != NULL && call->is_marked)
		set_mark(call->gate, NO_STREAM, 0);
}

/* Contexts, streams, captures. */

void gate_forget_context(uint64_t context)
{
	struct launch_card *cards = __atomic_load_n(&the_cards, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; cards != NULL && i < VGPU_MAX_DEVICES; i++) {
		struct launch_card *card = &cards[i];
		bool is_open;

		lock(card);
		is_open = card->context == context;
		for (unsigned int j = 0; j < LINES; j++)
			if (card->line[j].context == context)
				card->line[j] = (struct line){0};
		for (unsigned int j = 0; j < MARKS; j++)
			if (card->mark[j].context == context) {
				card->mark[j].context = 0; /* nor may it have a new line */
				card->mark[j].count = 0;
			}
		if (is_open) {
			card->context = 0;
			card->stream_count = 0;
		}
		unlock(card);
		/* Its work ends with it: found out now, or the time until the next launch counts.
		 */
		if (is_open)
			set_mark(card, NO_STREAM, 0);
		harvest(card);
	}
}

/* From here on nothing of ours touches the stream: marks in it are made now, and those that other
 * threads are making are waited for, a little. */
static void leave_stream(void *stream)
{
	struct launch_card *cards = __atomic_load_n(&the_cards, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; cards != NULL && i < VGPU_MAX_DEVICES; i++) {
		struct launch_card *card = &cards[i];
		bool is_in = false;

		lock(card);
		for (unsigned int j = 0; j < card->stream_count; j++)
			is_in |= card->stream[j] == stream;
		if (card->only_stream == stream)
			card->only_stream = SEVERAL_STREAMS; /* its handle may be given anew */
		unlock(card);
		if (is_in)
			set_mark(card, NO_STREAM, 0);
		for (unsigned int waits = 0;
		     waits < LEAVE_WAITS && __atomic_load_n(&card->touching, __ATOMIC_ACQUIRE) != 0;
		     waits++)
			clock_sleep(SHORT_SLEEP_NS);
	}
}

int stream_destroy_begin(void *stream)
{
	leave_stream(stream);
	streams_forget(stream);
	return CUDA_SUCCESS;
}

int capture_begin_begin(void *stream, bool is_thread)
{
	__atomic_add_fetch(&captures, 1, __ATOMIC_ACQ_REL);
	leave_stream(stream == NULL && is_thread ? (void *)STREAM_PER_THREAD : stream);
	return CUDA_SUCCESS;
}

static void uncount_capture(void)
{
	uint32_t count = __atomic_load_n(&captures, __ATOMIC_RELAXED);

	while (count != 0 && !__atomic_compare_exchange_n(&captures, &count, count - 1, false,
							  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

int capture_begin_end(int status)
{
	if (status != CUDA_SUCCESS)
		uncount_capture();
	return status;
}

/* Too many counted costs a question at every launch; too few would spoil a capture. */
int capture_end_end(int status)
{
	if (status == CUDA_SUCCESS || status == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
		uncount_capture();
	return status;
}

/* Waits of the program. */

static void count_sync(struct launch_card *card, uint32_t change)
{
	lock(card);
	__atomic_add_fetch(&card->syncing, change, __ATOMIC_RELAXED);
	publish(card);
	unlock(card);
}

int sync_begin(struct hook_call *call)
{
	struct tenant *tenant = launch_is_free() ? NULL : tenant_joined();
	struct launch_card *cards = __atomic_load_n(&the_cards, __ATOMIC_ACQUIRE);

	call->gate = NULL;
	wait_begin(call);
	if (tenant == NULL || cards == NULL)
		return CUDA_SUCCESS;

	struct launch_card *card = card_of(tenant, NULL);

	if (card == NULL)
		return CUDA_SUCCESS;
	call->gate = card;
	call->begun_ns = clock_near_ns();
	count_sync(card, 1);
	if (__atomic_load_n(&card->throttle.open.predicted_ns, __ATOMIC_RELAXED) >= SYNC_MARK_NS)
		set_mark(card, NO_STREAM, 0);
	return CUDA_SUCCESS;
}

static int end_sync(struct hook_call *call, int status, bool is_all, void *stream)
{
	struct launch_card *card = call->gate;

	if (card == NULL)
		return wait_end(call, status);
	uint64_t now_ns = clock_near_ns();

	harvest(card);
	lock(card);
	if (status == CUDA_SUCCESS && (is_all || card->only_stream == stream)) {
		throttle_drained(&card->throttle, now_ns - call->begun_ns > SHORT_WAIT_NS, now_ns);
		card->only_stream = NO_STREAM;
	}
	unlock(card);
	count_sync(card, UINT32_MAX);
	return wait_end(call, status);
}

int sync_end(struct hook_call *call, int status)
{
	return end_sync(call, status, false, NO_STREAM);
}

int context_sync_end(struct hook_call *call, int status)
{
	const struct tenant *tenant = tenant_joined();

	return end_sync(call, status, tenant != NULL && tenant->contexts == 1, NO_STREAM);
}

int stream_sync_end(struct hook_call *call, int status, void *stream, bool is_thread)
{
	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;
	/* Each thread has another one of that name. */
	return end_sync(call, status, false,
			stream == (void *)STREAM_PER_THREAD ? SEVERAL_STREAMS : stream);
}
