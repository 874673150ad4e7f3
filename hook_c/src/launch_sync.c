// SPDX-License-Identifier: Apache-2.0
/* Waits of the program. They are not delayed; they tell when the card has run dry, and the arbiter
 * that a thread is busy with the card. */
#include "hook_launch.h"
#include "launch_marks.h"

#define SYNC_MARK_NS 500000 /* of predicted work, before a wait for it */
#define SHORT_WAIT_NS 12000 /* a wait for nothing */
#define LAST_MARK_NS 8000   /* from the end of the work to that of the mark behind it */

/* Under the lock. */
static void count_sync(struct launch_card *card, uint32_t change)
{
	__atomic_add_fetch(&card->syncing, change, __ATOMIC_RELAXED);
	card_publish(card);
}

/* A wait may take long for a copy, or for the driver's own affairs, when our work has long ended:
 * what it ends with is no end of ours then, and the arbiter need not know of it. */
static void begin_wait(struct hook_call *call, struct launch_card *card)
{
	struct throttle *throttle = &card->throttle;

	card_lock(card);
	if (throttle_is_in_doubt(throttle, call->begun_ns) && !marks_is_busy(card) &&
	    throttle_is_in_doubt(throttle, call->begun_ns)) {
		throttle_note_tail(throttle, throttle->open.last);
		throttle_dry(throttle, call->begun_ns);
		card_publish_pending(card); /* its end was seen: it is not charged beyond it */
	}
	call->launches = throttle_launches(throttle);
	call->is_counted = !throttle_is_dry(throttle);
	if (call->is_counted)
		count_sync(card, 1);
	card_unlock(card);
}

/* The card that the call may wait for; NULL: there is none, or no limit. */
static struct launch_card *card_at_work(void)
{
	struct tenant *tenant = launch_is_free() ? NULL : tenant_joined();
	struct launch_card *cards = __atomic_load_n(&launch_words.cards, __ATOMIC_ACQUIRE);

	return tenant == NULL || cards == NULL ? NULL : card_of(tenant, NULL);
}

/* `most_ns` of predicted work may have no mark behind it when the wait begins: its return tells
 * when that has ended. */
static void begin_sync(struct hook_call *call, uint64_t most_ns)
{
	struct launch_card *card = call->gate = card_at_work();

	if (card == NULL)
		return;
	call->begun_ns = clock_near_ns();
	begin_wait(call, card);
	/* One of several streams tells of itself alone. */
	if (call->is_counted &&
	    (__atomic_load_n(&card->throttle.open.predicted_ns, __ATOMIC_RELAXED) >= most_ns ||
	     __atomic_load_n(&card->only_stream, __ATOMIC_RELAXED) == SEVERAL_STREAMS))
		marks_set(card, NO_STREAM, 0);
}

int sync_begin(struct hook_call *call)
{
	wait_begin(call);
	begin_sync(call, SYNC_MARK_NS);
	return CUDA_SUCCESS;
}

int event_sync_begin(struct hook_call *call)
{
	wait_begin(call);
	begin_sync(call, 1);
	return CUDA_SUCCESS;
}

int copy_begin(struct hook_call *call)
{
	call->giving = NULL;
	begin_sync(call, 1);
	return CUDA_SUCCESS;
}

/* Under the lock. A mark in the default stream of old is a barrier between streams that need not
 * wait for each other: behind its own launch it changes nothing, later it does. */
static bool is_legacy(const struct launch_card *card)
{
	return card->stream_count != 0 && (uintptr_t)card->stream[0] < STREAM_PER_THREAD;
}

/* Work that takes longer than predicted has a mark behind it as soon as the program asks for it. */
int query_begin(struct hook_call *call)
{
	struct launch_card *card = call->gate = card_at_work();

	if (card == NULL)
		return CUDA_SUCCESS;
	call->begun_ns = clock_near_ns();
	card_lock(card);

	call->is_counted = throttle_is_in_doubt(&card->throttle, call->begun_ns);

	bool must_mark = call->is_counted && !is_legacy(card);

	card_unlock(card);
	if (must_mark)
		marks_set(card, NO_STREAM, 0);
	return CUDA_SUCCESS;
}

/* Takes account of the marks behind what the program knows to have ended, since it may end itself
 * at once. Waits for them a little: once for each mark, as there may be other work before it. */
