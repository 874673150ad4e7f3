// SPDX-License-Identifier: Apache-2.0
/* Streams that are being captured. */
#ifndef VGPU_LAUNCH_STREAMS_H
#define VGPU_LAUNCH_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a capture of the process is under way. */
bool is_any_captured(void);

bool stream_is_captured(void *stream);

/* Whether an event in the stream would be captured, or would spoil a capture: the default stream of
 * old waits for every other but the non-blocking ones. Asked in the stream's context. */
bool stream_is_untouchable(void *stream);

#endif
