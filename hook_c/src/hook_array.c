// SPDX-License-Identifier: Apache-2.0
/* Arrays and mipmapped arrays. What one takes follows from no formula (a 1D array of 0.4 MiB takes
 * 4), but the driver tells it of a twin whose memory is still to be mapped: the twin costs nothing
 * and is gone again before the real one is made. */
#include "hook.h"

static uint64_t multiply(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* For drivers older than 11.7, which have no twins: 16 bytes a channel is the most there is. */
static uint64_t estimate(const struct cuda_array3d *array)
{
	uint64_t rows = multiply(array->height == 0 ? 1 : array->height,
				 array->depth == 0 ? 1 : array->depth);

	return multiply(multiply(array->width, rows), 4UL * array->channels);
}

/* The driver's error for an array, found by a small twin of it, and the bytes it would take. */
struct twin {
	int status;
	uint64_t bytes;
};

static struct twin twin_of_array(const struct cuda_array3d *array, int device)
{
	struct cuda_requirements requirements = {0};
	struct cuda_array3d twin = *array;
	struct twin found = {.bytes = estimate(array)};
	void *handle;

	if (driver.cuArrayGetMemoryRequirements == NULL)
		return found;
	twin.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	found.status = driver.cuArray3DCreate_v2(&handle, &twin);
	if (found.status != CUDA_SUCCESS)
		return found;
	if (driver.cuArrayGetMemoryRequirements(&requirements, handle, device) == CUDA_SUCCESS)
		found.bytes = requirements.size;
	driver.cuArrayDestroy(handle);
	return found;
}

static struct twin twin_of_mipmap(const struct cuda_array3d *array, unsigned int levels, int device)
{
	struct cuda_requirements requirements = {0};
	struct cuda_array3d twin = *array;
	struct twin found = {.bytes = multiply(estimate(array), 2)};
	void *handle;

	if (driver.cuMipmappedArrayGetMemoryRequirements == NULL)
		return found;
	twin.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	found.status = driver.cuMipmappedArrayCreate(&handle, &twin, levels);
	if (found.status != CUDA_SUCCESS)
		return found;
	if (driver.cuMipmappedArrayGetMemoryRequirements(&requirements, handle, device) ==
	    CUDA_SUCCESS)
		found.bytes = requirements.size;
	driver.cuMipmappedArrayDestroy(handle);
	return found;
}

static bool takes_memory(const struct cuda_array3d *array)
{
	return (array->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

/* `levels` 0: no mipmap. */
static int charge(struct hook_call *call, const void *out, const struct cuda_array3d *array,
		  unsigned int levels)
{
	struct tenant *tenant;
	int device;

	call->tenant = NULL;
	if (out == NULL || !takes_memory(array) || tenant_join(&tenant) == TENANT_INERT ||
	    driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return CUDA_SUCCESS;

	struct twin twin =
		levels == 0 ? twin_of_array(array, device) : twin_of_mipmap(array, levels, device);
	int status = charge_current(call, out, twin.bytes, TABLE_ARRAY);

	return status == CUDA_ERROR_OUT_OF_MEMORY && twin.status == CUDA_ERROR_INVALID_VALUE
		       ? twin.status
		       : status;
}

int array_begin(struct hook_call *call, const void *out, const void *descriptor,
		unsigned int number)
{
	const struct cuda_array *v2 = descriptor;
	const struct cuda_array_v1 *v1 = descriptor;
	struct cuda_array3d array = {0};

	call->tenant = NULL;
	if (descriptor == NULL)
		return CUDA_SUCCESS;
	if (number == 1)
		array = (struct cuda_array3d){.width = v1->width,
					      .height = v1->height,
					      .format = v1->format,
					      .channels = v1->channels};
	else
		array = (struct cuda_array3d){.width = v2->width,
					      .height = v2->height,
					      .format = v2->format,
					      .channels = v2->channels};
	return charge(call, out, &array, 0);
}

int array3d_begin(struct hook_call *call, const void *out, const void *descriptor,
		  unsigned int number)
{
	const struct cuda_array3d_v1 *v1 = descriptor;
	struct cuda_array3d array;

	call->tenant = NULL;
	if (descriptor == NULL)
		return CUDA_SUCCESS;
	if (number == 1)
		array = (struct cuda_array3d){.width = v1->width,
					      .height = v1->height,
					      .depth = v1->depth,
					      .format = v1->format,
					      .channels = v1->channels,
					      .flags = v1->flags};
	else
		array = *(const struct cuda_array3d *)descriptor;
	return charge(call, out, &array, 0);
}

int mipmap_begin(struct hook_call *call, const void *out, const void *descriptor,
		 unsigned int levels)
{
	call->tenant = NULL;
	if (descriptor == NULL || levels == 0)
		return CUDA_SUCCESS;
	return charge(call, out, descriptor, levels);
}

int array_end(struct hook_call *call, int status, uint64_t array)
{
	struct tenant *tenant = call->tenant;

	if (tenant == NULL)
		return status;
	call->entry.handle = array;
	/* Not recorded, for want of memory: it stays charged until its context ends. */
	if (status == CUDA_SUCCESS)
		(void)table_put(&tenant->table, &call->entry);
	else
		quota_give(&tenant->quota, call->entry.card, call->entry.bytes);
	return status;
}

int array_free_begin(struct hook_call *call, uint64_t array)
{
	hidden_wait_begin();
	call->tenant = tenant_joined();
	call->giving = NULL;
	if (call->tenant != NULL &&
	    !table_take(&call->tenant->table, TABLE_ARRAY, array, &call->entry))
		call->tenant = NULL;
	return CUDA_SUCCESS;
}

int array_free_end(struct hook_call *call, int status, uint64_t array)
{
	if (status == CUDA_SUCCESS)
		sparse_forget_array(array);
	return free_end(call, status);
}