static void await_marks(struct launch_card *card)
{
	uint32_t head = __atomic_load_n(&card->head, __ATOMIC_RELAXED);

	marks_harvest(card);
	if (__atomic_exchange_n(&card->awaited, head, __ATOMIC_RELAXED) == head)
		return;
	for (uint64_t until_ns = clock_near_ns() + LAST_MARK_NS;
	     marks_are_left(card) && clock_near_ns() < until_ns;)
		marks_harvest(card);
}

/* Asks the card whether what has no mark has ended. Not while it is predicted to be at work and was
 * asked since the last launch, nor in streams that must not be touched. */
static void ask(struct launch_card *card, bool has_ended)
{
	struct throttle *throttle = &card->throttle;
	uint64_t now_ns = clock_near_ns();

	card_lock(card);

	uint64_t launches = throttle_launches(throttle);
	bool is_in_doubt = throttle_is_in_doubt(throttle, now_ns);
	bool is_due =
		has_ended && (launches != card->asked_launches || now_ns >= throttle->queue_end_ns);

	if (throttle_is_dry(throttle) || throttle->finished != throttle->closed_launches ||
	    !(is_in_doubt || is_due) ||
	    __atomic_load_n(&launch_words.captures, __ATOMIC_RELAXED) != 0) {
		card_unlock(card);
		return;
	}
	card->asked_launches = launches;
	if (is_in_doubt)
		throttle_note_tail(throttle, throttle->open.last);

	bool is_busy = marks_is_busy(card);

	/* What another thread has launched meanwhile was not asked for. */
	if (launches == throttle_launches(throttle)) {
		if (!is_busy) {
			throttle_dry(throttle, now_ns);
			card->only_stream = NO_STREAM;
		} else if (is_in_doubt) {
			throttle_not_dry(throttle, now_ns);
		}
		card_publish(card);
		card_publish_pending(card);
	}
	card_unlock(card);
}

/* The program may end as soon as it knows that its work has. */
int query_end(struct hook_call *call, int status)
{
	struct launch_card *card = call->gate;

	if (card == NULL)
		return status;
	if (status == CUDA_SUCCESS)
		await_marks(card);
	else if (status == CUDA_ERROR_NOT_READY && call->is_counted)
		marks_harvest(card);
	else
		return status;
	ask(card, status == CUDA_SUCCESS);
	return status;
}

/* Around a call that waits for the card inside the driver, or that makes something tell the program
 * of the end of its work which no hook sees. */
int hidden_wait_begin(void)
{
	struct launch_card *card = card_at_work();
	bool is_dry;

	if (card == NULL)
		return CUDA_SUCCESS;
	card_lock(card);
	is_dry = throttle_is_dry(&card->throttle);
	card_unlock(card);
	if (!is_dry)
		marks_set(card, NO_STREAM, 0);
	return CUDA_SUCCESS;
}

int hidden_wait_end(int status)
{
	struct launch_card *card = card_at_work();

	if (card != NULL)
		marks_harvest(card);
	return status;
}

/* Whether the wait has shown that the open interval takes far longer than anybody could know: that
 * is measured now, since the program may end before it launches again. */
static bool is_surprised(const struct launch_card *card)
{
	const struct throttle_interval *open = &card->throttle.open;
	uint64_t begun_ns = open->start_ns + open->idle_ns + open->predicted_ns;

	return open->launches != 0 && card->throttle.is_known_dry &&
	       card->throttle.queue_end_ns > begun_ns + THROTTLE_SURPRISE_NS;
}

static int end_sync(struct hook_call *call, int status, bool is_all, void *stream)
{
	struct launch_card *card = call->gate;

	if (card == NULL)
		return wait_end(call, status);

	uint64_t now_ns = clock_near_ns();
	bool must_measure;

	marks_harvest(card);
	card_lock(card);
	/* What another thread has launched meanwhile was not waited for. */
	if (status == CUDA_SUCCESS && (is_all || card->only_stream == stream) &&
	    call->launches == throttle_launches(&card->throttle)) {
		throttle_drained(&card->throttle, now_ns - call->begun_ns > SHORT_WAIT_NS, now_ns);
		card->only_stream = NO_STREAM;
	}
	must_measure = is_surprised(card);
	if (call->is_counted) {
		count_sync(card, UINT32_MAX);
		card_publish_pending(card);
	}
	card_unlock(card);
	if (must_measure) {
		marks_set(card, NO_STREAM, 0);
		await_marks(card);
	}
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
			stream == (void *)STREAM_PER_THREAD ? NO_STREAM : stream);
}
