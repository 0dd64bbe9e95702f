"""OpenAI's routes over a Frontend: bodies in, answers and streams out."""
