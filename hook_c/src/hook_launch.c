// SPDX-License-Identifier: Apache-2.0
/* The compute limit at the driver's door. throttle.h says how time is counted, launch_marks.h how
 * it is measured, launch_pass.h who waits.
 *
 * A launch waits, and nothing else does: not a copy, not a synchronisation. What is launched in a
 * stream that is being captured counts when its graph is launched. */
#include "hook_launch.h"

#include "launch_marks.h"
#include "launch_pass.h"
#include "launch_policy.h"
#include "launch_streams.h"
#include "launch_window.h"

static uint64_t context_of(void *stream)
{
	void *context = NULL;

	(void)stream_device(stream, &context);
	return (uint64_t)(uintptr_t)context;
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

/* Under the lock. Who has the card to itself is not looked at while it lives; what it leaves when
 * it ends counts from the first launch on that is not measured. */
static inline __attribute__((always_inline)) void
add_launch(struct launch_card *card, struct throttle_class *class, bool has_end, uint64_t now_ns)
{
	bool is_first = throttle_is_dry(&card->throttle);

	throttle_add(&card->throttle, class, has_end, now_ns);
	if (card->window_end != &never_ends)
		window_note_launch(card);
	if (card->gate_end != &never_ends || is_first)
		card_publish(card);
	if (is_first)
		card_publish_pending(card);
}

/* Adds a launch that may go, with the marks that it needs. Under the lock, which it lets go of;
 * `must_mark`: one before it. */
static void add_measured(struct hook_call *call, struct launch_card *card, struct launch launch,
			 void *stream, uint64_t context, bool must_mark)
{
	struct throttle *throttle = &card->throttle;
	uint64_t now_ns = clock_ns();

	if (throttle_is_in_doubt(throttle, now_ns)) {
		if (marks_is_busy(card)) {
			now_ns = clock_ns();
			must_mark |= throttle_not_dry(throttle, now_ns);
		} else if (throttle_is_in_doubt(throttle, now_ns)) {
			throttle_note_tail(throttle, throttle->open.last);
		}
	} else {
		throttle_check_tail(throttle, now_ns);
	}

	/* Only now: the lock was let go of to look. */
	struct throttle_class *class = throttle_class(throttle, launch.key);
	bool is_sampled = throttle_must_sample(class) || class->cost_ns >= THROTTLE_LONG_NS;

	must_mark |= throttle_must_part(throttle, class);
	/* A sample lies between two marks of its own. */
	must_mark |=
		is_sampled && (throttle->open.launches != 0 || throttle->queue_end_ns < now_ns);
	if (must_mark || is_apart(card, stream, context) || throttle->times_idle ||
	    throttle_is_old(throttle, now_ns)) {
		card_unlock(card);
		marks_set(card, stream, context);
		card_lock(card);
		class = throttle_class(throttle, launch.key);
		now_ns = clock_ns();
	}
	call->gate = card;
	call->is_marked = is_sampled || (throttle_is_due(throttle, class) &&
					 (throttle->open.launches != 0 || class->doubt_ns > 0));
	throttle_look(throttle, card->gate_end != &never_ends || card->window_end != &never_ends);
	note_stream(card, stream, context);
	class->gaps = launch.gaps;
	class->is_graph = launch.is_graph;
	class->is_dependent = launch.is_dependent;
	add_launch(card, class, true, now_ns);
	card_publish(card);
	card_publish_pending(card);
	card_unlock(card);
}

/* A launch that has to ask: by card, stream, context, limit, credit. */
static void gate_slowly(struct hook_call *call, struct launch_card *card, struct tenant *tenant,
			struct launch launch, void *stream)
{
	if (stream_is_captured(stream))
		return;
	if (policy_try_to_be_free(tenant, clock_ns()))
		return;

	uint64_t context = context_of(stream);

	if (context == 0)
		return; /* the driver says so itself */
	marks_begin_line(card, context, stream);

	struct launch_waited waited = {0};

	launch_pass(card, tenant, launch.key, &waited);
	/* A turn begins with a mark: the card's change of contexts is nobody's work. So does, now
	 * and then, what comes after a wait for credit. */
	add_measured(call, card, launch, stream, context,
		     waited.for_turn || (waited.for_credit && marks_have_drifted(card)));
}

static inline struct launch_card *card_at_hand(struct tenant *tenant, void *stream)
{
	struct launch_card *only = __atomic_load_n(&launch_words.only_card, __ATOMIC_RELAXED);

	return only != NULL && __atomic_load_n(&only->is_ready, __ATOMIC_ACQUIRE) != 0
		       ? only
		       : card_of(tenant, stream);
}

/* Until when launches may start: the end of the turn, or of the window. */
static inline uint64_t end_of_turn(const struct launch_card *card)
{
	uint64_t end_ns = UINT64_MAX;

	if (card->gate_end != &never_ends)
		end_ns = __atomic_load_n(card->gate_end, __ATOMIC_RELAXED);
	if (card->window_end != &never_ends) {
		uint64_t window_ns = __atomic_load_n(card->window_end, __ATOMIC_RELAXED);

		end_ns = window_ns < end_ns ? window_ns : end_ns;
	}
	return end_ns;
}

/* Under the lock. */
static inline enum gate_way add_at_once(struct launch_card *card, uint64_t key, const void *stream,
					bool has_end, uint64_t now_ns)
{
	if (card->stream_count > 1 || card->stream[0] != stream || card->context == 0 ||
	    __atomic_load_n(&launch_words.captures, __ATOMIC_RELAXED) != 0 ||
	    __atomic_load_n(&launch_words.contexts, __ATOMIC_RELAXED) != 1)
		return GATE_ASKS;

	struct throttle_class *class = throttle_class(&card->throttle, key);
	struct throttle_gate gate = {.end_ns = end_of_turn(card),
				     .window_ns = card_window(card, class)};

	if (!throttle_passes(&card->throttle, class, &gate, now_ns))
		return GATE_ASKS;
	if (throttle_must_measure(&card->throttle, class, now_ns))
		return GATE_MEASURES;
	if (!has_end && throttle_must_end(&card->throttle, now_ns))
		return GATE_ASKS;
	card->stream_count = 1;
	if (card->only_stream == NO_STREAM)
		card->only_stream = card->stream[0];
	add_launch(card, class, has_end, now_ns);
	return card->throttle.started_ns == 0 ? GATE_PASSED : GATE_STARTED;
}

enum gate_way gate_try(struct launch_card *card, uint64_t key, const void *stream, bool has_end)
{
	if (card == NULL || __atomic_load_n(&card->is_ready, __ATOMIC_ACQUIRE) == 0)
		return GATE_ASKS;

	/* Before the lock: meanwhile the processor gets done with what the driver has written. */
	uint64_t now_ns = clock_near_ns();

	card_lock(card);

	enum gate_way way = add_at_once(card, key, stream, has_end, now_ns);

	card_unlock(card);
	return way;
}

void gate_begin(struct hook_call *call, struct tenant *tenant, struct launch launch, void *stream)
{
	struct launch_card *card = card_at_hand(tenant, stream);
	enum gate_way way = gate_try(card, launch.key, stream, true);

	call->gate = way == GATE_STARTED ? card : NULL;
	call->is_marked = false;
	if (card == NULL || way == GATE_PASSED || way == GATE_STARTED)
		return;
	if (way == GATE_ASKS) {
		gate_slowly(call, card, tenant, launch, stream);
		return;
	}
	marks_harvest(card);
	card_lock(card);
	if (card->context != 0 && __atomic_load_n(&launch_words.contexts, __ATOMIC_RELAXED) == 1) {
		add_measured(call, card, launch, stream, card->context, false);
		return;
	}
	card_unlock(card);
	gate_slowly(call, card, tenant, launch, stream);
}

void gate_end(struct hook_call *call)
{
	struct launch_card *card = call->gate;

	if (card == NULL)
		return;
	card_lock(card);
	throttle_launched(&card->throttle, clock_ns());
	card_publish(card);
	card_unlock(card);
	if (call->is_marked)
		marks_set(card, NO_STREAM, 0);
}
