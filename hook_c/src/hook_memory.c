// SPDX-License-Identifier: Apache-2.0
/* Device memory: reserved before the driver is asked, given back when it refuses or frees. */
#include "hook.h"
#include "launch_streams.h"
#include "slabs.h"

static bool reserve(struct tenant *tenant, struct table_entry *entry)
{
	if (entry->kind == TABLE_MEMORY)
		return slabs_reserve(tenant, entry);
	/* Before a refusal: pools may keep memory that nobody uses. */
	return quota_take(&tenant->quota, entry->card, entry->bytes) ||
	       (pools_trim_for(tenant) && quota_take(&tenant->quota, entry->card, entry->bytes));
}

static void release(struct tenant *tenant, const struct table_entry *entry)
{
	if (entry->kind == TABLE_MEMORY)
		slabs_release(tenant, entry->card, entry->handle, entry->bytes);
	else
		quota_give(&tenant->quota, entry->card, entry->bytes);
}

/* Charges the card of the current context. NULL arguments, 0 bytes and a missing context are the
 * driver's to answer: nothing is charged, and it refuses them itself. */
int charge_current(struct hook_call *call, const void *out, uint64_t bytes, enum table_kind kind)
{
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);
	void *context = NULL;

	call->tenant = NULL;
	if (state == TENANT_INERT || out == NULL || bytes == 0)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
		return CUDA_SUCCESS;

	int device = device_now(tenant);

	if (device < 0)
		return CUDA_SUCCESS;

	int card = device_card(tenant, device);

	call->entry = (struct table_entry){.kind = kind,
					   .bytes = bytes,
					   .owner = (uint64_t)(uintptr_t)context,
					   .card = (uint32_t)card};
	if (card < 0 || !reserve(tenant, &call->entry))
		return refuse_memory();
	call->tenant = tenant;
	return CUDA_SUCCESS;
}

int alloc_begin(struct hook_call *call, const void *out, uint64_t bytes)
{
	hidden_wait_begin();
	return charge_current(call, out, bytes, TABLE_MEMORY);
}

/* The driver looks at the flags first of all. */
int managed_begin(struct hook_call *call, const void *out, uint64_t bytes, unsigned int flags)
{
	int status = charge_current(call, out, bytes, TABLE_MEMORY);

	return status == CUDA_ERROR_OUT_OF_MEMORY && flags != CU_MEM_ATTACH_GLOBAL &&
			       flags != CU_MEM_ATTACH_HOST
		       ? CUDA_ERROR_INVALID_VALUE
		       : status;
}

int alloc_end(struct hook_call *call, int status, uint64_t pointer)
{
	struct tenant *tenant = call->tenant;

	if (tenant == NULL)
		return status;
	call->entry.handle = pointer;
	if (status != CUDA_SUCCESS) {
		slabs_unreserve(tenant, &call->entry);
		return status;
	}
	if (slabs_hold(tenant, &call->entry))
		return CUDA_SUCCESS;
	driver.cuMemFree_v2(pointer);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The pitch is the driver's secret until it has answered; rows of 512 bytes are its least step. */
#define PITCH_STEP UINT64_C(512)

/* The driver refuses elements of that size, and a product of which 64 bits leave nothing (H200,
 * driver 580). */
static bool is_wrong_pitch(uint64_t pitch, uint64_t height, unsigned int element_bytes)
{
	return (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) ||
	       pitch * height == 0;
}

int pitch_begin(struct hook_call *call, const void *out, const void *out_pitch, uint64_t width,
		uint64_t height, unsigned int element_bytes)
{
	bool is_over = __builtin_add_overflow(width, PITCH_STEP - 1, &width);
	uint64_t pitch = width / PITCH_STEP * PITCH_STEP;
	uint64_t bytes;

	if (__builtin_mul_overflow(pitch, height, &bytes) || is_over)
		bytes = UINT64_MAX;

	int status = charge_current(call, out_pitch == NULL ? NULL : out, bytes, TABLE_MEMORY);

	return status == CUDA_ERROR_OUT_OF_MEMORY && is_wrong_pitch(pitch, height, element_bytes)
		       ? CUDA_ERROR_INVALID_VALUE
		       : status;
}

int pitch_end(struct hook_call *call, int status, uint64_t pointer, uint64_t pitch, uint64_t height)
{
	struct tenant *tenant = call->tenant;
	uint64_t bytes = pitch * height; /* no overflow: the driver has given so much */

	if (tenant != NULL && status == CUDA_SUCCESS && bytes != call->entry.bytes) {
		struct table_entry padded = call->entry;

		padded.bytes = bytes;
		if (!slabs_reserve(tenant, &padded)) {
			driver.cuMemFree_v2(pointer);
			status = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			slabs_unreserve(tenant, &call->entry);
			call->entry = padded;
		}
	}
	return alloc_end(call, status, pointer);
}

/* An address that we do not know may still be a good one: the driver decides. */
static bool find_memory(struct hook_call *call, uint64_t pointer)
{
	call->tenant = tenant_joined();
	call->giving = NULL;
	if (call->tenant != NULL &&
	    !table_take(&call->tenant->table, TABLE_MEMORY, pointer, &call->entry))
		call->tenant = NULL;
	return call->tenant != NULL;
}

int free_async_begin(struct hook_call *call, uint64_t pointer, void *stream, bool is_thread)
{
	struct tenant *tenant = tenant_joined();

	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;
	if (!find_memory(call, pointer)) {
		if (tenant != NULL) /* it may be a pool's */
			streams_note(tenant, stream);
	} else if (stream_is_captured(stream)) { /* now; its capture may be over at the end */
		(void)table_put(&tenant->table, &call->entry);
		call->tenant = NULL;
	}
	return CUDA_SUCCESS;
}

int free_begin(struct hook_call *call, uint64_t pointer)
{
	hidden_wait_begin();
	return find_memory(call, pointer) ? CUDA_SUCCESS : pools_free_begin(call);
}

int free_end(struct hook_call *call, int status)
{
	hidden_wait_end(status);
	if (call->tenant == NULL)
		return pools_freed_end(call, status);
	/* There was a place for it a moment ago; if there is none now, it stays charged. */
	if (status != CUDA_SUCCESS)
		(void)table_put(&call->tenant->table, &call->entry);
	else
		release(call->tenant, &call->entry);
	return status;
}

void memory_forget_context(struct tenant *tenant, uint64_t context)
{
	struct table_cursor cursor = {0};
	struct table_entry entry;

	streams_forget_context(tenant, context);
	freed_forget_context(tenant, context);
	while (table_take_of_context(&tenant->table, context, &cursor, &entry))
		release(tenant, &entry);
}
