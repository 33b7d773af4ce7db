"""Workers of an elastic job, in which the number of workers changes while it runs; see docs/horovod_elastic.md."""

from lockstep._src.engine.elastic import Change, Member, Place, has_lost_peers, member
from lockstep._src.engine.elastic import join_round as meet

__all__ = ["Change", "Member", "Place", "has_lost_peers", "meet", "member"]
