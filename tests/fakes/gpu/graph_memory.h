/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of graphs, a device: blocks of the card, and who uses them. A launch needs a block
 * behind every 32 MiB of its graph's addresses. It takes those that the device has, unless
 * something is left allocated there or an unfinished launch of another instance, in another stream,
 * uses them; what it lacks is new. A trim gives back what nobody uses. (bench/gpu/graphs.py, on an
 * H200 with driver 580.)
 */
#ifndef FAKE_GPU_GRAPH_MEMORY_H
#define FAKE_GPU_GRAPH_MEMORY_H

#include "driver.h"

#define GRAPH_BLOCK_BYTES (32 * MIB)

struct region;
struct stream;

/* The blocks that an instance had at its last launch. */
struct graph_mapping {
	uint64_t owner; /* number of the instance */
	uint64_t *block;
	size_t count; /* that it needs */
};

/* All of these: caller holds the driver lock. */

/* Before a launch in that stream; false when the card is full. */
bool graph_memory_map(CUdevice ordinal, struct graph_mapping *mapping, const struct stream *stream);

/* The launch will be over then; `holds`: and leaves something allocated. */
void graph_memory_use(CUdevice ordinal, const struct graph_mapping *mapping,
		      const struct stream *stream, uint64_t end_ns, bool holds);

/* What the instance has left is free when the stream comes to it; NULL: now. */
void graph_memory_free(CUdevice ordinal, uint64_t owner, const struct stream *stream);

/* Gives back what is not in use, or everything. */
void graph_memory_trim(CUdevice ordinal, bool all);

#endif
