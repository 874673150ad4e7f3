/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress by the rules of the real driver, and the private tables that a CUDA runtime asks
 * for.
 */
#include "lookup.h"
#include "driver.h"

#include <string.h>

/* How a request failed, or did not. */
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static int look_up(const char *base, int version, uint64_t flags, lookup_function *function)
{
	const struct fake_state *state = state_map();
	int driver_version = state != NULL ? (int)state->cuda_version : 0;

	if (version > driver_version)
		version = driver_version;
	*function = NULL;
	if (flags == LOOKUP_PER_THREAD_STREAM)
		*function = lookup_best(base, version, LOOKUP_PER_THREAD_STREAM);
	if (*function == NULL)
		*function = lookup_best(base, version, 0);
	if (*function != NULL)
		return FOUND;
	return lookup_known(base, driver_version) ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
}

/* Flags: 0 default, 1 legacy stream, 2 per-thread stream. With a place for the reason a missing
 * symbol is no error, without one it is. */
CUDA_API(cuGetProcAddress_v2,
	 (const char *symbol, lookup_function *function, int version, uint64_t flags, int *reason))
{
	CUresult status = enter_always(__func__, symbol != NULL && function != NULL && flags <= 2);

	if (status != CUDA_SUCCESS)
		return status;
	int found = look_up(symbol, version, flags, function);
	if (reason == NULL)
		return found == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
	*reason = found;
	return CUDA_SUCCESS;
}

CUDA_API(cuGetProcAddress,
	 (const char *symbol, lookup_function *function, int version, uint64_t flags))
{
	CUresult status = enter_always(__func__, symbol != NULL && function != NULL && flags <= 2);

	if (status != CUDA_SUCCESS)
		return status;
	return look_up(symbol, version, flags, function) == FOUND ? CUDA_SUCCESS
								  : CUDA_ERROR_NOT_FOUND;
}

/* The tables are private to NVIDIA's own libraries: a size, then functions. Here every one of them
 * refuses, so that a runtime gets through its look-ups and then ends with an error of its own. */
#define TABLE_FUNCTIONS 95

struct export_table {
	size_t bytes;
	CUresult (*function[TABLE_FUNCTIONS])(void);
};

static CUresult refuse(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API(cuGetExportTable, (const void **table, const CUuuid *id))
{
	static const unsigned char ids[][16] = {
		{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd,
		 0x9d, 0xf9},
		{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c,
		 0x0a, 0x66},
		{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c,
		 0x0d, 0xd9},
	};
	static const struct export_table refusing = {
		.bytes = sizeof(refusing), .function = {[0 ... TABLE_FUNCTIONS - 1] = refuse}};
	CUresult status = enter_always(__func__, table != NULL && id != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		if (memcmp(ids[i], id->bytes, sizeof(ids[i])) == 0) {
			*table = &refusing;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_NOT_FOUND;
}
