// SPDX-License-Identifier: Apache-2.0
/* What happens to contexts and streams that marks stand in: they are destroyed, or captured. */
#include "launch_streams.h"

#include "hook_launch.h"
#include "launch_marks.h"

#define LEAVE_WAITS 250 /* of 20 us and the sleep's own length */
#define SHORT_SLEEP_NS 20000
#define MOST_CAPTURES 16 /* at once, of which the streams are known */

/* Streams that captures have begun in; 0: free. */
static uint64_t capturing[MOST_CAPTURES];

bool is_any_captured(void)
{
	return __atomic_load_n(&launch_words.captures, __ATOMIC_RELAXED) != 0;
}

bool stream_is_captured(void *stream)
{
	int status = 0;

	return is_any_captured() && driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
	       status != 0;
}

bool stream_is_untouchable(void *stream)
{
	int status = 0;

	if (!is_any_captured())
		return false;
	if (driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS)
		return (uintptr_t)stream <
		       STREAM_PER_THREAD; /* one that it waits for is captured */
	return status != 0;
}

void gate_forget_context(uint64_t context)
{
	struct launch_card *cards = __atomic_load_n(&launch_words.cards, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; cards != NULL && i < VGPU_MAX_DEVICES; i++) {
		struct launch_card *card = &cards[i];
		bool is_open;

		card_lock(card);
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
		card_unlock(card);
		/* Its work ends with it: found out now, or the time until the next launch counts.
		 */
		if (is_open)
			marks_set(card, NO_STREAM, 0);
		marks_harvest(card);
	}
}

/* Under the lock. A mark would have taken the streams of its interval away; there is none when all
 * are taken, and the stream must not be touched all the same. */
static void take_out(struct launch_card *card, const void *stream)
{
	for (unsigned int i = 0; i < card->stream_count; i++)
		if (card->stream[i] == stream)
			card->stream[i--] = card->stream[--card->stream_count];
}

/* From here on nothing of ours touches the stream: marks in it are made now, and those that other
 * threads are making are waited for, a little. */
static void leave_stream(void *stream, bool is_capture)
{
	struct launch_card *cards = __atomic_load_n(&launch_words.cards, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; cards != NULL && i < VGPU_MAX_DEVICES; i++) {
		struct launch_card *card = &cards[i];
		bool is_in = false;

		card_lock(card);
		for (unsigned int j = 0; j < card->stream_count; j++)
			is_in |= card->stream[j] == stream ||
				 (is_capture && (uintptr_t)card->stream[j] < STREAM_PER_THREAD);
		if (card->only_stream == stream)
			card->only_stream = SEVERAL_STREAMS; /* its handle may be given anew */
		card_unlock(card);
		if (is_in) {
			marks_set(card, NO_STREAM, 0);
			card_lock(card);
			take_out(card, stream);
			card_unlock(card);
		}
		for (unsigned int waits = 0;
		     waits < LEAVE_WAITS && __atomic_load_n(&card->touching, __ATOMIC_ACQUIRE) != 0;
		     waits++)
			clock_sleep(SHORT_SLEEP_NS);
	}
}

static void uncount_capture(void)
{
	uint32_t count = __atomic_load_n(&launch_words.captures, __ATOMIC_RELAXED);

	while (count != 0 &&
	       !__atomic_compare_exchange_n(&launch_words.captures, &count, count - 1, false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* True: a capture had begun in the stream, and is no longer known. */
static bool change_capturing(uint64_t from, uint64_t to)
{
	for (unsigned int i = 0; i < MOST_CAPTURES; i++) {
		uint64_t seen = from;

		if (__atomic_compare_exchange_n(&capturing[i], &seen, to, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
	}
	return false;
}

int stream_destroy_begin(void *stream)
{
	leave_stream(stream, false);
	streams_forget(stream);
	if ((uintptr_t)stream > STREAM_PER_THREAD &&
	    change_capturing((uint64_t)(uintptr_t)stream, 0))
		uncount_capture(); /* its capture ends with it */
	return CUDA_SUCCESS;
}

int capture_begin_begin(void *stream, bool is_thread)
{
	__atomic_add_fetch(&launch_words.captures, 1, __ATOMIC_ACQ_REL);
	leave_stream(launch_stream(stream, is_thread), true);
	return CUDA_SUCCESS;
}

int capture_begin_end(int status, void *stream, bool is_thread)
{
	if (status != CUDA_SUCCESS)
		uncount_capture();
	else
		change_capturing(0, (uint64_t)(uintptr_t)launch_stream(stream, is_thread));
	return status;
}

/* Too many counted costs a question at every launch; too few would spoil a capture. */
int capture_end_end(int status, void *stream, bool is_thread)
{
	bool has_ended = status == CUDA_SUCCESS || status == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	bool must_ask = !has_ended && is_any_captured();
	int captured = 0;

	stream = launch_stream(stream, is_thread);
	/* Other failures may end it, too, as that of streams that were not joined again. */
	if (must_ask &&
	    (driver.cuStreamIsCapturing(stream, &captured) != CUDA_SUCCESS || captured != 0))
		return status;
	if (change_capturing((uint64_t)(uintptr_t)stream, 0) || has_ended)
		uncount_capture();
	return status;
}
