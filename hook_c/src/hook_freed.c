// SPDX-License-Identifier: Apache-2.0
/* Memory of cuMemAlloc that the program frees in the order of a stream.
 *
 * The driver keeps it until the program waits for that stream, for an event behind the free, or for
 * the context; no query, allocation or trim gives it back (measured on an H100, driver 580). So it
 * stays charged. An event of ours stands behind the free: when it has happened we wait for it,
 * which takes no time then and makes the driver give the memory back. */
#include "hook.h"
#include "launch_clock.h"
#include "slabs.h"
#include "sys.h"

/* A wait gives back within 0.3 ms of what it waited for (seen on an H100); threads that all give
 * back stand in line. */
#define GIVING_NS UINT64_C(50000000)
#define GIVING_WAIT_NS 100000

#define MOST_UNFINISHED 256 /* that are asked for in passing */

void exchange_capture_mode(int *mode)
{
	driver.cuThreadExchangeStreamCaptureMode(mode);
}

bool record_event(void *stream, void *context, void **event)
{
	void *current = NULL;
	bool done;

	driver.cuCtxGetCurrent(&current);
	if (context != current && driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return false;
	done = driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
	if (done && driver.cuEventRecord(*event, stream) != CUDA_SUCCESS) {
		driver.cuEventDestroy_v2(*event);
		done = false;
	}
	if (context != current)
		driver.cuCtxPopCurrent_v2(&current);
	return done;
}

static struct tenant_freed_block *next_of(const struct tenant_freed_block *block)
{
	return __atomic_load_n(&block->next, __ATOMIC_ACQUIRE);
}

static struct tenant_freed *place_in(struct tenant_freed_block *block)
{
	for (unsigned int i = 0; i < TENANT_FREED; i++) {
		uint32_t state = TENANT_FREED_NONE;

		if (__atomic_compare_exchange_n(&block->freed[i].state, &state, TENANT_FREED_TAKEN,
						false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return &block->freed[i];
	}
	return NULL;
}

/* A block behind the last one, which may be another thread's. NULL: there is no memory. */
static struct tenant_freed_block *add_block(struct tenant_freed_block *last)
{
	struct tenant_freed_block *none = NULL;
	struct tenant_freed_block *fresh = sys_map(sizeof(*fresh), PROT_READ | PROT_WRITE, -1);

	if (fresh == NULL || __atomic_compare_exchange_n(&last->next, &none, fresh, false,
							 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return fresh;
	sys_unmap(fresh, sizeof(*fresh));
	return none;
}

static struct tenant_freed *take_place(struct tenant *tenant)
{
	for (struct tenant_freed_block *block = &tenant->freed; block != NULL;) {
		struct tenant_freed *freed = place_in(block);
		struct tenant_freed_block *next = next_of(block);

		if (freed != NULL)
			return freed;
		block = next != NULL ? next : add_block(block);
	}
	return NULL;
}

static void drop_place(struct tenant *tenant, struct tenant_freed *freed)
{
	if (freed->object != 0)
		object_drop(tenant, freed->object);
	else
		slabs_release(tenant, freed->card, freed->address, freed->bytes);
	__atomic_store_n(&freed->state, TENANT_FREED_NONE, __ATOMIC_RELEASE);
	__atomic_sub_fetch(&tenant->freed_count, 1, __ATOMIC_ACQ_REL);
}

/* False: nothing can be kept of it. */
static bool keep(struct tenant *tenant, const struct table_entry *entry, uint64_t object,
		 void *stream, void *context)
{
	struct tenant_freed *freed = take_place(tenant);

	if (freed == NULL)
		return false;
	if (!record_event(stream, context, &freed->event)) {
		__atomic_store_n(&freed->state, TENANT_FREED_NONE, __ATOMIC_RELEASE);
		return false;
	}
	freed->address = entry->handle;
	freed->bytes = entry->bytes;
	freed->card = entry->card;
	freed->owner = entry->owner;
	freed->object = object;
	__atomic_add_fetch(&tenant->freed_count, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&freed->state, TENANT_FREED_PENDING, __ATOMIC_RELEASE);
	return true;
}

/* The driver has been told to give it back. Whoever waited at that moment may be the one who does
 * it; a wait that goes on for longer is one for the card. */
static bool is_given_back(struct tenant *tenant, struct tenant_done *done)
{
	return waits_have_ended(&tenant->waits, &done->waits) || clock_ns() - done->ns >= GIVING_NS;
}

/* False: it has failed, and nothing is given back. */
static bool wait_for_stream(struct tenant *tenant, void *stream)
{
	uint32_t number = waits_enter(&tenant->waits);
	int status = driver.cuStreamSynchronize(stream);

	waits_leave(&tenant->waits, number);
	if (status != CUDA_SUCCESS)
		return false;

	struct tenant_done done = {.ns = clock_ns()};

	while (!is_given_back(tenant, &done))
		sys_sleep_ns(GIVING_WAIT_NS);
	return true;
}

int free_async_end(struct hook_call *call, int status, void *stream, bool is_thread)
{
	struct tenant *tenant = call->tenant;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int captured = 0;
	void *context;

	if (tenant == NULL)
		return status; /* a pool keeps it until a synchronisation */
	if (status != CUDA_SUCCESS)
		return free_end(call, status);
	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;
	if (driver.cuStreamIsCapturing(stream, &captured) == CUDA_SUCCESS && captured != 0) {
		(void)table_put(&tenant->table, &call->entry); /* a graph may free it one day */
		return status;
	}
	exchange_capture_mode(&mode);
	stream_device(stream, &context);
	if (!keep(tenant, &call->entry, 0, stream, context)) {
		/* As cuMemFree: it comes back now; after a fault, when its context ends. */
		if (wait_for_stream(tenant, stream))
			slabs_release(tenant, call->entry.card, call->entry.handle,
				      call->entry.bytes);
		else
			(void)table_put(&tenant->table, &call->entry);
	}
	exchange_capture_mode(&mode);
	freed_settle(tenant, NULL);
	return status;
}

void freed_object(struct tenant *tenant, uint64_t object, void *stream)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *context;

	exchange_capture_mode(&mode);
	stream_device(stream, &context);

	const struct table_entry entry = {.owner = (uint64_t)(uintptr_t)context};

	/* After a fault it stays charged until the process ends. */
	if (!keep(tenant, &entry, object, stream, context) && wait_for_stream(tenant, stream))
		object_drop(tenant, object);
	exchange_capture_mode(&mode);
}

/* The next state of one that is TENANT_FREED_TAKEN; TENANT_FREED_NONE: it is dropped. How long to
 * wait for the card, and then for the driver, if at all. */
static uint32_t settle_one(struct tenant *tenant, struct tenant_freed *freed, uint32_t state,
			   int *event_waits, int *giving_waits)
{
	if (state == TENANT_FREED_PENDING) {
		if (!event_wait(tenant, freed->event, event_waits))
			return TENANT_FREED_PENDING;
		driver.cuEventDestroy_v2(freed->event);
		freed->done = (struct tenant_done){.ns = clock_ns()};
	}
	while (!is_given_back(tenant, &freed->done))
		if (giving_waits == NULL || !wait_more(giving_waits))
			return TENANT_FREED_DONE;
	drop_place(tenant, freed);
	return TENANT_FREED_NONE;
}

static bool take_freed(struct tenant_freed *freed, uint32_t *state)
{
	*state = __atomic_load_n(&freed->state, __ATOMIC_ACQUIRE);
	return (*state == TENANT_FREED_PENDING || *state == TENANT_FREED_DONE) &&
	       __atomic_compare_exchange_n(&freed->state, state, TENANT_FREED_TAKEN, false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* No further when the streams of `most` more have not come to them. */
static void settle_block(struct tenant *tenant, struct tenant_freed_block *block, int *event_waits,
			 int *giving_waits, unsigned int *most)
{
	for (unsigned int i = 0; i < TENANT_FREED && *most != 0; i++) {
		struct tenant_freed *freed = &block->freed[i];
		uint32_t state;

		if (!take_freed(freed, &state))
			continue;
		state = settle_one(tenant, freed, state, event_waits, giving_waits);
		*most -= state == TENANT_FREED_PENDING;
		if (state != TENANT_FREED_NONE)
			__atomic_store_n(&freed->state, state, __ATOMIC_RELEASE);
	}
}

static void settle_all(struct tenant *tenant, int *event_waits, int *giving_waits,
		       unsigned int most)
{
	for (struct tenant_freed_block *block = &tenant->freed; block != NULL;
	     block = next_of(block))
		settle_block(tenant, block, event_waits, giving_waits, &most);
}

bool freed_settle(struct tenant *tenant, int *waits)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (__atomic_load_n(&tenant->freed_count, __ATOMIC_ACQUIRE) == 0)
		return false;
	exchange_capture_mode(&mode);
	settle_all(tenant, waits, NULL, waits == NULL ? MOST_UNFINISHED : UINT32_MAX);
	if (waits != NULL) /* the driver gives all of it back at the same time */
		settle_all(tenant, NULL, waits, UINT32_MAX);
	exchange_capture_mode(&mode);
	return true;
}

void wait_begin(struct hook_call *call)
{
	call->giving = tenant_joined();
	if (call->giving != NULL)
		call->waits_number = waits_enter(&call->giving->waits);
}

int wait_end(struct hook_call *call, int status)
{
	if (call->giving == NULL)
		return status;
	waits_leave(&call->giving->waits, call->waits_number);
	freed_settle(call->giving, NULL);
	pools_waited(call->giving);
	return status;
}

static void forget_in(struct tenant *tenant, struct tenant_freed_block *block, uint64_t context)
{
	for (unsigned int i = 0; i < TENANT_FREED; i++) {
		struct tenant_freed *freed = &block->freed[i];
		uint32_t state;

		if (!take_freed(freed, &state))
			continue;
		if (freed->owner == context) /* its event went with it */
			drop_place(tenant, freed);
		else
			__atomic_store_n(&freed->state, state, __ATOMIC_RELEASE);
	}
}

void freed_forget_context(struct tenant *tenant, uint64_t context)
{
	for (struct tenant_freed_block *block = &tenant->freed; block != NULL;
	     block = next_of(block))
		forget_in(tenant, block, context);
}
