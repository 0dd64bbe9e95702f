"""The measurements of the documents that the layouts come from, made again: what they reported, what is seen here."""
