/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "check.h"

#include <stdlib.h>

/* Decodes a reply in a block of its own size, so that the sanitizer sees a read beyond. */
static struct reply decode(struct launcher_header header, const char *fields, size_t length)
{
	static char *packet;

	free(packet);
	packet = malloc(sizeof(header) + length);
	if (packet == NULL)
		abort();
	memcpy(packet, &header, sizeof(header));
	memcpy(packet + sizeof(header), fields, length);
	return reply_decode(packet, sizeof(header) + length);
}

static struct launcher_header header_for(size_t length)
{
	return (struct launcher_header){
		.magic = VGPU_LAUNCHER_MAGIC,
		.major = VGPU_LAUNCHER_MAJOR,
		.minor = VGPU_LAUNCHER_MINOR,
		.length = (uint32_t)length,
	};
}

#define DECODE(fields) decode(header_for(sizeof(fields) - 1), fields, sizeof(fields) - 1)

static void test_request(void)
{
	static const char want[] = "command=create\0id=c1\0bundle=/b";
	char buffer[256];
	struct text fields = TEXT(buffer);
	struct request request = {.command = "create", .id = "c1", .bundle = "/b"};
	struct launcher_header header = request_encode(&request, &fields);

	CHECK(fields.used == sizeof(want) && memcmp(fields.bytes, want, sizeof(want)) == 0);
	CHECK(header.length == sizeof(want));
	static const char rest[] = "root=/r\0runtime_dir=/x\0pid_file=/p";
	struct text more = TEXT(buffer);

	request_encode(&(struct request){.root = "/r", .runtime_dir = "/x", .pid_file = "/p"},
		       &more);
	CHECK(more.used == sizeof(rest) && memcmp(more.bytes, rest, sizeof(rest)) == 0);
	CHECK(header.magic == VGPU_LAUNCHER_MAGIC && header.major == VGPU_LAUNCHER_MAJOR);
}

static void test_verdicts(void)
{
	CHECK(DECODE("verdict=low-level\0").kind == REPLY_LOW_LEVEL);
	CHECK(DECODE("verdict=gpu\0").kind == REPLY_GPU);
	CHECK(DECODE("newer=1\0verdict=gpu\0x\0").kind == REPLY_GPU);

	struct reply reply = DECODE("verdict=refuse\0message=vgpu: no\nroom\0");

	CHECK(reply.kind == REPLY_REFUSE);
	CHECK(same(reply.message, "vgpu: no room"));
}

static void test_newer_minor_is_understood(void)
{
	static const char fields[] = "verdict=low-level";
	struct launcher_header header = header_for(sizeof(fields));

	header.minor = 9;
	CHECK(decode(header, fields, sizeof(fields)).kind == REPLY_LOW_LEVEL);
}

static void test_other_major(void)
{
	struct launcher_header header = header_for(99);
	struct reply reply;

	header.major = 2;
	header.minor = 3;
	reply = decode(header, "x", 1);
	CHECK(reply.kind == REPLY_OTHER_MAJOR && reply.major == 2 && reply.minor == 3);
}

static void test_garbage(void)
{
	static const char fields[] = "verdict=low-level";
	struct launcher_header header = header_for(sizeof(fields));
	char bytes[sizeof(header)];

	CHECK(reply_decode(bytes, 0).kind == REPLY_GARBAGE);
	CHECK(reply_decode(memset(bytes, 'x', sizeof(bytes)), sizeof(bytes)).kind == REPLY_GARBAGE);
	CHECK(decode(header_for(0), "", 0).kind == REPLY_GARBAGE);
	CHECK(decode(header, fields, sizeof(fields) - 1).kind == REPLY_GARBAGE);
	CHECK(decode(header_for(sizeof(fields) - 1), fields, sizeof(fields) - 1).kind ==
	      REPLY_GARBAGE); /* no NUL at its end */
	header.magic++;
	CHECK(decode(header, fields, sizeof(fields)).kind == REPLY_GARBAGE);
	CHECK(DECODE("message=x\0").kind == REPLY_GARBAGE);
	CHECK(DECODE("verdict=\0").kind == REPLY_GARBAGE);
	CHECK(DECODE("verdict=allow\0").kind == REPLY_GARBAGE);
	CHECK(DECODE("verdict=refuse\0").kind == REPLY_GARBAGE);
	CHECK(DECODE("verdict=refuse\0message=\0").kind == REPLY_GARBAGE);
}

int main(void)
{
	test_request();
	test_verdicts();
	test_newer_minor_is_understood();
	test_other_major();
	test_garbage();
	return checks_end();
}
