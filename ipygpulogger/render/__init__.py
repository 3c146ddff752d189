"""Records in, strings out; nothing here prints, displays or measures."""
