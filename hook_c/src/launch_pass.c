// SPDX-License-Identifier: Apache-2.0
#include "launch_pass.h"

#include "launch_marks.h"
#include "launch_policy.h"
#include "launch_window.h"

#define LONG_WINDOW_NS                                                                             \
	5000000 /* under way: of long kernels, of several cards, of who has most of one */
#define UNKNOWN_WAITS 2500 /* of 20 us, for launches of a kernel to be measured */
#define UNKNOWN_LOOKS 40   /* before the first of them */
#define LOOK_NS 5000
#define SHORT_SLEEP_NS 20000
#define POLL_NS 50000
#define LONG_NS UINT64_C(5000000) /* half of it left of a turn is enough for any kernel */
#define AWAITED_NS 100000         /* beyond the end of a turn, and a kernel */
#define ROUND_NS 40000000         /* who waits longer for a turn keeps the credit of that time */
#define EARLY_NS 500000           /* a turn is told of at most so long before it begins */
#define GATE_NS 2000000           /* after which a thread in want says so again */

enum verdict {
	VERDICT_GO,
	VERDICT_SLEEP,
	VERDICT_FULL,
	VERDICT_GATE,
	VERDICT_SPIN,
	VERDICT_MEASURE,
};

/* When the turn begins, or has begun, that was given last; 0: turns have no beginnings. What is
 * launched before would make the card change between us and the owner before us, who still has work
 * on it. */
static uint64_t turn_begins(const struct launch_card *card)
{
	return card->gate_end == &never_ends
		       ? 0
		       : __atomic_load_n(&card->limits->grant_from_ns, __ATOMIC_RELAXED);
}

/* Whether nothing was launched in the turn yet. */
static bool is_first(const struct launch_card *card)
{
	uint64_t begin_ns = turn_begins(card);

	return begin_ns != 0 && card->throttle.queue_end_ns <= begin_ns;
}

/* Whether most of a long kernel would lie beyond the turn: better a short turn than one that takes
 * half of another. The first one of a turn goes whatever it takes, and so do those that another
 * card may wait for. */
static bool is_too_long(const struct launch_card *card, const struct throttle_class *class,
			uint64_t start_ns, uint64_t end_ns)
{
	uint64_t most_ns = (class->cost_ns < LONG_NS ? class->cost_ns : LONG_NS) / 2;

	return class->cost_ns >= THROTTLE_LONG_NS && end_ns - start_ns < most_ns &&
	       card->window_end == &never_ends && turn_begins(card) != 0 && !is_first(card);
}

/* Whether a turn that is over has to go on for what another card's kernel may wait for. */
static bool is_awaited(const struct launch_card *card, const struct tenant *tenant,
		       const struct throttle_class *class, uint64_t start_ns, uint64_t end_ns)
{
	return card->window_end != &never_ends && start_ns < end_ns + class->cost_ns + AWAITED_NS &&
	       window_is_behind(card, tenant);
}

/* Predicted work of short kernels that may be under way, and go at an old price. Who has most of
 * the card pays back soon what it took too much, and loses most when its thread wakes late. */
static uint64_t window_under(const struct launch_card *card, uint32_t percent)
{
	if (card->window_end != &never_ends)
		return LONG_WINDOW_NS;
	if (card->gate_end != &never_ends)
		return WINDOW_NS;

	uint64_t window_ns = percent < 100 ? WINDOW_NS * 100 / (100 - percent) : LONG_WINDOW_NS;

	return window_ns < LONG_WINDOW_NS ? window_ns : LONG_WINDOW_NS;
}

/* Predicted work that may be under way. Each long kernel has a mark of its own, and the end of the
 * turn is bound enough. */
static uint64_t window_of(const struct launch_card *card, const struct throttle_class *class,
			  uint64_t end_ns)
{
	if (class->cost_ns < THROTTLE_LONG_NS)
		return card_window(card, class);
	return end_ns == UINT64_MAX ? LONG_WINDOW_NS : UINT64_MAX;
}

/* Under the lock: whether the launch goes since the card does not get on. */
static bool is_stalled(const struct launch_card *card, const struct throttle_class *class,
		       uint64_t now_ns)
{
	const struct mark *oldest = &card->mark[card->tail % MARKS];
	uint64_t begun_ns =
		oldest->interval.launches != 0 ? oldest->interval.begun_ns : oldest->closed_ns;

	if (__atomic_load_n(&oldest->state, __ATOMIC_ACQUIRE) != MARK_RECORDED)
		return false;
	if (begun_ns < card->throttle.last_end_ns)
		begun_ns = card->throttle.last_end_ns;
	return throttle_is_stalled(&card->throttle, class, &oldest->interval, begun_ns, now_ns);
}

