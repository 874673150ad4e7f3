/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: points of the simulated time line.
 */
#ifndef FAKE_GPU_EVENT_H
#define FAKE_GPU_EVENT_H

#include "driver.h"

struct context;
struct graph;

struct event {
	uint32_t magic;
	unsigned int flags;
	bool recorded;
	const struct context *context; /* whose streams it may be recorded in */
	uint64_t time_ns;
	struct graph *capture; /* recorded in a stream that was being captured */
	uint64_t capture_number;
	struct event *next; /* of the spare ones */
};

bool event_valid(const struct event *event);

#endif
