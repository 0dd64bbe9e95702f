"""Ids to text and back: tokenizer, chat templates, incremental detokenising, stop strings."""
