// SPDX-License-Identifier: Apache-2.0
/* Why something was refused: one sentence, without "error" and without a full stop. */
#ifndef VGPU_REASON_H
#define VGPU_REASON_H

#include <stdbool.h>

struct reason {
	char text[200];
};

/* Writes the sentence and returns false, so that a caller can `return refuse(reason, …)`. */
__attribute__((format(printf, 2, 3))) bool refuse(struct reason *reason, const char *format, ...);

#endif
