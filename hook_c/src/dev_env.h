// SPDX-License-Identifier: Apache-2.0
/* Developer mode: the library is preloaded by hand and its limits come from the environment.
 * This is the one file that reads an environment variable or knows a unit. */
#ifndef VGPU_DEV_ENV_H
#define VGPU_DEV_ENV_H

#include "limits.h"

#include <stdbool.h>
#include <stdint.h>

/* A decimal number with an optional k, m or g (1024), upper or lower case; not 0, which would be
 * read as "no limit" by some. Sets *bytes and returns 0; or returns EINVAL or ERANGE. */
int parse_bytes(const char *text, uint64_t *bytes);

/* 1 to 100. The same errors. */
int parse_percent(const char *text, unsigned int *percent);

/* Whether any CUDA_DEVICE_* limit is set: without one, and without a limits file, the library
 * does nothing. */
bool dev_env_is_set(void);

/* Fills limits for VGPU_MAX_DEVICES cards in the order of the process's ordinals. A value that
 * cannot be read is refused, never taken for "no limit". */
bool dev_env_limits(struct limits *limits, struct reason *reason);

/* The usage file that the processes of one developer share. `buffer` holds the default's name. */
const char *dev_env_usage_path(char *buffer, unsigned long size);

/* The least level that goes to stderr: VGPU_LOG = debug, warning (default), error, off. */
unsigned int dev_env_log_level(void);

#endif
