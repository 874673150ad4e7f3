// SPDX-License-Identifier: Apache-2.0
/* Why something was refused: one sentence, without "error" and without a full stop. */
#ifndef VGPU_REASON_H
#define VGPU_REASON_H

#include <stdbool.h>
#include <stdio.h>

struct reason {
	char text[88]; /* fits a message of the ring with a few words before it */
};

#define explain(reason, ...) ((void)snprintf((reason)->text, sizeof((reason)->text), __VA_ARGS__))

/* Writes the sentence and is false, so that a caller can `return refuse(reason, …)`. */
#define refuse(reason, ...) (explain(reason, __VA_ARGS__), false)

#endif
