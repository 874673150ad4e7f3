/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include "check.h"

static const char *clean(const char *string)
{
	static char copy[256];

	snprintf(copy, sizeof(copy), "%s", string);
	text_clean(copy);
	return copy;
}

static const char *number(unsigned long value, int width)
{
	static char buffer[32];
	struct text text = TEXT(buffer);

	text_add_number(&text, value, width);
	return text.bytes;
}

static void test_numbers(void)
{
	CHECK(same(number(0, 1), "0"));
	CHECK(same(number(7, 2), "07"));
	CHECK(same(number(2026, 4), "2026"));
	CHECK(same(number(18446744073709551615UL, 1), "18446744073709551615"));
}

static void test_what_does_not_fit_is_cut(void)
{
	char buffer[8];
	struct text text = TEXT(buffer);

	text_add(&text, "1234567");
	CHECK(!text.cut);
	text_add(&text, "8");
	CHECK(text.cut);
	CHECK(same(text.bytes, "1234567"));
}

static void test_quoted(void)
{
	char buffer[64];
	struct text text = TEXT(buffer);

	text_add_quoted(&text, "a \"b\" c\\d");
	CHECK(same(text.bytes, "\"a \\\"b\\\" c\\\\d\""));
}

static void test_clean_is_one_line(void)
{
	CHECK(same(clean("a\nb\tc\033[31m\177"), "a b c [31m "));
	CHECK(same(clean(""), ""));
}

static void test_clean_is_utf8(void)
{
	CHECK(same(clean("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
		   "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"));
	CHECK(same(clean("\xff\xfe"), "??"));
	CHECK(same(clean("\xc0\xaf"), "??"));           /* overlong */
	CHECK(same(clean("\xe0\x80\xaf"), "???"));      /* overlong */
	CHECK(same(clean("\xed\xa0\x80"), "???"));      /* surrogate */
	CHECK(same(clean("\xf4\x90\x80\x80"), "????")); /* beyond U+10FFFF */
	CHECK(same(clean("\xf5\x80\x80\x80"), "????"));
	CHECK(same(clean("x\xe2\x82"), "x??")); /* cut */
	CHECK(same(clean("\xf0\x9f\x98"), "???"));
	CHECK(same(clean("\xc3"), "?"));
}

int main(void)
{
	test_numbers();
	test_what_does_not_fit_is_cut();
	test_quoted();
	test_clean_is_one_line();
	test_clean_is_utf8();
	return checks_end();
}
