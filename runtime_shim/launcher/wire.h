/* SPDX-License-Identifier: Apache-2.0
 *
 * The packets of protocol.h, to and from bytes. No I/O.
 */
#ifndef VGPU_LAUNCHER_WIRE_H
#define VGPU_LAUNCHER_WIRE_H

#include "protocol.h"
#include "text.h"

#include <stdbool.h>
#include <stddef.h>

struct request {
	const char *command;
	const char *id;
	const char *root;        /* absolute; NULL when not given, as pid_file */
	const char *runtime_dir; /* absolute; NULL when there is none, or a root */
	const char *bundle;
	const char *pid_file;
};

/* Appends the request's fields; returns its header. */
struct launcher_header request_encode(const struct request *request, struct text *fields);

enum reply_kind {
	REPLY_LOW_LEVEL,
	REPLY_GPU,
	REPLY_REFUSE,
	REPLY_OTHER_MAJOR, /* `major` and `minor` are the agent's */
	REPLY_GARBAGE,
};

struct reply {
	enum reply_kind kind;
	char *message; /* of REPLY_REFUSE: within the packet, one clean line */
	unsigned major, minor;
};

/* Reads a whole packet, which it may change. */
struct reply reply_decode(char *packet, size_t length);

#endif
