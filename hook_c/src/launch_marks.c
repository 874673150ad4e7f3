// SPDX-License-Identifier: Apache-2.0
#include "launch_marks.h"

#include "hook_launch.h"
#include "launch_streams.h"

#define DRIFT_NS 50000000 /* in which clocks of 100 ppm come to differ by 5 us */

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

/* Events are made in the current context, and recorded in streams of their own; so is what is asked
 * of a context's default stream. True: leave_context must follow. */
static bool enter_context(uint64_t context)
{
	void *current = NULL;

	driver.cuCtxGetCurrent(&current);
	return (uint64_t)(uintptr_t)current != context && context != 0 &&
	       driver.cuCtxPushCurrent_v2((void *)(uintptr_t)context) == CUDA_SUCCESS; /* NOLINT */
}

static void leave_context(bool was_entered)
{
	void *left;

	if (was_entered)
		driver.cuCtxPopCurrent_v2(&left);
}

/* The context is current. */
static void *take_event(struct launch_card *card, uint64_t context)
{
	void *event = NULL;

	card_lock(card);

	struct line *line = line_of(card, context);

	if (line != NULL && line->count != 0)
		event = line->spare[--line->count];
	card_unlock(card);
	if (event != NULL || driver.cuEventCreate(&event, 0) == CUDA_SUCCESS)
		return event;
	return NULL;
}

static void give_event(struct launch_card *card, uint64_t context, void *event)
{
	bool is_kept;

	card_lock(card);

	struct line *line = line_of(card, context);

	is_kept = line != NULL && line->count < EVENTS;
	if (is_kept)
		line->spare[line->count++] = event;
	card_unlock(card);
	if (!is_kept)
		driver.cuEventDestroy_v2(event);
}

/* The same. One that cannot be recorded is of no use to anybody. */
static void *record(struct launch_card *card, uint64_t context, void *stream)
{
	void *event = take_event(card, context);

	if (event == NULL || driver.cuEventRecord(event, stream) == CUDA_SUCCESS)
		return event;
	driver.cuEventDestroy_v2(event);
	return NULL;
}

/* Events behind what was launched. Where there can be none it is waited for: nothing else would
 * tell when it ends. Nothing of the open interval runs in a stream that must not be touched: it was
 * left before its capture. */
static uint32_t record_all(struct launch_card *card, uint64_t context, void *const *stream,
			   unsigned int count, void **events)
{
	uint32_t recorded = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (stream_is_untouchable(stream[i]))
			continue;
		events[recorded] = record(card, context, stream[i]);
		if (events[recorded] != NULL)
			recorded++;
		else
			driver.cuStreamSynchronize(stream[i]);
	}
	return recorded;
}

