// SPDX-License-Identifier: Apache-2.0
/* What was promised to this container, by card: the limits file, or in developer mode the
 * environment. The agent may change the numbers at any time, never the set of cards. */
#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include "reason.h"
#include "vgpu_abi.h"

#define LIMITS_NONE UINT64_MAX /* developer mode: no memory limit on this card */

/* The last good copy of one card. The numbers are read and written one by one: a limit that is
 * already the new one beside an overhead that is still the old one harms nobody. */
struct limits_card {
	uint8_t uuid[16];
	uint64_t memory_bytes;
	uint64_t overhead_bytes;
	uint64_t context_bytes;
	uint32_t cores_percent; /* developer mode; the file's are read where they are needed */
};

struct limits {
	const struct vgpu_limits *file; /* NULL in developer mode; not unmapped once it is used */
	uint32_t seq;                   /* of the file at the last good copy */
	unsigned int count;
	struct limits_card card[VGPU_MAX_DEVICES];
};

/* Maps the file and takes the first copy. False: it is missing or not what it must be. One thread.
 */
bool limits_open(struct limits *limits, const char *path, struct reason *reason);

/* As if it had never been opened; nobody uses it yet. */
void limits_close(struct limits *limits);

/* Takes a new copy if the file has changed; keeps the old one if the writer does not come to an
 * end. Costs one load when nothing has changed. Any thread. */
void limits_refresh(struct limits *limits);

/* The index of the card in the limits and in the usage file, -1 for a card not promised. */
int limits_find(const struct limits *limits, const uint8_t uuid[16]);

static inline uint64_t limits_load(const uint64_t *number)
{
	return __atomic_load_n(number, __ATOMIC_RELAXED);
}

#endif
