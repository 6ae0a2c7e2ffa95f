# package.mk: what is built, brought to where it is used: make install, make deb. Included by the Makefile.
# Everything goes below $(DESTDIR)$(PREFIX); manual pages and completions come out of the program's own tables.

MAN  = $(DESTDIR)$(PREFIX)/share/man/man1
BASH = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH  = $(DESTDIR)$(PREFIX)/share/zsh/$(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
FISH = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

.PHONY: install install-files uninstall deb deb-chroot
install: build ## copy program, library, headers, manual pages and completions below $(DESTDIR)$(PREFIX)
	@$(MAKE) --no-print-directory install-files

install-files:
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig \
	    $(DESTDIR)$(PREFIX)/share/mlx-bun/fidelity $(MAN) $(BASH) $(ZSH) $(FISH)
	install -m 644 tests/golden/fidelity/texts/*.txt $(DESTDIR)$(PREFIX)/share/mlx-bun/fidelity/
	install -m 755 $(BUILD)/mlx-bun $(DESTDIR)$(PREFIX)/bin/mlx-bun
	install -m 644 include/mlxbun.h include/mlxbun_status.h $(DESTDIR)$(PREFIX)/include/
	install -m 755 $(BUILD)/libmlxbun.so $(DESTDIR)$(PREFIX)/lib/libmlxbun.so.0
	ln -sf libmlxbun.so.0 $(DESTDIR)$(PREFIX)/lib/libmlxbun.so
	if [ -f $(BUILD)/libmlxbun-cuda.so ]; then install -m 755 $(BUILD)/libmlxbun-cuda.so $(DESTDIR)$(PREFIX)/lib/; fi
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: mlxbun' \
	    'Description: Local language models from MLX checkpoints' 'Version: $(VERSION)' \
	    'Libs: -L$${libdir} -lmlxbun' 'Cflags: -I$${includedir}' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/mlxbun.pc
	@set -e; $(BUILD)/mlx-bun help --man > $(MAN)/mlx-bun.1; \
	verbs=$$($(BUILD)/mlx-bun help | sed -n 's/^  \([a-z-]*\) .*/\1/p'); test -n "$$verbs"; \
	for v in $$verbs; do $(BUILD)/mlx-bun help $$v --man > $(MAN)/mlx-bun-$$v.1; done
	$(BUILD)/mlx-bun completion bash > $(BASH)/mlx-bun
	$(BUILD)/mlx-bun completion zsh > $(ZSH)/_mlx-bun
	$(BUILD)/mlx-bun completion fish > $(FISH)/mlx-bun.fish

uninstall: ## remove what `make install` has copied
	rm -f $(DESTDIR)$(PREFIX)/bin/mlx-bun $(DESTDIR)$(PREFIX)/include/mlxbun.h $(DESTDIR)$(PREFIX)/include/mlxbun_status.h \
	    $(DESTDIR)$(PREFIX)/lib/libmlxbun.so.0 $(DESTDIR)$(PREFIX)/lib/libmlxbun.so $(DESTDIR)$(PREFIX)/lib/libmlxbun-cuda.so \
	    $(DESTDIR)$(PREFIX)/lib/pkgconfig/mlxbun.pc \
	    $(MAN)/mlx-bun.1 $(MAN)/mlx-bun-*.1 $(BASH)/mlx-bun $(ZSH)/_mlx-bun $(FISH)/mlx-bun.fish
	rm -rf $(DESTDIR)$(PREFIX)/share/mlx-bun

deb: build ## a Debian package with manual pages, completions and a systemd unit: $(BUILD)/mlx-bun_VERSION_ARCH.deb
	@tools/deb $(BUILD) $(VERSION)
deb-chroot: deb ## the package in a clean Debian (root, debootstrap, a mirror): dpkg -i, run, systemd-analyze verify, purge
	@tools/deb-chroot $(BUILD) $(BUILD)/mlx-bun_$(VERSION)_$$(dpkg --print-architecture).deb
