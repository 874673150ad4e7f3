/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <string.h>

void text_add_bytes(struct text *text, const char *bytes, size_t length)
{
	size_t room = text->size - text->used - 1;

	if (length > room) {
		text->cut = true;
		length = room;
	}
	memcpy(text->bytes + text->used, bytes, length);
	text->used += length;
	text->bytes[text->used] = '\0';
}

void text_add(struct text *text, const char *string)
{
	text_add_bytes(text, string, strlen(string));
}

void text_add_number(struct text *text, unsigned long number, int width)
{
	char digits[24];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + number % 10);
		number /= 10;
		width--;
	} while (at > 0 && (number > 0 || width > 0));
	text_add_bytes(text, digits + at, sizeof(digits) - at);
}

void text_add_quoted(struct text *text, const char *line)
{
	text_add(text, "\"");
	for (; *line != '\0'; line++) {
		if (*line == '"' || *line == '\\')
			text_add(text, "\\");
		text_add_bytes(text, line, 1);
	}
	text_add(text, "\"");
}

/* The length in bytes of the UTF-8 character at `at`, 0 when there is none.
 * Source: Unicode 15, table 3-7, well-formed UTF-8 byte sequences. */
static size_t character(const unsigned char *at)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t length;

	if (at[0] < 0x80)
		return 1;
	if (at[0] >= 0xc2 && at[0] <= 0xdf)
		length = 2;
	else if (at[0] >= 0xe0 && at[0] <= 0xef)
		length = 3;
	else if (at[0] >= 0xf0 && at[0] <= 0xf4)
		length = 4;
	else
		return 0;
	if (at[0] == 0xe0)
		low = 0xa0;
	else if (at[0] == 0xed)
		high = 0x9f;
	else if (at[0] == 0xf0)
		low = 0x90;
	else if (at[0] == 0xf4)
		high = 0x8f;
	if (at[1] < low || at[1] > high)
		return 0;
	for (size_t i = 2; i < length; i++)
		if (at[i] < 0x80 || at[i] > 0xbf)
			return 0;
	return length;
}

void text_clean(char *string)
{
	unsigned char *at = (unsigned char *)string;

	while (*at != '\0') {
		size_t length = character(at);

		if (length == 0)
			*at++ = '?';
		else if (*at < ' ' || *at == 0x7f)
			*at++ = ' ';
		else
			at += length;
	}
}
