// SPDX-License-Identifier: Apache-2.0
/* Waits of the program. They are not delayed; they tell when the card has run dry, and the arbiter
 * that a thread is busy with the card. */
#include "hook_launch.h"
#include "launch_marks.h"

#define SYNC_MARK_NS 500000 /* of predicted work, before a wait for it */
#define SHORT_WAIT_NS 12000 /* a wait for nothing */

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
	card_lock(card);
	if (throttle_is_in_doubt(&card->throttle, call->begun_ns) && !marks_is_busy(card) &&
	    throttle_is_in_doubt(&card->throttle, call->begun_ns))
		throttle_dry(&card->throttle);
	call->launches = throttle_launches(&card->throttle);
	call->is_counted = !throttle_is_dry(&card->throttle);
	if (call->is_counted)
		count_sync(card, 1);
	card_unlock(card);
}

int sync_begin(struct hook_call *call)
{
	struct tenant *tenant = launch_is_free() ? NULL : tenant_joined();
	struct launch_card *cards = __atomic_load_n(&launch_words.cards, __ATOMIC_ACQUIRE);

	call->gate = NULL;
	wait_begin(call);
	if (tenant == NULL || cards == NULL)
		return CUDA_SUCCESS;

	struct launch_card *card = card_of(tenant, NULL);

	if (card == NULL)
		return CUDA_SUCCESS;
	call->gate = card;
	call->begun_ns = clock_near_ns();
	begin_wait(call, card);
	if (__atomic_load_n(&card->throttle.open.predicted_ns, __ATOMIC_RELAXED) >= SYNC_MARK_NS)
		marks_set(card, NO_STREAM, 0);
	return CUDA_SUCCESS;
}

static int end_sync(struct hook_call *call, int status, bool is_all, void *stream)
{
	struct launch_card *card = call->gate;

	if (card == NULL)
		return wait_end(call, status);
	uint64_t now_ns = clock_near_ns();

	marks_harvest(card);
	card_lock(card);
	/* What another thread has launched meanwhile was not waited for. */
	if (status == CUDA_SUCCESS && (is_all || card->only_stream == stream) &&
	    call->launches == throttle_launches(&card->throttle)) {
		throttle_drained(&card->throttle, now_ns - call->begun_ns > SHORT_WAIT_NS, now_ns);
		card->only_stream = NO_STREAM;
	}
	if (call->is_counted)
		count_sync(card, UINT32_MAX);
	card_unlock(card);
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