void marks_begin_line(struct launch_card *card, uint64_t context, void *stream)
{
	card_lock(card);

	struct line *line = line_of(card, context);
	bool is_new = line != NULL && line->reference == NULL;

	card_unlock(card);
	if (!is_new)
		return;

	uint64_t now_ns = clock_ns();
	bool was_entered = enter_context(context);
	void *event = stream_is_untouchable(stream) ? NULL : record(card, context, stream);

	leave_context(was_entered);
	card_lock(card);
	line = line_of(card, context);
	if (event != NULL && line != NULL && line->reference == NULL) {
		line->reference = event;
		line->reference_ns = now_ns + THROTTLE_START_NS;
		event = NULL;
	}
	card_unlock(card);
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

void marks_set(struct launch_card *card, void *start, uint64_t context)
{
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *stream[STREAMS];
	unsigned int count;
	bool is_idle;

	card_lock(card);

	struct mark *mark = &card->mark[card->head % MARKS];

	if (mark->state != MARK_FREE || (card->throttle.open.launches == 0 && start == NO_STREAM)) {
		card_unlock(card);
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
	mark->context = card->stream_count != 0 ? card->context : context;
	mark->closed_ns = clock_ns();
	mark->latest_ns = 0;
	mark->interval = throttle_close(&card->throttle);
	mark->interval.is_in_order = count == 1;
	card->stream_count = 0; /* the next launch is likely to be in the same one */

	uint64_t dry_ns = card->throttle.queue_end_ns;
	bool is_known = card->throttle.is_known_dry;

	card_unlock(card);

	bool was_entered = enter_context(mark->context);

	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	is_idle = mark->closed_ns > dry_ns && are_idle(stream, count);
	mark->count = record_all(card, mark->context, stream, count, mark->event);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	leave_context(was_entered);
	__atomic_sub_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	/* A copy may be under way by now: until just before, a card that is known to have been dry
	 * did nothing of ours. */
	if (is_idle || (is_known && mark->closed_ns > dry_ns)) {
		uint64_t now_ns = clock_ns();

		card_lock(card);
		if (mark->interval.launches != 0 && !is_known &&
		    now_ns - dry_ns > THROTTLE_DOUBT_NS)
			throttle_note_tail(&card->throttle, mark->interval.last);
		if (mark->interval.launches != 0)
			throttle_late(&card->throttle, &mark->interval, now_ns - dry_ns);
		/* Where no other container's work can be in between, an idle card comes to it at
		 * once. */
		if (is_idle && card->gate_end == &never_ends) {
			mark->latest_ns = now_ns + THROTTLE_START_NS;
			card->aligned_ns = now_ns;
		}
		if (is_idle && start != NO_STREAM)
			throttle_bracket(&card->throttle, &mark->interval, now_ns);
		card_unlock(card);
	}
	__atomic_store_n(&mark->state, MARK_RECORDED, __ATOMIC_RELEASE);
}

bool marks_have_drifted(const struct launch_card *card)
{
	uint64_t now_ns = clock_ns();

	return card->gate_end == &never_ends && card->throttle.queue_end_ns < now_ns &&
	       now_ns - card->aligned_ns > DRIFT_NS;
}

/* When the last of the mark's events happened: 0 if one has not. */
static uint64_t end_of(const struct mark *mark, const struct line *line, uint64_t now_ns,
		       void **last)
{
	uint64_t end = 0;

	*last = NULL;
	if (mark->count == 0)
		return now_ns;
	for (unsigned int i = 0; i < mark->count; i++) {
		float passed_ms = 0;
		/* Of a context without a line it is known whether, but not when. */
		bool is_timed = line != NULL && line->reference != NULL;
		int status = is_timed ? driver.cuEventElapsedTime(&passed_ms, line->reference,
								  mark->event[i])
				      : driver.cuEventQuery(mark->event[i]);
		uint64_t then = now_ns;

		if (status == CUDA_ERROR_NOT_READY)
			return 0;
		if (status == CUDA_SUCCESS && is_timed)
			then = line->reference_ns + (uint64_t)(int64_t)((double)passed_ms * 1e6);
		if (then >= end) {
			end = then;
			*last = status == CUDA_SUCCESS && is_timed ? mark->event[i] : NULL;
		}
	}
	return end;
}

/* Takes account of the oldest mark; false: it has not been reached. */
static bool finish(struct launch_card *card, struct mark *mark)
{
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *last;

	card_lock(card);

	struct line *line = line_of(card, mark->context);

	card_unlock(card);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);

	uint64_t asked_ns = clock_ns();
	uint64_t end_ns = end_of(mark, line, asked_ns, &last);

	driver.cuThreadExchangeStreamCaptureMode(&relaxed);

	/* Once the answers are there: an event that has happened has done so by now, and none
	 * happens before it was recorded, or before it was seen unfinished. Keeps the card's clock
	 * and ours together, from both sides: the first event of all may have had to wait for
	 * another container's turn to end, and its time is a guess. */
	uint64_t now_ns = clock_ns();

	card_lock(card);
	if (end_ns == 0) {
		/* Not of a mark before the first launch: what keeps that waiting is what was
		 * launched without a limit, and to be paid for. */
		if (mark->interval.launches != 0)
			mark->closed_ns = asked_ns;
		throttle_unfinished(&card->throttle, &mark->interval, now_ns);
		card_publish(card);
		card_publish_pending(card);
		card_unlock(card);
		return false;
	}
	if (mark->latest_ns != 0 && end_ns > mark->latest_ns)
		end_ns = mark->latest_ns;
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
		throttle_charge_own(&card->throttle, busy_ns,
				    throttle_surprise_ns(&card->throttle, &mark->interval, busy_ns),
				    end_ns);

		struct vgpu_usage_device *seen = card_published(card);

		__atomic_store_n(&seen->busy_ns, card->throttle.busy_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&seen->launches, seen->launches + mark->interval.launches,
				 __ATOMIC_RELAXED);
	}
	card_publish_pending(card);
	card_publish(card);
	card_unlock(card);
	for (unsigned int i = 0; i < mark->count; i++)
		give_event(card, mark->context, mark->event[i]);
	return true;
}

void marks_harvest(struct launch_card *card)
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

void marks_harvest_all(const struct tenant *tenant)
{
	struct launch_card *cards = __atomic_load_n(&launch_words.cards, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; cards != NULL && i < tenant->limits.count; i++)
		if (__atomic_load_n(&cards[i].is_ready, __ATOMIC_ACQUIRE) != 0)
			marks_harvest(&cards[i]);
}

bool marks_is_busy(struct launch_card *card)
{
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *stream[STREAMS];
	unsigned int count = card->stream_count;
	uint64_t context = card->context;
	bool is_idle;

	for (unsigned int i = 0; i < count; i++)
		stream[i] = card->stream[i];
	__atomic_add_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	card_unlock(card);

	bool was_entered = enter_context(context);

	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	is_idle = are_idle(stream, count);
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	leave_context(was_entered);
	__atomic_sub_fetch(&card->touching, 1, __ATOMIC_ACQ_REL);
	card_lock(card);
	return !is_idle;
}
