/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that programs make in passing and that change nothing in the simulation.
 */
#include "context.h"
#include "module.h"

CUDA_API(cuProfilerStart, (void))
{
	return enter(__func__, true);
}

CUDA_API(cuProfilerStop, (void))
{
	return enter(__func__, true);
}

static CUresult accept(const char *function, bool valid)
{
	struct context *context = NULL;

	return enter_context(function, valid, &context);
}

/* Answers with a number that is the same for every context. */
static CUresult answer(const char *function, int *out, int value)
{
	CUresult status = accept(function, out != NULL);

	if (status == CUDA_SUCCESS)
		*out = value;
	return status;
}

CUDA_API(cuCtxGetCacheConfig, (int *out))
{
	return answer(__func__, out, 0);
}

CUDA_API(cuCtxSetCacheConfig, (int config))
{
	return accept(__func__, config >= 0);
}

CUDA_API(cuCtxGetSharedMemConfig, (int *out))
{
	return answer(__func__, out, 1);
}

CUDA_API(cuCtxSetSharedMemConfig, (int config))
{
	return accept(__func__, config >= 0);
}

CUDA_API(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags))
{
	return accept(__func__, peer != NULL && flags == 0);
}

CUDA_API(cuCtxDisablePeerAccess, (CUcontext peer))
{
	return accept(__func__, peer != NULL);
}

CUDA_API(cuDeviceGetP2PAttribute, (int *out, int attribute, CUdevice from, CUdevice to))
{
	CUresult status = enter(__func__, out != NULL);

	(void)attribute;
	if (status == CUDA_SUCCESS && (!device_valid(from) || !device_valid(to)))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status == CUDA_SUCCESS)
		*out = from != to;
	return status;
}

CUDA_API(cuOccupancyMaxActiveBlocksPerMultiprocessor,
	 (int *out, CUfunction kernel, int block_threads, size_t shared_bytes))
{
	CUresult status = enter(__func__, out != NULL && block_threads > 0);

	(void)shared_bytes;
	if (status == CUDA_SUCCESS && !function_valid(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status == CUDA_SUCCESS)
		*out = block_threads > 2048 ? 0 : 2048 / block_threads;
	return status;
}
