// SPDX-License-Identifier: Apache-2.0
/* Memory of cuMemAlloc that the program frees in the order of a stream.
 *
 * The driver keeps it until the program waits for that stream, for an event behind the free, or for
 * the context; no query, allocation or trim gives it back (measured on an H100, driver 580). So it
 * stays charged. An event of ours stands behind the free: when it has happened we wait for it,
 * which takes no time then and makes the driver give the memory back. */
#include "hook.h"

static void exchange_mode(int *mode)
{
	driver.cuThreadExchangeStreamCaptureMode(mode);
}

static bool record(void *stream, void *context, void **event)
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

static struct tenant_freed *take_place(struct tenant *tenant)
{
	for (unsigned int i = 0; i < TENANT_MAX_FREED; i++) {
		uint32_t state = TENANT_FREED_NONE;

		if (__atomic_compare_exchange_n(&tenant->freed[i].state, &state, TENANT_FREED_TAKEN,
						false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return &tenant->freed[i];
	}
	return NULL;
}

static void drop_place(struct tenant *tenant, struct tenant_freed *freed)
{
	if (freed->object != 0)
		object_drop(tenant, freed->object);
	else
		quota_give(&tenant->quota, freed->card, freed->bytes);
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
	if (!record(stream, context, &freed->event)) {
		__atomic_store_n(&freed->state, TENANT_FREED_NONE, __ATOMIC_RELEASE);
		return false;
	}
	freed->bytes = entry->bytes;
	freed->card = entry->card;
	freed->owner = entry->owner;
	freed->object = object;
	__atomic_add_fetch(&tenant->freed_count, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&freed->state, TENANT_FREED_PENDING, __ATOMIC_RELEASE);
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
	exchange_mode(&mode);
	stream_device(stream, &context);
	if (!keep(tenant, &call->entry, 0, stream, context)) {
		/* As cuMemFree: it comes back now; after a fault, when its context ends. */
		pools_giving_begin(tenant);
		if (driver.cuStreamSynchronize(stream) == CUDA_SUCCESS)
			quota_give(&tenant->quota, call->entry.card, call->entry.bytes);
		else
			(void)table_put(&tenant->table, &call->entry);
		pools_giving_end(tenant);
	}
	exchange_mode(&mode);
	freed_settle(tenant, false);
	pools_settle(tenant); /* the wait was one for the pools too */
	return status;
}

void freed_object(struct tenant *tenant, uint64_t object, void *stream)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	void *context;

	exchange_mode(&mode);
	stream_device(stream, &context);

	const struct table_entry entry = {.owner = (uint64_t)(uintptr_t)context};

	/* After a fault it stays charged until the process ends. */
	if (!keep(tenant, &entry, object, stream, context) &&
	    driver.cuStreamSynchronize(stream) == CUDA_SUCCESS)
		object_drop(tenant, object);
	exchange_mode(&mode);
}

bool freed_settle(struct tenant *tenant, bool wait)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (__atomic_load_n(&tenant->freed_count, __ATOMIC_ACQUIRE) == 0)
		return false;
	exchange_mode(&mode);
	pools_giving_begin(tenant); /* a wait is one for the pools too */
	for (unsigned int i = 0; i < TENANT_MAX_FREED; i++) {
		struct tenant_freed *freed = &tenant->freed[i];
		uint32_t state = TENANT_FREED_PENDING;

		if (!__atomic_compare_exchange_n(&freed->state, &state, TENANT_FREED_TAKEN, false,
						 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			continue;
		if ((wait || driver.cuEventQuery(freed->event) == CUDA_SUCCESS) &&
		    driver.cuEventSynchronize(freed->event) == CUDA_SUCCESS) {
			driver.cuEventDestroy_v2(freed->event);
			drop_place(tenant, freed);
		} else {
			__atomic_store_n(&freed->state, TENANT_FREED_PENDING, __ATOMIC_RELEASE);
		}
	}
	pools_giving_end(tenant);
	exchange_mode(&mode);
	return true;
}

void freed_forget_context(struct tenant *tenant, uint64_t context)
{
	for (unsigned int i = 0; i < TENANT_MAX_FREED; i++) {
		struct tenant_freed *freed = &tenant->freed[i];
		uint32_t state = TENANT_FREED_PENDING;

		if (!__atomic_compare_exchange_n(&freed->state, &state, TENANT_FREED_TAKEN, false,
						 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			continue;
		if (freed->owner == context) /* its event went with it */
			drop_place(tenant, freed);
		else
			__atomic_store_n(&freed->state, TENANT_FREED_PENDING, __ATOMIC_RELEASE);
	}
}
