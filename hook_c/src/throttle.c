// SPDX-License-Identifier: Apache-2.0
#include "throttle.h"

#include <stddef.h>

#define PROBES 8
#define MOST_FICKLE 16
#define MIN_SAMPLES 4  /* the least of so many: the first launch of a kernel loads its module */
#define SOON 4         /* launches, until what has changed is measured again */
#define NOISE_NS 10000 /* between two samples of what takes the same */
#define STEADY_NS 500  /* the same, of what always takes the same, beyond an eighth */
#define SELDOM 4       /* part of the marks behind that */
#define LEAST_LASTS 32 /* samples, until the least of a class is forgotten */
#define SAMPLE_OFTEN 63
#define SAMPLE_SELDOM 511
#define LONG_PERIOD 16
#define MOST_CALM 4
#define OFTEN_UNTIL 512
#define LEAST_COST_NS 500
#define LEAST_WAIT_NS 20000
#define MOST_WAIT_NS 3000000
#define MOST_GAPS_PERCENT 30    /* of the time that kernels of 5 us take with them */
#define LONGEST_LAUNCH_NS 50000 /* beyond it the thread was not at it */
#define LONGEST_COLD_LAUNCH_NS 200000
#define USUAL_LAUNCH_NS 2500
#define LONGEST_DRAIN_NS 1000000
#define KERNEL_LATER_NS 500          /* than a mark does a kernel begin */
#define AT_WORK_NS UINT64_C(5000000) /* between two looks at the account */
#define LONGEST_PAUSE_NS UINT64_C(1000000000)

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

struct throttle_class *throttle_search(struct throttle *throttle, uint64_t key)
{
	size_t place = throttle_place(key);
	struct throttle_class *oldest = &throttle->class[place];

	for (size_t i = 0; i < PROBES; i++) {
		struct throttle_class *class = &throttle->class[(place + i) % THROTTLE_CLASSES];

		if (class->key == key)
			return class;
		if (class->key == 0) {
			oldest = class;
			break;
		}
		if (class->launches < oldest->launches)
			oldest = class;
	}
	*oldest = (struct throttle_class){.key = key};
	return oldest;
}

static uint32_t batch_of(const struct throttle_class *class)
{
	return class->proven < THROTTLE_TRUSTED ? 1 + class->proven / THROTTLE_TRUST : UINT32_MAX;
}

bool throttle_begin_batch(struct throttle *throttle, struct throttle_class *class)
{
	if (class->left != 0 || class->samples == 0)
		return true;
	if (throttle->finished < class->batch_begun && !throttle->may_wait)
		return false;
	class->batch_begun = throttle_launches(throttle);
	class->left = batch_of(class);
	return true;
}

void throttle_look(struct throttle *throttle, bool is_shared)
{
	if (throttle->tokens_ns > 0)
		return;
	throttle->tokens_ns = (int64_t)THROTTLE_MARK_EVERY_NS;
	throttle->is_ample =
		!is_shared && throttle_available(&throttle->account, throttle_pending(throttle)) >=
				      (int64_t)(SELDOM * THROTTLE_MARK_EVERY_NS);
}

void throttle_give_up(struct throttle_class *class)
{
	class->is_out = 0;
	class->proven = THROTTLE_TRUSTED;
	class->batch_begun = 0;
}

bool throttle_must_part(const struct throttle *throttle, const struct throttle_class *class)
{
	return class->left == batch_of(class) && class->proven < THROTTLE_TRUSTED &&
	       throttle->open.key == class->key;
}

void throttle_add_first(struct throttle *throttle, const struct throttle_class *class,
			bool is_start, uint64_t now_ns)
{
	struct throttle_interval *open = &throttle->open;

	open->start_ns = now_ns + THROTTLE_START_NS;
	open->starts = is_start;
	open->key = class->key;
	open->has_unknown = false;
	open->begun_ns = now_ns;
	open->is_graph = class->is_graph;
}

