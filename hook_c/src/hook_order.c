// SPDX-License-Identifier: Apache-2.0
/* In which streams memory of pools is taken and freed.
 *
 * What has been freed in a stream is free for that stream at once, and for another when the card
 * has come to the free. Until then the driver makes the pool larger, and only on a full card does
 * it let the one stream wait for the other. A slice is full before the card is. */
#include "hook_launch.h"

#include "sys.h"

#define SEVERAL UINT64_MAX /* streams; no name of one */
#define WAIT_NS 200000
#define WAITS 5000 /* 1 s */

/* Names a stream: the handle, or the thread whose default stream it is. That of old has one name in
 * all contexts, so it is only known where there is one. */
static uint64_t name_of(const struct tenant *tenant, const void *stream)
{
	if ((uintptr_t)stream < STREAM_PER_THREAD)
		return __atomic_load_n(&tenant->contexts, __ATOMIC_RELAXED) > 1 ? SEVERAL : 1;
	if ((uintptr_t)stream == STREAM_PER_THREAD)
		return (uint64_t)(uintptr_t)__builtin_thread_pointer() | 2;
	return (uint64_t)(uintptr_t)stream;
}

static bool is_handle(uint64_t name)
{
	return name != SEVERAL && (name & 2) == 0;
}

/* One without a place, or without a name that others know, is not waited for: what a call may then
 * get too much it gives back (pool_alloc_end). */
static void mark(struct tenant *tenant, uint64_t name)
{
	for (unsigned int i = 0; is_handle(name) && i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t known = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (known == 0 && __atomic_compare_exchange_n(&place->name, &known, name, false,
							      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			known = name;
		if (known == name) {
			__atomic_store_n(&place->has_freed, 1, __ATOMIC_SEQ_CST);
			return;
		}
	}
}

bool order_is_kept(struct tenant *tenant, void *stream)
{
	uint64_t name = name_of(tenant, stream);
	uint64_t known = __atomic_load_n(&tenant->order, __ATOMIC_RELAXED);

	if (known == name)
		return name != SEVERAL;
	if (known == 0 && __atomic_compare_exchange_n(&tenant->order, &known, name, false,
						      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return name != SEVERAL;
	if (known != SEVERAL) {
		mark(tenant, known); /* it was not noted while it was the only one */
		__atomic_store_n(&tenant->order, SEVERAL, __ATOMIC_SEQ_CST);
	}
	return false;
}

void order_note_free(struct tenant *tenant, void *stream)
{
	if (!order_is_kept(tenant, stream))
		mark(tenant, name_of(tenant, stream));
}

void order_forget_stream(void *stream)
{
	struct tenant *tenant = tenant_joined();
	uint64_t name = (uint64_t)(uintptr_t)stream;

	if (tenant == NULL || (uintptr_t)stream <= STREAM_PER_THREAD)
		return;

	uint64_t known = name;

	__atomic_compare_exchange_n(&tenant->order, &known, SEVERAL, false, __ATOMIC_SEQ_CST,
				    __ATOMIC_RELAXED);
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];

		if (__atomic_load_n(&place->name, __ATOMIC_ACQUIRE) != name)
			continue;
		__atomic_store_n(&place->has_freed, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&place->name, 0, __ATOMIC_RELEASE);
	}
}

/* The stream cannot be asked while it is captured, nor one that no thread but its own can name;
 * what it has freed may still be in use. */
static bool is_done(uint64_t name, int *waits)
{
	void *stream = (void *)(uintptr_t)name;
	void *context;
	void *event;
	bool done = false;

	if (stream_is_untouchable(stream))
		return false;
	stream_device(stream, &context);
	if (!record_event(stream, context, &event))
		return false;
	for (; !done && *waits < WAITS; ++*waits) {
		done = driver.cuEventQuery(event) == CUDA_SUCCESS;
		if (!done)
			sys_sleep_ns(WAIT_NS);
	}
	driver.cuEventDestroy_v2(event);
	return done;
}

bool order_wait(struct tenant *tenant, const void *stream)
{
	uint64_t own = name_of(tenant, stream);
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool all_done = true;
	int waits = 0;

	exchange_capture_mode(&mode);
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t name = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (name == 0 || name == own ||
		    __atomic_exchange_n(&place->has_freed, 0, __ATOMIC_SEQ_CST) == 0)
			continue;
		if (!is_done(name, &waits)) {
			__atomic_store_n(&place->has_freed, 1, __ATOMIC_SEQ_CST);
			all_done = false;
		}
	}
	exchange_capture_mode(&mode);
	return all_done;
}
