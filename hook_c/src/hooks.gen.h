/* SPDX-License-Identifier: Apache-2.0
 * Made by gen.py from api.tsv and prototypes.tsv. The real entry points.
 */

#ifndef VGPU_HOOKS_GEN_H
#define VGPU_HOOKS_GEN_H

#include <stddef.h>
#include <stdint.h>

struct driver {
	int (*cuArray3DCreate)(void **, const void *);
	int (*cuArray3DCreate_v2)(void **, const void *);
	int (*cuArrayCreate)(void **, const void *);
	int (*cuArrayCreate_v2)(void **, const void *);
	int (*cuArrayDestroy)(void *);
	int (*cuArrayGetMemoryRequirements)(void *, void *, int);
	int (*cuCtxCreate)(void **, unsigned int, int);
	int (*cuCtxCreate_v2)(void **, unsigned int, int);
	int (*cuCtxCreate_v3)(void **, void *, int, unsigned int, int);
	int (*cuCtxCreate_v4)(void **, void *, unsigned int, int);
	int (*cuCtxDestroy)(void *);
	int (*cuCtxDestroy_v2)(void *);
	int (*cuCtxGetCurrent)(void **);
	int (*cuCtxGetDevice)(int *);
	int (*cuCtxGetDevice_v2)(int *, void *);
	int (*cuCtxPopCurrent)(void **);
	int (*cuCtxPopCurrent_v2)(void **);
	int (*cuCtxPushCurrent)(void *);
	int (*cuCtxPushCurrent_v2)(void *);
	int (*cuCtxSynchronize)(void);
	int (*cuCtxSynchronize_v2)(void *);
	int (*cuDeviceGetCount)(int *);
	int (*cuDeviceGetDefaultMemPool)(void **, int);
	int (*cuDeviceGetGraphMemAttribute)(int, int, void *);
	int (*cuDeviceGetMemPool)(void **, int);
	int (*cuDeviceGetUuid)(void *, int);
	int (*cuDeviceGetUuid_v2)(void *, int);
	int (*cuDeviceGraphMemTrim)(int);
	int (*cuDevicePrimaryCtxGetState)(int, unsigned int *, int *);
	int (*cuDevicePrimaryCtxRelease)(int);
	int (*cuDevicePrimaryCtxRelease_v2)(int);
	int (*cuDevicePrimaryCtxReset)(int);
	int (*cuDevicePrimaryCtxReset_v2)(int);
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	int (*cuDeviceTotalMem)(unsigned int *, int);
	int (*cuDeviceTotalMem_v2)(size_t *, int);
	int (*cuEventSynchronize)(void *);
	int (*cuGetProcAddress)(const char *, void **, int, uint64_t);
	int (*cuGetProcAddress_v2)(const char *, void **, int, uint64_t, int *);
	int (*cuGraphAddMemAllocNode)(void **, void *, void **, size_t, void *);
	int (*cuGraphAddNode)(void **, void *, void **, size_t, void *);
	int (*cuGraphAddNode_v2)(void **, void *, void **, const void *, size_t, void *);
	int (*cuGraphAddNode_v3)(void **, void *, void **, const void *, size_t, void *);
	int (*cuGraphLaunch)(void *, void *);
	int (*cuGraphLaunch_ptsz)(void *, void *);
	int (*cuGraphUpload)(void *, void *);
	int (*cuGraphUpload_ptsz)(void *, void *);
	int (*cuInit)(unsigned int);
	int (*cuMemAlloc)(unsigned int *, unsigned int);
	int (*cuMemAllocAsync)(uint64_t *, size_t, void *);
	int (*cuMemAllocAsync_ptsz)(uint64_t *, size_t, void *);
	int (*cuMemAllocFromPoolAsync)(uint64_t *, size_t, void *, void *);
	int (*cuMemAllocFromPoolAsync_ptsz)(uint64_t *, size_t, void *, void *);
	int (*cuMemAllocManaged)(uint64_t *, size_t, unsigned int);
	int (*cuMemAllocPitch)(unsigned int *, unsigned int *, unsigned int, unsigned int, unsigned int);
	int (*cuMemAllocPitch_v2)(uint64_t *, size_t *, size_t, size_t, unsigned int);
	int (*cuMemAlloc_v2)(uint64_t *, size_t);
	int (*cuMemCreate)(uint64_t *, size_t, const void *, uint64_t);
	int (*cuMemFree)(unsigned int);
	int (*cuMemFreeAsync)(uint64_t, void *);
	int (*cuMemFreeAsync_ptsz)(uint64_t, void *);
	int (*cuMemFree_v2)(uint64_t);
	int (*cuMemGetInfo)(unsigned int *, unsigned int *);
	int (*cuMemGetInfo_v2)(size_t *, size_t *);
	int (*cuMemMap)(uint64_t, size_t, size_t, uint64_t, uint64_t);
	int (*cuMemPoolCreate)(void **, const void *);
	int (*cuMemPoolDestroy)(void *);
	int (*cuMemPoolGetAttribute)(void *, int, void *);
	int (*cuMemPoolSetAttribute)(void *, int, void *);
	int (*cuMemPoolTrimTo)(void *, size_t);
	int (*cuMemRelease)(uint64_t);
	int (*cuMemRetainAllocationHandle)(uint64_t *, void *);
	int (*cuMemUnmap)(uint64_t, size_t);
	int (*cuMipmappedArrayCreate)(void **, const void *, unsigned int);
	int (*cuMipmappedArrayDestroy)(void *);
	int (*cuMipmappedArrayGetMemoryRequirements)(void *, void *, int);
	int (*cuStreamGetCtx)(void *, void **);
	int (*cuStreamGetCtx_ptsz)(void *, void **);
	int (*cuStreamGetCtx_v2)(void *, void **, void **);
	int (*cuStreamGetCtx_v2_ptsz)(void *, void **, void **);
	int (*cuStreamIsCapturing)(void *, int *);
	int (*cuStreamIsCapturing_ptsz)(void *, int *);
	int (*cuStreamSynchronize)(void *);
	int (*cuStreamSynchronize_ptsz)(void *);
	int (*nvmlDeviceGetComputeRunningProcesses)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetComputeRunningProcesses_v2)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetComputeRunningProcesses_v3)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetGraphicsRunningProcesses)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetGraphicsRunningProcesses_v2)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetGraphicsRunningProcesses_v3)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetIndex)(void *, unsigned int *);
	int (*nvmlDeviceGetMPSComputeRunningProcesses)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetMPSComputeRunningProcesses_v2)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetMPSComputeRunningProcesses_v3)(void *, unsigned int *, void *);
	int (*nvmlDeviceGetMemoryInfo)(void *, void *);
	int (*nvmlDeviceGetMemoryInfo_v2)(void *, void *);
	int (*nvmlDeviceGetUUID)(void *, char *, unsigned int);
};

#endif
