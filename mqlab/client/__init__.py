"""The contract between everything above tokens and an engine, and wrappers that obey it."""
