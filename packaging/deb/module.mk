# The Debian packages, for both architectures, and what proves them.
DEB_PRODUCTS := $(PRODUCTS) $(patsubst $(BUILD)/%,$(BUILD)/aarch64/%,$(PRODUCTS))

.PHONY: deb test-deb

deb: $(SETUP) $(DEB_PRODUCTS)
	scripts/setup deb
	packaging/deb/build --products "$(notdir $(PRODUCTS))" $(BUILD)/deb
	lintian --fail-on error,warning $(BUILD)/deb/*.deb
	@ls $(BUILD)/deb/*.deb

# Fresh Debian roots: installed, upgraded under load, downgraded, removed, purged.
test-deb: deb $(PRODUCTS) $(FAKES)
	$(PY) -m pytest -q -m deb