/* Launches until the next tail that is measured. Of programs that launch many before each of them,
 * and whose tails take what is predicted, not every one. */
static uint32_t next_tail(const struct throttle_class *class)
{
	if (class->period < LONG_PERIOD || class->period > SAMPLE_SELDOM / 2)
		return class->period;
	return class->period *
	       (uint32_t)least(UINT64_C(1) << class->calm, SAMPLE_SELDOM / class->period);
}

/* Odd numbers: of what comes by turns each is measured. */
static uint32_t next_sample(const struct throttle_class *class)
{
	uint32_t usual = class->launches < OFTEN_UNTIL ? SAMPLE_OFTEN : SAMPLE_SELDOM;

	return class->period == 0 ? usual : (uint32_t)least(usual, next_tail(class));
}

void throttle_note_tail(struct throttle *throttle, uint16_t last)
{
	struct throttle_class *class = &throttle->class[last];
	uint16_t period = (uint16_t)((uint16_t) class->launches - class->tail);

	if (period == 0) /* it was noted already */
		return;
	class->tail = (uint16_t) class->launches;
	class->period = period;
	if (class->until_sample > next_tail(class))
		class->until_sample = next_tail(class);
}

void throttle_add_sample(struct throttle *throttle, struct throttle_class *class)
{
	if (class->samples == 0) {
		class->is_out = 1;
		throttle->open.key = class->key;
		throttle->open.has_unknown = true;
		throttle->open.unknown++;
		throttle->unknown++;
	}
	throttle->wants_idle = true;
	if (class->until_sample <= 1)
		class->until_sample = next_sample(class);
	else
		class->until_sample--;
}

void throttle_launched(struct throttle *throttle, uint64_t now_ns)
{
	struct throttle_interval *open = &throttle->open;
	uint64_t later = less(now_ns + THROTTLE_AFTER_NS, throttle->started_ns);
	bool is_only = open->launches == 1;

	if (is_only)
		open->returned_ns = open->is_graph ? open->begun_ns + USUAL_LAUNCH_NS : now_ns;
	if (throttle->started_ns == 0 || open->launches == 0 || later > LONGEST_COLD_LAUNCH_NS ||
	    (is_only && open->is_graph))
		return;
	if (is_only)
		open->start_ns += later;
	else
		open->idle_ns += later;
	throttle->started_ns = 0;
	throttle->queue_end_ns += later;
}

/* The first launch of a bracket has returned: both the mark before it and the launch reach an idle
 * card the same while after they were made. */
static void close_bracket(struct throttle *throttle, struct throttle_interval *closed)
{
	uint64_t launch_ns = less(closed->returned_ns, closed->begun_ns);

	closed->start_ns = 0;
	throttle_late(throttle, closed, less(closed->returned_ns, throttle->bracket_ns));
	closed->is_bracketed = true;
	/* Some take longer, because the driver's memory has left the caches. */
	if (throttle->launch_ns != 0)
		launch_ns = least(launch_ns, (15 * throttle->launch_ns + launch_ns) / 16);
	launch_ns = least(launch_ns, LONGEST_LAUNCH_NS);
	throttle->launch_ns = launch_ns;
	throttle->later_ns = (uint16_t)less(launch_ns + THROTTLE_AFTER_NS, THROTTLE_START_NS);
}

_Static_assert(LONGEST_LAUNCH_NS + THROTTLE_AFTER_NS <= UINT16_MAX, "later_ns");

struct throttle_interval throttle_close(struct throttle *throttle)
{
	struct throttle_interval closed = throttle->open;

	throttle->closed_ns += closed.predicted_ns;
	throttle->closed_idle_ns += closed.idle_ns;
	throttle->closed_launches += closed.launches;
	if (throttle->bracket_ns != 0 && closed.launches == 1 && closed.returned_ns != 0 &&
	    closed.returned_ns < throttle->bracket_ns + LONGEST_LAUNCH_NS)
		close_bracket(throttle, &closed);
	throttle->bracket_ns = 0;
	throttle->open = (struct throttle_interval){.last = closed.last};
	return closed;
}

