/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of another process by handle: it is the maker's and is paid by the maker. What the maker
 * wrote is not seen here.
 */
#include "address.h"
#include "context.h"
#include "memory.h"

#include <string.h>

struct ipc_handle {
	uint64_t bytes;
	uint64_t offset;
	uint32_t slot; /* of the maker */
	uint8_t uuid[16];
	uint8_t reserved[28];
};

_Static_assert(sizeof(struct ipc_handle) == 64, "CUDA");

CUDA_API(cuIpcGetMemHandle, (struct ipc_handle * out, CUdeviceptr address))
{
	CUresult status = enter(__func__, out != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct region *region = memory_find(address);
	if (region == NULL || (region->kind != REGION_LINEAR && region->kind != REGION_SMALL))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct ipc_handle){.bytes = region->bytes,
				   .offset = address - region->base,
				   .slot = (uint32_t)(state_self() - state_map()->process)};
	memcpy(out->uuid, device_describe(region->ordinal)->uuid_bytes, sizeof(out->uuid));
	return CUDA_SUCCESS;
}

static CUresult open_handle(const char *function, CUdeviceptr *out, struct ipc_handle handle,
			    unsigned int flags)
{
	struct context *context = NULL;
	CUresult status =
		enter_context(function, out != NULL && flags <= 1 && handle.bytes != 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	/* One process cannot open what it made itself. */
	if (handle.bytes > ADDRESS_BYTES ||
	    handle.slot == (uint32_t)(state_self() - state_map()->process))
		return CUDA_ERROR_INVALID_CONTEXT;
	CUdeviceptr base = address_reserve(handle.bytes);
	struct region *region =
		base != 0 ? memory_describe(REGION_IMPORT, base, handle.bytes, context->ordinal)
			  : NULL;
	if (region == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region->context = context;
	*out = base + handle.offset;
	return CUDA_SUCCESS;
}

CUDA_API(cuIpcOpenMemHandle, (CUdeviceptr * out, struct ipc_handle handle, unsigned int flags))
{
	return open_handle(__func__, out, handle, flags);
}

CUDA_API(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, struct ipc_handle handle, unsigned int flags))
{
	return open_handle(__func__, out, handle, flags);
}

CUDA_API(cuIpcCloseMemHandle, (CUdeviceptr address))
{
	CUresult status = enter(__func__, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct region *region = memory_find(address);
	if (region == NULL || region->kind != REGION_IMPORT)
		return CUDA_ERROR_INVALID_VALUE;
	memory_release(region);
	return CUDA_SUCCESS;
}
