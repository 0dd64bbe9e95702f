"""mqlab: a research workbench for LLM serving engines."""