void throttle_bracket(struct throttle *throttle, struct throttle_interval *closed, uint64_t now_ns)
{
	if (throttle->open.launches == 0) /* no other thread's */
		throttle->bracket_ns = now_ns;
	if (throttle->times_idle)
		closed->known_idle_ns = less(now_ns, throttle->drained_ns);
}

void throttle_late(struct throttle *throttle, struct throttle_interval *closed, uint64_t idle_ns)
{
	closed->is_bracketed = false;
	closed->idle_ns += idle_ns;
	throttle->closed_idle_ns += idle_ns;
}

/* More than noise. */
static bool is_far_above(uint64_t busy_ns, uint64_t expected_ns)
{
	return busy_ns > 2 * expected_ns + THROTTLE_SURPRISE_NS;
}

static bool is_unlike(const struct throttle_class *class, uint64_t sample)
{
	return sample > class->cost_ns + class->cost_ns / 4 + NOISE_NS;
}

/* Of a class whose launches took now this and now that, weighed so that a mark follows most of
 * them. Those of one that have always taken the same count for a part. */
static int32_t doubt_of(const struct throttle_class *class)
{
	uint64_t spread_ns = class->cost_ns - class->least_ns;

	if (class->proven == THROTTLE_TRUSTED && class->cost_ns < THROTTLE_LONG_NS &&
	    spread_ns <= class->cost_ns / 8 + STEADY_NS)
		return (int32_t)(class->cost_ns / SELDOM) - (int32_t) class->cost_ns;
	if (spread_ns <= NOISE_NS || spread_ns <= class->cost_ns / 4)
		return 0;
	return (int32_t)least(16 * spread_ns, INT32_MAX);
}

static void learn(struct throttle *throttle, const struct throttle_interval *interval,
		  uint64_t busy_ns)
{
	if (interval->key == 0)
		return;

	struct throttle_class *class = throttle_class(throttle, interval->key);
	uint64_t sample = most(busy_ns / interval->launches, LEAST_COST_NS);
	uint64_t expected_ns = class->samples == 0 ? busy_ns : interval->launches * class->cost_ns;
	bool is_longer = !throttle->may_wait && is_far_above(busy_ns, expected_ns);

	class->is_out = 0;
	if (interval->has_unknown && interval->launches > 1 && class->samples != 0)
		return; /* several classes together, of which one was unknown */
	if (interval->idle_ns > busy_ns / 4 && !interval->is_bracketed)
		return;
	if (class->samples == 0 || is_longer)
		class->cost_ns = sample;
	else if (class->samples < MIN_SAMPLES)
		class->cost_ns = least(class->cost_ns, sample);
	else if (throttle->may_wait)
		class->cost_ns = (7 * class->cost_ns + least(sample, 2 * class->cost_ns)) / 8;
	else if (interval->idle_ns != 0)
		class->cost_ns = (3 * class->cost_ns + least(sample, 4 * class->cost_ns)) / 4;
	else
		class->cost_ns = (3 * class->cost_ns + sample) / 4;
	if (class->samples == 0 || sample < class->least_ns)
		class->least_ns = sample;
	else
		class->least_ns += (sample - class->least_ns) / LEAST_LASTS;
	class->least_ns = least(class->least_ns, class->cost_ns);
	class->doubt_ns = doubt_of(class);
	class->fickle = (uint8_t)less(class->fickle, 1) & 0x1f;
	if (is_unlike(class, sample))
		class->calm = 0;
	else if (interval->launches == 1 && class->calm < MOST_CALM)
		class->calm++;
	if (is_longer) {
		class->until_sample = 1;
		class->fickle = MOST_FICKLE;
		/* All that is out went at the old price. */
		class->proven = THROTTLE_TRUSTED;
		class->batch_begun = throttle_launches(throttle);
		class->left = 0;
	} else if (is_far_above(expected_ns, busy_ns))
		class->until_sample = 1;
	else if (sample > 2 * class->cost_ns)
		class->until_sample = (uint32_t)least(class->until_sample, SOON);
	else if (class->launches >= OFTEN_UNTIL && interval->starts == 0 && class->period == 0)
		class->until_sample = SAMPLE_SELDOM; /* as good as one */
	class->samples += class->samples < MIN_SAMPLES;
}

