/* SPDX-License-Identifier: Apache-2.0 */
#include "marks.h"

#include <stdint.h>
#include <string.h>

#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))

struct mark {
	const char *text;
	unsigned kind;
};

static const struct mark marks[] = {
	{"\"VGPU_CONTAINER_UUID=", MARK_MANAGED},
	{"\"VGPU_MEMORY=", MARK_MANAGED},
	{"\"VGPU_CORES=", MARK_MANAGED},
	{"\"VGPU_COUNT=", MARK_MANAGED},
	{"\"VGPU_", MARK_ASK},
	{"NVIDIA_", MARK_NVIDIA},
	{"nvidia-container-",
	 MARK_DEVICE}, /* device-list mounts, and the hook of `docker --gpus` */
	{"nvidia.com/", MARK_DEVICE},
	{"cdi.k8s.io", MARK_DEVICE},
	{"/dev/nvidia", MARK_DEVICE},
};

/* Keys and values outside strings. Type "a", which is also the type of a rule without one, opens
 * every device whatever its numbers; type "c" does so without a major number. Go's writers leave
 * out what is not set, and write keys in the order of its types ("allow" first, "access" last) or
 * sorted ("access", "allow", …, "type"). */
static const struct mark structures[] = {
	{"\"major\":195", MARK_DEVICE},
	{"\"major\":-", MARK_ALLOW_ALL},
	{"\"type\":\"a\"", MARK_ALLOW_ALL},
	{"\"type\":\"\"", MARK_ALLOW_ALL},
	{"\"allow\":true,\"access\"", MARK_ALLOW_ALL},
	{"\"allow\":true,\"major\"", MARK_ALLOW_ALL},
	{"\"allow\":true,\"minor\"", MARK_ALLOW_ALL},
	{"\"allow\":true,\"type\":\"c\",\"minor\"", MARK_ALLOW_ALL},
	{"\"allow\":true,\"type\":\"c\",\"access\":\"r", MARK_ALLOW_ALL},
	{"\"allow\":true,\"type\":\"c\",\"access\":\"w", MARK_ALLOW_ALL},
	{"\"allow\":true,\"type\":\"c\",\"access\":\"mr", MARK_ALLOW_ALL},
	{"\"allow\":true,\"type\":\"c\",\"access\":\"mw", MARK_ALLOW_ALL},
	{"\"allow\":true,\"type\":\"c\"}", MARK_ALLOW_ALL},
	{"\"allow\":true}", MARK_ALLOW_ALL},
};

static bool has(const char *at, const char *end, const char *text)
{
	for (; *text != '\0'; at++, text++)
		if (at == end || *at != *text)
			return false;
	return true;
}

static char lower(char byte)
{
	return (char)(byte >= 'A' && byte <= 'Z' ? byte | 0x20 : byte);
}

/* As `has`, with JSON's blanks anywhere and keys in any case, as Go's decoder takes them. */
static bool has_structure(const char *at, const char *end, const char *text)
{
	for (; *text != '\0'; at++, text++) {
		while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
			at++;
		if (at == end || lower(*at) != *text)
			return false;
	}
	return true;
}

/* Whether the string at `at` names a card by its UUID before it ends. *searched is how far that is
 * known: a string full of the variable's name must not be read again for each, and once is enough.
 */
static bool names_card(const char *at, const char *end, const char **searched)
{
	if (at < *searched)
		return false;
	for (; at < end && *at != '"'; at++)
		if (has(at, end, "GPU-") || has(at, end, "MIG-")) {
			*searched = end;
			return true;
		}
	*searched = at;
	return false;
}

static int hex(char byte)
{
	if (byte >= '0' && byte <= '9')
		return byte - '0';
	byte = lower(byte);
	return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* What the escape at `at`, a backslash, may hide. Writers escape quote, backslash, control
 * characters, Go's also <, > and &; nobody needs to escape another ASCII character. */
static unsigned hidden(const char *at, const char *end)
{
	int code = 0;

	if (end - at >= 2 && at[1] == '/')
		return MARK_DEVICE;
	if (end - at < 6 || at[1] != 'u')
		return 0;
	for (size_t i = 2; i < 6; i++) {
		if (hex(at[i]) < 0)
			return 0;
		code = code * 16 + hex(at[i]);
	}
	if (code <= ' ' || code >= 0x7f || strchr("\"\\<>&", code) != NULL)
		return 0;
	return MARK_MANAGED;
}

/* Which first bytes of a mark go with which second ones: a bit for each first byte. Two look-ups
 * rule out nearly every byte of a config.json, however many marks there are. */
enum { QUOTE = 1, UPPER_N = 2, LOWER_N = 4, LOWER_C = 8, SLASH = 16 };

static const uint8_t first[UINT8_MAX + 1] = {
	['"'] = QUOTE, ['N'] = UPPER_N, ['n'] = LOWER_N, ['c'] = LOWER_C, ['/'] = SLASH,
};

static const uint8_t second[UINT8_MAX + 1] = {
	['V'] = QUOTE | UPPER_N, ['v'] = LOWER_N, ['d'] = LOWER_C | SLASH,
	['m'] = QUOTE,           ['M'] = QUOTE,   ['a'] = QUOTE,
	['A'] = QUOTE,           ['t'] = QUOTE,   ['T'] = QUOTE,
};

static unsigned mark_at(const char *at, const char *end, const char **searched)
{
	unsigned found = 0;

	for (size_t i = 0; i < ARRAY_LEN(marks); i++)
		if (has(at, end, marks[i].text))
			found |= marks[i].kind;
	for (size_t i = 0; i < ARRAY_LEN(structures); i++)
		if (has_structure(at, end, structures[i].text))
			found |= structures[i].kind;
	if (has(at, end, "NVIDIA_VISIBLE_DEVICES=") && names_card(at, end, searched))
		found |= MARK_DEVICE;
	return found;
}

unsigned marks_find(const char *bytes, size_t length)
{
	const char *end = bytes + length, *searched = bytes;
	unsigned found = 0;

	/* Nothing that is searched for is a single byte. */
	for (const char *at = bytes; end - at > 1 && (found & MARK_MANAGED) == 0; at++) {
		if (*at == '\\')
			found |= hidden(at++, end); /* the escaped byte begins nothing */
		else if ((first[(unsigned char)at[0]] & second[(unsigned char)at[1]]) != 0)
			found |= mark_at(at, end, &searched);
	}
	return found;
}
