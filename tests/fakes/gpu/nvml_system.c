/* SPDX-License-Identifier: Apache-2.0
 *
 * nvmlInit and nvmlShutdown (counted, any thread), versions and error texts.
 */
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users; /* nvmlInit calls not yet undone */

nvmlReturn_t nvml_enter_early(const char *function)
{
	return (nvmlReturn_t)state_fault(function);
}

nvmlReturn_t nvml_enter_initialised(const char *function)
{
	nvmlReturn_t fault = (nvmlReturn_t)state_fault(function);

	if (fault != NVML_SUCCESS)
		return fault;
	return __atomic_load_n(&users, __ATOMIC_ACQUIRE) == 0 ? NVML_ERROR_UNINITIALIZED
							      : NVML_SUCCESS;
}

nvmlReturn_t nvml_copy(char *out, unsigned int length, const char *text)
{
	size_t bytes = strlen(text) + 1;

	if (length < bytes)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, bytes);
	return NVML_SUCCESS;
}

static nvmlReturn_t init(const char *function)
{
	nvmlReturn_t status = nvml_enter_always(function, true);

	if (status != NVML_SUCCESS)
		return status;
	if (state_map() == NULL)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	(void)pthread_mutex_lock(&counting);
	if (users == 0)
		nvml_enumerate();
	__atomic_store_n(&users, users + 1, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&counting);
	return NVML_SUCCESS;
}

NVML_API(nvmlInit, (void))
{
	return init(__func__);
}

NVML_API(nvmlInit_v2, (void))
{
	return init(__func__);
}

NVML_API(nvmlInitWithFlags, (unsigned int flags))
{
	(void)flags; /* NVML_INIT_FLAG_NO_GPUS and _NO_ATTACH change nothing here */
	return init(__func__);
}

NVML_API(nvmlShutdown, (void))
{
	nvmlReturn_t status = nvml_enter_always(__func__, true);

	if (status != NVML_SUCCESS)
		return status;
	(void)pthread_mutex_lock(&counting);
	status = users == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
	if (users > 0)
		__atomic_store_n(&users, users - 1, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&counting);
	return status;
}

NVML_API(nvmlSystemGetDriverVersion, (char *out, unsigned int length))
{
	nvmlReturn_t status = nvml_enter(__func__, out != NULL);

	return status != NVML_SUCCESS ? status
				      : nvml_copy(out, length, state_map()->driver_version);
}

NVML_API(nvmlSystemGetNVMLVersion, (char *out, unsigned int length))
{
	nvmlReturn_t status = nvml_enter(__func__, out != NULL);

	return status != NVML_SUCCESS ? status : nvml_copy(out, length, state_map()->nvml_version);
}

static nvmlReturn_t cuda_version(const char *function, int *out)
{
	nvmlReturn_t status = nvml_enter(function, out != NULL);

	if (status == NVML_SUCCESS)
		*out = (int)state_map()->cuda_version;
	return status;
}

NVML_API(nvmlSystemGetCudaDriverVersion, (int *out))
{
	return cuda_version(__func__, out);
}

NVML_API(nvmlSystemGetCudaDriverVersion_v2, (int *out))
{
	return cuda_version(__func__, out);
}

NVML_API(nvmlSystemGetProcessName, (unsigned int pid, char *out, unsigned int length))
{
	nvmlReturn_t status = nvml_enter(__func__, out != NULL && length != 0);
	char path[64];
	char name[64] = "";

	if (status != NVML_SUCCESS)
		return status;
	(void)snprintf(path, sizeof(path), "/proc/%u/exe", pid);
	char target[256];
	ssize_t read = readlink(path, target, sizeof(target) - 1);
	if (read < 0)
		return NVML_ERROR_NOT_FOUND;
	target[read] = '\0';
	(void)snprintf(name, sizeof(name), "%.63s", target);
	(void)snprintf(out, length, "%s", name);
	return NVML_SUCCESS;
}

static const struct {
	nvmlReturn_t code;
	const char *text;
} errors[] = {
	{NVML_SUCCESS, "Success"},
	{NVML_ERROR_UNINITIALIZED, "Uninitialized"},
	{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
	{NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
	{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
	{NVML_ERROR_NOT_FOUND, "Not Found"},
	{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
	{NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
	{NVML_ERROR_TIMEOUT, "Timeout"},
	{NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
	{NVML_ERROR_MEMORY, "Insufficient Memory"},
	{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
};

__attribute__((visibility("default"))) const char *nvmlErrorString(int code);
__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if ((int)errors[i].code == code)
			return errors[i].text;
	return "Unknown Error";
}
