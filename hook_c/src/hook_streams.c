// SPDX-License-Identifier: Apache-2.0
/* The streams that memory of pools has been freed in.
 *
 * What has been freed in a stream stays with its pool until somebody waits for that stream; not
 * even a trim gives it back before, also where the card has long come to the free (measured on an
 * H200, driver 580). So before anything is refused, we wait. */
#include "hook.h"
#include "launch_streams.h"

#include "sys.h"

/* In all 1 s: what a stream waits for may wait for this thread. */
#define WAIT_NS 200000
#define WAITS 5000
#define USE_WAIT_NS 20000
#define USE_WAITS 5000 /* 100 ms */

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

/* Whoever is about to put an event into it may have its name. */
static void end_use(struct tenant_stream *place)
{
	for (int waits = 0;
	     waits < USE_WAITS && __atomic_load_n(&place->users, __ATOMIC_SEQ_CST) != 0; waits++)
		sys_sleep_ns(USE_WAIT_NS);
}

void streams_forget(void *stream)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL || (uintptr_t)stream <= STREAM_PER_THREAD)
		return;
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		uint64_t name = (uint64_t)(uintptr_t)stream;

		if (__atomic_compare_exchange_n(&tenant->stream[i].name, &name, 0, false,
						__ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			end_use(&tenant->stream[i]);
	}
}

void streams_forget_all(struct tenant *tenant)
{
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++)
		if (__atomic_exchange_n(&tenant->stream[i].name, 0, __ATOMIC_SEQ_CST) != 0)
			end_use(&tenant->stream[i]);
}

bool wait_more(int *waits)
{
	if (*waits == WAITS)
		return false;
	sys_sleep_ns(WAIT_NS);
	++*waits;
	return true;
}

bool event_wait(struct tenant *tenant, void *event, int *waits)
{
	while (driver.cuEventQuery(event) != CUDA_SUCCESS)
		if (waits == NULL || !wait_more(waits))
			return false;

	uint32_t number = waits_enter(&tenant->waits);
	int status = driver.cuEventSynchronize(event);

	waits_leave(&tenant->waits, number);
	return status == CUDA_SUCCESS;
}

static bool record(struct tenant_stream *place, uint64_t name, void **event)
{
	void *stream = (void *)(uintptr_t)name;
	bool is_recorded = false;
	void *context;

	__atomic_add_fetch(&place->users, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&place->name, __ATOMIC_SEQ_CST) == name &&
	    !stream_is_untouchable(stream)) {
		stream_device(stream, &context);
		is_recorded = record_event(stream, context, event);
	}
	__atomic_sub_fetch(&place->users, 1, __ATOMIC_SEQ_CST);
	return is_recorded;
}

static bool wait_for(struct tenant *tenant, struct tenant_stream *place, uint64_t name, int *waits)
{
	void *event;

	if (!record(place, name, &event))
		return false;

	bool is_done = event_wait(tenant, event, waits);

	driver.cuEventDestroy_v2(event);
	return is_done;
}

bool streams_wait(struct tenant *tenant, const void *but, int *waits)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool all_done = true;

	exchange_capture_mode(&mode);
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t name = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (name == 0 || name == name_of(but) ||
		    __atomic_exchange_n(&place->has_freed, 0, __ATOMIC_ACQ_REL) == 0)
			continue;
		if (!wait_for(tenant, place, name, waits)) {
			__atomic_store_n(&place->has_freed, 1, __ATOMIC_RELEASE);
			all_done = false;
		}
	}
	exchange_capture_mode(&mode);
	return all_done;
}
