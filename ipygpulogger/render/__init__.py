"""Turn records into strings; nothing here prints, displays or measures."""
