/* SPDX-License-Identifier: Apache-2.0
 * Made by gen.py from api.tsv and prototypes.tsv. The hooks, and the table of names.
 */

#include "hook_launch.h"
#include "hook_local.h"

#define EXPORT __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline))
#define WAY(function) __typeof__(&(function)) way

EXPORT int cuArray3DCreate(void **out, const void *descriptor);
EXPORT int cuArray3DCreate(void **out, const void *descriptor)
{
	HOOK_ENTER(cuArray3DCreate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = array3d_begin(&call, out, descriptor, 1);

	if (status != 0)
		return status;
	status = driver.cuArray3DCreate(out, descriptor);
	return array_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuArray3DCreate_v2(void **out, const void *descriptor);
EXPORT int cuArray3DCreate_v2(void **out, const void *descriptor)
{
	HOOK_ENTER(cuArray3DCreate_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = array3d_begin(&call, out, descriptor, 2);

	if (status != 0)
		return status;
	status = driver.cuArray3DCreate_v2(out, descriptor);
	return array_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuArrayCreate(void **out, const void *descriptor);
EXPORT int cuArrayCreate(void **out, const void *descriptor)
{
	HOOK_ENTER(cuArrayCreate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = array_begin(&call, out, descriptor, 1);

	if (status != 0)
		return status;
	status = driver.cuArrayCreate(out, descriptor);
	return array_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuArrayCreate_v2(void **out, const void *descriptor);
EXPORT int cuArrayCreate_v2(void **out, const void *descriptor)
{
	HOOK_ENTER(cuArrayCreate_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = array_begin(&call, out, descriptor, 2);

	if (status != 0)
		return status;
	status = driver.cuArrayCreate_v2(out, descriptor);
	return array_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuArrayDestroy(void *array);
EXPORT int cuArrayDestroy(void *array)
{
	HOOK_ENTER(cuArrayDestroy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = array_free_begin(&call, (uint64_t)(uintptr_t)array);

	if (status != 0)
		return status;
	status = driver.cuArrayDestroy(array);
	return array_free_end(&call, status, (uint64_t)(uintptr_t)array);
}

EXPORT int cuCtxAttach(void **out, unsigned int a1);
EXPORT int cuCtxAttach(void **out, unsigned int a1)
{
	HOOK_ENTER(cuCtxAttach, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuCtxAttach(out, a1);

	return context_attach_end(status, HOOK_VALUE(status, out));
}

EXPORT int cuCtxCreate(void **out, unsigned int a1, int device);
EXPORT int cuCtxCreate(void **out, unsigned int a1, int device)
{
	HOOK_ENTER(cuCtxCreate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = context_create_begin(&call, out, device);

	if (status != 0)
		return status;
	status = driver.cuCtxCreate(out, a1, device);
	return context_create_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuCtxCreate_v2(void **out, unsigned int a1, int device);
EXPORT int cuCtxCreate_v2(void **out, unsigned int a1, int device)
{
	HOOK_ENTER(cuCtxCreate_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = context_create_begin(&call, out, device);

	if (status != 0)
		return status;
	status = driver.cuCtxCreate_v2(out, a1, device);
	return context_create_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuCtxCreate_v3(void **out, void *a1, int a2, unsigned int a3, int device);
EXPORT int cuCtxCreate_v3(void **out, void *a1, int a2, unsigned int a3, int device)
{
	HOOK_ENTER(cuCtxCreate_v3, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = context_create_begin(&call, out, device);

	if (status != 0)
		return status;
	status = driver.cuCtxCreate_v3(out, a1, a2, a3, device);
	return context_create_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuCtxCreate_v4(void **out, void *a1, unsigned int a2, int device);
EXPORT int cuCtxCreate_v4(void **out, void *a1, unsigned int a2, int device)
{
	HOOK_ENTER(cuCtxCreate_v4, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = context_create_begin(&call, out, device);

	if (status != 0)
		return status;
	status = driver.cuCtxCreate_v4(out, a1, a2, device);
	return context_create_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuCtxDestroy(void *context);
EXPORT int cuCtxDestroy(void *context)
{
	HOOK_ENTER(cuCtxDestroy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuCtxDestroy(context);

	return context_destroy_end(status, (uint64_t)(uintptr_t)context);
}

EXPORT int cuCtxDestroy_v2(void *context);
EXPORT int cuCtxDestroy_v2(void *context)
{
	HOOK_ENTER(cuCtxDestroy_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuCtxDestroy_v2(context);

	return context_destroy_end(status, (uint64_t)(uintptr_t)context);
}

EXPORT int cuCtxDetach(void *context);
EXPORT int cuCtxDetach(void *context)
{
	HOOK_ENTER(cuCtxDetach, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuCtxDetach(context);

	return context_detach_end(status, (uint64_t)(uintptr_t)context);
}

EXPORT int cuCtxSetLimit(int limit, size_t bytes);
EXPORT int cuCtxSetLimit(int limit, size_t bytes)
{
	HOOK_ENTER(cuCtxSetLimit, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = context_limit_begin(&call, limit, bytes);

	if (status != 0)
		return status;
	status = driver.cuCtxSetLimit(limit, bytes);
	return context_limit_end(&call, status, limit, bytes);
}

EXPORT int cuCtxSynchronize(void);
EXPORT int cuCtxSynchronize(void)
{
	HOOK_ENTER(cuCtxSynchronize, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = sync_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuCtxSynchronize();
	return context_sync_end(&call, status);
}

EXPORT int cuCtxSynchronize_v2(void *a0);
EXPORT int cuCtxSynchronize_v2(void *a0)
{
	HOOK_ENTER(cuCtxSynchronize_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = sync_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuCtxSynchronize_v2(a0);
	return context_sync_end(&call, status);
}

EXPORT int cuDeviceGraphMemTrim(int a0);
EXPORT int cuDeviceGraphMemTrim(int a0)
{
	HOOK_ENTER(cuDeviceGraphMemTrim, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pools_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuDeviceGraphMemTrim(a0);
	return pools_given_end(&call, status);
}

EXPORT int cuDevicePrimaryCtxRelease(int device);
EXPORT int cuDevicePrimaryCtxRelease(int device)
{
	HOOK_ENTER(cuDevicePrimaryCtxRelease, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuDevicePrimaryCtxRelease(device);

	return primary_release_end(status, device);
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	HOOK_ENTER(cuDevicePrimaryCtxRelease_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuDevicePrimaryCtxRelease_v2(device);

	return primary_release_end(status, device);
}

EXPORT int cuDevicePrimaryCtxReset(int device);
EXPORT int cuDevicePrimaryCtxReset(int device)
{
	HOOK_ENTER(cuDevicePrimaryCtxReset, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuDevicePrimaryCtxReset(device);

	return primary_release_end(status, device);
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device);
EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
	HOOK_ENTER(cuDevicePrimaryCtxReset_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuDevicePrimaryCtxReset_v2(device);

	return primary_release_end(status, device);
}

EXPORT int cuDevicePrimaryCtxRetain(void **out, int device);
EXPORT int cuDevicePrimaryCtxRetain(void **out, int device)
{
	HOOK_ENTER(cuDevicePrimaryCtxRetain, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = primary_retain_begin(&call, out, device);

	if (status != 0)
		return status;
	status = driver.cuDevicePrimaryCtxRetain(out, device);
	return primary_retain_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuDeviceSetMemPool(int a0, void *a1);
EXPORT int cuDeviceSetMemPool(int a0, void *a1)
{
	HOOK_ENTER(cuDeviceSetMemPool, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_select_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuDeviceSetMemPool(a0, a1);
	return pool_select_end(&call, status);
}

EXPORT int cuDeviceTotalMem(unsigned int *total, int device);
EXPORT int cuDeviceTotalMem(unsigned int *total, int device)
{
	HOOK_ENTER(cuDeviceTotalMem, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuDeviceTotalMem(total, device);

	return total_memory_end(status, total, sizeof(*total), device);
}

EXPORT int cuDeviceTotalMem_v2(size_t *total, int device);
EXPORT int cuDeviceTotalMem_v2(size_t *total, int device)
{
	HOOK_ENTER(cuDeviceTotalMem_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuDeviceTotalMem_v2(total, device);

	return total_memory_end(status, total, sizeof(*total), device);
}

EXPORT int cuEventQuery(void *a0);
EXPORT int cuEventQuery(void *a0)
{
	HOOK_ENTER(cuEventQuery, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = query_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuEventQuery(a0);
	return query_end(&call, status);
}

EXPORT int cuEventSynchronize(void *a0);
EXPORT int cuEventSynchronize(void *a0)
{
	HOOK_ENTER(cuEventSynchronize, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = event_sync_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuEventSynchronize(a0);
	return sync_end(&call, status);
}

EXPORT int cuGetProcAddress(const char *a0, void **out, int a2, uint64_t a3);
EXPORT int cuGetProcAddress(const char *a0, void **out, int a2, uint64_t a3)
{
	HOOK_ENTER(cuGetProcAddress, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuGetProcAddress(a0, out, a2, a3);

	return lookup_end(status, out);
}

EXPORT int cuGetProcAddress_v2(const char *a0, void **out, int a2, uint64_t a3, int *a4);
EXPORT int cuGetProcAddress_v2(const char *a0, void **out, int a2, uint64_t a3, int *a4)
{
	HOOK_ENTER(cuGetProcAddress_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuGetProcAddress_v2(a0, out, a2, a3, a4);

	return lookup_end(status, out);
}

EXPORT int cuGraphAddMemAllocNode(void **out, void *graph, void **dependencies, size_t count, void *parameters);
EXPORT int cuGraphAddMemAllocNode(void **out, void *graph, void **dependencies, size_t count, void *parameters)
{
	HOOK_ENTER(cuGraphAddMemAllocNode, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_node_begin(&call, GRAPH_PLACE(out, graph, dependencies, count), parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphAddMemAllocNode(out, graph, dependencies, count, parameters);
	return status;
}

EXPORT int cuGraphAddNode(void **out, void *graph, void **dependencies, size_t count, void *parameters);
EXPORT int cuGraphAddNode(void **out, void *graph, void **dependencies, size_t count, void *parameters)
{
	HOOK_ENTER(cuGraphAddNode, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_any_node_begin(&call, GRAPH_PLACE(out, graph, dependencies, count), parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphAddNode(out, graph, dependencies, count, parameters);
	return graph_any_node_end(status, HOOK_VALUE(status, out), parameters);
}

EXPORT int cuGraphAddNode_v2(void **out, void *graph, void **dependencies, const void *a3, size_t count, void *parameters);
EXPORT int cuGraphAddNode_v2(void **out, void *graph, void **dependencies, const void *a3, size_t count, void *parameters)
{
	HOOK_ENTER(cuGraphAddNode_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_any_node_begin(&call, GRAPH_PLACE(out, graph, dependencies, count), parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphAddNode_v2(out, graph, dependencies, a3, count, parameters);
	return graph_any_node_end(status, HOOK_VALUE(status, out), parameters);
}

EXPORT int cuGraphAddNode_v3(void **out, void *graph, void **dependencies, const void *a3, size_t count, void *parameters);
EXPORT int cuGraphAddNode_v3(void **out, void *graph, void **dependencies, const void *a3, size_t count, void *parameters)
{
	HOOK_ENTER(cuGraphAddNode_v3, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_any_node_begin(&call, GRAPH_PLACE(out, graph, dependencies, count), parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphAddNode_v3(out, graph, dependencies, a3, count, parameters);
	return graph_any_node_end(status, HOOK_VALUE(status, out), parameters);
}

EXPORT int cuGraphExecDestroy(void *instance);
EXPORT int cuGraphExecDestroy(void *instance)
{
	HOOK_ENTER(cuGraphExecDestroy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuGraphExecDestroy(instance);

	return graph_destroy_end(status, instance);
}

EXPORT int cuGraphExecKernelNodeSetParams(void *instance, void *a1, const void *parameters);
EXPORT int cuGraphExecKernelNodeSetParams(void *instance, void *a1, const void *parameters)
{
	HOOK_ENTER(cuGraphExecKernelNodeSetParams, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_kernel_begin(&call, instance, parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphExecKernelNodeSetParams(instance, a1, parameters);
	return graph_kernel_end(&call, status);
}

EXPORT int cuGraphExecKernelNodeSetParams_v2(void *instance, void *a1, const void *parameters);
EXPORT int cuGraphExecKernelNodeSetParams_v2(void *instance, void *a1, const void *parameters)
{
	HOOK_ENTER(cuGraphExecKernelNodeSetParams_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_kernel_begin(&call, instance, parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphExecKernelNodeSetParams_v2(instance, a1, parameters);
	return graph_kernel_end(&call, status);
}

EXPORT int cuGraphExecNodeSetParams(void *instance, void *a1, void *parameters);
EXPORT int cuGraphExecNodeSetParams(void *instance, void *a1, void *parameters)
{
	HOOK_ENTER(cuGraphExecNodeSetParams, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_node_set_begin(&call, instance, parameters);

	if (status != 0)
		return status;
	status = driver.cuGraphExecNodeSetParams(instance, a1, parameters);
	return graph_kernel_end(&call, status);
}

EXPORT int cuGraphExecUpdate(void *instance, void *graph, void **a2, int *a3);
EXPORT int cuGraphExecUpdate(void *instance, void *graph, void **a2, int *a3)
{
	HOOK_ENTER(cuGraphExecUpdate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_update_begin(&call, instance, graph);

	if (status != 0)
		return status;
	status = driver.cuGraphExecUpdate(instance, graph, a2, a3);
	return graph_update_end(&call, status);
}

EXPORT int cuGraphExecUpdate_v2(void *instance, void *graph, void *a2);
EXPORT int cuGraphExecUpdate_v2(void *instance, void *graph, void *a2)
{
	HOOK_ENTER(cuGraphExecUpdate_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_update_begin(&call, instance, graph);

	if (status != 0)
		return status;
	status = driver.cuGraphExecUpdate_v2(instance, graph, a2);
	return graph_update_end(&call, status);
}

EXPORT int cuGraphInstantiate(void **out, void *graph, void **a2, char *a3, size_t a4);
EXPORT int cuGraphInstantiate(void **out, void *graph, void **a2, char *a3, size_t a4)
{
	HOOK_ENTER(cuGraphInstantiate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_instantiate_begin(&call, out, graph);

	if (status != 0)
		return status;
	status = driver.cuGraphInstantiate(out, graph, a2, a3, a4);
	return graph_instantiate_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuGraphInstantiateWithFlags(void **out, void *graph, uint64_t a2);
EXPORT int cuGraphInstantiateWithFlags(void **out, void *graph, uint64_t a2)
{
	HOOK_ENTER(cuGraphInstantiateWithFlags, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_instantiate_begin(&call, out, graph);

	if (status != 0)
		return status;
	status = driver.cuGraphInstantiateWithFlags(out, graph, a2);
	return graph_instantiate_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuGraphInstantiateWithParams(void **out, void *graph, void *parameters);
EXPORT int cuGraphInstantiateWithParams(void **out, void *graph, void *parameters)
{
	HOOK_ENTER(cuGraphInstantiateWithParams, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_with_begin(&call, out, graph, parameters, false);

	if (status != 0)
		return status;
	status = driver.cuGraphInstantiateWithParams(out, graph, parameters);
	return graph_with_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuGraphInstantiateWithParams_ptsz(void **out, void *graph, void *parameters);
EXPORT int cuGraphInstantiateWithParams_ptsz(void **out, void *graph, void *parameters)
{
	HOOK_ENTER(cuGraphInstantiateWithParams_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_with_begin(&call, out, graph, parameters, true);

	if (status != 0)
		return status;
	status = driver.cuGraphInstantiateWithParams_ptsz(out, graph, parameters);
	return graph_with_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuGraphInstantiate_v2(void **out, void *graph, void **a2, char *a3, size_t a4);
EXPORT int cuGraphInstantiate_v2(void **out, void *graph, void **a2, char *a3, size_t a4)
{
	HOOK_ENTER(cuGraphInstantiate_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_instantiate_begin(&call, out, graph);

	if (status != 0)
		return status;
	status = driver.cuGraphInstantiate_v2(out, graph, a2, a3, a4);
	return graph_instantiate_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuGraphLaunch(void *instance, void *stream);
EXPORT int cuGraphLaunch(void *instance, void *stream)
{
	HOOK_ENTER(cuGraphLaunch, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_launch_begin(&call, instance, stream, false);

	if (status != 0)
		return status;
	status = driver.cuGraphLaunch(instance, stream);
	return graph_launch_end(&call, status);
}

EXPORT int cuGraphLaunch_ptsz(void *instance, void *stream);
EXPORT int cuGraphLaunch_ptsz(void *instance, void *stream)
{
	HOOK_ENTER(cuGraphLaunch_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_launch_begin(&call, instance, stream, true);

	if (status != 0)
		return status;
	status = driver.cuGraphLaunch_ptsz(instance, stream);
	return graph_launch_end(&call, status);
}

EXPORT int cuGraphNodeSetEnabled(void *instance, void *node, unsigned int enabled);
EXPORT int cuGraphNodeSetEnabled(void *instance, void *node, unsigned int enabled)
{
	HOOK_ENTER(cuGraphNodeSetEnabled, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_enable_begin(&call, instance, node);

	if (status != 0)
		return status;
	status = driver.cuGraphNodeSetEnabled(instance, node, enabled);
	return graph_enable_end(&call, status, enabled);
}

EXPORT int cuGraphUpload(void *instance, void *stream);
EXPORT int cuGraphUpload(void *instance, void *stream)
{
	HOOK_ENTER(cuGraphUpload, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_upload_begin(&call, instance, stream, false);

	if (status != 0)
		return status;
	status = driver.cuGraphUpload(instance, stream);
	return graph_launch_end(&call, status);
}

EXPORT int cuGraphUpload_ptsz(void *instance, void *stream);
EXPORT int cuGraphUpload_ptsz(void *instance, void *stream)
{
	HOOK_ENTER(cuGraphUpload_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = graph_upload_begin(&call, instance, stream, true);

	if (status != 0)
		return status;
	status = driver.cuGraphUpload_ptsz(instance, stream);
	return graph_launch_end(&call, status);
}

EXPORT int cuInit(unsigned int a0);
EXPORT int cuInit(unsigned int a0)
{
	HOOK_ENTER(cuInit, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = init_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuInit(a0);
	return init_end(&call, status);
}

static NOINLINE int asked_cuLaunch(void *function)
{
	HOOK_ENTER(cuLaunch, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, NULL, NULL, false);

	if (status != 0)
		return status;
	status = driver.cuLaunch(function);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunch(void *function)
{
	WAY(asked_cuLaunch) = gate_passes(launch_key(function, NULL), launch_stream(NULL, false)) ? driver.cuLaunch : asked_cuLaunch;

	return way(function);
}

EXPORT int cuLaunch(void *function);
EXPORT int cuLaunch(void *function)
{
	WAY(asked_cuLaunch) = asked_cuLaunch;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunch : limited_cuLaunch;
	return way(function);
}

static NOINLINE int asked_cuLaunchCooperativeKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9)
{
	HOOK_ENTER(cuLaunchCooperativeKernel, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz), stream, false);

	if (status != 0)
		return status;
	status = driver.cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, a7, stream, a9);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchCooperativeKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9)
{
	WAY(asked_cuLaunchCooperativeKernel) = gate_passes(launch_key(function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz)), launch_stream(stream, false)) ? driver.cuLaunchCooperativeKernel : asked_cuLaunchCooperativeKernel;

	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9);
}

EXPORT int cuLaunchCooperativeKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9);
EXPORT int cuLaunchCooperativeKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9)
{
	WAY(asked_cuLaunchCooperativeKernel) = asked_cuLaunchCooperativeKernel;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchCooperativeKernel : limited_cuLaunchCooperativeKernel;
	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9);
}

EXPORT int cuLaunchCooperativeKernelMultiDevice(void *list, unsigned int count, unsigned int a2);
EXPORT int cuLaunchCooperativeKernelMultiDevice(void *list, unsigned int count, unsigned int a2)
{
	HOOK_ENTER(cuLaunchCooperativeKernelMultiDevice, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_many_begin(&call, list, count);

	if (status != 0)
		return status;
	status = driver.cuLaunchCooperativeKernelMultiDevice(list, count, a2);
	return status;
}

static NOINLINE int asked_cuLaunchCooperativeKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9)
{
	HOOK_ENTER(cuLaunchCooperativeKernel_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz), stream, true);

	if (status != 0)
		return status;
	status = driver.cuLaunchCooperativeKernel_ptsz(function, gx, gy, gz, bx, by, bz, a7, stream, a9);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchCooperativeKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9)
{
	WAY(asked_cuLaunchCooperativeKernel_ptsz) = gate_passes(launch_key(function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz)), launch_stream(stream, true)) ? driver.cuLaunchCooperativeKernel_ptsz : asked_cuLaunchCooperativeKernel_ptsz;

	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9);
}

EXPORT int cuLaunchCooperativeKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9);
EXPORT int cuLaunchCooperativeKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9)
{
	WAY(asked_cuLaunchCooperativeKernel_ptsz) = asked_cuLaunchCooperativeKernel_ptsz;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchCooperativeKernel_ptsz : limited_cuLaunchCooperativeKernel_ptsz;
	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9);
}

static NOINLINE int asked_cuLaunchGrid(void *function, int a1, int a2)
{
	HOOK_ENTER(cuLaunchGrid, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, NULL, NULL, false);

	if (status != 0)
		return status;
	status = driver.cuLaunchGrid(function, a1, a2);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchGrid(void *function, int a1, int a2)
{
	WAY(asked_cuLaunchGrid) = gate_passes(launch_key(function, NULL), launch_stream(NULL, false)) ? driver.cuLaunchGrid : asked_cuLaunchGrid;

	return way(function, a1, a2);
}

EXPORT int cuLaunchGrid(void *function, int a1, int a2);
EXPORT int cuLaunchGrid(void *function, int a1, int a2)
{
	WAY(asked_cuLaunchGrid) = asked_cuLaunchGrid;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchGrid : limited_cuLaunchGrid;
	return way(function, a1, a2);
}

static NOINLINE int asked_cuLaunchGridAsync(void *function, int a1, int a2, void *stream)
{
	HOOK_ENTER(cuLaunchGridAsync, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, NULL, stream, false);

	if (status != 0)
		return status;
	status = driver.cuLaunchGridAsync(function, a1, a2, stream);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchGridAsync(void *function, int a1, int a2, void *stream)
{
	WAY(asked_cuLaunchGridAsync) = gate_passes(launch_key(function, NULL), launch_stream(stream, false)) ? driver.cuLaunchGridAsync : asked_cuLaunchGridAsync;

	return way(function, a1, a2, stream);
}

EXPORT int cuLaunchGridAsync(void *function, int a1, int a2, void *stream);
EXPORT int cuLaunchGridAsync(void *function, int a1, int a2, void *stream)
{
	WAY(asked_cuLaunchGridAsync) = asked_cuLaunchGridAsync;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchGridAsync : limited_cuLaunchGridAsync;
	return way(function, a1, a2, stream);
}

EXPORT int cuLaunchHostFunc(void *a0, void *a1, void *a2);
EXPORT int cuLaunchHostFunc(void *a0, void *a1, void *a2)
{
	HOOK_ENTER(cuLaunchHostFunc, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuLaunchHostFunc(a0, a1, a2);
	return hidden_wait_end(status);
}

EXPORT int cuLaunchHostFunc_ptsz(void *a0, void *a1, void *a2);
EXPORT int cuLaunchHostFunc_ptsz(void *a0, void *a1, void *a2)
{
	HOOK_ENTER(cuLaunchHostFunc_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuLaunchHostFunc_ptsz(a0, a1, a2);
	return hidden_wait_end(status);
}

EXPORT int cuLaunchHostFunc_v2(void *a0, void *a1, void *a2, unsigned int a3);
EXPORT int cuLaunchHostFunc_v2(void *a0, void *a1, void *a2, unsigned int a3)
{
	HOOK_ENTER(cuLaunchHostFunc_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuLaunchHostFunc_v2(a0, a1, a2, a3);
	return hidden_wait_end(status);
}

EXPORT int cuLaunchHostFunc_v2_ptsz(void *a0, void *a1, void *a2, unsigned int a3);
EXPORT int cuLaunchHostFunc_v2_ptsz(void *a0, void *a1, void *a2, unsigned int a3)
{
	HOOK_ENTER(cuLaunchHostFunc_v2_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuLaunchHostFunc_v2_ptsz(a0, a1, a2, a3);
	return hidden_wait_end(status);
}

static NOINLINE int asked_cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10)
{
	HOOK_ENTER(cuLaunchKernel, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz), stream, false);

	if (status != 0)
		return status;
	status = driver.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, a7, stream, a9, a10);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10)
{
	WAY(asked_cuLaunchKernel) = gate_passes(launch_key(function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz)), launch_stream(stream, false)) ? driver.cuLaunchKernel : asked_cuLaunchKernel;

	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9, a10);
}

EXPORT int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10);
EXPORT int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10)
{
	WAY(asked_cuLaunchKernel) = asked_cuLaunchKernel;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchKernel : limited_cuLaunchKernel;
	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9, a10);
}

static NOINLINE int asked_cuLaunchKernelEx(const void *config, void *function, void **a2, void **a3)
{
	HOOK_ENTER(cuLaunchKernelEx, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_config_begin(&call, config, function, false);

	if (status != 0)
		return status;
	status = driver.cuLaunchKernelEx(config, function, a2, a3);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchKernelEx(const void *config, void *function, void **a2, void **a3)
{
	WAY(asked_cuLaunchKernelEx) = launch_config_passes(config, function, false) ? driver.cuLaunchKernelEx : asked_cuLaunchKernelEx;

	return way(config, function, a2, a3);
}

EXPORT int cuLaunchKernelEx(const void *config, void *function, void **a2, void **a3);
EXPORT int cuLaunchKernelEx(const void *config, void *function, void **a2, void **a3)
{
	WAY(asked_cuLaunchKernelEx) = asked_cuLaunchKernelEx;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchKernelEx : limited_cuLaunchKernelEx;
	return way(config, function, a2, a3);
}

static NOINLINE int asked_cuLaunchKernelEx_ptsz(const void *config, void *function, void **a2, void **a3)
{
	HOOK_ENTER(cuLaunchKernelEx_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_config_begin(&call, config, function, true);

	if (status != 0)
		return status;
	status = driver.cuLaunchKernelEx_ptsz(config, function, a2, a3);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchKernelEx_ptsz(const void *config, void *function, void **a2, void **a3)
{
	WAY(asked_cuLaunchKernelEx_ptsz) = launch_config_passes(config, function, true) ? driver.cuLaunchKernelEx_ptsz : asked_cuLaunchKernelEx_ptsz;

	return way(config, function, a2, a3);
}

EXPORT int cuLaunchKernelEx_ptsz(const void *config, void *function, void **a2, void **a3);
EXPORT int cuLaunchKernelEx_ptsz(const void *config, void *function, void **a2, void **a3)
{
	WAY(asked_cuLaunchKernelEx_ptsz) = asked_cuLaunchKernelEx_ptsz;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchKernelEx_ptsz : limited_cuLaunchKernelEx_ptsz;
	return way(config, function, a2, a3);
}

static NOINLINE int asked_cuLaunchKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10)
{
	HOOK_ENTER(cuLaunchKernel_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = launch_begin(&call, function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz), stream, true);

	if (status != 0)
		return status;
	status = driver.cuLaunchKernel_ptsz(function, gx, gy, gz, bx, by, bz, a7, stream, a9, a10);
	return launch_end(&call, status);
}

static NOINLINE int limited_cuLaunchKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10)
{
	WAY(asked_cuLaunchKernel_ptsz) = gate_passes(launch_key(function, LAUNCH_SHAPE(gx, gy, gz, bx, by, bz)), launch_stream(stream, true)) ? driver.cuLaunchKernel_ptsz : asked_cuLaunchKernel_ptsz;

	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9, a10);
}

EXPORT int cuLaunchKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10);
EXPORT int cuLaunchKernel_ptsz(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int a7, void *stream, void **a9, void **a10)
{
	WAY(asked_cuLaunchKernel_ptsz) = asked_cuLaunchKernel_ptsz;

	if (launch_is_known(function))
		way = launch_is_free() ? driver.cuLaunchKernel_ptsz : limited_cuLaunchKernel_ptsz;
	return way(function, gx, gy, gz, bx, by, bz, a7, stream, a9, a10);
}

EXPORT int cuLibraryUnload(void *a0);
EXPORT int cuLibraryUnload(void *a0)
{
	HOOK_ENTER(cuLibraryUnload, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuLibraryUnload(a0);

	return local_unload_end(status);
}

EXPORT int cuMemAlloc(unsigned int *out, unsigned int bytes);
EXPORT int cuMemAlloc(unsigned int *out, unsigned int bytes)
{
	HOOK_ENTER(cuMemAlloc, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = alloc_begin(&call, out, bytes);

	if (status != 0)
		return status;
	status = driver.cuMemAlloc(out, bytes);
	return alloc_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuMemAllocAsync(uint64_t *out, size_t bytes, void *stream);
EXPORT int cuMemAllocAsync(uint64_t *out, size_t bytes, void *stream)
{
	HOOK_ENTER(cuMemAllocAsync, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_alloc_begin(&call, out, bytes, stream, false);

	if (status != 0)
		return status;
	status = driver.cuMemAllocAsync(out, bytes, stream);
	return pool_alloc_end(&call, status, out, bytes, stream, false);
}

EXPORT int cuMemAllocAsync_ptsz(uint64_t *out, size_t bytes, void *stream);
EXPORT int cuMemAllocAsync_ptsz(uint64_t *out, size_t bytes, void *stream)
{
	HOOK_ENTER(cuMemAllocAsync_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_alloc_begin(&call, out, bytes, stream, true);

	if (status != 0)
		return status;
	status = driver.cuMemAllocAsync_ptsz(out, bytes, stream);
	return pool_alloc_end(&call, status, out, bytes, stream, true);
}

EXPORT int cuMemAllocFromPoolAsync(uint64_t *out, size_t bytes, void *pool, void *stream);
EXPORT int cuMemAllocFromPoolAsync(uint64_t *out, size_t bytes, void *pool, void *stream)
{
	HOOK_ENTER(cuMemAllocFromPoolAsync, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_alloc_from_begin(&call, out, bytes, pool, stream, false);

	if (status != 0)
		return status;
	status = driver.cuMemAllocFromPoolAsync(out, bytes, pool, stream);
	return pool_alloc_end(&call, status, out, bytes, stream, false);
}

EXPORT int cuMemAllocFromPoolAsync_ptsz(uint64_t *out, size_t bytes, void *pool, void *stream);
EXPORT int cuMemAllocFromPoolAsync_ptsz(uint64_t *out, size_t bytes, void *pool, void *stream)
{
	HOOK_ENTER(cuMemAllocFromPoolAsync_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_alloc_from_begin(&call, out, bytes, pool, stream, true);

	if (status != 0)
		return status;
	status = driver.cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream);
	return pool_alloc_end(&call, status, out, bytes, stream, true);
}

EXPORT int cuMemAllocManaged(uint64_t *out, size_t bytes, unsigned int flags);
EXPORT int cuMemAllocManaged(uint64_t *out, size_t bytes, unsigned int flags)
{
	HOOK_ENTER(cuMemAllocManaged, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = managed_begin(&call, out, bytes, flags);

	if (status != 0)
		return status;
	status = driver.cuMemAllocManaged(out, bytes, flags);
	return alloc_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuMemAllocPitch(unsigned int *out, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element);
EXPORT int cuMemAllocPitch(unsigned int *out, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
	HOOK_ENTER(cuMemAllocPitch, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pitch_begin(&call, out, pitch, width, height, element);

	if (status != 0)
		return status;
	status = driver.cuMemAllocPitch(out, pitch, width, height, element);
	return pitch_end(&call, status, HOOK_VALUE(status, out), HOOK_VALUE(status, pitch), height);
}

EXPORT int cuMemAllocPitch_v2(uint64_t *out, size_t *pitch, size_t width, size_t height, unsigned int element);
EXPORT int cuMemAllocPitch_v2(uint64_t *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	HOOK_ENTER(cuMemAllocPitch_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pitch_begin(&call, out, pitch, width, height, element);

	if (status != 0)
		return status;
	status = driver.cuMemAllocPitch_v2(out, pitch, width, height, element);
	return pitch_end(&call, status, HOOK_VALUE(status, out), HOOK_VALUE(status, pitch), height);
}

EXPORT int cuMemAlloc_v2(uint64_t *out, size_t bytes);
EXPORT int cuMemAlloc_v2(uint64_t *out, size_t bytes)
{
	HOOK_ENTER(cuMemAlloc_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = alloc_begin(&call, out, bytes);

	if (status != 0)
		return status;
	status = driver.cuMemAlloc_v2(out, bytes);
	return alloc_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuMemCreate(uint64_t *out, size_t bytes, const void *properties, uint64_t flags);
EXPORT int cuMemCreate(uint64_t *out, size_t bytes, const void *properties, uint64_t flags)
{
	HOOK_ENTER(cuMemCreate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = object_create_begin(&call, out, bytes, properties, flags);

	if (status != 0)
		return status;
	status = driver.cuMemCreate(out, bytes, properties, flags);
	return object_create_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuMemFree(unsigned int pointer);
EXPORT int cuMemFree(unsigned int pointer)
{
	HOOK_ENTER(cuMemFree, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = free_begin(&call, pointer);

	if (status != 0)
		return status;
	status = driver.cuMemFree(pointer);
	return free_end(&call, status);
}

EXPORT int cuMemFreeAsync(uint64_t pointer, void *stream);
EXPORT int cuMemFreeAsync(uint64_t pointer, void *stream)
{
	HOOK_ENTER(cuMemFreeAsync, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = free_async_begin(&call, pointer, stream, false);

	if (status != 0)
		return status;
	status = driver.cuMemFreeAsync(pointer, stream);
	return free_async_end(&call, status, stream, false);
}

EXPORT int cuMemFreeAsync_ptsz(uint64_t pointer, void *stream);
EXPORT int cuMemFreeAsync_ptsz(uint64_t pointer, void *stream)
{
	HOOK_ENTER(cuMemFreeAsync_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = free_async_begin(&call, pointer, stream, true);

	if (status != 0)
		return status;
	status = driver.cuMemFreeAsync_ptsz(pointer, stream);
	return free_async_end(&call, status, stream, true);
}

EXPORT int cuMemFreeHost(void *a0);
EXPORT int cuMemFreeHost(void *a0)
{
	HOOK_ENTER(cuMemFreeHost, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuMemFreeHost(a0);
	return hidden_wait_end(status);
}

EXPORT int cuMemFree_v2(uint64_t pointer);
EXPORT int cuMemFree_v2(uint64_t pointer)
{
	HOOK_ENTER(cuMemFree_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = free_begin(&call, pointer);

	if (status != 0)
		return status;
	status = driver.cuMemFree_v2(pointer);
	return free_end(&call, status);
}

EXPORT int cuMemGetDefaultMemPool(void **a0, void *location, int type);
EXPORT int cuMemGetDefaultMemPool(void **a0, void *location, int type)
{
	HOOK_ENTER(cuMemGetDefaultMemPool, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = pool_at_begin(location, type);

	if (status != 0)
		return status;
	status = driver.cuMemGetDefaultMemPool(a0, location, type);
	return status;
}

EXPORT int cuMemGetInfo(unsigned int *free, unsigned int *total);
EXPORT int cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	HOOK_ENTER(cuMemGetInfo, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuMemGetInfo(free, total);

	return memory_info_end(status, free, total, sizeof(*free));
}

EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total);
EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	HOOK_ENTER(cuMemGetInfo_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuMemGetInfo_v2(free, total);

	return memory_info_end(status, free, total, sizeof(*free));
}

EXPORT int cuMemGetMemPool(void **a0, void *location, int type);
EXPORT int cuMemGetMemPool(void **a0, void *location, int type)
{
	HOOK_ENTER(cuMemGetMemPool, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = pool_at_begin(location, type);

	if (status != 0)
		return status;
	status = driver.cuMemGetMemPool(a0, location, type);
	return status;
}

EXPORT int cuMemHostUnregister(void *a0);
EXPORT int cuMemHostUnregister(void *a0)
{
	HOOK_ENTER(cuMemHostUnregister, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuMemHostUnregister(a0);
	return hidden_wait_end(status);
}

EXPORT int cuMemMap(uint64_t address, size_t bytes, size_t a2, uint64_t handle, uint64_t a4);
EXPORT int cuMemMap(uint64_t address, size_t bytes, size_t a2, uint64_t handle, uint64_t a4)
{
	HOOK_ENTER(cuMemMap, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = object_map_begin(&call, address, bytes, handle);

	if (status != 0)
		return status;
	status = driver.cuMemMap(address, bytes, a2, handle, a4);
	return object_map_end(&call, status);
}

EXPORT int cuMemMapArrayAsync(void *list, unsigned int count, void *stream);
EXPORT int cuMemMapArrayAsync(void *list, unsigned int count, void *stream)
{
	HOOK_ENTER(cuMemMapArrayAsync, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = object_map_array_begin(&call, list, count);

	if (status != 0)
		return status;
	status = driver.cuMemMapArrayAsync(list, count, stream);
	return object_map_array_end(&call, status, list, count, stream, false);
}

EXPORT int cuMemMapArrayAsync_ptsz(void *list, unsigned int count, void *stream);
EXPORT int cuMemMapArrayAsync_ptsz(void *list, unsigned int count, void *stream)
{
	HOOK_ENTER(cuMemMapArrayAsync_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = object_map_array_begin(&call, list, count);

	if (status != 0)
		return status;
	status = driver.cuMemMapArrayAsync_ptsz(list, count, stream);
	return object_map_array_end(&call, status, list, count, stream, true);
}

EXPORT int cuMemPoolCreate(void **out, const void *properties);
EXPORT int cuMemPoolCreate(void **out, const void *properties)
{
	HOOK_ENTER(cuMemPoolCreate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_create_begin(&call, out, properties);

	if (status != 0)
		return status;
	status = driver.cuMemPoolCreate(out, properties);
	return pool_create_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuMemPoolDestroy(void *pool);
EXPORT int cuMemPoolDestroy(void *pool)
{
	HOOK_ENTER(cuMemPoolDestroy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_destroy_begin(&call, pool);

	if (status != 0)
		return status;
	status = driver.cuMemPoolDestroy(pool);
	return pool_destroy_end(&call, status);
}

EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value);
EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value)
{
	HOOK_ENTER(cuMemPoolGetAttribute, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuMemPoolGetAttribute(pool, attribute, value);

	return pool_get_end(status, pool, attribute, value);
}

EXPORT int cuMemPoolSetAttribute(void *pool, int attribute, void *value);
EXPORT int cuMemPoolSetAttribute(void *pool, int attribute, void *value)
{
	HOOK_ENTER(cuMemPoolSetAttribute, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = pool_set_attribute(pool, attribute, value);

	return status;
}

EXPORT int cuMemPoolTrimTo(void *a0, size_t a1);
EXPORT int cuMemPoolTrimTo(void *a0, size_t a1)
{
	HOOK_ENTER(cuMemPoolTrimTo, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pools_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemPoolTrimTo(a0, a1);
	return pools_given_end(&call, status);
}

EXPORT int cuMemRelease(uint64_t handle);
EXPORT int cuMemRelease(uint64_t handle)
{
	HOOK_ENTER(cuMemRelease, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = object_release_begin(&call, handle);

	if (status != 0)
		return status;
	status = driver.cuMemRelease(handle);
	return object_release_end(&call, status);
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *out, void *address);
EXPORT int cuMemRetainAllocationHandle(uint64_t *out, void *address)
{
	HOOK_ENTER(cuMemRetainAllocationHandle, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuMemRetainAllocationHandle(out, address);

	return object_retain_end(status, HOOK_VALUE(status, out), (uint64_t)(uintptr_t)address);
}

EXPORT int cuMemSetMemPool(void *a0, int a1, void *a2);
EXPORT int cuMemSetMemPool(void *a0, int a1, void *a2)
{
	HOOK_ENTER(cuMemSetMemPool, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = pool_select_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemSetMemPool(a0, a1, a2);
	return pool_select_end(&call, status);
}

EXPORT int cuMemUnmap(uint64_t address, size_t bytes);
EXPORT int cuMemUnmap(uint64_t address, size_t bytes)
{
	HOOK_ENTER(cuMemUnmap, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = object_unmap_begin(&call, address, bytes);

	if (status != 0)
		return status;
	status = driver.cuMemUnmap(address, bytes);
	return object_unmap_end(&call, status, address, bytes);
}

EXPORT int cuMemcpy(uint64_t a0, uint64_t a1, size_t a2);
EXPORT int cuMemcpy(uint64_t a0, uint64_t a1, size_t a2)
{
	HOOK_ENTER(cuMemcpy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy2D(const void *a0);
EXPORT int cuMemcpy2D(const void *a0)
{
	HOOK_ENTER(cuMemcpy2D, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy2D(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy2DUnaligned(const void *a0);
EXPORT int cuMemcpy2DUnaligned(const void *a0)
{
	HOOK_ENTER(cuMemcpy2DUnaligned, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy2DUnaligned(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy2DUnaligned_v2(const void *a0);
EXPORT int cuMemcpy2DUnaligned_v2(const void *a0)
{
	HOOK_ENTER(cuMemcpy2DUnaligned_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy2DUnaligned_v2(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy2DUnaligned_v2_ptds(const void *a0);
EXPORT int cuMemcpy2DUnaligned_v2_ptds(const void *a0)
{
	HOOK_ENTER(cuMemcpy2DUnaligned_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy2DUnaligned_v2_ptds(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy2D_v2(const void *a0);
EXPORT int cuMemcpy2D_v2(const void *a0)
{
	HOOK_ENTER(cuMemcpy2D_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy2D_v2(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy2D_v2_ptds(const void *a0);
EXPORT int cuMemcpy2D_v2_ptds(const void *a0)
{
	HOOK_ENTER(cuMemcpy2D_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy2D_v2_ptds(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy3D(const void *a0);
EXPORT int cuMemcpy3D(const void *a0)
{
	HOOK_ENTER(cuMemcpy3D, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy3D(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy3DPeer(const void *a0);
EXPORT int cuMemcpy3DPeer(const void *a0)
{
	HOOK_ENTER(cuMemcpy3DPeer, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy3DPeer(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy3DPeer_ptds(const void *a0);
EXPORT int cuMemcpy3DPeer_ptds(const void *a0)
{
	HOOK_ENTER(cuMemcpy3DPeer_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy3DPeer_ptds(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy3D_v2(const void *a0);
EXPORT int cuMemcpy3D_v2(const void *a0)
{
	HOOK_ENTER(cuMemcpy3D_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy3D_v2(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy3D_v2_ptds(const void *a0);
EXPORT int cuMemcpy3D_v2_ptds(const void *a0)
{
	HOOK_ENTER(cuMemcpy3D_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy3D_v2_ptds(a0);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoA(void *a0, unsigned int a1, void *a2, unsigned int a3, unsigned int a4);
EXPORT int cuMemcpyAtoA(void *a0, unsigned int a1, void *a2, unsigned int a3, unsigned int a4)
{
	HOOK_ENTER(cuMemcpyAtoA, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoA(a0, a1, a2, a3, a4);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoA_v2(void *a0, size_t a1, void *a2, size_t a3, size_t a4);
EXPORT int cuMemcpyAtoA_v2(void *a0, size_t a1, void *a2, size_t a3, size_t a4)
{
	HOOK_ENTER(cuMemcpyAtoA_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoA_v2(a0, a1, a2, a3, a4);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoA_v2_ptds(void *a0, size_t a1, void *a2, size_t a3, size_t a4);
EXPORT int cuMemcpyAtoA_v2_ptds(void *a0, size_t a1, void *a2, size_t a3, size_t a4)
{
	HOOK_ENTER(cuMemcpyAtoA_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoA_v2_ptds(a0, a1, a2, a3, a4);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoD(unsigned int a0, void *a1, unsigned int a2, unsigned int a3);
EXPORT int cuMemcpyAtoD(unsigned int a0, void *a1, unsigned int a2, unsigned int a3)
{
	HOOK_ENTER(cuMemcpyAtoD, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoD(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoD_v2(uint64_t a0, void *a1, size_t a2, size_t a3);
EXPORT int cuMemcpyAtoD_v2(uint64_t a0, void *a1, size_t a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyAtoD_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoD_v2(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoD_v2_ptds(uint64_t a0, void *a1, size_t a2, size_t a3);
EXPORT int cuMemcpyAtoD_v2_ptds(uint64_t a0, void *a1, size_t a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyAtoD_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoD_v2_ptds(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoH(void *a0, void *a1, unsigned int a2, unsigned int a3);
EXPORT int cuMemcpyAtoH(void *a0, void *a1, unsigned int a2, unsigned int a3)
{
	HOOK_ENTER(cuMemcpyAtoH, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoH(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoH_v2(void *a0, void *a1, size_t a2, size_t a3);
EXPORT int cuMemcpyAtoH_v2(void *a0, void *a1, size_t a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyAtoH_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoH_v2(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyAtoH_v2_ptds(void *a0, void *a1, size_t a2, size_t a3);
EXPORT int cuMemcpyAtoH_v2_ptds(void *a0, void *a1, size_t a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyAtoH_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyAtoH_v2_ptds(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoA(void *a0, unsigned int a1, unsigned int a2, unsigned int a3);
EXPORT int cuMemcpyDtoA(void *a0, unsigned int a1, unsigned int a2, unsigned int a3)
{
	HOOK_ENTER(cuMemcpyDtoA, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoA(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoA_v2(void *a0, size_t a1, uint64_t a2, size_t a3);
EXPORT int cuMemcpyDtoA_v2(void *a0, size_t a1, uint64_t a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyDtoA_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoA_v2(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoA_v2_ptds(void *a0, size_t a1, uint64_t a2, size_t a3);
EXPORT int cuMemcpyDtoA_v2_ptds(void *a0, size_t a1, uint64_t a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyDtoA_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoA_v2_ptds(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoD(unsigned int a0, unsigned int a1, unsigned int a2);
EXPORT int cuMemcpyDtoD(unsigned int a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(cuMemcpyDtoD, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoD(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoD_v2(uint64_t a0, uint64_t a1, size_t a2);
EXPORT int cuMemcpyDtoD_v2(uint64_t a0, uint64_t a1, size_t a2)
{
	HOOK_ENTER(cuMemcpyDtoD_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoD_v2(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoD_v2_ptds(uint64_t a0, uint64_t a1, size_t a2);
EXPORT int cuMemcpyDtoD_v2_ptds(uint64_t a0, uint64_t a1, size_t a2)
{
	HOOK_ENTER(cuMemcpyDtoD_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoD_v2_ptds(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoH(void *a0, unsigned int a1, unsigned int a2);
EXPORT int cuMemcpyDtoH(void *a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(cuMemcpyDtoH, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoH(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoH_v2(void *a0, uint64_t a1, size_t a2);
EXPORT int cuMemcpyDtoH_v2(void *a0, uint64_t a1, size_t a2)
{
	HOOK_ENTER(cuMemcpyDtoH_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoH_v2(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyDtoH_v2_ptds(void *a0, uint64_t a1, size_t a2);
EXPORT int cuMemcpyDtoH_v2_ptds(void *a0, uint64_t a1, size_t a2)
{
	HOOK_ENTER(cuMemcpyDtoH_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyDtoH_v2_ptds(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyHtoA(void *a0, unsigned int a1, const void *a2, unsigned int a3);
EXPORT int cuMemcpyHtoA(void *a0, unsigned int a1, const void *a2, unsigned int a3)
{
	HOOK_ENTER(cuMemcpyHtoA, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyHtoA(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyHtoA_v2(void *a0, size_t a1, const void *a2, size_t a3);
EXPORT int cuMemcpyHtoA_v2(void *a0, size_t a1, const void *a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyHtoA_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyHtoA_v2(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyHtoA_v2_ptds(void *a0, size_t a1, const void *a2, size_t a3);
EXPORT int cuMemcpyHtoA_v2_ptds(void *a0, size_t a1, const void *a2, size_t a3)
{
	HOOK_ENTER(cuMemcpyHtoA_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyHtoA_v2_ptds(a0, a1, a2, a3);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyHtoD(unsigned int a0, const void *a1, unsigned int a2);
EXPORT int cuMemcpyHtoD(unsigned int a0, const void *a1, unsigned int a2)
{
	HOOK_ENTER(cuMemcpyHtoD, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyHtoD(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyHtoD_v2(uint64_t a0, const void *a1, size_t a2);
EXPORT int cuMemcpyHtoD_v2(uint64_t a0, const void *a1, size_t a2)
{
	HOOK_ENTER(cuMemcpyHtoD_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyHtoD_v2(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyHtoD_v2_ptds(uint64_t a0, const void *a1, size_t a2);
EXPORT int cuMemcpyHtoD_v2_ptds(uint64_t a0, const void *a1, size_t a2)
{
	HOOK_ENTER(cuMemcpyHtoD_v2_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyHtoD_v2_ptds(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyPeer(uint64_t a0, void *a1, uint64_t a2, void *a3, size_t a4);
EXPORT int cuMemcpyPeer(uint64_t a0, void *a1, uint64_t a2, void *a3, size_t a4)
{
	HOOK_ENTER(cuMemcpyPeer, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyPeer(a0, a1, a2, a3, a4);
	return sync_end(&call, status);
}

EXPORT int cuMemcpyPeer_ptds(uint64_t a0, void *a1, uint64_t a2, void *a3, size_t a4);
EXPORT int cuMemcpyPeer_ptds(uint64_t a0, void *a1, uint64_t a2, void *a3, size_t a4)
{
	HOOK_ENTER(cuMemcpyPeer_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpyPeer_ptds(a0, a1, a2, a3, a4);
	return sync_end(&call, status);
}

EXPORT int cuMemcpy_ptds(uint64_t a0, uint64_t a1, size_t a2);
EXPORT int cuMemcpy_ptds(uint64_t a0, uint64_t a1, size_t a2)
{
	HOOK_ENTER(cuMemcpy_ptds, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = copy_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuMemcpy_ptds(a0, a1, a2);
	return sync_end(&call, status);
}

EXPORT int cuMipmappedArrayCreate(void **out, const void *descriptor, unsigned int levels);
EXPORT int cuMipmappedArrayCreate(void **out, const void *descriptor, unsigned int levels)
{
	HOOK_ENTER(cuMipmappedArrayCreate, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = mipmap_begin(&call, out, descriptor, levels);

	if (status != 0)
		return status;
	status = driver.cuMipmappedArrayCreate(out, descriptor, levels);
	return array_end(&call, status, HOOK_VALUE(status, out));
}

EXPORT int cuMipmappedArrayDestroy(void *array);
EXPORT int cuMipmappedArrayDestroy(void *array)
{
	HOOK_ENTER(cuMipmappedArrayDestroy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = array_free_begin(&call, (uint64_t)(uintptr_t)array);

	if (status != 0)
		return status;
	status = driver.cuMipmappedArrayDestroy(array);
	return array_free_end(&call, status, (uint64_t)(uintptr_t)array);
}

EXPORT int cuModuleUnload(void *a0);
EXPORT int cuModuleUnload(void *a0)
{
	HOOK_ENTER(cuModuleUnload, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuModuleUnload(a0);

	return local_unload_end(status);
}

EXPORT int cuStreamAddCallback(void *a0, void *a1, void *a2, unsigned int a3);
EXPORT int cuStreamAddCallback(void *a0, void *a1, void *a2, unsigned int a3)
{
	HOOK_ENTER(cuStreamAddCallback, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuStreamAddCallback(a0, a1, a2, a3);
	return hidden_wait_end(status);
}

EXPORT int cuStreamAddCallback_ptsz(void *a0, void *a1, void *a2, unsigned int a3);
EXPORT int cuStreamAddCallback_ptsz(void *a0, void *a1, void *a2, unsigned int a3)
{
	HOOK_ENTER(cuStreamAddCallback_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = hidden_wait_begin();

	if (status != 0)
		return status;
	status = driver.cuStreamAddCallback_ptsz(a0, a1, a2, a3);
	return hidden_wait_end(status);
}

EXPORT int cuStreamBeginCapture(void *stream);
EXPORT int cuStreamBeginCapture(void *stream)
{
	HOOK_ENTER(cuStreamBeginCapture, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, false);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCapture(stream);
	return capture_begin_end(status, stream, false);
}

EXPORT int cuStreamBeginCaptureToCig(void *stream, void *a1);
EXPORT int cuStreamBeginCaptureToCig(void *stream, void *a1)
{
	HOOK_ENTER(cuStreamBeginCaptureToCig, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, false);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCaptureToCig(stream, a1);
	return capture_begin_end(status, stream, false);
}

EXPORT int cuStreamBeginCaptureToCig_ptsz(void *stream, void *a1);
EXPORT int cuStreamBeginCaptureToCig_ptsz(void *stream, void *a1)
{
	HOOK_ENTER(cuStreamBeginCaptureToCig_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, true);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCaptureToCig_ptsz(stream, a1);
	return capture_begin_end(status, stream, true);
}

EXPORT int cuStreamBeginCaptureToGraph(void *stream, void *a1, void **a2, const void *a3, size_t a4, int a5);
EXPORT int cuStreamBeginCaptureToGraph(void *stream, void *a1, void **a2, const void *a3, size_t a4, int a5)
{
	HOOK_ENTER(cuStreamBeginCaptureToGraph, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, false);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCaptureToGraph(stream, a1, a2, a3, a4, a5);
	return capture_begin_end(status, stream, false);
}

EXPORT int cuStreamBeginCaptureToGraph_ptsz(void *stream, void *a1, void **a2, const void *a3, size_t a4, int a5);
EXPORT int cuStreamBeginCaptureToGraph_ptsz(void *stream, void *a1, void **a2, const void *a3, size_t a4, int a5)
{
	HOOK_ENTER(cuStreamBeginCaptureToGraph_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, true);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCaptureToGraph_ptsz(stream, a1, a2, a3, a4, a5);
	return capture_begin_end(status, stream, true);
}

EXPORT int cuStreamBeginCapture_ptsz(void *stream);
EXPORT int cuStreamBeginCapture_ptsz(void *stream)
{
	HOOK_ENTER(cuStreamBeginCapture_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, true);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCapture_ptsz(stream);
	return capture_begin_end(status, stream, true);
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int a1);
EXPORT int cuStreamBeginCapture_v2(void *stream, int a1)
{
	HOOK_ENTER(cuStreamBeginCapture_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, false);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCapture_v2(stream, a1);
	return capture_begin_end(status, stream, false);
}

EXPORT int cuStreamBeginCapture_v2_ptsz(void *stream, int a1);
EXPORT int cuStreamBeginCapture_v2_ptsz(void *stream, int a1)
{
	HOOK_ENTER(cuStreamBeginCapture_v2_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, true);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginCapture_v2_ptsz(stream, a1);
	return capture_begin_end(status, stream, true);
}

EXPORT int cuStreamBeginRecaptureToGraph(void *stream, int a1, void *a2, void *a3, void *a4);
EXPORT int cuStreamBeginRecaptureToGraph(void *stream, int a1, void *a2, void *a3, void *a4)
{
	HOOK_ENTER(cuStreamBeginRecaptureToGraph, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, false);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginRecaptureToGraph(stream, a1, a2, a3, a4);
	return capture_begin_end(status, stream, false);
}

EXPORT int cuStreamBeginRecaptureToGraph_ptsz(void *stream, int a1, void *a2, void *a3, void *a4);
EXPORT int cuStreamBeginRecaptureToGraph_ptsz(void *stream, int a1, void *a2, void *a3, void *a4)
{
	HOOK_ENTER(cuStreamBeginRecaptureToGraph_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = capture_begin_begin(stream, true);

	if (status != 0)
		return status;
	status = driver.cuStreamBeginRecaptureToGraph_ptsz(stream, a1, a2, a3, a4);
	return capture_begin_end(status, stream, true);
}

EXPORT int cuStreamDestroy(void *stream);
EXPORT int cuStreamDestroy(void *stream)
{
	HOOK_ENTER(cuStreamDestroy, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = stream_destroy_begin(stream);

	if (status != 0)
		return status;
	status = driver.cuStreamDestroy(stream);
	return status;
}

EXPORT int cuStreamDestroy_v2(void *stream);
EXPORT int cuStreamDestroy_v2(void *stream)
{
	HOOK_ENTER(cuStreamDestroy_v2, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = stream_destroy_begin(stream);

	if (status != 0)
		return status;
	status = driver.cuStreamDestroy_v2(stream);
	return status;
}

EXPORT int cuStreamEndCapture(void *stream, void **a1);
EXPORT int cuStreamEndCapture(void *stream, void **a1)
{
	HOOK_ENTER(cuStreamEndCapture, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuStreamEndCapture(stream, a1);

	return capture_end_end(status, stream, false);
}

EXPORT int cuStreamEndCaptureToCig(void *stream);
EXPORT int cuStreamEndCaptureToCig(void *stream)
{
	HOOK_ENTER(cuStreamEndCaptureToCig, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuStreamEndCaptureToCig(stream);

	return capture_end_end(status, stream, false);
}

EXPORT int cuStreamEndCaptureToCig_ptsz(void *stream);
EXPORT int cuStreamEndCaptureToCig_ptsz(void *stream)
{
	HOOK_ENTER(cuStreamEndCaptureToCig_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuStreamEndCaptureToCig_ptsz(stream);

	return capture_end_end(status, stream, true);
}

EXPORT int cuStreamEndCapture_ptsz(void *stream, void **a1);
EXPORT int cuStreamEndCapture_ptsz(void *stream, void **a1)
{
	HOOK_ENTER(cuStreamEndCapture_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	int status = driver.cuStreamEndCapture_ptsz(stream, a1);

	return capture_end_end(status, stream, true);
}

EXPORT int cuStreamQuery(void *a0);
EXPORT int cuStreamQuery(void *a0)
{
	HOOK_ENTER(cuStreamQuery, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = query_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuStreamQuery(a0);
	return query_end(&call, status);
}

EXPORT int cuStreamQuery_ptsz(void *a0);
EXPORT int cuStreamQuery_ptsz(void *a0)
{
	HOOK_ENTER(cuStreamQuery_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = query_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuStreamQuery_ptsz(a0);
	return query_end(&call, status);
}

EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuStreamSynchronize(void *stream)
{
	HOOK_ENTER(cuStreamSynchronize, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = sync_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuStreamSynchronize(stream);
	return stream_sync_end(&call, status, stream, false);
}

EXPORT int cuStreamSynchronize_ptsz(void *stream);
EXPORT int cuStreamSynchronize_ptsz(void *stream)
{
	HOOK_ENTER(cuStreamSynchronize_ptsz, DRIVER_CUDA, CUDA_ERROR_NOT_FOUND);
	struct hook_call call;
	int status = sync_begin(&call);

	if (status != 0)
		return status;
	status = driver.cuStreamSynchronize_ptsz(stream);
	return stream_sync_end(&call, status, stream, true);
}

EXPORT int nvmlComputeInstanceDestroy(void *a0);
EXPORT int nvmlComputeInstanceDestroy(void *a0)
{
	HOOK_ENTER(nvmlComputeInstanceDestroy, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlComputeInstanceDestroy(a0);
	return status;
}

EXPORT int nvmlDeviceClearAccountingPids(void *a0);
EXPORT int nvmlDeviceClearAccountingPids(void *a0)
{
	HOOK_ENTER(nvmlDeviceClearAccountingPids, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceClearAccountingPids(a0);
	return status;
}

EXPORT int nvmlDeviceClearEccErrorCounts(void *a0, int a1);
EXPORT int nvmlDeviceClearEccErrorCounts(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceClearEccErrorCounts, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceClearEccErrorCounts(a0, a1);
	return status;
}

EXPORT int nvmlDeviceClearFieldValues(void *a0, int a1, void *a2);
EXPORT int nvmlDeviceClearFieldValues(void *a0, int a1, void *a2)
{
	HOOK_ENTER(nvmlDeviceClearFieldValues, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceClearFieldValues(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceCreateGpuInstance(void *a0, unsigned int a1, void **a2);
EXPORT int nvmlDeviceCreateGpuInstance(void *a0, unsigned int a1, void **a2)
{
	HOOK_ENTER(nvmlDeviceCreateGpuInstance, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceCreateGpuInstance(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(void *a0, unsigned int a1, const void *a2, void **a3);
EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(void *a0, unsigned int a1, const void *a2, void **a3)
{
	HOOK_ENTER(nvmlDeviceCreateGpuInstanceWithPlacement, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceCreateGpuInstanceWithPlacement(a0, a1, a2, a3);
	return status;
}

EXPORT int nvmlDeviceGetAccountingPids(void *a0, unsigned int *count, unsigned int *a2);
EXPORT int nvmlDeviceGetAccountingPids(void *a0, unsigned int *count, unsigned int *a2)
{
	HOOK_ENTER(nvmlDeviceGetAccountingPids, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetAccountingPids(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetAttributes(void *device, void *attributes);
EXPORT int nvmlDeviceGetAttributes(void *device, void *attributes)
{
	HOOK_ENTER(nvmlDeviceGetAttributes, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetAttributes(device, attributes);

	return nvml_attributes_end(status, device, attributes, 1);
}

EXPORT int nvmlDeviceGetAttributes_v2(void *device, void *attributes);
EXPORT int nvmlDeviceGetAttributes_v2(void *device, void *attributes)
{
	HOOK_ENTER(nvmlDeviceGetAttributes_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetAttributes_v2(device, attributes);

	return nvml_attributes_end(status, device, attributes, 2);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned int *count, void *list);
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned int *count, void *list)
{
	HOOK_ENTER(nvmlDeviceGetComputeRunningProcesses, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	struct hook_call call;
	int status = nvml_processes_begin(&call, device, count);

	if (status != 0)
		return status;
	status = driver.nvmlDeviceGetComputeRunningProcesses(device, count, list);
	return nvml_processes_end(&call, status, device, count, list, 1);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned int *count, void *list);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned int *count, void *list)
{
	HOOK_ENTER(nvmlDeviceGetComputeRunningProcesses_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	struct hook_call call;
	int status = nvml_processes_begin(&call, device, count);

	if (status != 0)
		return status;
	status = driver.nvmlDeviceGetComputeRunningProcesses_v2(device, count, list);
	return nvml_processes_end(&call, status, device, count, list, 2);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *list);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *list)
{
	HOOK_ENTER(nvmlDeviceGetComputeRunningProcesses_v3, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	struct hook_call call;
	int status = nvml_processes_begin(&call, device, count);

	if (status != 0)
		return status;
	status = driver.nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
	return nvml_processes_end(&call, status, device, count, list, 3);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses(void *a0, unsigned int *count, void *a2);
EXPORT int nvmlDeviceGetGraphicsRunningProcesses(void *a0, unsigned int *count, void *a2)
{
	HOOK_ENTER(nvmlDeviceGetGraphicsRunningProcesses, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetGraphicsRunningProcesses(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(void *a0, unsigned int *count, void *a2);
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(void *a0, unsigned int *count, void *a2)
{
	HOOK_ENTER(nvmlDeviceGetGraphicsRunningProcesses_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetGraphicsRunningProcesses_v2(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *a0, unsigned int *count, void *a2);
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *a0, unsigned int *count, void *a2)
{
	HOOK_ENTER(nvmlDeviceGetGraphicsRunningProcesses_v3, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetGraphicsRunningProcesses_v3(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses(void *a0, unsigned int *count, void *a2);
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses(void *a0, unsigned int *count, void *a2)
{
	HOOK_ENTER(nvmlDeviceGetMPSComputeRunningProcesses, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetMPSComputeRunningProcesses(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *a0, unsigned int *count, void *a2);
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *a0, unsigned int *count, void *a2)
{
	HOOK_ENTER(nvmlDeviceGetMPSComputeRunningProcesses_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetMPSComputeRunningProcesses_v2(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *a0, unsigned int *count, void *a2);
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *a0, unsigned int *count, void *a2)
{
	HOOK_ENTER(nvmlDeviceGetMPSComputeRunningProcesses_v3, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetMPSComputeRunningProcesses_v3(a0, count, a2);

	return nvml_no_processes_end(status, count);
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, void *memory);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, void *memory)
{
	HOOK_ENTER(nvmlDeviceGetMemoryInfo, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetMemoryInfo(device, memory);

	return nvml_memory_end(status, device, memory, 1);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, void *memory);
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, void *memory)
{
	HOOK_ENTER(nvmlDeviceGetMemoryInfo_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetMemoryInfo_v2(device, memory);

	return nvml_memory_end(status, device, memory, 2);
}

EXPORT int nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned int *count, uint64_t a3);
EXPORT int nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned int *count, uint64_t a3)
{
	HOOK_ENTER(nvmlDeviceGetProcessUtilization, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetProcessUtilization(device, samples, count, a3);

	return nvml_samples_end(status, device, samples, count);
}

EXPORT int nvmlDeviceGetProcessesUtilizationInfo(void *device, void *samples);
EXPORT int nvmlDeviceGetProcessesUtilizationInfo(void *device, void *samples)
{
	HOOK_ENTER(nvmlDeviceGetProcessesUtilizationInfo, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetProcessesUtilizationInfo(device, samples);

	return nvml_all_samples_end(status, device, samples);
}

EXPORT int nvmlDeviceGetRunningProcessDetailList(void *device, void *details);
EXPORT int nvmlDeviceGetRunningProcessDetailList(void *device, void *details)
{
	HOOK_ENTER(nvmlDeviceGetRunningProcessDetailList, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	struct hook_call call;
	int status = nvml_details_begin(&call, device, details);

	if (status != 0)
		return status;
	status = driver.nvmlDeviceGetRunningProcessDetailList(device, details);
	return nvml_details_end(&call, status, device, details);
}

EXPORT int nvmlDeviceGetSamples(void *device, int type, uint64_t a2, int *a3, unsigned int *count, void *samples);
EXPORT int nvmlDeviceGetSamples(void *device, int type, uint64_t a2, int *a3, unsigned int *count, void *samples)
{
	HOOK_ENTER(nvmlDeviceGetSamples, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetSamples(device, type, a2, a3, count, samples);

	return nvml_history_end(status, device, type, count, samples);
}

EXPORT int nvmlDeviceGetUtilizationRates(void *device, void *rates);
EXPORT int nvmlDeviceGetUtilizationRates(void *device, void *rates)
{
	HOOK_ENTER(nvmlDeviceGetUtilizationRates, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = driver.nvmlDeviceGetUtilizationRates(device, rates);

	return nvml_utilisation_end(status, device, rates);
}

EXPORT int nvmlDeviceModifyDrainState(void *a0, int a1);
EXPORT int nvmlDeviceModifyDrainState(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceModifyDrainState, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceModifyDrainState(a0, a1);
	return status;
}

EXPORT int nvmlDevicePowerSmoothingActivatePresetProfile(void *a0, void *a1);
EXPORT int nvmlDevicePowerSmoothingActivatePresetProfile(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDevicePowerSmoothingActivatePresetProfile, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDevicePowerSmoothingActivatePresetProfile(a0, a1);
	return status;
}

EXPORT int nvmlDevicePowerSmoothingSetState(void *a0, void *a1);
EXPORT int nvmlDevicePowerSmoothingSetState(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDevicePowerSmoothingSetState, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDevicePowerSmoothingSetState(a0, a1);
	return status;
}

EXPORT int nvmlDevicePowerSmoothingUpdatePresetProfileParam(void *a0, void *a1);
EXPORT int nvmlDevicePowerSmoothingUpdatePresetProfileParam(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDevicePowerSmoothingUpdatePresetProfileParam, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDevicePowerSmoothingUpdatePresetProfileParam(a0, a1);
	return status;
}

EXPORT int nvmlDeviceResetApplicationsClocks(void *a0);
EXPORT int nvmlDeviceResetApplicationsClocks(void *a0)
{
	HOOK_ENTER(nvmlDeviceResetApplicationsClocks, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceResetApplicationsClocks(a0);
	return status;
}

EXPORT int nvmlDeviceResetGpuLockedClocks(void *a0);
EXPORT int nvmlDeviceResetGpuLockedClocks(void *a0)
{
	HOOK_ENTER(nvmlDeviceResetGpuLockedClocks, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceResetGpuLockedClocks(a0);
	return status;
}

EXPORT int nvmlDeviceResetMemoryLockedClocks(void *a0);
EXPORT int nvmlDeviceResetMemoryLockedClocks(void *a0)
{
	HOOK_ENTER(nvmlDeviceResetMemoryLockedClocks, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceResetMemoryLockedClocks(a0);
	return status;
}

EXPORT int nvmlDeviceSetAPIRestriction(void *a0, int a1, int a2);
EXPORT int nvmlDeviceSetAPIRestriction(void *a0, int a1, int a2)
{
	HOOK_ENTER(nvmlDeviceSetAPIRestriction, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetAPIRestriction(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetAccountingMode(void *a0, int a1);
EXPORT int nvmlDeviceSetAccountingMode(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetAccountingMode, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetAccountingMode(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetAdaptiveTgpMode_v1(void *a0, int a1);
EXPORT int nvmlDeviceSetAdaptiveTgpMode_v1(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetAdaptiveTgpMode_v1, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetAdaptiveTgpMode_v1(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetApplicationsClocks(void *a0, unsigned int a1, unsigned int a2);
EXPORT int nvmlDeviceSetApplicationsClocks(void *a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(nvmlDeviceSetApplicationsClocks, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetApplicationsClocks(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetAutoBoostedClocksEnabled(void *a0, int a1);
EXPORT int nvmlDeviceSetAutoBoostedClocksEnabled(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetAutoBoostedClocksEnabled, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetAutoBoostedClocksEnabled(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetClockOffsets(void *a0, void *a1);
EXPORT int nvmlDeviceSetClockOffsets(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDeviceSetClockOffsets, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetClockOffsets(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetComputeMode(void *a0, int a1);
EXPORT int nvmlDeviceSetComputeMode(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetComputeMode, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetComputeMode(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetDefaultAutoBoostedClocksEnabled(void *a0, int a1, unsigned int a2);
EXPORT int nvmlDeviceSetDefaultAutoBoostedClocksEnabled(void *a0, int a1, unsigned int a2)
{
	HOOK_ENTER(nvmlDeviceSetDefaultAutoBoostedClocksEnabled, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetDefaultAutoBoostedClocksEnabled(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetDefaultFanSpeed_v2(void *a0, unsigned int a1);
EXPORT int nvmlDeviceSetDefaultFanSpeed_v2(void *a0, unsigned int a1)
{
	HOOK_ENTER(nvmlDeviceSetDefaultFanSpeed_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetDefaultFanSpeed_v2(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetEccMode(void *a0, int a1);
EXPORT int nvmlDeviceSetEccMode(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetEccMode, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetEccMode(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetFanControlPolicy(void *a0, unsigned int a1, unsigned int a2);
EXPORT int nvmlDeviceSetFanControlPolicy(void *a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(nvmlDeviceSetFanControlPolicy, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetFanControlPolicy(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetFanSpeed_v2(void *a0, unsigned int a1, unsigned int a2);
EXPORT int nvmlDeviceSetFanSpeed_v2(void *a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(nvmlDeviceSetFanSpeed_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetFanSpeed_v2(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetGpcClkVfOffset(void *a0, int a1);
EXPORT int nvmlDeviceSetGpcClkVfOffset(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetGpcClkVfOffset, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetGpcClkVfOffset(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetGpuLockedClocks(void *a0, unsigned int a1, unsigned int a2);
EXPORT int nvmlDeviceSetGpuLockedClocks(void *a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(nvmlDeviceSetGpuLockedClocks, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetGpuLockedClocks(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetMemClkVfOffset(void *a0, int a1);
EXPORT int nvmlDeviceSetMemClkVfOffset(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetMemClkVfOffset, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetMemClkVfOffset(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetMemoryLimits_v1(void *a0, void *a1);
EXPORT int nvmlDeviceSetMemoryLimits_v1(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDeviceSetMemoryLimits_v1, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetMemoryLimits_v1(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetMemoryLockedClocks(void *a0, unsigned int a1, unsigned int a2);
EXPORT int nvmlDeviceSetMemoryLockedClocks(void *a0, unsigned int a1, unsigned int a2)
{
	HOOK_ENTER(nvmlDeviceSetMemoryLockedClocks, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetMemoryLockedClocks(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetMigMode(void *a0, unsigned int a1, int *a2);
EXPORT int nvmlDeviceSetMigMode(void *a0, unsigned int a1, int *a2)
{
	HOOK_ENTER(nvmlDeviceSetMigMode, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetMigMode(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceSetPersistenceMode(void *a0, int a1);
EXPORT int nvmlDeviceSetPersistenceMode(void *a0, int a1)
{
	HOOK_ENTER(nvmlDeviceSetPersistenceMode, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetPersistenceMode(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetPowerManagementLimit(void *a0, unsigned int a1);
EXPORT int nvmlDeviceSetPowerManagementLimit(void *a0, unsigned int a1)
{
	HOOK_ENTER(nvmlDeviceSetPowerManagementLimit, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetPowerManagementLimit(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetPowerManagementLimit_v2(void *a0, void *a1);
EXPORT int nvmlDeviceSetPowerManagementLimit_v2(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDeviceSetPowerManagementLimit_v2, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetPowerManagementLimit_v2(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetPowerMizerMode_v1(void *a0, void *a1);
EXPORT int nvmlDeviceSetPowerMizerMode_v1(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDeviceSetPowerMizerMode_v1, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetPowerMizerMode_v1(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetPowerMode(void *a0, unsigned int a1);
EXPORT int nvmlDeviceSetPowerMode(void *a0, unsigned int a1)
{
	HOOK_ENTER(nvmlDeviceSetPowerMode, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetPowerMode(a0, a1);
	return status;
}

EXPORT int nvmlDeviceSetTemperatureThreshold(void *a0, int a1, int *a2);
EXPORT int nvmlDeviceSetTemperatureThreshold(void *a0, int a1, int *a2)
{
	HOOK_ENTER(nvmlDeviceSetTemperatureThreshold, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceSetTemperatureThreshold(a0, a1, a2);
	return status;
}

EXPORT int nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(void *a0, void *a1);
EXPORT int nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(a0, a1);
	return status;
}

EXPORT int nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(void *a0, void *a1);
EXPORT int nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(void *a0, void *a1)
{
	HOOK_ENTER(nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(a0, a1);
	return status;
}

EXPORT int nvmlGpuInstanceCreateComputeInstance(void *a0, unsigned int a1, void **a2);
EXPORT int nvmlGpuInstanceCreateComputeInstance(void *a0, unsigned int a1, void **a2)
{
	HOOK_ENTER(nvmlGpuInstanceCreateComputeInstance, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlGpuInstanceCreateComputeInstance(a0, a1, a2);
	return status;
}

EXPORT int nvmlGpuInstanceCreateComputeInstanceWithPlacement(void *a0, unsigned int a1, const void *a2, void **a3);
EXPORT int nvmlGpuInstanceCreateComputeInstanceWithPlacement(void *a0, unsigned int a1, const void *a2, void **a3)
{
	HOOK_ENTER(nvmlGpuInstanceCreateComputeInstanceWithPlacement, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlGpuInstanceCreateComputeInstanceWithPlacement(a0, a1, a2, a3);
	return status;
}

EXPORT int nvmlGpuInstanceDestroy(void *a0);
EXPORT int nvmlGpuInstanceDestroy(void *a0)
{
	HOOK_ENTER(nvmlGpuInstanceDestroy, DRIVER_NVML, NVML_ERROR_FUNCTION_NOT_FOUND);
	int status = nvml_set_begin();

	if (status != 0)
		return status;
	status = driver.nvmlGpuInstanceDestroy(a0);
	return status;
}

#define ROW(symbol, hook, library) {#symbol, (void **)&driver.symbol, hook, library}
const struct driver_name driver_names[] = {
	ROW(cuArray3DCreate, (void *)cuArray3DCreate, DRIVER_CUDA),
	ROW(cuArray3DCreate_v2, (void *)cuArray3DCreate_v2, DRIVER_CUDA),
	ROW(cuArrayCreate, (void *)cuArrayCreate, DRIVER_CUDA),
	ROW(cuArrayCreate_v2, (void *)cuArrayCreate_v2, DRIVER_CUDA),
	ROW(cuArrayDestroy, (void *)cuArrayDestroy, DRIVER_CUDA),
	ROW(cuArrayGetMemoryRequirements, NULL, DRIVER_CUDA),
	ROW(cuCtxAttach, (void *)cuCtxAttach, DRIVER_CUDA),
	ROW(cuCtxCreate, (void *)cuCtxCreate, DRIVER_CUDA),
	ROW(cuCtxCreate_v2, (void *)cuCtxCreate_v2, DRIVER_CUDA),
	ROW(cuCtxCreate_v3, (void *)cuCtxCreate_v3, DRIVER_CUDA),
	ROW(cuCtxCreate_v4, (void *)cuCtxCreate_v4, DRIVER_CUDA),
	ROW(cuCtxDestroy, (void *)cuCtxDestroy, DRIVER_CUDA),
	ROW(cuCtxDestroy_v2, (void *)cuCtxDestroy_v2, DRIVER_CUDA),
	ROW(cuCtxDetach, (void *)cuCtxDetach, DRIVER_CUDA),
	ROW(cuCtxGetCurrent, NULL, DRIVER_CUDA),
	ROW(cuCtxGetDevice, NULL, DRIVER_CUDA),
	ROW(cuCtxGetDevice_v2, NULL, DRIVER_CUDA),
	ROW(cuCtxPopCurrent, NULL, DRIVER_CUDA),
	ROW(cuCtxPopCurrent_v2, NULL, DRIVER_CUDA),
	ROW(cuCtxPushCurrent, NULL, DRIVER_CUDA),
	ROW(cuCtxPushCurrent_v2, NULL, DRIVER_CUDA),
	ROW(cuCtxSetLimit, (void *)cuCtxSetLimit, DRIVER_CUDA),
	ROW(cuCtxSynchronize, (void *)cuCtxSynchronize, DRIVER_CUDA),
	ROW(cuCtxSynchronize_v2, (void *)cuCtxSynchronize_v2, DRIVER_CUDA),
	ROW(cuDeviceGetAttribute, NULL, DRIVER_CUDA),
	ROW(cuDeviceGetCount, NULL, DRIVER_CUDA),
	ROW(cuDeviceGetDefaultMemPool, NULL, DRIVER_CUDA),
	ROW(cuDeviceGetGraphMemAttribute, NULL, DRIVER_CUDA),
	ROW(cuDeviceGetMemPool, NULL, DRIVER_CUDA),
	ROW(cuDeviceGetUuid, NULL, DRIVER_CUDA),
	ROW(cuDeviceGetUuid_v2, NULL, DRIVER_CUDA),
	ROW(cuDeviceGraphMemTrim, (void *)cuDeviceGraphMemTrim, DRIVER_CUDA),
	ROW(cuDevicePrimaryCtxGetState, NULL, DRIVER_CUDA),
	ROW(cuDevicePrimaryCtxRelease, (void *)cuDevicePrimaryCtxRelease, DRIVER_CUDA),
	ROW(cuDevicePrimaryCtxRelease_v2, (void *)cuDevicePrimaryCtxRelease_v2, DRIVER_CUDA),
	ROW(cuDevicePrimaryCtxReset, (void *)cuDevicePrimaryCtxReset, DRIVER_CUDA),
	ROW(cuDevicePrimaryCtxReset_v2, (void *)cuDevicePrimaryCtxReset_v2, DRIVER_CUDA),
	ROW(cuDevicePrimaryCtxRetain, (void *)cuDevicePrimaryCtxRetain, DRIVER_CUDA),
	ROW(cuDeviceSetMemPool, (void *)cuDeviceSetMemPool, DRIVER_CUDA),
	ROW(cuDeviceTotalMem, (void *)cuDeviceTotalMem, DRIVER_CUDA),
	ROW(cuDeviceTotalMem_v2, (void *)cuDeviceTotalMem_v2, DRIVER_CUDA),
	ROW(cuEventCreate, NULL, DRIVER_CUDA),
	ROW(cuEventDestroy, NULL, DRIVER_CUDA),
	ROW(cuEventDestroy_v2, NULL, DRIVER_CUDA),
	ROW(cuEventElapsedTime, NULL, DRIVER_CUDA),
	ROW(cuEventElapsedTime_v2, NULL, DRIVER_CUDA),
	ROW(cuEventQuery, (void *)cuEventQuery, DRIVER_CUDA),
	ROW(cuEventRecord, NULL, DRIVER_CUDA),
	ROW(cuEventRecord_ptsz, NULL, DRIVER_CUDA),
	ROW(cuEventSynchronize, (void *)cuEventSynchronize, DRIVER_CUDA),
	ROW(cuFuncGetAttribute, NULL, DRIVER_CUDA),
	ROW(cuGetProcAddress, (void *)cuGetProcAddress, DRIVER_CUDA),
	ROW(cuGetProcAddress_v2, (void *)cuGetProcAddress_v2, DRIVER_CUDA),
	ROW(cuGraphAddMemAllocNode, (void *)cuGraphAddMemAllocNode, DRIVER_CUDA),
	ROW(cuGraphAddNode, (void *)cuGraphAddNode, DRIVER_CUDA),
	ROW(cuGraphAddNode_v2, (void *)cuGraphAddNode_v2, DRIVER_CUDA),
	ROW(cuGraphAddNode_v3, (void *)cuGraphAddNode_v3, DRIVER_CUDA),
	ROW(cuGraphChildGraphNodeGetGraph, NULL, DRIVER_CUDA),
	ROW(cuGraphExecDestroy, (void *)cuGraphExecDestroy, DRIVER_CUDA),
	ROW(cuGraphExecKernelNodeSetParams, (void *)cuGraphExecKernelNodeSetParams, DRIVER_CUDA),
	ROW(cuGraphExecKernelNodeSetParams_v2, (void *)cuGraphExecKernelNodeSetParams_v2, DRIVER_CUDA),
	ROW(cuGraphExecNodeSetParams, (void *)cuGraphExecNodeSetParams, DRIVER_CUDA),
	ROW(cuGraphExecUpdate, (void *)cuGraphExecUpdate, DRIVER_CUDA),
	ROW(cuGraphExecUpdate_v2, (void *)cuGraphExecUpdate_v2, DRIVER_CUDA),
	ROW(cuGraphGetNodes, NULL, DRIVER_CUDA),
	ROW(cuGraphInstantiate, (void *)cuGraphInstantiate, DRIVER_CUDA),
	ROW(cuGraphInstantiateWithFlags, (void *)cuGraphInstantiateWithFlags, DRIVER_CUDA),
	ROW(cuGraphInstantiateWithParams, (void *)cuGraphInstantiateWithParams, DRIVER_CUDA),
	ROW(cuGraphInstantiateWithParams_ptsz, (void *)cuGraphInstantiateWithParams_ptsz, DRIVER_CUDA),
	ROW(cuGraphInstantiate_v2, (void *)cuGraphInstantiate_v2, DRIVER_CUDA),
	ROW(cuGraphKernelNodeGetParams, NULL, DRIVER_CUDA),
	ROW(cuGraphKernelNodeGetParams_v2, NULL, DRIVER_CUDA),
	ROW(cuGraphLaunch, (void *)cuGraphLaunch, DRIVER_CUDA),
	ROW(cuGraphLaunch_ptsz, (void *)cuGraphLaunch_ptsz, DRIVER_CUDA),
	ROW(cuGraphMemAllocNodeGetParams, NULL, DRIVER_CUDA),
	ROW(cuGraphMemFreeNodeGetParams, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeGetDependencies, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeGetDependencies_v2, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeGetDependentNodes, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeGetDependentNodes_v2, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeGetEnabled, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeGetType, NULL, DRIVER_CUDA),
	ROW(cuGraphNodeSetEnabled, (void *)cuGraphNodeSetEnabled, DRIVER_CUDA),
	ROW(cuGraphUpload, (void *)cuGraphUpload, DRIVER_CUDA),
	ROW(cuGraphUpload_ptsz, (void *)cuGraphUpload_ptsz, DRIVER_CUDA),
	ROW(cuInit, (void *)cuInit, DRIVER_CUDA),
	ROW(cuKernelGetAttribute, NULL, DRIVER_CUDA),
	ROW(cuLaunch, (void *)cuLaunch, DRIVER_CUDA),
	ROW(cuLaunchCooperativeKernel, (void *)cuLaunchCooperativeKernel, DRIVER_CUDA),
	ROW(cuLaunchCooperativeKernelMultiDevice, (void *)cuLaunchCooperativeKernelMultiDevice, DRIVER_CUDA),
	ROW(cuLaunchCooperativeKernel_ptsz, (void *)cuLaunchCooperativeKernel_ptsz, DRIVER_CUDA),
	ROW(cuLaunchGrid, (void *)cuLaunchGrid, DRIVER_CUDA),
	ROW(cuLaunchGridAsync, (void *)cuLaunchGridAsync, DRIVER_CUDA),
	ROW(cuLaunchHostFunc, (void *)cuLaunchHostFunc, DRIVER_CUDA),
	ROW(cuLaunchHostFunc_ptsz, (void *)cuLaunchHostFunc_ptsz, DRIVER_CUDA),
	ROW(cuLaunchHostFunc_v2, (void *)cuLaunchHostFunc_v2, DRIVER_CUDA),
	ROW(cuLaunchHostFunc_v2_ptsz, (void *)cuLaunchHostFunc_v2_ptsz, DRIVER_CUDA),
	ROW(cuLaunchKernel, (void *)cuLaunchKernel, DRIVER_CUDA),
	ROW(cuLaunchKernelEx, (void *)cuLaunchKernelEx, DRIVER_CUDA),
	ROW(cuLaunchKernelEx_ptsz, (void *)cuLaunchKernelEx_ptsz, DRIVER_CUDA),
	ROW(cuLaunchKernel_ptsz, (void *)cuLaunchKernel_ptsz, DRIVER_CUDA),
	ROW(cuLibraryUnload, (void *)cuLibraryUnload, DRIVER_CUDA),
	ROW(cuMemAlloc, (void *)cuMemAlloc, DRIVER_CUDA),
	ROW(cuMemAllocAsync, (void *)cuMemAllocAsync, DRIVER_CUDA),
	ROW(cuMemAllocAsync_ptsz, (void *)cuMemAllocAsync_ptsz, DRIVER_CUDA),
	ROW(cuMemAllocFromPoolAsync, (void *)cuMemAllocFromPoolAsync, DRIVER_CUDA),
	ROW(cuMemAllocFromPoolAsync_ptsz, (void *)cuMemAllocFromPoolAsync_ptsz, DRIVER_CUDA),
	ROW(cuMemAllocManaged, (void *)cuMemAllocManaged, DRIVER_CUDA),
	ROW(cuMemAllocPitch, (void *)cuMemAllocPitch, DRIVER_CUDA),
	ROW(cuMemAllocPitch_v2, (void *)cuMemAllocPitch_v2, DRIVER_CUDA),
	ROW(cuMemAlloc_v2, (void *)cuMemAlloc_v2, DRIVER_CUDA),
	ROW(cuMemCreate, (void *)cuMemCreate, DRIVER_CUDA),
	ROW(cuMemFree, (void *)cuMemFree, DRIVER_CUDA),
	ROW(cuMemFreeAsync, (void *)cuMemFreeAsync, DRIVER_CUDA),
	ROW(cuMemFreeAsync_ptsz, (void *)cuMemFreeAsync_ptsz, DRIVER_CUDA),
	ROW(cuMemFreeHost, (void *)cuMemFreeHost, DRIVER_CUDA),
	ROW(cuMemFree_v2, (void *)cuMemFree_v2, DRIVER_CUDA),
	ROW(cuMemGetAllocationGranularity, NULL, DRIVER_CUDA),
	ROW(cuMemGetDefaultMemPool, (void *)cuMemGetDefaultMemPool, DRIVER_CUDA),
	ROW(cuMemGetInfo, (void *)cuMemGetInfo, DRIVER_CUDA),
	ROW(cuMemGetInfo_v2, (void *)cuMemGetInfo_v2, DRIVER_CUDA),
	ROW(cuMemGetMemPool, (void *)cuMemGetMemPool, DRIVER_CUDA),
	ROW(cuMemHostUnregister, (void *)cuMemHostUnregister, DRIVER_CUDA),
	ROW(cuMemMap, (void *)cuMemMap, DRIVER_CUDA),
	ROW(cuMemMapArrayAsync, (void *)cuMemMapArrayAsync, DRIVER_CUDA),
	ROW(cuMemMapArrayAsync_ptsz, (void *)cuMemMapArrayAsync_ptsz, DRIVER_CUDA),
	ROW(cuMemPoolCreate, (void *)cuMemPoolCreate, DRIVER_CUDA),
	ROW(cuMemPoolDestroy, (void *)cuMemPoolDestroy, DRIVER_CUDA),
	ROW(cuMemPoolGetAttribute, (void *)cuMemPoolGetAttribute, DRIVER_CUDA),
	ROW(cuMemPoolSetAttribute, (void *)cuMemPoolSetAttribute, DRIVER_CUDA),
	ROW(cuMemPoolTrimTo, (void *)cuMemPoolTrimTo, DRIVER_CUDA),
	ROW(cuMemRelease, (void *)cuMemRelease, DRIVER_CUDA),
	ROW(cuMemRetainAllocationHandle, (void *)cuMemRetainAllocationHandle, DRIVER_CUDA),
	ROW(cuMemSetMemPool, (void *)cuMemSetMemPool, DRIVER_CUDA),
	ROW(cuMemUnmap, (void *)cuMemUnmap, DRIVER_CUDA),
	ROW(cuMemcpy, (void *)cuMemcpy, DRIVER_CUDA),
	ROW(cuMemcpy2D, (void *)cuMemcpy2D, DRIVER_CUDA),
	ROW(cuMemcpy2DUnaligned, (void *)cuMemcpy2DUnaligned, DRIVER_CUDA),
	ROW(cuMemcpy2DUnaligned_v2, (void *)cuMemcpy2DUnaligned_v2, DRIVER_CUDA),
	ROW(cuMemcpy2DUnaligned_v2_ptds, (void *)cuMemcpy2DUnaligned_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpy2D_v2, (void *)cuMemcpy2D_v2, DRIVER_CUDA),
	ROW(cuMemcpy2D_v2_ptds, (void *)cuMemcpy2D_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpy3D, (void *)cuMemcpy3D, DRIVER_CUDA),
	ROW(cuMemcpy3DPeer, (void *)cuMemcpy3DPeer, DRIVER_CUDA),
	ROW(cuMemcpy3DPeer_ptds, (void *)cuMemcpy3DPeer_ptds, DRIVER_CUDA),
	ROW(cuMemcpy3D_v2, (void *)cuMemcpy3D_v2, DRIVER_CUDA),
	ROW(cuMemcpy3D_v2_ptds, (void *)cuMemcpy3D_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyAtoA, (void *)cuMemcpyAtoA, DRIVER_CUDA),
	ROW(cuMemcpyAtoA_v2, (void *)cuMemcpyAtoA_v2, DRIVER_CUDA),
	ROW(cuMemcpyAtoA_v2_ptds, (void *)cuMemcpyAtoA_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyAtoD, (void *)cuMemcpyAtoD, DRIVER_CUDA),
	ROW(cuMemcpyAtoD_v2, (void *)cuMemcpyAtoD_v2, DRIVER_CUDA),
	ROW(cuMemcpyAtoD_v2_ptds, (void *)cuMemcpyAtoD_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyAtoH, (void *)cuMemcpyAtoH, DRIVER_CUDA),
	ROW(cuMemcpyAtoH_v2, (void *)cuMemcpyAtoH_v2, DRIVER_CUDA),
	ROW(cuMemcpyAtoH_v2_ptds, (void *)cuMemcpyAtoH_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyDtoA, (void *)cuMemcpyDtoA, DRIVER_CUDA),
	ROW(cuMemcpyDtoA_v2, (void *)cuMemcpyDtoA_v2, DRIVER_CUDA),
	ROW(cuMemcpyDtoA_v2_ptds, (void *)cuMemcpyDtoA_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyDtoD, (void *)cuMemcpyDtoD, DRIVER_CUDA),
	ROW(cuMemcpyDtoD_v2, (void *)cuMemcpyDtoD_v2, DRIVER_CUDA),
	ROW(cuMemcpyDtoD_v2_ptds, (void *)cuMemcpyDtoD_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyDtoH, (void *)cuMemcpyDtoH, DRIVER_CUDA),
	ROW(cuMemcpyDtoH_v2, (void *)cuMemcpyDtoH_v2, DRIVER_CUDA),
	ROW(cuMemcpyDtoH_v2_ptds, (void *)cuMemcpyDtoH_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyHtoA, (void *)cuMemcpyHtoA, DRIVER_CUDA),
	ROW(cuMemcpyHtoA_v2, (void *)cuMemcpyHtoA_v2, DRIVER_CUDA),
	ROW(cuMemcpyHtoA_v2_ptds, (void *)cuMemcpyHtoA_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyHtoD, (void *)cuMemcpyHtoD, DRIVER_CUDA),
	ROW(cuMemcpyHtoD_v2, (void *)cuMemcpyHtoD_v2, DRIVER_CUDA),
	ROW(cuMemcpyHtoD_v2_ptds, (void *)cuMemcpyHtoD_v2_ptds, DRIVER_CUDA),
	ROW(cuMemcpyPeer, (void *)cuMemcpyPeer, DRIVER_CUDA),
	ROW(cuMemcpyPeer_ptds, (void *)cuMemcpyPeer_ptds, DRIVER_CUDA),
	ROW(cuMemcpy_ptds, (void *)cuMemcpy_ptds, DRIVER_CUDA),
	ROW(cuMipmappedArrayCreate, (void *)cuMipmappedArrayCreate, DRIVER_CUDA),
	ROW(cuMipmappedArrayDestroy, (void *)cuMipmappedArrayDestroy, DRIVER_CUDA),
	ROW(cuMipmappedArrayGetMemoryRequirements, NULL, DRIVER_CUDA),
	ROW(cuModuleUnload, (void *)cuModuleUnload, DRIVER_CUDA),
	ROW(cuStreamAddCallback, (void *)cuStreamAddCallback, DRIVER_CUDA),
	ROW(cuStreamAddCallback_ptsz, (void *)cuStreamAddCallback_ptsz, DRIVER_CUDA),
	ROW(cuStreamBeginCapture, (void *)cuStreamBeginCapture, DRIVER_CUDA),
	ROW(cuStreamBeginCaptureToCig, (void *)cuStreamBeginCaptureToCig, DRIVER_CUDA),
	ROW(cuStreamBeginCaptureToCig_ptsz, (void *)cuStreamBeginCaptureToCig_ptsz, DRIVER_CUDA),
	ROW(cuStreamBeginCaptureToGraph, (void *)cuStreamBeginCaptureToGraph, DRIVER_CUDA),
	ROW(cuStreamBeginCaptureToGraph_ptsz, (void *)cuStreamBeginCaptureToGraph_ptsz, DRIVER_CUDA),
	ROW(cuStreamBeginCapture_ptsz, (void *)cuStreamBeginCapture_ptsz, DRIVER_CUDA),
	ROW(cuStreamBeginCapture_v2, (void *)cuStreamBeginCapture_v2, DRIVER_CUDA),
	ROW(cuStreamBeginCapture_v2_ptsz, (void *)cuStreamBeginCapture_v2_ptsz, DRIVER_CUDA),
	ROW(cuStreamBeginRecaptureToGraph, (void *)cuStreamBeginRecaptureToGraph, DRIVER_CUDA),
	ROW(cuStreamBeginRecaptureToGraph_ptsz, (void *)cuStreamBeginRecaptureToGraph_ptsz, DRIVER_CUDA),
	ROW(cuStreamDestroy, (void *)cuStreamDestroy, DRIVER_CUDA),
	ROW(cuStreamDestroy_v2, (void *)cuStreamDestroy_v2, DRIVER_CUDA),
	ROW(cuStreamEndCapture, (void *)cuStreamEndCapture, DRIVER_CUDA),
	ROW(cuStreamEndCaptureToCig, (void *)cuStreamEndCaptureToCig, DRIVER_CUDA),
	ROW(cuStreamEndCaptureToCig_ptsz, (void *)cuStreamEndCaptureToCig_ptsz, DRIVER_CUDA),
	ROW(cuStreamEndCapture_ptsz, (void *)cuStreamEndCapture_ptsz, DRIVER_CUDA),
	ROW(cuStreamGetCtx, NULL, DRIVER_CUDA),
	ROW(cuStreamGetCtx_ptsz, NULL, DRIVER_CUDA),
	ROW(cuStreamGetCtx_v2, NULL, DRIVER_CUDA),
	ROW(cuStreamGetCtx_v2_ptsz, NULL, DRIVER_CUDA),
	ROW(cuStreamIsCapturing, NULL, DRIVER_CUDA),
	ROW(cuStreamIsCapturing_ptsz, NULL, DRIVER_CUDA),
	ROW(cuStreamQuery, (void *)cuStreamQuery, DRIVER_CUDA),
	ROW(cuStreamQuery_ptsz, (void *)cuStreamQuery_ptsz, DRIVER_CUDA),
	ROW(cuStreamSynchronize, (void *)cuStreamSynchronize, DRIVER_CUDA),
	ROW(cuStreamSynchronize_ptsz, (void *)cuStreamSynchronize_ptsz, DRIVER_CUDA),
	ROW(cuThreadExchangeStreamCaptureMode, NULL, DRIVER_CUDA),
	ROW(nvmlComputeInstanceDestroy, (void *)nvmlComputeInstanceDestroy, DRIVER_NVML),
	ROW(nvmlDeviceClearAccountingPids, (void *)nvmlDeviceClearAccountingPids, DRIVER_NVML),
	ROW(nvmlDeviceClearEccErrorCounts, (void *)nvmlDeviceClearEccErrorCounts, DRIVER_NVML),
	ROW(nvmlDeviceClearFieldValues, (void *)nvmlDeviceClearFieldValues, DRIVER_NVML),
	ROW(nvmlDeviceCreateGpuInstance, (void *)nvmlDeviceCreateGpuInstance, DRIVER_NVML),
	ROW(nvmlDeviceCreateGpuInstanceWithPlacement, (void *)nvmlDeviceCreateGpuInstanceWithPlacement, DRIVER_NVML),
	ROW(nvmlDeviceGetAccountingPids, (void *)nvmlDeviceGetAccountingPids, DRIVER_NVML),
	ROW(nvmlDeviceGetAttributes, (void *)nvmlDeviceGetAttributes, DRIVER_NVML),
	ROW(nvmlDeviceGetAttributes_v2, (void *)nvmlDeviceGetAttributes_v2, DRIVER_NVML),
	ROW(nvmlDeviceGetComputeInstanceId, NULL, DRIVER_NVML),
	ROW(nvmlDeviceGetComputeRunningProcesses, (void *)nvmlDeviceGetComputeRunningProcesses, DRIVER_NVML),
	ROW(nvmlDeviceGetComputeRunningProcesses_v2, (void *)nvmlDeviceGetComputeRunningProcesses_v2, DRIVER_NVML),
	ROW(nvmlDeviceGetComputeRunningProcesses_v3, (void *)nvmlDeviceGetComputeRunningProcesses_v3, DRIVER_NVML),
	ROW(nvmlDeviceGetGpuInstanceId, NULL, DRIVER_NVML),
	ROW(nvmlDeviceGetGraphicsRunningProcesses, (void *)nvmlDeviceGetGraphicsRunningProcesses, DRIVER_NVML),
	ROW(nvmlDeviceGetGraphicsRunningProcesses_v2, (void *)nvmlDeviceGetGraphicsRunningProcesses_v2, DRIVER_NVML),
	ROW(nvmlDeviceGetGraphicsRunningProcesses_v3, (void *)nvmlDeviceGetGraphicsRunningProcesses_v3, DRIVER_NVML),
	ROW(nvmlDeviceGetIndex, NULL, DRIVER_NVML),
	ROW(nvmlDeviceGetMPSComputeRunningProcesses, (void *)nvmlDeviceGetMPSComputeRunningProcesses, DRIVER_NVML),
	ROW(nvmlDeviceGetMPSComputeRunningProcesses_v2, (void *)nvmlDeviceGetMPSComputeRunningProcesses_v2, DRIVER_NVML),
	ROW(nvmlDeviceGetMPSComputeRunningProcesses_v3, (void *)nvmlDeviceGetMPSComputeRunningProcesses_v3, DRIVER_NVML),
	ROW(nvmlDeviceGetMaxMigDeviceCount, NULL, DRIVER_NVML),
	ROW(nvmlDeviceGetMemoryInfo, (void *)nvmlDeviceGetMemoryInfo, DRIVER_NVML),
	ROW(nvmlDeviceGetMemoryInfo_v2, (void *)nvmlDeviceGetMemoryInfo_v2, DRIVER_NVML),
	ROW(nvmlDeviceGetMigDeviceHandleByIndex, NULL, DRIVER_NVML),
	ROW(nvmlDeviceGetProcessUtilization, (void *)nvmlDeviceGetProcessUtilization, DRIVER_NVML),
	ROW(nvmlDeviceGetProcessesUtilizationInfo, (void *)nvmlDeviceGetProcessesUtilizationInfo, DRIVER_NVML),
	ROW(nvmlDeviceGetRunningProcessDetailList, (void *)nvmlDeviceGetRunningProcessDetailList, DRIVER_NVML),
	ROW(nvmlDeviceGetSamples, (void *)nvmlDeviceGetSamples, DRIVER_NVML),
	ROW(nvmlDeviceGetUUID, NULL, DRIVER_NVML),
	ROW(nvmlDeviceGetUtilizationRates, (void *)nvmlDeviceGetUtilizationRates, DRIVER_NVML),
	ROW(nvmlDeviceIsMigDeviceHandle, NULL, DRIVER_NVML),
	ROW(nvmlDeviceModifyDrainState, (void *)nvmlDeviceModifyDrainState, DRIVER_NVML),
	ROW(nvmlDevicePowerSmoothingActivatePresetProfile, (void *)nvmlDevicePowerSmoothingActivatePresetProfile, DRIVER_NVML),
	ROW(nvmlDevicePowerSmoothingSetState, (void *)nvmlDevicePowerSmoothingSetState, DRIVER_NVML),
	ROW(nvmlDevicePowerSmoothingUpdatePresetProfileParam, (void *)nvmlDevicePowerSmoothingUpdatePresetProfileParam, DRIVER_NVML),
	ROW(nvmlDeviceResetApplicationsClocks, (void *)nvmlDeviceResetApplicationsClocks, DRIVER_NVML),
	ROW(nvmlDeviceResetGpuLockedClocks, (void *)nvmlDeviceResetGpuLockedClocks, DRIVER_NVML),
	ROW(nvmlDeviceResetMemoryLockedClocks, (void *)nvmlDeviceResetMemoryLockedClocks, DRIVER_NVML),
	ROW(nvmlDeviceSetAPIRestriction, (void *)nvmlDeviceSetAPIRestriction, DRIVER_NVML),
	ROW(nvmlDeviceSetAccountingMode, (void *)nvmlDeviceSetAccountingMode, DRIVER_NVML),
	ROW(nvmlDeviceSetAdaptiveTgpMode_v1, (void *)nvmlDeviceSetAdaptiveTgpMode_v1, DRIVER_NVML),
	ROW(nvmlDeviceSetApplicationsClocks, (void *)nvmlDeviceSetApplicationsClocks, DRIVER_NVML),
	ROW(nvmlDeviceSetAutoBoostedClocksEnabled, (void *)nvmlDeviceSetAutoBoostedClocksEnabled, DRIVER_NVML),
	ROW(nvmlDeviceSetClockOffsets, (void *)nvmlDeviceSetClockOffsets, DRIVER_NVML),
	ROW(nvmlDeviceSetComputeMode, (void *)nvmlDeviceSetComputeMode, DRIVER_NVML),
	ROW(nvmlDeviceSetDefaultAutoBoostedClocksEnabled, (void *)nvmlDeviceSetDefaultAutoBoostedClocksEnabled, DRIVER_NVML),
	ROW(nvmlDeviceSetDefaultFanSpeed_v2, (void *)nvmlDeviceSetDefaultFanSpeed_v2, DRIVER_NVML),
	ROW(nvmlDeviceSetEccMode, (void *)nvmlDeviceSetEccMode, DRIVER_NVML),
	ROW(nvmlDeviceSetFanControlPolicy, (void *)nvmlDeviceSetFanControlPolicy, DRIVER_NVML),
	ROW(nvmlDeviceSetFanSpeed_v2, (void *)nvmlDeviceSetFanSpeed_v2, DRIVER_NVML),
	ROW(nvmlDeviceSetGpcClkVfOffset, (void *)nvmlDeviceSetGpcClkVfOffset, DRIVER_NVML),
	ROW(nvmlDeviceSetGpuLockedClocks, (void *)nvmlDeviceSetGpuLockedClocks, DRIVER_NVML),
	ROW(nvmlDeviceSetMemClkVfOffset, (void *)nvmlDeviceSetMemClkVfOffset, DRIVER_NVML),
	ROW(nvmlDeviceSetMemoryLimits_v1, (void *)nvmlDeviceSetMemoryLimits_v1, DRIVER_NVML),
	ROW(nvmlDeviceSetMemoryLockedClocks, (void *)nvmlDeviceSetMemoryLockedClocks, DRIVER_NVML),
	ROW(nvmlDeviceSetMigMode, (void *)nvmlDeviceSetMigMode, DRIVER_NVML),
	ROW(nvmlDeviceSetPersistenceMode, (void *)nvmlDeviceSetPersistenceMode, DRIVER_NVML),
	ROW(nvmlDeviceSetPowerManagementLimit, (void *)nvmlDeviceSetPowerManagementLimit, DRIVER_NVML),
	ROW(nvmlDeviceSetPowerManagementLimit_v2, (void *)nvmlDeviceSetPowerManagementLimit_v2, DRIVER_NVML),
	ROW(nvmlDeviceSetPowerMizerMode_v1, (void *)nvmlDeviceSetPowerMizerMode_v1, DRIVER_NVML),
	ROW(nvmlDeviceSetPowerMode, (void *)nvmlDeviceSetPowerMode, DRIVER_NVML),
	ROW(nvmlDeviceSetTemperatureThreshold, (void *)nvmlDeviceSetTemperatureThreshold, DRIVER_NVML),
	ROW(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles, (void *)nvmlDeviceWorkloadPowerProfileClearRequestedProfiles, DRIVER_NVML),
	ROW(nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1, (void *)nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1, DRIVER_NVML),
	ROW(nvmlGpuInstanceCreateComputeInstance, (void *)nvmlGpuInstanceCreateComputeInstance, DRIVER_NVML),
	ROW(nvmlGpuInstanceCreateComputeInstanceWithPlacement, (void *)nvmlGpuInstanceCreateComputeInstanceWithPlacement, DRIVER_NVML),
	ROW(nvmlGpuInstanceDestroy, (void *)nvmlGpuInstanceDestroy, DRIVER_NVML),
};
const size_t driver_names_count = sizeof(driver_names) / sizeof(driver_names[0]);
