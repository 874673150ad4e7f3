/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel launches of every kind.
 */
#include "graph.h"
#include "memory.h"
#include "module.h"
#include "stream.h"

struct shape {
	unsigned int grid[3];
	unsigned int block[3];
};

static bool shape_valid(const struct shape *shape)
{
	uint64_t threads = (uint64_t)shape->block[0] * shape->block[1] * shape->block[2];

	return shape->grid[0] != 0 && shape->grid[1] != 0 && shape->grid[2] != 0 && threads != 0 &&
	       threads <= 1024;
}

static CUresult launch(const char *function, bool per_thread, CUfunction kernel, struct shape shape,
		       CUstream handle, void **parameters)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, shape_valid(&shape), &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL || !function_valid(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	uint64_t duration_ns = function_duration_ns(kernel, parameters);
	if (stream->capture != NULL)
		return graph_capture_kernel(stream, duration_ns, kernel);
	/* The card keeps room for every thread it can run at once, from the first such launch on.
	 */
	if (!context_reserve_local(stream->context, kernel->local_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	(void)stream_submit(stream, duration_ns, true);
	return CUDA_SUCCESS;
}

static CUresult launch_kernel(const char *function, bool per_thread, CUfunction kernel,
			      unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			      unsigned int by, unsigned int bz, CUstream handle, void **parameters)
{
	struct shape shape = {.grid = {gx, gy, gz}, .block = {bx, by, bz}};

	return launch(function, per_thread, kernel, shape, handle, parameters);
}

#define KERNEL_PARAMETERS                                                                          \
	CUfunction kernel, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,     \
		unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream handle,      \
		void **parameters

static CUresult launch_plain(const char *function, bool per_thread, KERNEL_PARAMETERS, void **extra)
{
	(void)shared_bytes;
	(void)extra;
	return launch_kernel(function, per_thread, kernel, gx, gy, gz, bx, by, bz, handle,
			     parameters);
}

STREAM_API(cuLaunchKernel, _ptsz, (KERNEL_PARAMETERS, void **extra), launch_plain, kernel, gx, gy,
	   gz, bx, by, bz, shared_bytes, handle, parameters, extra)

static CUresult launch_cooperative(const char *function, bool per_thread, KERNEL_PARAMETERS)
{
	(void)shared_bytes;
	return launch_kernel(function, per_thread, kernel, gx, gy, gz, bx, by, bz, handle,
			     parameters);
}

STREAM_API(cuLaunchCooperativeKernel, _ptsz, (KERNEL_PARAMETERS), launch_cooperative, kernel, gx,
	   gy, gz, bx, by, bz, shared_bytes, handle, parameters)

struct launch_config {
	unsigned int grid[3];
	unsigned int block[3];
	unsigned int shared_bytes;
	CUstream stream;
	const void *attributes;
	unsigned int attribute_count;
};

static CUresult launch_config(const char *function, bool per_thread,
			      const struct launch_config *config, CUfunction kernel,
			      void **parameters, void **extra)
{
	(void)extra;
	if (config == NULL || !driver_initialised())
		return enter(function, false);
	return launch_kernel(function, per_thread, kernel, config->grid[0], config->grid[1],
			     config->grid[2], config->block[0], config->block[1], config->block[2],
			     config->stream, parameters);
}

STREAM_API(cuLaunchKernelEx, _ptsz,
	   (const struct launch_config *config, CUfunction kernel, void **parameters, void **extra),
	   launch_config, config, kernel, parameters, extra)

/* --- as before CUDA 4: the block's shape is set beforehand ----------------------------------- */

static __thread unsigned int block_shape[3] = {1, 1, 1};

CUDA_API(cuFuncSetBlockShape, (CUfunction kernel, int x, int y, int z))
{
	CUresult status = enter(__func__, x > 0 && y > 0 && z > 0);

	if (status == CUDA_SUCCESS && !function_valid(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	if (status != CUDA_SUCCESS)
		return status;
	block_shape[0] = (unsigned int)x;
	block_shape[1] = (unsigned int)y;
	block_shape[2] = (unsigned int)z;
	return CUDA_SUCCESS;
}

static CUresult launch_old(const char *function, CUfunction kernel, int width, int height,
			   CUstream handle)
{
	struct shape shape = {.grid = {(unsigned int)width, (unsigned int)height, 1},
			      .block = {block_shape[0], block_shape[1], block_shape[2]}};

	return launch(function, false, kernel, shape, handle, NULL);
}

CUDA_API(cuLaunch, (CUfunction kernel))
{
	return launch_old(__func__, kernel, 1, 1, NULL);
}

CUDA_API(cuLaunchGrid, (CUfunction kernel, int width, int height))
{
	return launch_old(__func__, kernel, width, height, NULL);
}

CUDA_API(cuLaunchGridAsync, (CUfunction kernel, int width, int height, CUstream handle))
{
	return launch_old(__func__, kernel, width, height, handle);
}
