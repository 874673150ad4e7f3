// SPDX-License-Identifier: Apache-2.0
#include "limits.h"

#include "sys.h"

#include <string.h>
#include <sys/stat.h>

/* The writer needs well under a microsecond; one that was stopped in the middle is not waited
 * for when there is a good copy. */
#define REFRESH_TRIES 64
#define OPEN_TRIES 1000
#define OPEN_WAIT_NS 50000 /* 50 ms in all */

static bool map_file(struct limits *limits, int fd, struct reason *reason)
{
	struct stat status = {0};
	int error = sys_fstat(fd, &status);

	if (error != 0)
		return refuse(reason, "the limits file: %s", strerror(-error));
	if (status.st_size < (off_t)sizeof(struct vgpu_limits))
		return refuse(reason, "the limits file has %lld bytes of %zu",
			      (long long)status.st_size, sizeof(struct vgpu_limits));
	limits->file = sys_map(sizeof(struct vgpu_limits), PROT_READ, fd);
	return limits->file != NULL || refuse(reason, "the limits file cannot be mapped");
}

/* Copies the numbers of all cards, or none: false while the writer is at work, or for numbers
 * that nobody may write. */
static bool take_copy(struct limits *limits, unsigned int tries)
{
	const struct vgpu_limits *file = limits->file;
	struct limits_card copy[VGPU_MAX_DEVICES] = {0};

	while (tries-- > 0) {
		uint32_t before = __atomic_load_n(&file->seq, __ATOMIC_ACQUIRE);

		if (before % 2 != 0)
			continue;
		for (unsigned int i = 0; i < limits->count; i++) {
			const struct vgpu_limits_device *dev = &file->dev[i];

			copy[i].memory_bytes = limits_load(&dev->memory_bytes);
			copy[i].overhead_bytes = limits_load(&dev->overhead_bytes);
			copy[i].context_bytes = limits_load(&dev->context_bytes);
		}
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&file->seq, __ATOMIC_RELAXED) != before)
			continue;
		for (unsigned int i = 0; i < limits->count; i++) {
			struct limits_card *card = &limits->card[i];

			if (copy[i].memory_bytes == 0)
				return false;
			__atomic_store_n(&card->memory_bytes, copy[i].memory_bytes,
					 __ATOMIC_RELAXED);
			__atomic_store_n(&card->overhead_bytes, copy[i].overhead_bytes,
					 __ATOMIC_RELAXED);
			__atomic_store_n(&card->context_bytes, copy[i].context_bytes,
					 __ATOMIC_RELAXED);
		}
		__atomic_store_n(&limits->seq, before, __ATOMIC_RELEASE);
		return true;
	}
	return false;
}

static bool check_header(const struct vgpu_header *header, struct reason *reason)
{
	if (header->magic != VGPU_LIMITS_MAGIC)
		return refuse(reason, "the limits file is none: it begins with 0x%08x",
			      header->magic);
	if (header->major != VGPU_ABI_MAJOR)
		return refuse(reason, "the limits file has version %u.%u, this library knows %d.x",
			      header->major, header->minor, VGPU_ABI_MAJOR);
	if (header->size < sizeof(struct vgpu_limits))
		return refuse(reason, "the limits file calls itself %u bytes of %zu", header->size,
			      sizeof(struct vgpu_limits));
	return true;
}

static bool read_file(struct limits *limits, struct reason *reason)
{
	if (!check_header(&limits->file->header, reason))
		return false;

	for (unsigned int tries = 0; tries < OPEN_TRIES; tries++) {
		limits->count = __atomic_load_n(&limits->file->ndev, __ATOMIC_RELAXED);
		if (limits->count == 0 || limits->count > VGPU_MAX_DEVICES)
			return refuse(reason, "the limits file names %u cards", limits->count);
		for (unsigned int i = 0; i < limits->count; i++)
			memcpy(limits->card[i].uuid, limits->file->dev[i].uuid, 16);
		if (take_copy(limits, REFRESH_TRIES))
			return true;
		sys_sleep_ns(OPEN_WAIT_NS);
	}
	return refuse(reason, "the limits file promises no memory, or its writer stopped halfway");
}

bool limits_open(struct limits *limits, const char *path, struct reason *reason)
{
	int fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);

	if (fd < 0)
		return refuse(reason, "%s: %s", path, strerror(-fd));
	bool is_mapped = map_file(limits, fd, reason);

	sys_close(fd);
	if (is_mapped && read_file(limits, reason))
		return true;
	limits_close(limits);
	return false;
}

void limits_close(struct limits *limits)
{
	if (limits->file != NULL)
		sys_unmap((void *)limits->file, sizeof(*limits->file)); /* NOLINT */
	*limits = (struct limits){.file = NULL};
}

void limits_refresh(struct limits *limits)
{
	if (limits->file == NULL || __atomic_load_n(&limits->file->seq, __ATOMIC_ACQUIRE) ==
					    __atomic_load_n(&limits->seq, __ATOMIC_ACQUIRE))
		return;
	take_copy(limits, REFRESH_TRIES);
}

int limits_find(const struct limits *limits, const uint8_t uuid[16])
{
	for (unsigned int i = 0; i < limits->count; i++)
		if (memcmp(limits->card[i].uuid, uuid, 16) == 0)
			return (int)i;
	return -1;
}
