# The Debian packages, for both architectures, and what proves them.
DEB_PRODUCTS := $(PRODUCTS) $(patsubst $(BUILD)/%,$(BUILD)/aarch64/%,$(PRODUCTS))

.PHONY: deb test-deb

# SETUP has no value yet where make reads this, and these rules are read at once.
$(DEB_PRODUCTS): | $(VENV)/.setup-base

deb: $(VENV)/.setup-base $(DEB_PRODUCTS)
	scripts/setup deb
	packaging/deb/build --products "$(notdir $(PRODUCTS))" $(BUILD)/deb
	lintian --fail-on error,warning $(BUILD)/deb/*.deb
	@ls $(BUILD)/deb/*.deb

# Fresh Debian roots: installed, upgraded under load, downgraded, removed, purged.
test-deb: deb $(PRODUCTS) $(FAKES)
	$(PY) -m pytest -q -m deb
