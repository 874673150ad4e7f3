// SPDX-License-Identifier: Apache-2.0
#ifndef VGPU_DECIMAL_H
#define VGPU_DECIMAL_H

#include <errno.h>
#include <stdint.h>

/* Reads the decimal number at *text and moves *text behind it. Returns 0, EINVAL if there is no
 * digit, ERANGE if 64 bits do not hold it. strtoull would take signs and blanks and set errno. */
static inline int parse_decimal(const char **text, uint64_t *number)
{
	const char *digit = *text;
	uint64_t value = 0;

	if (*digit < '0' || *digit > '9')
		return EINVAL;
	for (; *digit >= '0' && *digit <= '9'; digit++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*digit - '0'), &value))
			return ERANGE;
	*text = digit;
	*number = value;
	return 0;
}

#endif
