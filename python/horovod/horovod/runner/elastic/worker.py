"""News of hosts, as a process of an elastic job gets them."""

import enum


class HostUpdateResult(enum.IntFlag):
    """What has become of the hosts."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
