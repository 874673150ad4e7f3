/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and descriptions of results. They work before cuInit.
 */
#include "driver.h"

#define RESULTS(X)                                                                                 \
	X(CUDA_SUCCESS, "no error")                                                                \
	X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                            \
	X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                               \
	X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                      \
	X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                        \
	X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                              \
	X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                     \
	X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                              \
	X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                    \
	X(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")                                    \
	X(CUDA_ERROR_NOT_MAPPED, "resource not mapped")                                            \
	X(CUDA_ERROR_FILE_NOT_FOUND, "file not found")                                             \
	X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                    \
	X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")      \
	X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                          \
	X(CUDA_ERROR_NOT_READY, "device not ready")                                                \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                  \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context is active")                          \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                 \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "memory is already registered")               \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "memory is not registered")                       \
	X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                     \
	X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                     \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted during capture")         \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "capture was invalidated by an earlier error")    \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not begun in this stream")             \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "capture would depend on the legacy stream")         \
	X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event recorded in a capture")  \
	X(CUDA_ERROR_UNKNOWN, "unknown error")

struct result {
	int code;
	const char *name;
	const char *text;
};

static const struct result results[] = {
#define ENTRY(code, text) {code, #code, text},
	RESULTS(ENTRY)
#undef ENTRY
};

static CUresult find(int code, const struct result **out)
{
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		if (results[i].code == code) {
			*out = &results[i];
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API(cuGetErrorName, (int code, const char **out))
{
	const struct result *result = NULL;
	CUresult status = enter_always(__func__, out != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	status = find(code, &result);
	*out = result != NULL ? result->name : NULL;
	return status;
}

CUDA_API(cuGetErrorString, (int code, const char **out))
{
	const struct result *result = NULL;
	CUresult status = enter_always(__func__, out != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	status = find(code, &result);
	*out = result != NULL ? result->text : NULL;
	return status;
}
