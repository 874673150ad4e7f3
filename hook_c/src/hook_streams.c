// SPDX-License-Identifier: Apache-2.0
/* The streams that memory of pools has been freed in.
 *
 * What has been freed in a stream stays with its pool until somebody waits for that stream; not
 * even a trim gives it back before, also where the card has long come to the free (measured on an
 * H200, driver 580). So before anything is refused, we wait. */
#include "hook.h"
#include "launch_streams.h"

#include "sys.h"

#define WAIT_NS 200000
#define WAITS 5000 /* 1 s: what the stream waits for may wait for this thread */

static uint64_t name_of(const void *stream)
{
	return stream == NULL ? 1 : (uint64_t)(uintptr_t)stream;
}

/* One without a place is not waited for, and neither is a thread's own default stream, which other
 * threads cannot name. */
void streams_note_free(struct tenant *tenant, void *stream)
{
	uint64_t name = name_of(stream);

	for (unsigned int i = 0; i < TENANT_MAX_STREAMS && name != STREAM_PER_THREAD; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t known = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (known == 0 && __atomic_compare_exchange_n(&place->name, &known, name, false,
							      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			known = name;
		if (known != name)
			continue;
		if (__atomic_load_n(&place->has_freed, __ATOMIC_RELAXED) == 0)
			__atomic_store_n(&place->has_freed, 1, __ATOMIC_RELEASE);
		return;
	}
}

void streams_forget(void *stream)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL || (uintptr_t)stream <= STREAM_PER_THREAD)
		return;
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		uint64_t name = (uint64_t)(uintptr_t)stream;

		__atomic_compare_exchange_n(&tenant->stream[i].name, &name, 0, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	}
}

bool event_wait(void *event, int *waits)
{
	while (driver.cuEventQuery(event) != CUDA_SUCCESS) {
		if (*waits == WAITS)
			return false;
		sys_sleep_ns(WAIT_NS);
		++*waits;
	}
	return driver.cuEventSynchronize(event) == CUDA_SUCCESS;
}

static bool wait_for(void *stream, int *waits)
{
	void *context;
	void *event;

	if (stream_is_untouchable(stream))
		return false;
	stream_device(stream, &context);
	if (!record_event(stream, context, &event))
		return false;

	bool is_done = event_wait(event, waits);

	driver.cuEventDestroy_v2(event);
	return is_done;
}

bool streams_wait(struct tenant *tenant, const void *but)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool all_done = true;
	int waits = 0;

	exchange_capture_mode(&mode);
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t name = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (name == 0 || name == name_of(but) ||
		    __atomic_exchange_n(&place->has_freed, 0, __ATOMIC_ACQ_REL) == 0)
			continue;
		if (!wait_for((void *)(uintptr_t)name, &waits)) {
			__atomic_store_n(&place->has_freed, 1, __ATOMIC_RELEASE);
			all_done = false;
		}
	}
	exchange_capture_mode(&mode);
	return all_done;
}
