/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_memory.h"
#include "clock.h"
#include "context.h"
#include "stream.h"

#include <stdlib.h>

struct block {
	uint64_t number; /* never the same twice in a process */
	uint64_t holder; /* instance that has left something in it, or 0 */
	uint64_t user;   /* the last one */
	uint64_t stream; /* where that was */
	uint64_t end_ns; /* when it is over */
	bool chosen;     /* by the launch that is being mapped */
	struct block *next;
};

static struct {
	struct block *blocks;
	uint64_t bytes;
	uint64_t high_bytes;
} memory[FAKE_MAX_CARDS];

static uint64_t made;

static bool is_usable(const struct block *block, uint64_t owner, const struct stream *stream,
		      uint64_t now_ns)
{
	if (block->holder != 0 && block->holder != owner)
		return false;
	return block->end_ns <= now_ns || block->stream == stream->number || block->user == owner;
}

static struct block *find(CUdevice ordinal, uint64_t number)
{
	struct block *block = memory[ordinal].blocks;

	while (block != NULL && block->number != number)
		block = block->next;
	return block;
}

static bool add_block(CUdevice ordinal)
{
	struct block *block = calloc(1, sizeof(*block));

	if (block == NULL)
		return false;
	if (!state_take(device_card(ordinal), HOLDING_MEMORY, GRAPH_BLOCK_BYTES)) {
		free(block);
		return false;
	}
	block->number = ++made;
	block->next = memory[ordinal].blocks;
	memory[ordinal].blocks = block;
	memory[ordinal].bytes += GRAPH_BLOCK_BYTES;
	if (memory[ordinal].bytes > memory[ordinal].high_bytes)
		memory[ordinal].high_bytes = memory[ordinal].bytes;
	return true;
}

/* First its own of the last time, so that nothing has to be mapped anew. */
static size_t choose(CUdevice ordinal, struct graph_mapping *mapping, const struct stream *stream)
{
	uint64_t now_ns = clock_now_ns();
	size_t chosen = 0;

	for (struct block *block = memory[ordinal].blocks; block != NULL; block = block->next)
		block->chosen = false;
	for (size_t i = 0; i < mapping->count; i++) {
		struct block *own = find(ordinal, mapping->block[i]);
		if (own == NULL || own->chosen || !is_usable(own, mapping->owner, stream, now_ns))
			continue;
		own->chosen = true;
		mapping->block[chosen++] = own->number;
	}
	for (struct block *block = memory[ordinal].blocks; block != NULL && chosen < mapping->count;
	     block = block->next) {
		if (block->chosen || !is_usable(block, mapping->owner, stream, now_ns))
			continue;
		block->chosen = true;
		mapping->block[chosen++] = block->number;
	}
	return chosen;
}

bool graph_memory_map(CUdevice ordinal, struct graph_mapping *mapping, const struct stream *stream)
{
	size_t chosen = choose(ordinal, mapping, stream);

	for (; chosen < mapping->count; chosen++) {
		if (!add_block(ordinal))
			return false;
		mapping->block[chosen] = memory[ordinal].blocks->number;
	}
	return true;
}

void graph_memory_use(CUdevice ordinal, const struct graph_mapping *mapping,
		      const struct stream *stream, uint64_t end_ns, bool holds)
{
	for (size_t i = 0; i < mapping->count; i++) {
		struct block *block = find(ordinal, mapping->block[i]);
		if (block == NULL)
			continue;
		block->user = mapping->owner;
		block->stream = stream->number;
		block->end_ns = end_ns;
		block->holder = holds ? mapping->owner : 0;
	}
}

void graph_memory_free(CUdevice ordinal, uint64_t owner, const struct stream *stream)
{
	for (struct block *block = memory[ordinal].blocks; block != NULL; block = block->next) {
		if (block->holder != owner)
			continue;
		block->holder = 0;
		if (stream != NULL) {
			block->stream = stream->number;
			block->end_ns = stream_ready_ns(stream);
		}
	}
}

void graph_memory_trim(CUdevice ordinal, bool all)
{
	uint64_t now_ns = clock_now_ns();

	for (struct block **link = &memory[ordinal].blocks; *link != NULL;) {
		struct block *block = *link;
		if (!all && (block->holder != 0 || block->end_ns > now_ns)) {
			link = &block->next;
			continue;
		}
		*link = block->next;
		free(block);
		memory[ordinal].bytes -= GRAPH_BLOCK_BYTES;
		state_give(device_card(ordinal), HOLDING_MEMORY, GRAPH_BLOCK_BYTES);
	}
}

/* --- entry points --------------------------------------------------------------------------- */

static CUresult enter_device(const char *function, CUdevice device, bool valid)
{
	CUresult status = enter(function, valid);

	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return status;
}

CUDA_API(cuDeviceGraphMemTrim, (CUdevice device))
{
	CUresult status = enter_device(__func__, device, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	graph_memory_trim(device, false);
	return CUDA_SUCCESS;
}

enum { USED_CURRENT = 0, USED_HIGH = 1, RESERVED_CURRENT = 2, RESERVED_HIGH = 3 };

/* What is reserved counts as used until it is trimmed, also when its instance is gone. */
CUDA_API(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, uint64_t *out))
{
	CUresult status = enter_device(__func__, device,
				       out != NULL && attribute >= 0 && attribute <= RESERVED_HIGH);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = attribute == USED_CURRENT || attribute == RESERVED_CURRENT
		       ? memory[device].bytes
		       : memory[device].high_bytes;
	return CUDA_SUCCESS;
}

/* Only a high-water mark can be set, and only to 0. */
CUDA_API(cuDeviceSetGraphMemAttribute, (CUdevice device, int attribute, const uint64_t *value))
{
	CUresult status =
		enter_device(__func__, device,
			     value != NULL && *value == 0 &&
				     (attribute == USED_HIGH || attribute == RESERVED_HIGH));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	memory[device].high_bytes = memory[device].bytes;
	return CUDA_SUCCESS;
}
