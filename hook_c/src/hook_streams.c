// SPDX-License-Identifier: Apache-2.0
/* The streams that memory of pools has been freed in, or graphs have been launched in.
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

#define BEING_TAKEN 1 /* no stream's name */

/* A handle, or of a default stream of old the context: every one has its own. */
uint64_t stream_name(const void *stream)
{
	void *context = NULL;

	if ((uintptr_t)stream >= STREAM_PER_THREAD)
		return (uint64_t)(uintptr_t)stream;
	driver.cuCtxGetCurrent(&context);
	return (uint64_t)(uintptr_t)context | 1;
}

static void *stream_of(uint64_t name)
{
	return (name & 1) != 0 ? NULL : (void *)(uintptr_t)name; /* NOLINT */
}

static bool claim(struct tenant_stream *place, uint64_t name, void *stream)
{
	uint64_t none = 0;
	void *context;

	if (!__atomic_compare_exchange_n(&place->name, &none, BEING_TAKEN, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_RELAXED))
		return false;
	stream_device(stream, &context);
	__atomic_store_n(&place->context, (uint64_t)(uintptr_t)context, __ATOMIC_RELAXED);
	__atomic_store_n(&place->name, name, __ATOMIC_RELEASE);
	return true;
}

/* A process with one context has one default stream of old, and once that has a place the driver
 * need not be asked for the context at every free. 0: it must be. */
static uint64_t name_of_only_default(const struct tenant *tenant, const void *stream)
{
	if ((uintptr_t)stream >= STREAM_PER_THREAD ||
	    __atomic_load_n(&tenant->contexts, __ATOMIC_RELAXED) != 1)
		return 0;
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		uint64_t known = __atomic_load_n(&tenant->stream[i].name, __ATOMIC_ACQUIRE);

		if (known == 0 || (known & 1) != 0)
			return known == BEING_TAKEN ? 0 : known;
	}
	return 0;
}

/* One without a place is not waited for, and neither is a thread's own default stream, which other
 * threads cannot name. */
void streams_note(struct tenant *tenant, void *stream)
{
	uint64_t name = name_of_only_default(tenant, stream);

	if (name == 0)
		name = stream_name(stream);
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS && name > STREAM_PER_THREAD; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t known = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (known != name && (known != 0 || !claim(place, name, stream)))
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

static void forget(struct tenant_stream *place, uint64_t name)
{
	if (__atomic_compare_exchange_n(&place->name, &name, 0, false, __ATOMIC_SEQ_CST,
					__ATOMIC_RELAXED))
		end_use(place);
}

void streams_forget(void *stream)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL || (uintptr_t)stream <= STREAM_PER_THREAD)
		return;
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++)
		forget(&tenant->stream[i], (uint64_t)(uintptr_t)stream);
	graphs_forget_stream(tenant, (uint64_t)(uintptr_t)stream);
}

void streams_forget_context(struct tenant *tenant, uint64_t context)
{
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t name = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (name > BEING_TAKEN &&
		    __atomic_load_n(&place->context, __ATOMIC_RELAXED) == context)
			forget(place, name);
	}
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

/* A default stream is one of the current context. */
static bool is_untouchable(void *stream, void *context)
{
	void *current = NULL;
	bool is_other;
	bool found;

	if (!is_any_captured())
		return false;
	driver.cuCtxGetCurrent(&current);
	is_other = context != current;
	if (is_other && driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return true;
	found = stream_is_untouchable(stream);
	if (is_other)
		driver.cuCtxPopCurrent_v2(&current);
	return found;
}

static bool record(struct tenant_stream *place, uint64_t name, void **event)
{
	void *stream = stream_of(name);
	bool is_recorded = false;

	__atomic_add_fetch(&place->users, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&place->name, __ATOMIC_SEQ_CST) == name) {
		void *context = (void *)(uintptr_t) /* NOLINT */
			__atomic_load_n(&place->context, __ATOMIC_RELAXED);

		is_recorded =
			!is_untouchable(stream, context) && record_event(stream, context, event);
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
	uint64_t but_name = but == ALL_STREAMS ? 0 : stream_name(but);
	bool all_done = true;

	exchange_capture_mode(&mode);
	for (unsigned int i = 0; i < TENANT_MAX_STREAMS; i++) {
		struct tenant_stream *place = &tenant->stream[i];
		uint64_t name = __atomic_load_n(&place->name, __ATOMIC_ACQUIRE);

		if (name <= BEING_TAKEN || name == but_name ||
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
