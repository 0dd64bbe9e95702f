"""The core: policy only. Scheduler, KV blocks, sequences; numpy at most, no sockets, no asyncio, no threads."""
