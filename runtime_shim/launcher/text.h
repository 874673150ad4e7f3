/* SPDX-License-Identifier: Apache-2.0
 *
 * Text built in a buffer of fixed size. No I/O, no heap, no locale.
 */
#ifndef VGPU_LAUNCHER_TEXT_H
#define VGPU_LAUNCHER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
	char *bytes; /* always ends with a NUL, which `used` does not count */
	size_t size;
	size_t used;
	bool cut; /* something did not fit */
};

#define TEXT(buffer) ((struct text){.bytes = (buffer), .size = sizeof(buffer)})

void text_add(struct text *text, const char *string);
void text_add_bytes(struct text *text, const char *bytes, size_t length);

/* Decimal, with leading zeros up to `width` digits. */
void text_add_number(struct text *text, unsigned long number, int width);

/* `line`, a result of text_clean, between double quotes: for JSON and for logrus alike. */
void text_add_quoted(struct text *text, const char *line);

/* Makes `string` one line of valid UTF-8 in place: control characters become spaces, and each byte
 * that belongs to no character a question mark. */
void text_clean(char *string);

#endif
