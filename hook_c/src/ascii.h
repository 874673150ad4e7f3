// SPDX-License-Identifier: Apache-2.0
/* Kinds of characters without libc's tables, which follow the program's locale. */
#ifndef VGPU_ASCII_H
#define VGPU_ASCII_H

#include <stdbool.h>

static inline bool ascii_is_upper(char letter)
{
	return letter >= 'A' && letter <= 'Z';
}

static inline char ascii_to_lower(char letter)
{
	if (ascii_is_upper(letter))
		return (char)(letter - 'A' + 'a');
	return letter;
}

#endif