/* Kernels that do not wait for each other may run without gaps, and who starts on an idle card has
 * none before it. */
static uint64_t gaps_in(const struct throttle_interval *interval, uint64_t busy_ns)
{
	if (!interval->is_in_order)
		return 0;
	return least((interval->launches - interval->starts - interval->dependent) *
				     THROTTLE_GAP_NS +
			     interval->gaps * THROTTLE_INNER_GAP_NS,
		     busy_ns * MOST_GAPS_PERCENT / 100);
}

/* What a start from idle takes beyond the time that the host sees, less what every start does. */
static void learn_drain(struct throttle *throttle, uint64_t hidden_ns)
{
	uint64_t seen_ns = most(THROTTLE_START_NS, throttle->launch_ns + THROTTLE_AFTER_NS);
	uint64_t drain_ns = less(hidden_ns + throttle->launch_ns + KERNEL_LATER_NS, seen_ns);

	if (drain_ns > LONGEST_DRAIN_NS)
		return; /* the card was another's, or the thread */
	drain_ns = most(1, least(drain_ns, THROTTLE_MOST_DRAIN_NS)); /* 0: not known yet */
	throttle->drain_ns =
		throttle->drain_ns == 0 ? drain_ns : (7 * throttle->drain_ns + drain_ns) / 8;
}

/* `span`: from where the interval can have begun; `whole`: from the mark before it. */
static uint64_t measured(const struct throttle_interval *interval, uint64_t span, uint64_t whole)
{
	uint64_t busy = less(span, interval->idle_ns);

	/* At least what was predicted, where that much time has passed at all; but a launch between
	 * two marks of its own takes what these say. */
	if (!interval->is_bracketed)
		busy = most(busy, least(interval->least_ns, whole));
	return most(less(busy, THROTTLE_MARK_NS), least(most(busy, whole), LEAST_COST_NS));
}

uint64_t throttle_finish(struct throttle *throttle, const struct throttle_interval *interval,
			 uint64_t end_ns, uint64_t now_ns)
{
	uint64_t before = throttle->last_end_ns == 0 ? interval->start_ns : throttle->last_end_ns;
	uint64_t whole = less(end_ns, before);
	uint64_t span = less(end_ns, most(before, interval->start_ns));
	uint64_t busy = 0;

	if (interval->known_idle_ns != 0 && throttle->last_end_ns != 0)
		learn_drain(throttle, less(whole, interval->known_idle_ns));
	throttle->last_end_ns = most(throttle->last_end_ns, end_ns);
	throttle->overdue_ns = 0;
	if (interval->launches != 0) {
		throttle->finished += interval->launches;
		throttle->unknown -= interval->unknown;
		busy = measured(interval, span, whole);
		learn(throttle, interval, busy);
		throttle->closed_ns = less(throttle->closed_ns, interval->predicted_ns);
		throttle->closed_idle_ns = less(throttle->closed_idle_ns, interval->idle_ns);
		busy -= gaps_in(interval, busy);
		throttle->busy_ns += busy;
	}

	uint64_t pending_ns = throttle_pending(throttle);
	uint64_t idle_ns = throttle->closed_idle_ns + throttle->open.idle_ns;

	throttle->queue_end_ns =
		least(end_ns + pending_ns + idle_ns, most(now_ns + pending_ns, end_ns));
	return busy;
}

