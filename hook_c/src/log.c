// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include "sys.h"

#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static struct {
	struct vgpu_usage *ring;
	unsigned int stderr_level;
	uint32_t refusal_shown;
} sink = {.stderr_level = UINT32_MAX};

void log_start(struct vgpu_usage *ring, unsigned int stderr_level)
{
	__atomic_store_n(&sink.stderr_level, stderr_level, __ATOMIC_RELAXED);
	__atomic_store_n(&sink.ring, ring, __ATOMIC_RELEASE);
}

/* A reader takes an entry only if `number` is the one it expects before and after it has copied
 * the text; a torn text costs one message. */
static void write_ring(struct vgpu_usage *ring, unsigned int level, const char *text)
{
	uint64_t number = __atomic_add_fetch(&ring->ring_next, 1, __ATOMIC_RELAXED);
	struct vgpu_usage_message *message = &ring->ring[(number - 1) % VGPU_RING_ENTRIES];

	__atomic_store_n(&message->number, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	message->level = level;
	message->pid = sys_pid();
	strncpy(message->text, text, sizeof(message->text));
	__atomic_store_n(&message->number, number, __ATOMIC_RELEASE);
}

/* One write() a line, so that lines of several processes do not mix. */
static void write_stderr(const char *text)
{
	char line[256];
	int length = snprintf(line, sizeof(line), "vgpu: %s\n", text);

	if (length > 0 && (size_t)length < sizeof(line) && getauxval(AT_SECURE) == 0)
		sys_write(STDERR_FILENO, line, (size_t)length);
}

void log_text(unsigned int level, const char *text)
{
	struct vgpu_usage *ring = __atomic_load_n(&sink.ring, __ATOMIC_ACQUIRE);

	if (ring != NULL && level > VGPU_RING_DEBUG)
		write_ring(ring, level, text);
	if (level >= __atomic_load_n(&sink.stderr_level, __ATOMIC_RELAXED))
		write_stderr(text);
}

void log_refusal(const struct reason *reason)
{
	char text[VGPU_RING_TEXT_BYTES];

	snprintf(text, sizeof(text), "cuInit is refused: %s", reason->text);
	log_text(VGPU_RING_ERROR, text);
	if (__atomic_exchange_n(&sink.refusal_shown, 1, __ATOMIC_RELAXED) == 0 &&
	    __atomic_load_n(&sink.stderr_level, __ATOMIC_RELAXED) > VGPU_RING_ERROR)
		write_stderr(text);
}
