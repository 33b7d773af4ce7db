"""Launchers of other projects as spellings of this one: Horovod's `horovodrun` and `horovod.run`, and DeepRec's."""
