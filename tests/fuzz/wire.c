/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets of an agent, and of whoever else answers at its socket; the first byte chooses whether
 * the header is given or made, since no fuzzer guesses a length.
 */
#include "wire.h"

#include "fuzz.h"

static void check_reply(char *packet, size_t size)
{
	const struct reply reply = reply_decode(packet, size);

	switch (reply.kind) {
	case REPLY_REFUSE:
		HOLDS(reply.message > packet && reply.message < packet + size);
		HOLDS(*reply.message != '\0' && is_line(reply.message));
		HOLDS(memchr(reply.message, '\0', (size_t)(packet + size - reply.message)) != NULL);
		break;
	case REPLY_OTHER_MAJOR:
		HOLDS(reply.major != VGPU_LAUNCHER_MAJOR);
		break;
	case REPLY_LOW_LEVEL:
	case REPLY_GPU:
	case REPLY_GARBAGE:
		HOLDS(reply.message == NULL);
		break;
	default:
		HOLDS(false);
	}
}

static void check_request(char *text, size_t size)
{
	static char buffer[256];
	struct text fields = TEXT(buffer);
	char *words[WORDS_MAX + 2];
	const int count = words_of(text, size, words);
	const struct request request = {
		.command = words[0],
		.id = words[0],
		.root = count > 1 ? words[1] : NULL,
		.bundle = count > 2 ? words[2] : words[0],
	};
	const struct launcher_header header = request_encode(&request, &fields);

	HOLDS(header.length == fields.used && fields.used < sizeof(buffer));
	HOLDS(fields.cut || (fields.used > 0 && buffer[fields.used - 1] == '\0'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const size_t rest = size - (size > 0);
	const struct launcher_header header = {
		.magic = VGPU_LAUNCHER_MAGIC,
		.major = VGPU_LAUNCHER_MAJOR,
		.length = (uint32_t)rest,
	};
	const size_t made = size > 0 && data[0] % 2 == 0 ? sizeof(header) : 0;
	char *text = string_of(data, size), *packet = malloc(made + rest + 1);

	check_request(text, size);
	free(text);
	HOLDS(packet != NULL);
	memcpy(packet, &header, made);
	if (rest > 0)
		memcpy(packet + made, data + 1, rest);
	/* The byte behind it belongs to nobody's packet. */
	packet[made + rest] = 'x';
	check_reply(packet, made + rest);
	free(packet);
	return 0;
}
