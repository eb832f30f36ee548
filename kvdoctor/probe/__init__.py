"""The fragmentation probe: measures what one device and torch's own allocator give, beside a live server, within
guards.
"""