uint64_t throttle_surprise_ns(const struct throttle *throttle,
			      const struct throttle_interval *interval, uint64_t busy_ns)
{
	if (throttle->may_wait || interval->has_unknown ||
	    !is_far_above(busy_ns, interval->predicted_ns))
		return 0;
	return busy_ns - interval->predicted_ns;
}

/* The card is at work until then at least, with what was to have ended before. */
static void put_off(struct throttle *throttle, uint64_t end_ns)
{
	throttle->overdue_ns += less(end_ns, throttle->queue_end_ns);
	throttle->queue_end_ns = most(throttle->queue_end_ns, end_ns);
}

void throttle_unfinished(struct throttle *throttle, const struct throttle_interval *oldest,
			 uint64_t now_ns)
{
	uint64_t later = less(throttle_pending(throttle), oldest->predicted_ns);

	uint64_t begun_ns = most(oldest->begun_ns, throttle->last_end_ns);

	if (is_far_above(less(now_ns, begun_ns), oldest->predicted_ns + oldest->idle_ns))
		throttle->is_ample = false;
	put_off(throttle, now_ns + THROTTLE_START_NS + later);
	if (oldest->launches == 0) /* that was launched without a limit */
		throttle->overdue_ns = 0;
}

bool throttle_not_dry(struct throttle *throttle, uint64_t now_ns)
{
	bool is_surprise = now_ns > throttle->queue_end_ns + THROTTLE_SURPRISE_NS;

	if (is_surprise)
		throttle->is_ample = false;
	put_off(throttle, now_ns);
	return is_surprise;
}

void throttle_dry(struct throttle *throttle, uint64_t now_ns)
{
	throttle->queue_end_ns = least(throttle->queue_end_ns, now_ns);
	throttle->is_known_dry = true;
}

void throttle_drained(struct throttle *throttle, bool has_blocked, uint64_t now_ns)
{
	/* What it has waited for was no work of ours. */
	if (throttle->is_known_dry)
		return;

	uint64_t drain_ns = throttle->drain_ns == 0 ? THROTTLE_DRAIN_NS : throttle->drain_ns;
	uint64_t end_ns = less(now_ns, drain_ns);

	/* What it has waited for has ended just now, whatever was predicted. */
	if (has_blocked || throttle->queue_end_ns > end_ns)
		throttle->queue_end_ns = end_ns;
	throttle->is_known_dry = true;
	/* A mark stands behind the last launch; with one before the next, the time between the two
	 * is what the wait and the start took. */
	if (throttle->wants_idle && throttle->open.launches == 0) {
		throttle->wants_idle = false;
		throttle->times_idle = true;
		throttle->drained_ns = now_ns;
	}
}

/* The account. Every number in it may be forged by the container that it limits; no value may make
 * a thread of it wait without end, or a sum wrap. */

