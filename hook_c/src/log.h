// SPDX-License-Identifier: Apache-2.0
/* Messages go to the ring in the usage file; to stderr only in developer mode.
 *
 * Any thread may log at any time. Nothing is allocated. */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include "reason.h"
#include "vgpu_abi.h"

/* Where messages go from now on. `ring` may be NULL; a level above VGPU_RING_ERROR keeps stderr
 * silent. */
void log_start(struct vgpu_usage *ring, unsigned int stderr_level);

void log_text(unsigned int level, const char *text);

#define log_write(level, ...)                                                                      \
	do {                                                                                       \
		char log_line[VGPU_RING_TEXT_BYTES];                                               \
                                                                                                   \
		(void)snprintf(log_line, sizeof(log_line), __VA_ARGS__);                           \
		log_text(level, log_line);                                                         \
	} while (0)
#define log_debug(...) log_write(VGPU_RING_DEBUG, __VA_ARGS__)
#define log_warning(...) log_write(VGPU_RING_WARNING, __VA_ARGS__)
#define log_error(...) log_write(VGPU_RING_ERROR, __VA_ARGS__)

/* The one line on stderr of a cuInit that is refused: once a process, never under AT_SECURE. */
void log_refusal(const struct reason *reason);

#endif
