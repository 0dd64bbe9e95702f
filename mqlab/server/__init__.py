"""OpenAI routes over a Frontend; no engine logic, no torch."""
