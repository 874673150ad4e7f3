/* SPDX-License-Identifier: Apache-2.0
 *
 * The search of a config.json for marks.
 */
#include "marks.h"

#include "fuzz.h"

#define ALL (MARK_MANAGED | MARK_DEVICE | MARK_NVIDIA | MARK_ALLOW_ALL | MARK_ASK)

/* The bytes without a NUL behind them, so that a sanitizer sees a read past their end. */
static unsigned find(const uint8_t *data, size_t size)
{
	char *bytes = malloc(size > 0 ? size : 1);
	unsigned found;

	HOLDS(bytes != NULL);
	if (size > 0)
		memcpy(bytes, data, size);
	found = marks_find(bytes, size);
	free(bytes);
	return found;
}

/* What stands before or behind, outside of strings, hides no mark. */
static void check_around(const uint8_t *data, size_t size, unsigned found)
{
	static const char before[] = "{\"a\":[", behind[] = "\"VGPU_MEMORY=1Gi\"]}";
	const size_t length = sizeof(before) - 1 + size + sizeof(behind) - 1;
	uint8_t *longer = malloc(length);
	bool escapes;

	HOLDS(longer != NULL);
	memcpy(longer, before, sizeof(before) - 1);
	if (size > 0)
		memcpy(longer + sizeof(before) - 1, data, size);
	memcpy(longer + sizeof(before) - 1 + size, behind, sizeof(behind) - 1);
	escapes = size > 0 && data[size - 1] == '\\';
	HOLDS((find(longer, sizeof(before) - 1 + size) & found) == found);
	HOLDS(escapes || (find(longer, length) & MARK_MANAGED) != 0);
	free(longer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const unsigned found = find(data, size);

	HOLDS((found & ~(unsigned)ALL) == 0);
	HOLDS(size == 0 || (found & find(data, size - 1)) == find(data, size - 1));
	check_around(data, size, found);
	return 0;
}