/* Under the lock. `gives_up`: what is not measured yet is no longer waited for. */
static enum verdict judge(struct launch_card *card, const struct tenant *tenant,
			  struct throttle_class *class, const struct policy *policy,
			  uint64_t pending_ns, uint64_t now_ns, bool gives_up, uint64_t *sleep_ns)
{
	uint64_t start_ns = throttle_start(&card->throttle, now_ns);
	/* Before the turn's beginning is read, which is written first. */
	uint64_t end_ns = __atomic_load_n(card->gate_end, __ATOMIC_ACQUIRE);

	bool goes_on = is_stalled(card, class, now_ns);

	*sleep_ns = SHORT_SLEEP_NS;
	if ((throttle_is_unknown(&card->throttle, class) ||
	     !throttle_begin_batch(&card->throttle, class)) &&
	    !goes_on && !gives_up)
		return VERDICT_MEASURE;
	if ((start_ns >= end_ns && !is_awaited(card, tenant, class, start_ns, end_ns)) ||
	    is_too_long(card, class, start_ns, end_ns))
		return VERDICT_GATE;
	if (goes_on)
		return VERDICT_GO;
	if (card->window_end != &never_ends) {
		*sleep_ns = window_wait(card, tenant, pending_ns, end_ns != UINT64_MAX, start_ns,
					now_ns);
	} else if (policy->percent < 100)
		*sleep_ns = throttle_wait_ns(&card->throttle, class, policy->percent,
					     policy->batch_ns, pending_ns);
	else
		*sleep_ns = 0;
	if (*sleep_ns != 0)
		return VERDICT_SLEEP;
	/* A mark that cannot be taken because all are: as good as too much under way. */
	if (start_ns - now_ns >= window_of(card, class, end_ns) ||
	    card->mark[card->head % MARKS].state != MARK_FREE) {
		*sleep_ns = class->fickle != 0 ? POLL_NS : card->window_ns / 4;
		return VERDICT_FULL;
	}
	return VERDICT_GO;
}

/* Our own queue running dry is what the arbiter waits for: looked at every 50 us until it is. */
static void wait_at_gate(struct launch_card *card, uint32_t seen)
{
	uint64_t now_ns = clock_ns();
	bool is_dry = !marks_are_left(card); /* else nothing tells how far it is */

	if (now_ns - __atomic_load_n(&card->wanted_ns, __ATOMIC_RELAXED) >= GATE_NS ||
	    card->wanted_ns == 0 || seen != __atomic_load_n(&card->wanted_gate, __ATOMIC_RELAXED)) {
		__atomic_store_n(&card->wanted_ns, now_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&card->wanted_gate, seen, __ATOMIC_RELAXED);
		__atomic_add_fetch(&card->turn->want, 1, __ATOMIC_RELEASE);
		clock_wake(&card->turn->want);
	}
	clock_wait(&card->limits->gate, seen, is_dry ? GATE_NS : POLL_NS);
}

struct throttle_class *launch_pass(struct launch_card *card, struct tenant *tenant, uint64_t key,
				   struct launch_waited *waited)
{
	for (unsigned int unknown = 0;;) {
		marks_harvest_all(tenant);
		region_tend(&tenant->region, false);

		uint32_t seen = card->limits == NULL
					? 0
					: __atomic_load_n(&card->limits->gate, __ATOMIC_ACQUIRE);
		uint64_t now_ns = clock_ns();
		struct policy policy = policy_of(tenant, card->index, now_ns);
		uint32_t seen_window = __atomic_load_n(window_word(tenant), __ATOMIC_ACQUIRE);
		uint64_t sleep_ns;

		card_lock(card);
		card->gate_end = policy.is_gated ? &card->limits->grant_until_ns : &never_ends;
		card->window_end =
			policy_is_joint(tenant) && (policy.percent < 100 || policy.is_gated)
				? &tenant->region.usage->turn[0].window_end_ns
				: &never_ends;
		card->window_ns = window_under(card, policy.percent);
		card_publish_pending(card);
		card->throttle.may_wait = card->window_end != &never_ends;

		uint64_t pending_ns = card_pending_of_container(tenant, card->index);

		bool is_kept_long = card->gated_ns != 0 && now_ns > card->gated_ns + ROUND_NS;
		uint64_t more_ns = is_kept_long ? policy.kept_ns : 0;

		throttle_refill(&card->throttle.account, policy.percent,
				policy.horizon_ns + more_ns, policy.kept_ns - more_ns, pending_ns,
				now_ns);
		throttle_repay(&card->throttle);

		struct throttle_class *class = throttle_class(&card->throttle, key);

		/* Another card's launch may be what it waits for. */
		bool gives_up = card->throttle.may_wait && unknown > UNKNOWN_LOOKS + UNKNOWN_WAITS;

		if (gives_up)
			throttle_give_up(class);

		enum verdict verdict = judge(card, tenant, class, &policy, pending_ns, now_ns,
					     gives_up, &sleep_ns);
		uint64_t begin_ns = turn_begins(card);

		if (verdict == VERDICT_GO && begin_ns > now_ns && begin_ns < now_ns + EARLY_NS)
			verdict = VERDICT_SPIN;
		if (verdict == VERDICT_GO) {
			card->wanted_ns = 0;
			card->gated_ns = 0;
			return class;
		}
		bool is_windowed = card->window_end != &never_ends;
		bool is_fickle = class->fickle != 0;

		if (verdict == VERDICT_GATE && card->gated_ns == 0)
			card->gated_ns = now_ns;
		card_unlock(card);
		if (verdict != VERDICT_FULL || is_fickle || !marks_are_left(card))
			marks_set(card, NO_STREAM, 0);
		waited->for_turn |= verdict == VERDICT_GATE;
		waited->for_credit |= verdict == VERDICT_SLEEP;
		if (verdict == VERDICT_GATE)
			wait_at_gate(card, seen);
		else if (verdict == VERDICT_SPIN)
			clock_spin(begin_ns);
		else if (verdict == VERDICT_MEASURE && ++unknown <= UNKNOWN_LOOKS)
			clock_spin(now_ns + LOOK_NS);
		else if (is_windowed)
			clock_wait(window_word(tenant), seen_window, sleep_ns);
		else
			clock_sleep(sleep_ns);
	}
}
