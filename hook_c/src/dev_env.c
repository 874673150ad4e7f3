// SPDX-License-Identifier: Apache-2.0
#include "dev_env.h"

#include "ascii.h"
#include "decimal.h"
#include "sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_LIMIT "CUDA_DEVICE_MEMORY_LIMIT"
#define SM_LIMIT "CUDA_DEVICE_SM_LIMIT"
#define USAGE_PATH "CUDA_DEVICE_MEMORY_SHARED_CACHE"

extern char **environ;

int parse_bytes(const char *text, uint64_t *bytes)
{
	static const char units[] = "kmg";
	uint64_t number;
	unsigned int shift = 0;
	int error = parse_decimal(&text, &number);

	if (error != 0)
		return error;
	if (*text != '\0') {
		const char *unit = strchr(units, ascii_to_lower(*text));

		if (unit == NULL || text[1] != '\0')
			return EINVAL;
		shift = 10U * ((unsigned int)(unit - units) + 1);
	}
	if (number == 0)
		return EINVAL;
	if (number > UINT64_MAX >> shift)
		return ERANGE;
	*bytes = number << shift;
	return 0;
}

int parse_percent(const char *text, unsigned int *percent)
{
	uint64_t number;
	int error = parse_decimal(&text, &number);

	if (error != 0)
		return error;
	if (*text != '\0' || number == 0 || number > 100)
		return EINVAL;
	*percent = (unsigned int)number;
	return 0;
}

bool dev_env_is_set(void)
{
	for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
		if (strncmp(*variable, MEMORY_LIMIT, strlen(MEMORY_LIMIT)) == 0 ||
		    strncmp(*variable, SM_LIMIT, strlen(SM_LIMIT)) == 0)
			return true;
	return false;
}

/* NAME_n for card n, else NAME; NULL if neither is set. */
static const char *variable_of(const char *name, unsigned int card, char own_name[48])
{
	snprintf(own_name, 48, "%s_%u", name, card);

	const char *value = getenv(own_name);

	if (value != NULL)
		return value;
	snprintf(own_name, 48, "%s", name);
	return getenv(name);
}

bool dev_env_limits(struct limits *limits, struct reason *reason)
{
	char name[48];
	unsigned int percent;

	limits->count = VGPU_MAX_DEVICES;
	for (unsigned int card = 0; card < VGPU_MAX_DEVICES; card++) {
		const char *value = variable_of(MEMORY_LIMIT, card, name);

		limits->card[card].memory_bytes = LIMITS_NONE;
		limits->card[card].cores_percent = 100;
		if (value != NULL && parse_bytes(value, &limits->card[card].memory_bytes) != 0)
			return refuse(reason, "%s=%s is not a number of bytes", name, value);
		value = variable_of(SM_LIMIT, card, name);
		if (value != NULL && parse_percent(value, &percent) != 0)
			return refuse(reason, "%s=%s is not a percentage from 1 to 100", name,
				      value);
		if (value != NULL)
			limits->card[card].cores_percent = percent;
	}
	return true;
}

const char *dev_env_usage_path(char *buffer, unsigned long size)
{
	const char *path = getenv(USAGE_PATH);

	if (path != NULL && path[0] != '\0')
		return path;
	snprintf(buffer, size, "/tmp/vgpu-usage-%u", sys_user());
	return buffer;
}

unsigned int dev_env_log_level(void)
{
	static const char *const names[] = {[VGPU_RING_DEBUG] = "debug",
					    [VGPU_RING_WARNING] = "warning",
					    [VGPU_RING_ERROR] = "error",
					    [VGPU_RING_ERROR + 1] = "off"};
	const char *value = getenv("VGPU_LOG");

	for (unsigned int level = VGPU_RING_DEBUG; value != NULL && level <= VGPU_RING_ERROR + 1;
	     level++)
		if (strcmp(value, names[level]) == 0)
			return level;
	return VGPU_RING_WARNING;
}
