/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory as NVML counts it: the whole card, what the driver reserves included (v1) or apart (v2).
 */
#include "nvml.h"

struct memory_v1 {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total;
	unsigned long long reserved;
	unsigned long long free;
	unsigned long long used;
};

NVML_API(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, struct memory_v1 *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	out->total = state_map()->card[card].memory_bytes;
	out->used = state_used_bytes(card);
	out->free = out->used < out->total ? out->total - out->used : 0;
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, struct memory_v2 *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	if (out->version != NVML_VERSION(struct memory_v2, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->total = state_map()->card[card].memory_bytes;
	out->reserved = state_map()->card[card].reserved_bytes;
	out->used = state_used_bytes(card) - out->reserved;
	out->free =
		out->used + out->reserved < out->total ? out->total - out->reserved - out->used : 0;
	return NVML_SUCCESS;
}

struct bar1_memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

NVML_API(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t device, struct bar1_memory *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	out->total = 131072ULL << 20;
	out->used = 1ULL << 20;
	out->free = out->total - out->used;
	return NVML_SUCCESS;
}
