/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration files, and text on its way to people.
 */
#include "conf.h"

#include "fuzz.h"
#include "text.h"

static void check_conf(char *text, size_t size)
{
	const struct conf conf = conf_parse("source", text);
	const char *const strings[] = {conf.low_level_runtime, conf.gpu_runtime, conf.agent_socket};

	HOLDS(conf.verdict_ms > 0 && conf.verdict_ms <= 86400000);
	HOLDS(conf.absent_ms > 0 && conf.absent_ms <= 86400000);
	HOLDS(conf.agent_socket != NULL);
	for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
		HOLDS(strings[i] == NULL || strcmp(strings[i], CONF_AGENT_SOCKET) == 0 ||
		      (strings[i] >= text && strings[i] < text + size && *strings[i] != '\0'));
}

static void check_text(char *string)
{
	static char small[32], large[1 << 16];
	struct text cut = TEXT(small), quoted = TEXT(large);
	const size_t length = strlen(string);
	char *again;

	text_clean(string);
	HOLDS(strlen(string) == length && is_line(string));
	again = strdup(string);
	HOLDS(again != NULL);
	text_clean(again);
	HOLDS(strcmp(again, string) == 0);
	free(again);
	text_add_quoted(&cut, string);
	HOLDS(cut.used < sizeof(small) && strlen(small) == cut.used);
	text_add_quoted(&quoted, string);
	HOLDS(quoted.cut || quoted.used >= length + 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = string_of(data, size);

	check_conf(text, size + 1);
	free(text);
	text = string_of(data, size);
	check_text(text);
	free(text);
	return 0;
}
