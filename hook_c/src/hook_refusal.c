// SPDX-License-Identifier: Apache-2.0
/* The answer to a call for which the account has no room. The driver might refuse the call in any
 * case, for a reason of its own. Then that reason is the answer: a program that tests for it must
 * find it. The reason is found by questions that take no memory. The call itself never reaches the
 * driver: if the question was wrong, the memory would be taken. */
#include "hook.h"

int early_answer(void)
{
	int count = 0;
	int status = driver.cuDeviceGetCount(&count);

	return status == CUDA_ERROR_NOT_INITIALIZED || status == CUDA_ERROR_DEINITIALIZED
		       ? status
		       : CUDA_SUCCESS;
}

bool device_exists(int device)
{
	int count = 0;

	return driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || (device >= 0 && device < count);
}

bool is_on_host(const struct cuda_location *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

int refuse_memory(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	size_t free_bytes;
	size_t total_bytes;

	exchange_capture_mode(&mode);

	/* No context, one that a fault has ended, a card that is lost. */
	int status = driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);

	exchange_capture_mode(&mode);
	return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
}

int refuse_in_stream(void *stream)
{
	int status = refuse_memory();
	int captured;

	if (status != CUDA_ERROR_OUT_OF_MEMORY)
		return status;
	status = driver.cuStreamIsCapturing(stream, &captured);
	return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
}

int refuse_properties(const struct cuda_allocation_properties *properties, uint64_t bytes)
{
	size_t step = 0;
	int status = CUDA_SUCCESS;

	/* The question below is answered for any type (H200, driver 580). */
	if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (driver.cuMemGetAllocationGranularity != NULL)
		status = driver.cuMemGetAllocationGranularity(&step, properties,
							      CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (status != CUDA_SUCCESS)
		return status;
	return step != 0 && bytes % step != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}