static void set_balance(const struct throttle_account *account, int64_t *seen, int64_t wanted)
{
	__atomic_compare_exchange_n(account->balance_ns, seen, wanted, false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
}

void throttle_refill(const struct throttle_account *account, uint32_t percent, uint64_t horizon_ns,
		     uint64_t kept_ns, uint64_t pending_ns, uint64_t now_ns)
{
	uint64_t before = __atomic_load_n(account->refilled_ns, __ATOMIC_RELAXED);
	int64_t balance = __atomic_load_n(account->balance_ns, __ATOMIC_RELAXED);
	int64_t full = (int64_t)(horizon_ns + least(pending_ns, LONGEST_PAUSE_NS));
	bool is_kept = kept_ns != 0 && balance > full;
	int64_t cap = is_kept ? full + (int64_t)kept_ns : full;

	/* One of the processes that come at the same time adds it. */
	if (before != now_ns &&
	    __atomic_compare_exchange_n(account->refilled_ns, &before, now_ns, false,
					__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		/* Who lies idle earns no more than the horizon. */
		uint64_t most_ns = is_kept ? AT_WORK_NS : LONGEST_PAUSE_NS;
		uint64_t passed = least(less(now_ns, before), most_ns);

		__atomic_add_fetch(account->balance_ns, (int64_t)(passed * percent / 100),
				   __ATOMIC_RELAXED);
	}
	balance = __atomic_load_n(account->balance_ns, __ATOMIC_RELAXED);
	if (balance > cap)
		set_balance(account, &balance, cap);
	else if (balance < -(int64_t)THROTTLE_OWED_NS)
		set_balance(account, &balance, -(int64_t)THROTTLE_OWED_NS);
}

/* The last stretch of time in which the container kept the card busy, as one word that processes
 * change without a lock: its end in the upper bits, its length in the lower ones. */
#define STRETCH_UNIT_NS 64
#define LENGTH_BITS 24
#define LENGTH_MAX ((UINT64_C(1) << LENGTH_BITS) - 1)
#define END_BITS (64 - LENGTH_BITS)

/* How much later `a` is than `b`; ends wrap after 19 hours. */
static int64_t later_by(uint64_t a, uint64_t b)
{
	return (int64_t)((a - b) << LENGTH_BITS) >> LENGTH_BITS;
}

/* Units of [end - length, end] that the stretch does not cover; sets the stretch that does. */
static uint64_t extend(uint64_t *stretch, uint64_t end, uint64_t length)
{
	uint64_t old_end = *stretch >> LENGTH_BITS;
	int64_t old_length = (int64_t)(*stretch & LENGTH_MAX);
	int64_t later = later_by(end, old_end);
	int64_t own_length = (int64_t)length;
	int64_t after = later > 0 ? later : 0;
	int64_t before = own_length - later - old_length; /* own start to theirs */

	if (*stretch == 0 || later >= own_length || later <= -old_length) {
		*stretch = end << LENGTH_BITS | length; /* apart from it */
		return length;
	}
	before = before > 0 ? before : 0;
	own_length = old_length + before + after;
	*stretch = (after > 0 ? end : old_end) << LENGTH_BITS |
		   (own_length > (int64_t)LENGTH_MAX ? LENGTH_MAX : (uint64_t)own_length);
	return (uint64_t)(before + after);
}

/* Adds a surprise to what is deferred, or pays for some of that. Returns what is to be charged now.
 */
static uint64_t defer(const struct throttle_account *account, uint64_t charged_ns,
		      uint64_t surprise_ns)
{
	uint64_t seen = __atomic_load_n(account->deferred_ns, __ATOMIC_RELAXED);
	uint64_t deferred;
	uint64_t after;

	do {
		deferred = least(seen, THROTTLE_DEFERRED_NS);
		after = surprise_ns == 0 ? less(deferred, charged_ns / 2)
					 : least(deferred + least(surprise_ns, charged_ns),
						 THROTTLE_DEFERRED_NS);
	} while (seen != after &&
		 !__atomic_compare_exchange_n(account->deferred_ns, &seen, after, false,
					      __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return charged_ns + deferred - after;
}

uint64_t throttle_charge(const struct throttle_account *account, uint64_t busy_ns,
			 uint64_t surprise_ns, uint64_t end_ns)
{
	uint64_t end = (end_ns / STRETCH_UNIT_NS) & ((UINT64_C(1) << END_BITS) - 1);
	uint64_t length = end_ns / STRETCH_UNIT_NS - less(end_ns, busy_ns) / STRETCH_UNIT_NS;
	uint64_t seen = __atomic_load_n(account->stretch, __ATOMIC_RELAXED);
	uint64_t beyond = less(length, LENGTH_MAX); /* longer than the word can say */
	uint64_t wanted;
	uint64_t charged;

	do {
		wanted = seen;
		charged = extend(&wanted, end, least(length, LENGTH_MAX)) + beyond;
	} while (!__atomic_compare_exchange_n(account->stretch, &seen, wanted, false,
					      __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	charged *= STRETCH_UNIT_NS;
	__atomic_sub_fetch(account->balance_ns, (int64_t)defer(account, charged, surprise_ns),
			   __ATOMIC_RELAXED);
	return charged;
}

void throttle_charge_own(struct throttle *throttle, uint64_t busy_ns, uint64_t surprise_ns,
			 uint64_t end_ns)
{
	const struct throttle_account *account = &throttle->account;
	uint64_t charged_ns = throttle_charge(account, busy_ns, surprise_ns, end_ns);
	int64_t balance_ns = __atomic_load_n(account->balance_ns, __ATOMIC_RELAXED);
	uint64_t beyond_ns;

	if (balance_ns >= -(int64_t)THROTTLE_OWED_NS)
		return;
	/* No more than is its own, however much was forged. */
	beyond_ns =
		least(charged_ns, (uint64_t) - (int64_t)THROTTLE_OWED_NS - (uint64_t)balance_ns);
	throttle->owed_ns += least(beyond_ns, UINT64_MAX - throttle->owed_ns);
	__atomic_add_fetch(account->balance_ns, (int64_t)beyond_ns, __ATOMIC_RELAXED);
}

void throttle_repay(struct throttle *throttle)
{
	int64_t *balance = throttle->account.balance_ns;
	int64_t above_ns;
	uint64_t paid_ns;

	if (throttle->owed_ns == 0)
		return;
	above_ns = __atomic_load_n(balance, __ATOMIC_RELAXED);
	if (above_ns <= -(int64_t)THROTTLE_OWED_NS)
		return;
	paid_ns = least(throttle->owed_ns, (uint64_t)above_ns + THROTTLE_OWED_NS);
	throttle->owed_ns -= paid_ns;
	__atomic_sub_fetch(balance, (int64_t)paid_ns, __ATOMIC_RELAXED);
}

bool throttle_is_stalled(const struct throttle *throttle, const struct throttle_class *class,
			 const struct throttle_interval *oldest, uint64_t begun_ns, uint64_t now_ns)
{
	uint64_t later_ns = less(throttle_pending(throttle), oldest->predicted_ns);
	uint64_t doublings = later_ns / THROTTLE_HORIZON_NS;
	uint64_t expected_ns = oldest->predicted_ns + oldest->idle_ns;

	if (class->samples == 0)
		doublings += throttle->unknown;
	else
		doublings += class->cost_ns / THROTTLE_HORIZON_NS;
	return throttle_available(&throttle->account, 0) > -(int64_t)THROTTLE_HORIZON_NS &&
	       less(now_ns, begun_ns) >
		       expected_ns + (THROTTLE_STALL_NS << least(doublings, THROTTLE_MOST_STALLS));
}

int64_t throttle_available(const struct throttle_account *account, uint64_t pending_ns)
{
	int64_t balance = __atomic_load_n(account->balance_ns, __ATOMIC_RELAXED);

	if (balance < -(int64_t)THROTTLE_OWED_NS) /* forged; the next refill says so, too */
		balance = -(int64_t)THROTTLE_OWED_NS;
	return balance - (int64_t)least(pending_ns, LONGEST_PAUSE_NS);
}

uint64_t throttle_lack_ns(int64_t available_ns, uint32_t percent, uint64_t needed_ns)
{
	uint64_t missing = (uint64_t)((int64_t)needed_ns - available_ns);

	return most(LEAST_WAIT_NS, least(missing * 100 / percent, MOST_WAIT_NS));
}

uint64_t throttle_wait_ns(struct throttle *throttle, const struct throttle_class *class,
			  uint32_t percent, uint64_t batch_ns, uint64_t pending_ns)
{
	int64_t available = throttle_available(&throttle->account, pending_ns);
	bool is_long = class->samples != 0 && class->cost_ns > batch_ns;
	uint64_t needed = is_long ? 1 : batch_ns;

	if (available >= (throttle->is_broke ? (int64_t)needed : 1)) {
		throttle->is_broke = false;
		return 0;
	}
	throttle->is_broke = true;
	return throttle_lack_ns(available, percent, needed);
}
