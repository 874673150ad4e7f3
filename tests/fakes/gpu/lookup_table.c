/* SPDX-License-Identifier: Apache-2.0
 *
 * The generated map of names, versions and stream variants to functions. Apart from lookup.c, since
 * every function is declared here without its arguments.
 */
#include "driver.h"
#include "lookup.h"

#include <string.h>

struct row {
	const char *base;
	int version;
	int flag; /* 0, or LOOKUP_PER_THREAD_STREAM */
	void (*function)(void);
};

#define VGPU_CUDA_SYMBOL(symbol, version) void symbol(void);
#include "fake_driver.gen.h"
#undef VGPU_CUDA_SYMBOL

static const struct row rows[] = {
#define VGPU_CUDA_ROW(base, version, flag, symbol) {#base, version, flag, symbol},
#include "fake_driver.gen.h"
};

lookup_function lookup_best(const char *base, int version, int flag)
{
	const struct row *found = NULL;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *row = &rows[i];
		if (row->flag == flag && row->version <= version && strcmp(row->base, base) == 0 &&
		    (found == NULL || row->version > found->version))
			found = row;
	}
	return found != NULL ? found->function : NULL;
}

bool lookup_known(const char *base, int version)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].version <= version && strcmp(rows[i].base, base) == 0)
			return true;
	return false;
}
