/* SPDX-License-Identifier: Apache-2.0 */
#include "conf.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define CONF_BYTES 16384
#define SUFFIX ".conf"

static bool is_digit(char byte)
{
	return byte >= '0' && byte <= '9';
}

/* Sets *ms from seconds like "10" or "2.5", at most a day; leaves it alone when `value` is no such
 * number or zero. */
static void parse_seconds(const char *value, unsigned *ms)
{
	unsigned long total = 0;
	unsigned unit = 1000;

	if (!is_digit(*value))
		return;
	for (; is_digit(*value) && total <= 86400; value++)
		total = total * 10 + (unsigned long)(*value - '0');
	total *= unit;
	if (*value == '.')
		while (is_digit(*++value)) {
			unit /= 10;
			total += (unsigned long)(*value - '0') * unit;
		}
	if (*value == '\0' && total > 0 && total <= 86400000)
		*ms = (unsigned)total;
}

/* `text` without the blanks around it; CR counts as one. */
static char *trim(char *text)
{
	size_t length;

	text += strspn(text, " \t\r");
	length = strlen(text);
	while (length > 0 && strchr(" \t\r", text[length - 1]) != NULL)
		length--;
	text[length] = '\0';
	return text;
}

struct conf conf_parse(const char *source, char *text)
{
	struct conf conf = {
		.source = source,
		.agent_socket = CONF_AGENT_SOCKET,
		.verdict_ms = 10000,
		.absent_ms = 5000,
	};
	char *line;

	while ((line = strsep(&text, "\n")) != NULL) {
		char *value = strchr(line, '=');
		const char *key;

		if (value == NULL)
			continue;
		*value = '\0';
		value = trim(value + 1);
		key = trim(line);
		if (*value == '\0')
			continue;
		if (strcmp(key, "low_level_runtime") == 0)
			conf.low_level_runtime = value;
		else if (strcmp(key, "gpu_runtime") == 0)
			conf.gpu_runtime = value;
		else if (strcmp(key, "agent_socket") == 0)
			conf.agent_socket = value;
		else if (strcmp(key, "verdict_seconds") == 0)
			parse_seconds(value, &conf.verdict_ms);
		else if (strcmp(key, "absent_seconds") == 0)
			parse_seconds(value, &conf.absent_ms);
	}
	return conf;
}

/* Reads the file into `text`, NUL-terminated; false when it is not there, unreadable or too big.
 * O_NONBLOCK: a FIFO in its place must not stop a command. */
static bool read_file(const char *path, char text[CONF_BYTES])
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	ssize_t length;

	if (fd < 0)
		return false;
	length = read(fd, text, CONF_BYTES);
	close(fd);
	if (length < 0 || length == CONF_BYTES)
		return false;
	text[length] = '\0';
	return true;
}

struct conf conf_load(void)
{
	static char text[CONF_BYTES];
	static char path[PATH_MAX + sizeof(SUFFIX)];
	ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);

	if (length > 0) {
		memcpy(path + length, SUFFIX, sizeof(SUFFIX));
		if (read_file(path, text))
			return conf_parse(path, text);
	}
	if (!read_file(CONF_PATH, text))
		text[0] = '\0';
	return conf_parse(CONF_PATH, text);
}
