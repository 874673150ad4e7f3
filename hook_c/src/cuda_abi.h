// SPDX-License-Identifier: Apache-2.0
/* The few numbers and layouts of the CUDA driver API and of NVML that libvgpu reads itself.
 * Sources: CUDA Driver API 11.8 to 13.5, NVML API 11.8 to 13.5; no header is needed to build. */
#ifndef VGPU_CUDA_ABI_H
#define VGPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
	CUDA_ERROR_NOT_FOUND = 500,
	/* What a refused cuInit returns. Not NO_DEVICE: frameworks go on with the CPU on that. */
	CUDA_ERROR_SYSTEM_NOT_READY = 802,

	NVML_SUCCESS = 0,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

#define NVML_UUID_BYTES 96 /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */

struct nvml_memory {
	uint64_t total;
	uint64_t free;
	uint64_t used;
};

struct nvml_memory_v2 {
	uint32_t version;
	uint64_t total;
	uint64_t reserved;
	uint64_t free;
	uint64_t used;
};

_Static_assert(sizeof(struct nvml_memory) == 24, "NVML ABI");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "NVML ABI");

#endif
