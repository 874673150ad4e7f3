/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG: a card in MIG mode, its instances, and what only they say about themselves.
 */
#include "nvml.h"

#define MOST_INSTANCES 7

bool nvml_is_mig(unsigned int card)
{
	const struct fake_card *described = &state_map()->card[card];

	return described->mig_mode != 0 || described->parent != 0;
}

NVML_API(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned int *current, unsigned int *pending))
{
	unsigned int card = 0;
	nvmlReturn_t status =
		nvml_enter_device(__func__, current != NULL && pending != NULL, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	*current = state_map()->card[card].mig_mode;
	*pending = *current;
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned int *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_device(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = state_map()->card[card].mig_mode != 0 ? MOST_INSTANCES : 0;
	return status;
}

NVML_API(nvmlDeviceGetMigDeviceHandleByIndex,
	 (nvmlDevice_t device, unsigned int number, nvmlDevice_t *out))
{
	unsigned int card = 0;
	nvmlReturn_t status =
		nvml_enter_device(__func__, out != NULL && number < MOST_INSTANCES, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	nvmlDevice_t found = nvml_instance(card, number);
	if (found == NULL)
		return NVML_ERROR_NOT_FOUND;
	*out = found;
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceIsMigDeviceHandle, (nvmlDevice_t device, unsigned int *out))
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(__func__, out != NULL, device, &card);

	if (status == NVML_SUCCESS)
		*out = state_map()->card[card].parent != 0;
	return status;
}

/* First lines of what is asked of instances only. */
static nvmlReturn_t enter_instance(const char *function, bool valid, nvmlDevice_t device,
				   const struct fake_card **instance)
{
	unsigned int card = 0;
	nvmlReturn_t status = nvml_enter_identity(function, valid, device, &card);

	if (status != NVML_SUCCESS)
		return status;
	*instance = &state_map()->card[card];
	return (*instance)->parent != 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t device, nvmlDevice_t *out))
{
	const struct fake_card *instance = NULL;
	nvmlReturn_t status = enter_instance(__func__, out != NULL, device, &instance);

	if (status == NVML_SUCCESS)
		*out = nvml_handle_of(instance->parent - 1);
	return status;
}

NVML_API(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t device, unsigned int *out))
{
	const struct fake_card *instance = NULL;
	nvmlReturn_t status = enter_instance(__func__, out != NULL, device, &instance);

	if (status == NVML_SUCCESS)
		*out = instance->gpu_instance;
	return status;
}

NVML_API(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t device, unsigned int *out))
{
	const struct fake_card *instance = NULL;
	nvmlReturn_t status = enter_instance(__func__, out != NULL, device, &instance);

	if (status == NVML_SUCCESS)
		*out = instance->compute_instance;
	return status;
}

struct attributes {
	unsigned int multiprocessors;
	unsigned int shared_copy_engines;
	unsigned int shared_decoders;
	unsigned int shared_encoders;
	unsigned int shared_jpegs;
	unsigned int shared_ofas;
	unsigned int gpu_instance_slices;
	unsigned int compute_instance_slices;
	unsigned long long memory_mib;
};

NVML_API(nvmlDeviceGetAttributes_v2, (nvmlDevice_t device, struct attributes *out))
{
	const struct fake_card *instance = NULL;
	nvmlReturn_t status = enter_instance(__func__, out != NULL, device, &instance);

	if (status != NVML_SUCCESS)
		return status;
	*out = (struct attributes){.multiprocessors = instance->sm_count,
				   .shared_copy_engines = instance->slices,
				   .gpu_instance_slices = instance->slices,
				   .compute_instance_slices = instance->slices,
				   .memory_mib = instance->memory_bytes >> 20};
	return NVML_SUCCESS;
}
