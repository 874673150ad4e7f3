/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <string.h>

static void add_field(struct text *fields, const char *key, const char *value)
{
	if (value == NULL)
		return;
	text_add(fields, key);
	text_add(fields, "=");
	text_add_bytes(fields, value, strlen(value) + 1);
}

struct launcher_header request_encode(const struct request *request, struct text *fields)
{
	add_field(fields, "command", request->command);
	add_field(fields, "id", request->id);
	add_field(fields, "root", request->root);
	add_field(fields, "runtime_dir", request->runtime_dir);
	add_field(fields, "bundle", request->bundle);
	add_field(fields, "pid_file", request->pid_file);
	return (struct launcher_header){
		.magic = VGPU_LAUNCHER_MAGIC,
		.major = VGPU_LAUNCHER_MAJOR,
		.minor = VGPU_LAUNCHER_MINOR,
		.length = (uint32_t)fields->used,
	};
}

struct reply reply_decode(char *packet, size_t length)
{
	static const struct reply garbage = {.kind = REPLY_GARBAGE};
	struct launcher_header header;
	char *verdict = NULL, *message = NULL;

	if (length < sizeof(header))
		return garbage;
	memcpy(&header, packet, sizeof(header));
	if (header.magic != VGPU_LAUNCHER_MAGIC)
		return garbage;
	/* Another major version may lay out what follows as it likes. */
	if (header.major != VGPU_LAUNCHER_MAJOR)
		return (struct reply){
			.kind = REPLY_OTHER_MAJOR, .major = header.major, .minor = header.minor};
	if (header.length == 0 || header.length != length - sizeof(header) ||
	    packet[length - 1] != '\0')
		return garbage;
	for (char *field = packet + sizeof(header); field < packet + length;
	     field += strlen(field) + 1) {
		if (strncmp(field, "verdict=", 8) == 0)
			verdict = field + 8;
		else if (strncmp(field, "message=", 8) == 0)
			message = field + 8;
	}
	if (verdict == NULL)
		return garbage;
	if (strcmp(verdict, "low-level") == 0)
		return (struct reply){.kind = REPLY_LOW_LEVEL};
	if (strcmp(verdict, "gpu") == 0)
		return (struct reply){.kind = REPLY_GPU};
	if (strcmp(verdict, "refuse") != 0 || message == NULL || *message == '\0')
		return garbage;
	text_clean(message);
	return (struct reply){.kind = REPLY_REFUSE, .message = message};
}
